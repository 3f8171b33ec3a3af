"""The event kernel's working memory: one block of bytes, used again by every evaluation.

To hand Numba one array instead of twenty saves a call several microseconds, and to keep the block
saves a large problem the time in which the operating system finds fresh memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.simulation.blocks import Bytes, part
from placewright.simulation.compiled import compiled, substituted
from placewright.simulation.event.queue import WINDOW
from placewright.simulation.event.tables import n_rows
from placewright.simulation.records import (
    CHANGE,
    CUT,
    DEVICE,
    ENDPOINT,
    ENTRY,
    HOP,
    QUEUE,
    RELAY,
    SLICE,
    SLOT,
    SPAN,
    UNIT,
    Records,
    U,
)

# Entries of State.counts.
N_COPIES, N_RELAYS, N_SEGMENTS, FAULT, FAULT_AT, N_COUNTS = range(6)
# Queues of each device.
ARRIVING, RUNNING, N_QUEUES = range(3)

# Comings and goings in one slice up to which they are compared each with each.
FEW = U(24)
_MOST_FINE = 2**12  # units
PLACES = 64 * 64  # of ready units, in a block


class State(NamedTuple):
    """What changes while time passes.

    A *copy* is a tensor on one endpoint: number t is the tensor t where it was made, number
    n_tensors + h is what hop h brought.
    """

    units: Records  # (n_units,) UNIT
    spans: Records  # (n_units,) SPAN
    cuts: Records  # (n_units,) CUT
    devices: Records  # (n_rows(n_devices),) DEVICE; below, n_devices includes the added ones
    endpoints: Records  # (M,) ENDPOINT
    free: FloatArray  # (n_channels + 1,) seconds: when each channel has sent all it was given
    ready: IntArray  # sets of ready units, uint64: a bit for each place
    buckets: IntArray  # (n_units + n_devices + 2,) how many units share about a rank, uint32
    parts: IntArray  # (n_units,) how many share a part of a bucket, uint32
    queues: Records  # (2 * n_devices,) QUEUE: arriving by time, running by end
    window: Records  # ENTRY
    heap: Records  # ENTRY
    slots: Records  # (n_units,) SLOT: units by device, in order or by falling rank
    touched: IntArray  # devices that may begin a unit at this instant, uint32
    hops: Records  # (n_copies,) HOP: what brought each copy, nothing where it was made
    copy_of_edge: IntArray  # (n_edges,) which copy each edge reads, uint32
    relays: Records  # RELAY: first hops under way, a heap
    charged: IntArray  # per copy: segment that has paid its cut, uint32
    copy_ends: FloatArray  # per copy: seconds until which it is needed
    chain: IntArray  # per coming and going of a copy: the next one in the same slice, uint32
    slices: Records  # (n_devices without the added ones * (slices_per_device + 1),) SLICE
    changes: Records  # (FEW,) CHANGE
    counts: IntArray


def state_sizes(
    n_units: int,
    n_devices: int,
    n_endpoints: int,
    n_channels: int,
    n_edges: int,
    n_tensors: int,
    has_relays: bool,
) -> tuple[tuple[int, np.dtype[np.generic]], ...]:
    """Length and dtype of each array of a state, in its order."""
    n_hops = (n_edges + n_tensors) * (2 if has_relays else 1) + 1
    n_copies = n_hops + n_tensors
    index, seconds = np.dtype(np.uint32), np.dtype(np.float64)
    n_slices = n_devices * (slices_per_device(n_units, n_devices) + 1)
    n_devices = n_rows(n_devices)
    return (
        (n_units, UNIT),
        (n_units, SPAN),
        (n_units, CUT),
        (n_devices, DEVICE),
        (n_endpoints, ENDPOINT),
        (n_channels + 1, seconds),
        (64 * (n_above(n_units, n_devices) + n_blocks(n_units, n_devices)), np.dtype(np.uint64)),
        (n_units + n_devices + 2, index),
        (n_units, index),
        (N_QUEUES * n_devices, QUEUE),
        (N_QUEUES * n_devices * int(WINDOW), ENTRY),
        (N_QUEUES * n_units, ENTRY),
        (n_units, SLOT),
        (n_units + n_devices, index),
        (n_copies, HOP),
        (n_edges, index),
        (n_edges if has_relays else 0, RELAY),
        (n_copies, index),
        (n_copies, seconds),
        (2 * n_copies, index),
        (n_slices, SLICE),
        (int(FEW), CHANGE),
        (N_COUNTS, np.dtype(np.int64)),
    )


def n_blocks(n_units: int, n_devices: int) -> int:
    """Blocks of 64 words with a place for each unit, where no two devices share a block."""
    return n_units // PLACES + n_devices


@compiled
def n_above(n_units: int, n_devices: int) -> int:
    """Blocks before them, for a bit for each of their words; n_devices with the added ones."""
    return (n_units // PLACES + n_devices) // 63 + 1


@compiled
def slices_per_device(n_units: int, n_devices: int) -> int:
    """Slices of time in which each device's bytes are counted.

    Fewer slices mean less to add up and more to look at closely, which large problems do for a
    smaller part of their slices.
    """
    per_slice = 2 if n_units <= _MOST_FINE else 4
    return max(1, n_units // (per_slice * n_devices))


@substituted
def state_in(block: Bytes, places: IntArray) -> State:
    """The arrays of a state in a block of bytes; `places` (23, 2) says where each is."""
    return State(
        part(block, places, 0, UNIT),
        part(block, places, 1, SPAN),
        part(block, places, 2, CUT),
        part(block, places, 3, DEVICE),
        part(block, places, 4, ENDPOINT),
        part(block, places, 5, np.float64),
        part(block, places, 6, np.uint64),
        part(block, places, 7, np.uint32),
        part(block, places, 8, np.uint32),
        part(block, places, 9, QUEUE),
        part(block, places, 10, ENTRY),
        part(block, places, 11, ENTRY),
        part(block, places, 12, SLOT),
        part(block, places, 13, np.uint32),
        part(block, places, 14, HOP),
        part(block, places, 15, np.uint32),
        part(block, places, 16, RELAY),
        part(block, places, 17, np.uint32),
        part(block, places, 18, np.float64),
        part(block, places, 19, np.uint32),
        part(block, places, 20, SLICE),
        part(block, places, 21, CHANGE),
        part(block, places, 22, np.int64),
    )
