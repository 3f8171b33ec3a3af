"""Members of a cluster's devices: equal single devices that take turns with the requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewright.core.cluster import Device
from placewright.errors import ClusterError
from placewright.execution.runtime import CompiledSegment, LoadedModel, OpSegment


@dataclass(frozen=True)
class Members:
    """All single devices; a device that stands for no group is its own only member."""

    devices: tuple[Device, ...]  # all members, group after group
    first: tuple[int, ...]  # first member of each device of the cluster
    count: tuple[int, ...]  # number of members of each device of the cluster

    @classmethod
    def of(cls, devices: Sequence[Device]) -> Members:
        """The members of a cluster's devices.

        Raises:
            ClusterError: a group does not list its members.
        """
        members: list[Device] = []
        first: list[int] = []
        count: list[int] = []
        for device in devices:
            if device.replicas > 1 and not device.members:
                raise ClusterError(
                    f"device '{device.name}' stands for {device.replicas} devices, but lists no "
                    "members; place again with argument `replicate` for a plan that lists them"
                )
            first.append(len(members))
            count.append(device.replicas)
            members += device.members or (device,)
        return cls(tuple(members), tuple(first), tuple(count))

    def of_device(self, device: int) -> range:
        """Members of a device of the cluster."""
        return range(self.first[device], self.first[device] + self.count[device])

    def serving(self, device: int, request: int) -> int:
        """The member that runs the segments of a device for request number `request`."""
        return self.first[device] + request % self.count[device]

    def compiled(
        self, model: LoadedModel, segments: Sequence[OpSegment]
    ) -> list[list[CompiledSegment]]:
        """Compile each segment for each member of its device.

        If the runtime caches compiled segments, members with equal options share one, and its
        weights.

        Raises:
            RuntimeFailure: the runtime refuses a segment.
        """
        rows: list[list[CompiledSegment]] = [[] for _ in segments]
        for turn in range(max(self.count)):
            chosen = [
                self.devices[first + min(turn, count - 1)]
                for first, count in zip(self.first, self.count, strict=True)
            ]
            part = [i for i, x in enumerate(segments) if turn < self.count[x.device]]
            if not part:
                continue
            made = model.compile([segments[i] for i in part], chosen)
            for index, compiled in zip(part, made, strict=True):
                rows[index].append(compiled)
        return rows
