"""Devices, links and the host: the hardware that a placement may use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np

from placewright.core.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    frozen_bools,
    frozen_floats,
    frozen_ints,
)
from placewright.core.data_sheet import DataSheet
from placewright.core.pools import Pools, check_pools, shares_of
from placewright.core.processors import check_processors, pairs_that_exclude, users_of_shared
from placewright.errors import ClusterError, UnknownNameError

_NOT_NEGATIVE = (
    "memory_bytes",
    "dispatch_seconds",
    "cut_seconds",
    "cut_seconds_per_byte",
    "layout_seconds",
    "layout_seconds_per_byte",
    "split_share",
)
_AT_LEAST_ONE = ("streams", "replicas", "max_segments", "max_segment_ops")
OCCUPIES = ("nobody", "receiver", "sender", "both")
STREAMED_BY = "streamed by"  # option of a column: the device that copies what rests in its pool
SENDER, RECEIVER = 1, 2  # bits of `Cluster.occupied`
_LARGEST_FACTOR = 1e6
UNIT_SHARE = 0.05  # of units' seconds, as far as they are off beside what cuts and contention add


@dataclass(frozen=True)
class Device:
    """Hardware, or several equal pieces of it, that runs ops.

    Attributes:
        name: unique in its cluster, for example ``"cpu:0"`` or ``"GPU.0"``.
        kind: ``"cpu"``, ``"gpu"``, ``"npu"`` or ``"accelerator"``.
        memory_bytes: resident weights and live tensors must fit into it; inf is no limit.
        streams: ops that run at the same time, >= 1.
        dispatch_seconds: added once per segment.
        cut_seconds: added once per tensor that enters a segment from another segment or device.
        cut_seconds_per_byte: added per byte of such a tensor.
        layout_seconds: added on top where a compute-bound unit made the tensor, whose kernel has a
            layout of its own that has to be left (see `core.graph.is_compute_bound`).
        layout_seconds_per_byte: added per byte of such a tensor.
        memory_domain: devices of one domain slow each other down (see `Cluster.contention`).
        overlaps_transfers: max-load takes the larger of compute and transfers, not their sum.
        pays_transfers: False where max-load does not charge transfers (Tarnawski's CPUs).
        replicas: > 1 where it stands for so many alike devices, each of which holds all that is
            placed here and takes every replicas-th sample; only max-load knows such groups.
        replica_bandwidth: bytes per second between members, for the exchange of gradients; None
            where it is unknown, so that the group can not train.
        members: of a group, the devices that it stands for, in turn; empty where they are not
            known, so that no runtime can run it.
        options: options of the runtime, for example ``{"INFERENCE_PRECISION_HINT": "f32"}``.
        fingerprint: identifies the hardware, driver and options that costs were measured on.
        speed_scatter: share by which 19 in 20 rounds were off calibration's fit; None if unknown.
        data_sheet: peaks that costs without measurement come from; None where there are none.
        pool: name of the memory pool that its bytes come from (see `Cluster.pools`), or of several
            with the share of each; None if it shares its memory with no other device.
        max_segments: segments that it runs at most, >= 1; None is no limit.
        max_segment_ops: ops of one segment at most, >= 1, after which another segment begins; a
            unit with more ops is a segment by itself. None is no limit.
        busy_watts: power while all its streams compute; None if it is not known.
        idle_watts: power at all other times, <= `busy_watts`; None is 0.
        price_per_hour: of this device, in any currency; None if it is not known.
        processors: names of those that compute when it does; empty for one of its own, which has
            its name. Devices with a common processor never compute at once.
        split_share: added to a segment of a split that one thread executes, times the seconds of
            its units.
    """

    name: str
    kind: str = "cpu"
    memory_bytes: float = math.inf
    streams: int = 1
    dispatch_seconds: float = 0.0
    cut_seconds: float = 0.0
    cut_seconds_per_byte: float = 0.0
    layout_seconds: float = 0.0
    layout_seconds_per_byte: float = 0.0
    memory_domain: str | None = None
    overlaps_transfers: bool = False
    pays_transfers: bool = True
    replicas: int = 1
    replica_bandwidth: float | None = None
    members: tuple[Device, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    speed_scatter: float | None = None
    data_sheet: DataSheet | None = None
    pool: Pools = None
    max_segments: int | None = None
    max_segment_ops: int | None = None
    busy_watts: float | None = None
    idle_watts: float | None = None
    price_per_hour: float | None = None
    processors: tuple[str, ...] = ()
    split_share: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ClusterError("a device has an empty name; give it one")
        for what in _AT_LEAST_ONE:
            count = getattr(self, what)
            if count is not None and not (1 <= count < 2**63 and count == count // 1):
                raise ClusterError(f"device '{self.name}': {what} must be whole, >= 1, got {count}")
        if self.members and len(self.members) != self.replicas:
            raise ClusterError(
                f"device '{self.name}' stands for {self.replicas} devices, but has "
                f"{len(self.members)} members; name each of them once"
            )
        for member in self.members:
            if member.replicas > 1:
                raise ClusterError(
                    f"device '{self.name}' has member '{member.name}', which is a group itself; "
                    "name its members instead"
                )
        bandwidth = self.replica_bandwidth
        if bandwidth is not None and not bandwidth > 0:
            raise ClusterError(
                f"device '{self.name}': replica_bandwidth must be > 0 B/s, got {bandwidth}"
            )
        for what in _NOT_NEGATIVE:
            value = getattr(self, what)
            if not value >= 0:
                raise ClusterError(f"device '{self.name}': {what} must be >= 0, got {value}")
            if what != "memory_bytes" and math.isinf(value):
                raise ClusterError(f"device '{self.name}': {what} must be finite, got {value}")
        self._check_charges()

    def _check_charges(self) -> None:
        for what in ("busy_watts", "idle_watts", "price_per_hour", "speed_scatter"):
            value = getattr(self, what)
            if value is not None and not 0 <= value < math.inf:
                raise ClusterError(
                    f"device '{self.name}': {what} must be >= 0 and finite, got {value}"
                )
        busy, idle = self.busy_watts or 0.0, self.idle_watts or 0.0
        if self.busy_watts is not None and idle > busy:
            raise ClusterError(
                f"device '{self.name}': its idle power, {idle:g} W, is above its busy power, "
                f"{busy:g} W; exchange them"
            )

    @property
    def pool_shares(self) -> dict[str, float]:
        """Pool -> share of its bytes, which add up to 1; empty without a pool."""
        return shares_of(self.pool)

    @property
    def limits_segments(self) -> bool:
        """True if the number or the size of its segments is limited."""
        return self.max_segments is not None or self.max_segment_ops is not None

    @property
    def without_overheads(self) -> Device:
        """The same device without the numbers that a calibration measures."""
        return replace(
            self,
            dispatch_seconds=0.0,
            cut_seconds=0.0,
            cut_seconds_per_byte=0.0,
            layout_seconds=0.0,
            layout_seconds_per_byte=0.0,
            speed_scatter=None,
            split_share=0.0,
        )


@dataclass(frozen=True)
class Link:
    """A way for bytes from one device (or the host) to another, in one direction."""

    # source, destination: device names or the host's
    source: str
    destination: str
    latency_seconds: float = 0.0  # per transfer
    bandwidth: float = math.inf  # bytes per second; inf where the two share memory
    # links that name the same channel wait for each other; None is a channel of its own
    channel: str | None = None
    # False where transfers never wait for each other, as list-scheduling papers assume
    queues: bool = True
    # who computes nothing while bytes move, one of `OCCUPIES`; None is open, and counts as nobody
    occupies: str | None = None

    def __post_init__(self) -> None:
        name = f"link {self.source} -> {self.destination}"
        if self.occupies is not None and self.occupies not in OCCUPIES:
            raise UnknownNameError("occupant of a link", self.occupies, OCCUPIES)
        if self.occupied_ends and (self.channel is not None or not self.queues):
            raise ClusterError(
                f"{name}: it occupies {self.occupies}, so that it waits for no channel; leave out "
                "its channel and queues"
            )
        if self.source == self.destination:
            raise ClusterError(f"{name}: source and destination must differ")
        if not (self.latency_seconds >= 0 and math.isfinite(self.latency_seconds)):
            raise ClusterError(f"{name}: latency must be >= 0 s, got {self.latency_seconds}")
        if not self.bandwidth > 0:
            raise ClusterError(f"{name}: bandwidth must be > 0 B/s, got {self.bandwidth}")
        if self.channel is not None and not self.queues:
            raise ClusterError(
                f"{name}: it shares channel '{self.channel}' and does not queue; leave one out"
            )

    @property
    def occupied_ends(self) -> tuple[str, ...]:
        """Names of the devices that compute nothing while bytes move."""
        ends = {"receiver": (self.destination,), "sender": (self.source,)}
        return {**ends, "both": (self.source, self.destination)}.get(self.occupies or "", ())


@dataclass(frozen=True, eq=False)
class Cluster:
    """All devices and links of one system, with the host.

    An *endpoint* is a device or the host's memory: endpoints 0 .. n_devices - 1 are the devices;
    where the host is no device it is endpoint n_devices.

    >>> from placewright.core.cluster import Device, Link
    >>> cluster = pw.Cluster(
    ...     (Device("cpu"), Device("gpu", "gpu", memory_bytes=8e9)),
    ...     (Link("cpu", "gpu", bandwidth=12e9), Link("gpu", "cpu", bandwidth=12e9)),
    ...     host="cpu",
    ... )
    >>> cluster.device_names
    ('cpu', 'gpu')

    Attributes:
        devices: at least one, unique names.
        links: at most one per ordered pair.
        host: name of the memory where graph inputs start and graph outputs must end; a device's
            name or one of its own.
        contention: memory domain -> factors >= 1; entry k multiplies the seconds of every op on
            the domain's devices when a placement uses k + 1 of them (the last entry holds on).
        prediction_error: of calibration's own placements, as a share of what dispatch, cuts and
            contention add (see `report.predicted_gain`); None without a calibration.
        call_seconds: of a call of a loaded plan beyond its units; in no value of a placement.
        pools: memory pool -> bytes, inf is no limit. The peaks of a pool's devices must fit into it
            together, and each device also keeps its own limit. Devices name their pool.
        shares_weights: the devices are threads of one process that read the same weights, so that
            a weight lies in memory once; False if each device has copies of its own.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    host: str = "host"
    contention: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    prediction_error: float | None = None
    pools: Mapping[str, float] = field(default_factory=dict)
    shares_weights: bool = False
    call_seconds: float = 0.0

    def __post_init__(self) -> None:
        own = {name: tuple(row) for name, row in self.contention.items()}
        object.__setattr__(self, "contention", own)
        object.__setattr__(self, "pools", dict(self.pools))  # callers may change theirs later
        if not self.devices:
            raise ClusterError("a cluster needs at least one device")
        if len(self.device_index) < len(self.devices):
            names = [device.name for device in self.devices]
            twice = next(name for name in names if names.count(name) > 1)
            raise ClusterError(f"device name '{twice}' is used twice; names must be unique")
        if any(device.replicas > 1 for device in self.devices if device.name == self.host):
            raise ClusterError(
                f"device '{self.host}' is the host and has replicas; the host is one memory: "
                "give it replicas 1"
            )
        seen: set[tuple[str, str]] = set()
        for link in self.links:
            for end in (link.source, link.destination):
                if end not in self.endpoint_index:
                    raise ClusterError(
                        f"link {link.source} -> {link.destination} names '{end}', which is neither "
                        f"a device nor the host; known: {', '.join(self.endpoint_index)}"
                    )
            if (link.source, link.destination) in seen:
                raise ClusterError(f"link {link.source} -> {link.destination} is given twice")
            seen.add((link.source, link.destination))
            self._check_occupied(link)
        for domain, factors in self.contention.items():
            if not factors or any(not 1 <= f <= _LARGEST_FACTOR for f in factors):
                raise ClusterError(
                    f"contention of '{domain}' must be factors >= 1 and <= {_LARGEST_FACTOR:g}, "
                    f"got {factors}"
                )
        for name in ("prediction_error", "call_seconds"):
            if not 0 <= (getattr(self, name) or 0.0) < math.inf:
                raise ClusterError(f"{name} must be >= 0, got {getattr(self, name)}")
        check_pools(self.pools, self.devices, self.endpoint_index)
        check_processors(self.devices, self.contention)

    def _check_occupied(self, link: Link) -> None:
        """Refuse occupying copies that are part of no unit, or that leave a device free."""
        name = f"link {link.source} -> {link.destination} occupies {link.occupies}"
        if link.occupied_ends and self.host in (link.source, link.destination):
            raise ClusterError(
                f"{name}, and '{self.host}' is the host, where no unit makes or reads graph inputs "
                "and outputs; give the host a memory of its own, or leave `occupies` out"
            )
        for end in link.occupied_ends:
            device = self.devices[self.device_index[end]]
            if device.streams > 1 or device.overlaps_transfers:
                raise ClusterError(
                    f"{name}, and device '{end}' has several streams or overlaps transfers with "
                    "compute, so that it could go on; leave one of the two out"
                )

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names in device order."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def device_index(self) -> dict[str, int]:
        """Name -> device."""
        return {device.name: index for index, device in enumerate(self.devices)}

    @cached_property
    def endpoint_index(self) -> dict[str, int]:
        """Name -> endpoint of the devices, then of the host if it is no device."""
        endpoints = dict(self.device_index)
        endpoints.setdefault(self.host, self.n_devices)
        return endpoints

    @property
    def n_endpoints(self) -> int:
        """Devices, and the host if it is no device."""
        return len(self.endpoint_index)

    @property
    def host_endpoint(self) -> int:
        """Endpoint of the host."""
        return self.endpoint_index[self.host]

    @cached_property
    def link_latency(self) -> FloatArray:
        """Seconds, shape (n_endpoints, n_endpoints); inf where there is no link, 0 to itself."""
        matrix = self._of_links([link.latency_seconds for link in self.links], math.inf)
        np.fill_diagonal(matrix, 0.0)
        return frozen_floats(matrix)

    @cached_property
    def link_seconds_per_byte(self) -> FloatArray:
        """1 / bandwidth, shape (n_endpoints, n_endpoints); inf where there is no link."""
        matrix = self._of_links([1.0 / link.bandwidth for link in self.links], math.inf)
        np.fill_diagonal(matrix, 0.0)
        return frozen_floats(matrix)

    @cached_property
    def link_channel(self) -> IntArray:
        """Channel number, shape (n_endpoints, n_endpoints); -1 where there is no link."""
        number: dict[str | tuple[str, str], int] = {}
        keys = (
            link.channel if link.channel is not None else (link.source, link.destination)
            for link in self.links
        )
        return frozen_ints(
            self._of_links([number.setdefault(key, len(number)) for key in keys], -1)
        )

    @cached_property
    def link_queues(self) -> BoolArray:
        """False where transfers never wait for each other, shape (n_endpoints, n_endpoints)."""
        return frozen_bools(self._of_links([link.queues for link in self.links], True))

    @cached_property
    def occupied(self) -> IntArray:
        """Ends that copies occupy, bits `SENDER` and `RECEIVER`, (n_endpoints, n_endpoints)."""
        bits = {"sender": SENDER, "receiver": RECEIVER, "both": SENDER | RECEIVER}
        return frozen_ints(self._of_links([bits.get(x.occupies or "", 0) for x in self.links], 0))

    def _of_links(self, values: Sequence[float], elsewhere: float) -> np.ndarray:
        """A value for each pair of endpoints: those of the links, and one for all other pairs."""
        matrix = np.full((self.n_endpoints, self.n_endpoints), elsewhere)
        for link, value in zip(self.links, values, strict=True):
            ends = self.endpoint_index[link.source], self.endpoint_index[link.destination]
            matrix[ends] = value
        return matrix

    @property
    def n_channels(self) -> int:
        """Number of channels."""
        return int(self.link_channel.max(initial=-1)) + 1

    @cached_property
    def memory_bytes(self) -> FloatArray:
        """Most bytes that each device can take by its limit and its pools, or inf, (n_devices,)."""
        most = [
            min([device.memory_bytes, *(self.pools[pool] / (part * device.replicas)
                                        for pool, part in device.pool_shares.items())])
            for device in self.devices
        ]  # fmt: skip
        return frozen_floats(most)

    @cached_property
    def shared_pools(self) -> tuple[str, ...]:
        """Names of the pools with a limit that several devices share, in the order of `pools`.

        A pool of one device is a limit of that device, and part of `memory_bytes`.
        """
        used = [pool for device in self.devices for pool in device.pool_shares]
        return tuple(
            name for name, size in self.pools.items() if used.count(name) > 1 and size < math.inf
        )

    @cached_property
    def pool_shares(self) -> FloatArray:
        """Bytes that each shared pool keeps for a byte of each device, (n_pools, n_devices).

        Every member of a group of replicas takes as much as the group's peak says.
        """
        parts = [device.pool_shares for device in self.devices]
        rows = [[own.get(name, 0.0) for own in parts] for name in self.shared_pools]
        return frozen_floats(np.array(rows).reshape(-1, self.n_devices) * self.replicas)

    @cached_property
    def unshared(self) -> FloatArray:
        """Part of each device's bytes that is in no shared pool, shape (n_devices,)."""
        left = 1.0 - (self.pool_shares / self.replicas).sum(axis=0)
        return frozen_floats(np.where(left > 1e-9, left, 0.0))

    @cached_property
    def pool_bytes(self) -> FloatArray:
        """Bytes of each shared pool, shape (n_pools,)."""
        return frozen_floats([self.pools[name] for name in self.shared_pools])

    @cached_property
    def memory_limits(self) -> FloatArray:
        """`memory_bytes`, then `pool_bytes`, shape (n_devices + n_pools,)."""
        return frozen_floats(np.concatenate([self.memory_bytes, self.pool_bytes]))

    def pooled(self, peaks: FloatArray) -> FloatArray:
        """Bytes that the devices of each shared pool take together, shape (n_pools,).

        Args:
            peaks: bytes of each device, shape (n_devices,).
        """
        pools, devices = np.nonzero(self.pool_shares)
        taken = peaks[devices] * self.pool_shares[pools, devices]
        total = np.bincount(pools, taken, minlength=len(self.pool_bytes))
        return np.asarray(total, dtype=np.float64)

    def exceeded_limits(self, peaks: FloatArray) -> list[tuple[str, float, float]]:
        """Device or shared pool, bytes taken and available, for each limit that peaks exceed."""
        names = (*self.device_names, *self.shared_pools)
        taken = [*peaks.tolist(), *self.pooled(peaks).tolist()]
        rows = zip(names, taken, self.memory_limits.tolist(), strict=True)
        return [(name, size, limit) for name, size, limit in rows if size > limit]

    def room(self, devices: BoolArray) -> float:
        """The most bytes that a set of devices can keep together, by all limits.

        Args:
            devices: True for those of the set, shape (n_devices,).
        """
        alone = devices & (self.unshared > 0)
        total = float((self.memory_bytes[alone] * self.unshared[alone]).sum())
        for shares, size in zip(self.pool_shares, self.pool_bytes.tolist(), strict=True):
            members = devices & (shares > 0)
            if members.any():
                part = shares[members] / self.replicas[members]
                own = float((self.memory_bytes[members] * part).sum())
                total += min(own, size / int(self.replicas[members].min()))
        return total

    @cached_property
    def shared_processors(self) -> Mapping[str, tuple[int, ...]]:
        """Processor -> devices that compute on it, for processors of several devices."""
        return users_of_shared(self.devices)

    @cached_property
    def excludes(self) -> BoolArray:
        """True for two devices that never compute at once, shape (n_devices, n_devices)."""
        return pairs_that_exclude(self.devices)

    @cached_property
    def replicas(self) -> IntArray:
        """Alike devices that each device stands for, shape (n_devices,)."""
        return frozen_ints([device.replicas for device in self.devices])

    @cached_property
    def concurrency(self) -> FloatArray:
        """Ops that each device runs at once under max-load, over streams and replicas."""
        streams = [device.streams for device in self.devices]
        return frozen_floats(np.array(streams, dtype=np.float64) * self.replicas)

    @cached_property
    def transfer_share(self) -> FloatArray:
        """Part of the seconds of a transfer that each device pays under max-load, (n_devices,).

        One of `replicas` samples is a member's own; 0 where a device pays no transfers.
        """
        pays = np.array([device.pays_transfers for device in self.devices])
        return frozen_floats(np.where(pays, 1.0 / self.replicas, 0.0))

    @cached_property
    def without_overheads(self) -> Cluster:
        """The same devices and links; dispatch, cuts, contention and calls cost nothing."""
        plain = tuple(device.without_overheads for device in self.devices)
        return replace(self, devices=plain, contention={}, prediction_error=None, call_seconds=0.0)

    @cached_property
    def without_memory_limits(self) -> Cluster:
        """The same devices and links; neither devices nor pools have a limit of memory."""
        devices = tuple(
            replace(device, memory_bytes=math.inf, pool=None) for device in self.devices
        )
        return replace(self, devices=devices, pools={})

    @cached_property
    def limits_segments(self) -> bool:
        """True if a device limits the number or the size of its segments."""
        return any(device.limits_segments for device in self.devices)

    @cached_property
    def without_segment_limits(self) -> Cluster:
        """The same devices and links; a device runs any number of segments of any size."""
        devices = tuple(
            replace(device, max_segments=None, max_segment_ops=None) for device in self.devices
        )
        return replace(self, devices=devices)

    def with_limit(self, name: str, size: float) -> Cluster:
        """The cluster with another limit of a pool, or of a device or all of a pattern, in bytes.

        Raises:
            UnknownNameError: there is no such device or pool.
        """
        if name in self.pools:
            return replace(self, pools={**self.pools, name: size})
        meant = [name] if name in self.device_index else [
            each for each in self.device_names if fnmatchcase(each, name)
        ]  # fmt: skip
        if not meant:
            raise UnknownNameError("device", name, (*self.device_names, *self.pools))
        return replace(self, devices=tuple(
            replace(device, memory_bytes=size) if device.name in meant else device
            for device in self.devices
        ))  # fmt: skip

    def require_single_devices(self, what: str) -> None:
        """Refuse groups of equal devices if only single devices are supported.

        Args:
            what: who refuses, for the message.

        Raises:
            ClusterError: a device has replicas; the message names it.
        """
        for device in self.devices:
            if device.replicas > 1:
                raise ClusterError(
                    f"device '{device.name}' stands for {device.replicas} devices that take turns "
                    f"with the samples: 'max-load' counts that, not {what}; give it replicas 1"
                )

    def require_no_segment_limits(self, what: str) -> None:
        """Refuse limits on segments where segments are not counted.

        Args:
            what: who refuses, for the message.

        Raises:
            ClusterError: a device has such a limit; the message names it.
        """
        for device in self.devices:
            if device.limits_segments:
                raise ClusterError(
                    f"device '{device.name}' limits its segments, which {what} does not count; "
                    "leave out `segments` and `segment_ops`, or use execution model 'event'"
                )

    def device(self, name: str) -> int:
        """Index of the device called `name`.

        Raises:
            UnknownNameError: there is none.
        """
        if name not in self.device_index:
            raise UnknownNameError("device", name, self.device_names)
        return self.device_index[name]
