"""Discovery of this machine's devices, with measured links between them."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue

from placewright.core.cluster import Cluster, Device, Link
from placewright.core.processors import first_on_processors, require_whole_processors
from placewright.errors import ClusterError, UnknownNameError
from placewright.execution.processor import RAM
from placewright.execution.runtime import Runtime

_SMALL, _LARGE = 4 * 1024, 16 * 1024 * 1024
_NO_OPTIONS: Mapping[str, str] = {}
_PROCESSOR = "cpu"
# Execution providers that number the same cards.
_FAMILIES = {
    "CPUExecutionProvider": _PROCESSOR,
    "CUDAExecutionProvider": "nvidia",
    "TensorrtExecutionProvider": "nvidia",
    "NvTensorRTRTXExecutionProvider": "nvidia",
    "ROCMExecutionProvider": "amd",
    "MIGraphXExecutionProvider": "amd",
}
_BACKENDS = ("backend_path", "backend_type")  # options of a provider that name other hardware
_NAMING = ("device_id", "device_type", *_BACKENDS)


def discover(
    devices: str | Sequence[str],
    runtime: Runtime,
    *,
    options: Mapping[str, str] = _NO_OPTIONS,
) -> Cluster:
    """Make a cluster of devices of this machine.

    Args:
        devices: ``"cpu"`` (all threads as one device), ``"cores"`` (one single-thread device per
            core), or names such as ``["cpu:0", "cpu:1", "GPU.0"]`` (also as one text with commas).
        runtime: which will execute plans on them.
        options: for every device, for example ``{"INFERENCE_PRECISION_HINT": "bf16"}``.

    Returns:
        The devices with measured links between every pair, in both directions, and with the host.

    Raises:
        UnknownNameError: there is no such device; the message lists the known ones.
        ClusterError: two devices overlap: a core, or the whole CPU, would be used twice.
    """
    known = _devices_in_ram(runtime)
    chosen = [_named(known, name) for name in _names(devices, known)]
    chosen = [
        runtime.completed(replace(device, options={**device.options, **options}, fingerprint=""))
        for device in chosen
    ]
    check_no_overlap(chosen)
    pooled, pools = _in_pools(chosen, _pools_of(known.values()), {})
    links = tuple(measure_links(chosen, runtime))
    return Cluster(pooled, links, pools=pools, shares_weights=_share_weights(chosen, runtime))


def completed_cluster(
    cluster: Cluster, runtime: Runtime, *, has_links: bool | None = None
) -> Cluster:
    """Complete a cluster that was read from a file.

    Options and fingerprints follow from the device's name, or from that of the processor of a mode.
    Memory, pool and memory domain are those of the machine's device of that name, or of its whole
    CPU. A mode takes all of these from the file's own entry of its processor first. A device that
    the machine knows by its name has the kind that it has there, unless the file gives one. A file
    without links gets measured ones, unless it says that there are none. The runtime says whether
    devices share weights, whatever the file says.

    Args:
        has_links: its links are all that there are; None where it has some.

    Raises:
        UnknownNameError: the runtime has no such device here.
        ClusterError: two devices overlap, or share some of their processors.
    """
    require_whole_processors(cluster.devices, f"runtime '{runtime.name}'")
    known = _devices_in_ram(runtime)
    shared = {device for users in cluster.shared_processors.values() for device in users}
    devices = tuple(
        _completed(_with_own_entry(device, cluster), runtime, known, is_mode=index in shared)
        for index, device in enumerate(cluster.devices)
    )
    check_no_overlap(devices)
    has_links = bool(cluster.links) if has_links is None else has_links
    links = cluster.links
    if not has_links:
        links = tuple(measure_links(devices, runtime, host=cluster.host))
    pooled, pools = _in_pools(devices, _pools_of(known.values()), cluster.pools)
    shares = _share_weights(devices, runtime)
    return replace(cluster, devices=pooled, links=links, pools=pools, shares_weights=shares)


def _with_own_entry(device: Device, cluster: Cluster) -> Device:
    """Give a mode what it leaves open from the cluster's entry of its processor, if there is one.

    It has the name of the processor, and computes on no other.
    """
    for entry in cluster.devices:
        if (entry.name,) == device.processors and entry.processors in ((), device.processors):
            options = {**entry.options, **device.options}
            return _with_memory(replace(device, kind=_kind(device, entry), options=options), entry)
    return device


def _completed(
    device: Device, runtime: Runtime, known: Mapping[str, Device], *, is_mode: bool
) -> Device:
    """Complete a device; one that shares its processor takes what it leaves open from that one.

    It has no memory domain, because contention counts devices that compute at once.
    """
    name = device.name
    if is_mode and name not in known and len(device.processors) == 1:
        (name,) = device.processors
    machine = known.get(name)
    made = runtime.completed(replace(device, name=name, kind=_kind(device, machine)))
    made = _with_memory(replace(made, name=device.name), machine or known.get(device.kind))
    return replace(made, memory_domain=None) if is_mode else made


def _kind(device: Device, known: Device | None) -> str:
    """The kind of a device; that of `known` if its own is open, which is the default."""
    return device.kind if known is None or device.kind != Device.kind else known.kind


def _share_weights(devices: Sequence[Device], runtime: Runtime) -> bool:
    """True if several devices hold a weight once in the runtime."""
    return len(devices) != 1 and runtime.shares_weights(devices)


def _devices_in_ram(runtime: Runtime) -> dict[str, Device]:
    """Name -> device of a runtime; the processor and its cores take their bytes from one pool.

    So do devices that the runtime puts there, since they have no memory of their own.
    """
    return {
        device.name: replace(device, pool=RAM) if device.memory_domain == "cpu" else device
        for device in runtime.discover()
    }


def _pools_of(machine: Iterable[Device]) -> dict[str, float]:
    """Memory pool -> bytes: what a runtime reports as the memory of its devices."""
    sizes: dict[str, float] = {}
    for device in machine:
        for name in device.pool_shares:
            sizes[name] = max(device.memory_bytes, sizes.get(name, 0.0))
    return sizes


def _in_pools(
    devices: Sequence[Device], machine: Mapping[str, float], given: Mapping[str, float]
) -> tuple[tuple[Device, ...], dict[str, float]]:
    """Devices with the pools that two or more of them share, and the bytes of all pools.

    The memory of the machine is the limit of the pool, and a device keeps a smaller limit of its
    own. A device that shares the machine's pool with no other keeps the memory as its limit.

    Args:
        devices: which may name pools.
        machine: pools of the machine, with bytes.
        given: pools of a cluster file, with bytes.
    """
    names, used = [device.pool for device in devices], {device.name for device in devices}
    pools, pooled = dict(given), []
    for device in devices:
        name = device.pool
        if isinstance(name, str) and name not in given:
            is_shared = names.count(name) > 1 and name not in used
            if not is_shared:
                device = replace(device, pool=None)
            else:
                size = pools[name] = machine.get(name, math.inf)
                own = device.memory_bytes
                device = replace(device, memory_bytes=own if own < size else math.inf)
        pooled.append(device)
    return tuple(pooled), pools


def _with_memory(device: Device, machine: Device | None) -> Device:
    """Give a device of a file the memory of the machine's device, if it has none, and no pool."""
    if machine is None:
        return device
    is_open = math.isinf(device.memory_bytes) and device.pool is None
    return replace(
        device,
        memory_bytes=machine.memory_bytes if is_open else device.memory_bytes,
        memory_domain=device.memory_domain or machine.memory_domain,
        pool=device.pool or machine.pool,
    )


