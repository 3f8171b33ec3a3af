"""Record types of the event kernel, and blocks of bytes that hold many arrays of them.

A record holds fields that are read together. All indices are unsigned, in the records (32 bits) and
in the kernel (64 bits): Numba then leaves out the test for negative ones, which takes a third of
the kernel's time. Mixing in a signed number would make a float of it, so constants of the kernel
are `ZERO`, `ONE` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placewright.core.arrays import IntArray
from placewright.simulation.compiled import substituted
from placewright.simulation.event.instructions import records_at

Records = NDArray[np.void]
Record = Any  # an item of these; Numba knows its fields
Bytes = NDArray[np.uint8]

_SECONDS, _INDEX = np.float64, np.uint32

UNIT = np.dtype(
    [
        # Upward rank until time starts, then when the last of the inputs sent so far arrives.
        ("seconds", _SECONDS),
        ("device", _INDEX),
        ("place", _INDEX),  # its slot, shifted
        ("missing", _INDEX),  # inputs that were not sent yet
        ("padding", _INDEX),
    ],
    align=True,
)
# Until a unit has begun, `end` is how long it takes on its device, without overheads.
SPAN = np.dtype([("start", _SECONDS), ("end", _SECONDS)], align=True)
# A place in the list of units by device, in the order in which the device would take them.
SLOT = np.dtype(
    [
        ("seconds", _SECONDS),  # rank of its unit while slots are sorted, then how long it takes
        ("unit", _INDEX),
        ("tensor", _INDEX),  # first output of its unit
    ],
    align=True,
)
# The segment of a unit.
CUT = np.dtype(
    [
        ("segment", _INDEX),
        ("reads_remote", _INDEX),  # 1 when an input is made on another device
        ("read_remotely", _INDEX),  # 1 when an output is read on another device
    ]
)
# Constant fields of a unit: first output, number and first of its input edges.
UNIT_TABLE = np.dtype(
    [("tensor", _INDEX), ("n_inputs", _INDEX), ("input", _INDEX), ("padding", _INDEX)], align=True
)
DEVICE_TABLE = np.dtype(
    [
        ("dispatch", _SECONDS),  # per segment
        ("cut", _SECONDS),  # per tensor that enters a segment
        ("cut_per_byte", _SECONDS),
        ("layout", _SECONDS),  # more per tensor that enters and that a compute-bound unit made
        ("layout_per_byte", _SECONDS),
        ("memory", _SECONDS),  # bytes
        ("streams", _INDEX),
        ("domain", _INDEX),  # of memory; the largest index for none
    ],
    align=True,
)
# A copy from one endpoint to another that occupies devices.
OCCUPIED = np.dtype(
    [
        ("latency", _SECONDS),
        ("per_byte", _SECONDS),
        ("of_sender", _INDEX),  # 1 if the sender works, else 0
        ("of_receiver", _INDEX),
    ],
    align=True,
)
# A device of a shared memory pool.
POOL_MEMBER = np.dtype(
    [
        ("bytes", _SECONDS),  # of the pool
        ("share", _SECONDS),  # times that the pool keeps what the device keeps
        ("device", _INDEX),
        ("pool", _INDEX),
    ],
    align=True,
)
# Limits of a device, and what counts against them.
SEGMENT_LIMIT = np.dtype([("segments", _INDEX), ("ops", _INDEX)])
SEGMENT_COUNT = np.dtype(
    [
        ("segments", _INDEX),  # begun
        ("ops", _INDEX),  # of the open one
        ("copied", _INDEX),  # 1 + the tensor whose copy to this device was charged last; 0 for none
    ]
)
WEIGHT = np.dtype([("bytes", _SECONDS), ("unit", _INDEX), ("padding", _INDEX)], align=True)
TENSOR = np.dtype(
    [
        ("load", _SECONDS),  # a link's seconds grow with it: bytes, or the tensor's own seconds
        ("edge", _INDEX),  # first edge; the last is before the next tensor's first
        ("is_output", _INDEX),
    ],
    align=True,
)
# Fields of a tensor that are read less often.
ORIGIN = np.dtype(
    [
        ("bytes", _SECONDS),
        ("producer", _INDEX),  # a unit, or n_units for a graph input
        ("has_layout", _INDEX),  # 1 where that unit is compute-bound
    ],
    align=True,
)
# Edges in an order in which every unit's own come before those of the units that it reads.
RANK_EDGE = np.dtype([("load", _SECONDS), ("producer", _INDEX), ("reader", _INDEX)], align=True)
# The first hop of the way from an endpoint to another.
PAIR = np.dtype(
    [
        ("latency", _SECONDS),
        ("per_load", _SECONDS),
        ("channel", _INDEX),
        ("route", _INDEX),
        ("queues", _SECONDS),  # 1, or 0 where the channel never makes a transfer wait
    ],
    align=True,
)
# Its second hop; zeros if the first hop arrives.
RELAY_PAIR = np.dtype([("latency", _SECONDS), ("per_load", _SECONDS)], align=True)
DEVICE = np.dtype(
    [
        ("time", _SECONDS),  # of its next event: a unit ends, or an input arrives while it idles
        ("wake", _SECONDS),  # an arrival before this is an event; negative while nothing is
        ("best", np.uint64),  # first of the slots that are ready; the largest number for none
        ("unit", _INDEX),  # that ends then; n_units when the event is an arrival
        ("busy", _INDEX),  # streams
        ("streams", _INDEX),
        ("first", _INDEX),  # slot of its first unit
        ("next", _INDEX),  # with an order: slot of its next unit
        ("stop", _INDEX),  # slot behind its last unit
        ("segment", _INDEX),  # that its next unit may join; the largest index when none is open
        ("shift", _INDEX),  # from its slots to their places among those that are ready
        ("arrival", _SECONDS),  # first of the queue of units that wait for an input; inf for none
    ],
    align=True,
)
# What a tensor that is being sent has reached: when, and which copy is there. Where that is less
# than the number of copies before the sending, none is.
ENDPOINT = np.dtype([("arrival", _SECONDS), ("copy", np.uint64)], align=True)
# A hop, in the order of sending.
HOP = np.dtype(
    [
        ("start", _SECONDS),
        ("end", _SECONDS),
        ("tensor", _INDEX),
        ("way", _INDEX),  # an endpoint, the target, in the lower quarter of a word, above it a kind
    ],
    align=True,
)
ENTRY = np.dtype([("key", _SECONDS), ("unit", _INDEX), ("padding", _INDEX)], align=True)
QUEUE = np.dtype(
    [
        ("head", _INDEX),  # the window's first entry
        ("tail", _INDEX),  # behind its last
        ("spilled", _INDEX),  # entries of the heap
        ("heap", _INDEX),  # where the heap begins
    ]
)
SLICE = np.dtype(
    [
        ("come", _SECONDS),  # bytes
        ("go", _SECONDS),
        ("head", _INDEX),  # first of its chain of events, counted from 1; 0 for none
        ("padding", _INDEX),
    ],
    align=True,
)
# An event within one slice: bytes that come or go.
CHANGE = np.dtype([("time", _SECONDS), ("bytes", _SECONDS)])
RELAY = np.dtype([("time", _SECONDS), ("tensor", _INDEX), ("target", _INDEX)], align=True)

U = cast(Callable[[Any], int], np.uint64)
ZERO, ONE, TWO, THREE, FOUR = U(0), U(1), U(2), U(3), U(4)
NO_INDEX = U(2**32 - 1)
NO_SLOT = U(2**64 - 1)
QUARTER = U(16)  # bits of a word
LOWER_HALF, LOWER_QUARTER = U(2**32 - 1), U(2**16 - 1)
WINDOW = U(64)  # entries of a queue that lie outside its heap
# ENDPOINT.copy, beside the number of a tensor: it was made there.
MADE_HERE = U(2**63)
# PAIR.route
STAYS, IN_ONE_HOP, THROUGH_HOST, NOWHERE = U(0), U(1), U(2), U(3)
# Kind of a HOP: the first of two (the copy at the host is not kept), the second; 0 for a sole one
FIRST_HOP, SECOND_HOP = U(1), U(2)

_LINE = 64  # bytes of a cache line; no two arrays share one


def places_of(sizes: Sequence[tuple[int, np.dtype[np.generic]]]) -> tuple[IntArray, int]:
    """First and last byte (exclusive) of each array, shape (n, 2), and bytes in all.

    Args:
        sizes: length and dtype of each array.
    """
    places = np.zeros((len(sizes), 2), dtype=np.int64)
    total = 0
    for row, (length, dtype) in enumerate(sizes):
        places[row] = total, total + length * dtype.itemsize
        total = -(-int(places[row, 1]) // _LINE) * _LINE
    return places, total


def packed(arrays: Sequence[NDArray[np.generic]]) -> tuple[Bytes, IntArray]:
    """A block with a copy of each array, and their places, shape (n, 2)."""
    places, total = places_of([(array.size, array.dtype) for array in arrays])
    block = np.zeros(total, dtype=np.uint8)
    for (first, stop), array in zip(places.tolist(), arrays, strict=True):
        block[first:stop] = np.ascontiguousarray(array).view(np.uint8).ravel()
    return block, places


def arrays_in(
    block: Bytes, places: IntArray, sizes: Sequence[tuple[int, np.dtype[np.generic]]]
) -> list[NDArray[Any]]:
    """Views of the arrays in a block, for Python; `places` and `sizes` as in `places_of`."""
    ends = zip(places.tolist(), sizes, strict=True)
    return [block[first:stop].view(dtype) for (first, stop), (_, dtype) in ends]


@substituted
def part(
    block: Bytes, places: IntArray, index: int, dtype: np.dtype[Any] | type[np.generic]
) -> NDArray[Any]:
    """One array of the block, which must outlive it."""
    return records_at(block, places[index, 0], places[index, 1], dtype)
