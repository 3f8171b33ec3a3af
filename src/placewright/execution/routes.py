"""Routes of tensors in a split: the memories that they enter, and their last readers there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewright.core.graph import ComputationGraph
from placewright.errors import RuntimeFailure
from placewright.execution.runtime import OpSegment, graph_inputs


@dataclass(frozen=True)
class Route:
    """Route of the tensors at a segment's boundary."""

    memory: int  # of the segment's device
    # for each input, whether this segment is its last reader in this memory
    takes: tuple[bool, ...]
    stays: tuple[bool, ...]  # for each output, whether a later segment reads it in this memory
    # for each output, the other memories that it enters, the host's last
    goes_to: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Routes:
    """All routes of a split."""

    segments: tuple[Route, ...]  # the route of each segment
    # for each graph input, ascending, the memories that it enters at the start
    inputs: tuple[tuple[int, ...], ...]
    host: int  # the host's memory


def routes_of(
    graph: ComputationGraph, segments: Sequence[OpSegment], n_devices: int, *, shared: bool
) -> Routes:
    """Find the routes of a split.

    Args:
        segments: each device runs its segments in this order.
        n_devices: memory d < n_devices is that of device d, memory n_devices is the host's.
        shared: all devices and the host share memory 0; a tensor stays there until the next
            request, because another device may read it at any time.
    """
    if shared:
        return Routes(
            tuple(
                Route(
                    0,
                    (False,) * len(segment.inputs),
                    (True,) * len(segment.outputs),
                    ((),) * len(segment.outputs),
                )
                for segment in segments
            ),
            ((0,),) * len(graph_inputs(graph)),
            0,
        )
    last: dict[tuple[int, int], int] = {}
    readers: dict[int, dict[int, None]] = {}
    for index, segment in enumerate(segments):
        for tensor in segment.inputs:
            last[tensor, segment.device] = index
            readers.setdefault(tensor, {})[segment.device] = None
    routes = []
    for index, segment in enumerate(segments):
        own = segment.device
        ends = [(n_devices,) if graph.tensor_is_output[t] else () for t in segment.outputs]
        routes.append(
            Route(
                own,
                tuple(last[tensor, own] == index for tensor in segment.inputs),
                tuple((tensor, own) in last for tensor in segment.outputs),
                tuple(
                    (*(d for d in sorted(readers.get(tensor, {})) if d != own), *end)
                    for tensor, end in zip(segment.outputs, ends, strict=True)
                ),
            )
        )
    starts = tuple(tuple(sorted(readers.get(tensor, {}))) for tensor in graph_inputs(graph))
    return Routes(tuple(routes), starts, n_devices)


def dependencies(
    graph: ComputationGraph, segments: Sequence[OpSegment]
) -> tuple[list[list[int]], list[int]]:
    """Dependents of each segment, and the number of segments for which each segment waits.

    Raises:
        RuntimeFailure: a segment needs a later one.
    """
    home = {op: index for index, segment in enumerate(segments) for op in segment.ops}
    dependents: list[list[int]] = [[] for _ in segments]
    needs = []
    for index, segment in enumerate(segments):
        producers = [int(graph.tensor_producers[t]) for t in segment.inputs]
        sources = sorted({home[op] for op in producers if op >= 0})
        for source in sources:
            if source >= index:
                raise RuntimeFailure(
                    f"segment {index} needs segment {source}, which comes later; "
                    "the order of segments must be one in which they can execute"
                )
            dependents[source].append(index)
        needs.append(len(sources))
    return dependents, needs


def turns_of(segments: Sequence[OpSegment], worker_of: Sequence[int]) -> list[list[int]]:
    """Segments of each worker in plan order.

    Args:
        worker_of: of each device, the device whose worker runs its segments.
    """
    turns: list[list[int]] = [[] for _ in worker_of]
    for index, segment in enumerate(segments):
        turns[worker_of[segment.device]].append(index)
    return turns