def check_no_overlap(devices: Sequence[Device]) -> None:
    """Refuse devices that would share a core or an accelerator, and modes that would not.

    Raises:
        ClusterError: two devices overlap; the message names them.
    """
    first = first_on_processors(devices)
    for (at, a), (other, b) in itertools.combinations(enumerate(devices), 2):
        if first[at] == first[other] and a.name != b.name:
            is_core = a.options.get("core") == b.options.get("core")
            if a.kind != b.kind or not is_core or _name_two_accelerators(a, b):
                raise ClusterError(
                    f"devices '{a.name}' and '{b.name}' share their processors, but are different "
                    "hardware; name each mode's own device in `processors`"
                )
            continue
        if a.kind != "cpu" or b.kind != "cpu":
            if a.name == b.name or _is_same_accelerator(a, b):
                raise ClusterError(
                    f"devices '{a.name}' and '{b.name}' overlap: they are the same accelerator; "
                    "leave one out, or name the accelerator in `processors` of both, as modes of it"
                )
            continue
        cores = (a.options.get("core"), b.options.get("core"))
        if None in cores or cores[0] == cores[1]:
            raise ClusterError(
                f"devices '{a.name}' and '{b.name}' overlap: they share processor cores; "
                "take single cores (argument `devices` cores) or the whole CPU (argument "
                "`devices` cpu)"
            )


def _is_same_accelerator(a: Device, b: Device) -> bool:
    """True if two devices, which are not both cores, name one accelerator.

    Other providers may name it in options of their own, such as CoreML's ``MLComputeUnits``.
    """
    provider = a.options.get("provider")
    is_alike = provider is not None and a.options == b.options
    is_open = provider not in (None, *_FAMILIES) and {*a.options, *b.options}.isdisjoint(_NAMING)
    return _card(a) == _card(b) and (is_alike or not (is_open or _card(a)[0] == _PROCESSOR))


def _name_two_accelerators(a: Device, b: Device) -> bool:
    """True if the options of two modes of one processor name two accelerators of one family."""
    is_named = all(
        not device.processors or not {"device", "provider"}.isdisjoint(device.options)
        for device in (a, b)
    )
    if not is_named or a.kind == "cpu" or len(a.processors) > 1:
        return False
    return _card(a)[0] == _card(b)[0] and _card(a) != _card(b)


def _card(device: Device) -> tuple[str, ...]:
    """The accelerator that a device's options or its name mean, its family first.

    It is the same for aliases, such as ``GPU`` and ``GPU.0``.
    """
    options = device.options
    provider = options.get("provider")
    if provider is None:
        return _native_card(options.get("device", device.name))
    number = options.get("device_id", "").lstrip("0") or "0"
    if provider in _FAMILIES:
        return _FAMILIES[provider], number
    backends = (options.get(name, "") for name in _BACKENDS)
    # OpenVINO's provider also takes the precision there.
    kind = options.get("device_type", "").removesuffix("_FP16").removesuffix("_FP32")
    return provider, *_native_card(kind), *backends, number


def _native_card(name: str) -> tuple[str, str]:
    """Kind and number in OpenVINO's name of a device; what follows ``NPU.`` is a platform."""
    kind, _, number = name.lower().partition(".")
    return kind, "" if kind == "npu" else number or "0"


def measure_links(devices: Sequence[Device], runtime: Runtime, *, host: str = "host") -> list[Link]:
    """Measure latency and bandwidth of links between all devices, and between them and the host.

    Within one memory a tensor is handed over, not copied. The latency is that of waking the other
    device's worker, and the bandwidth is infinite. The last op wakes the host, at no cost.
    """
    return same_between_alike(list(_measured_links(devices, runtime, host)), devices)


def same_between_alike(links: Sequence[Link], devices: Sequence[Device]) -> list[Link]:
    """Give links between cores of one kind and one memory the median of their latencies.

    Such cores can take turns as a group, but not if noise of measurements makes them different.
    """
    kinds = {
        device.name: (device.fingerprint, device.memory_domain)
        for device in devices
        if device.kind == "cpu" and device.fingerprint
    }

    workers = dict(zip((d.name for d in devices), first_on_processors(devices), strict=True))

    def ends(link: Link) -> tuple[object, ...]:
        two = (link.source, link.destination)
        # Modes of one core pass tensors without waking anybody.
        at_home = len({workers[end] for end in two if end in workers}) == 1
        return at_home, *(kinds.get(end, end) for end in two)

    latencies: dict[tuple[object, ...], list[float]] = {}
    for link in links:
        latencies.setdefault(ends(link), []).append(link.latency_seconds)
    return [
        replace(link, latency_seconds=statistics.median(latencies[ends(link)])) for link in links
    ]


def _measured_links(devices: Sequence[Device], runtime: Runtime, host: str) -> Iterable[Link]:
    first = first_on_processors(devices)
    for (at, source), (other, destination) in itertools.permutations(enumerate(devices), 2):
        if first[at] == first[other]:  # one worker hands the tensor to itself
            yield Link(source.name, destination.name)
            continue
        wake = wake_seconds(source, destination)
        latency, bandwidth = _copy(source, destination, runtime)
        yield Link(source.name, destination.name, wake + latency, bandwidth)
    for device in devices:
        if device.name == host:
            continue
        near = Device("host memory", "cpu")
        latency, bandwidth = _copy(near, device, runtime)
        yield Link(host, device.name, wake_seconds(None, device) + latency, bandwidth)
        latency, bandwidth = _copy(device, near, runtime)
        yield Link(device.name, host, latency, bandwidth)


def wake_seconds(source: Device | None, destination: Device, *, rounds: int = 200) -> float:
    """Seconds of a message between two worker threads: half of the median round trip.

    Args:
        source: device of the sender; None for a thread that is bound to no core.
        destination: device of the receiver.
        rounds: messages there and back.
    """
    there: SimpleQueue[bool] = SimpleQueue()
    back: SimpleQueue[float] = SimpleQueue()

    def answer() -> None:
        on_core(destination)
        while there.get():
            back.put(0.0)

    seconds: list[float] = []

    def ask() -> None:
        on_core(source)
        for _ in range(rounds):
            start = time.perf_counter()
            there.put(True)
            back.get()
            seconds.append(time.perf_counter() - start)
        there.put(False)

    _run_together(answer, ask)
    return statistics.median(seconds) / 2


def _run_together(*functions: Callable[[], None]) -> None:
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def on_core(device: Device | None) -> None:
    """Bind this thread to the core of a device, if the device is a core."""
    core = None if device is None else device.options.get("core")
    if core is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # we may not use the core: measure on any
            os.sched_setaffinity(0, {int(core)})


def _copy(source: Device, destination: Device, runtime: Runtime) -> tuple[float, float]:
    """Latency and bandwidth of copies between two memories; (0, inf) within one."""
    small = runtime.transfer_seconds(source, destination, _SMALL)
    if small == 0:
        return 0.0, float("inf")
    large = runtime.transfer_seconds(source, destination, _LARGE)
    per_byte = max((large - small) / (_LARGE - _SMALL), 1e-15)
    return max(small - _SMALL * per_byte, 0.0), 1.0 / per_byte


def _names(devices: str | Sequence[str], known: Mapping[str, Device]) -> list[str]:
    if not isinstance(devices, str):
        return list(devices)
    if devices == "cores":
        return [name for name in known if name.startswith("cpu:")]
    return [name.strip() for name in devices.split(",") if name.strip()]


def _named(known: Mapping[str, Device], name: str) -> Device:
    if name not in known:
        words = ["cores"] if any(other.startswith("cpu:") for other in known) else []
        raise UnknownNameError("device", name, [*known, *words])
    return known[name]
