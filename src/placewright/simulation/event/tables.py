"""Arrays of the event kernel: tables of the problem, made once, and the state of one placement.

`problem_arrays` follow the graph's numbering and serve everyone. The tables here hold the same in
the order in which the kernel reads it, as records, so that what an event needs lies together. Both
tables and state lie in one block of bytes each: to hand Numba one array instead of twenty saves a
call several microseconds, and to keep the state's block saves a large problem the time in which the
operating system finds fresh memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.cluster import RECEIVER, SENDER
from placewright.core.execution_models import Event
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled, substituted
from placewright.simulation.event.records import (
    CHANGE,
    CUT,
    DEVICE,
    DEVICE_TABLE,
    ENDPOINT,
    ENTRY,
    HOP,
    IN_ONE_HOP,
    NO_INDEX,
    NOWHERE,
    OCCUPIED,
    ORIGIN,
    PAIR,
    POOL_MEMBER,
    QUEUE,
    RANK_EDGE,
    RELAY,
    RELAY_PAIR,
    SEGMENT_COUNT,
    SEGMENT_LIMIT,
    SLICE,
    SLOT,
    SPAN,
    STAYS,
    TENSOR,
    THROUGH_HOST,
    UNIT,
    UNIT_TABLE,
    WEIGHT,
    WINDOW,
    Bytes,
    Records,
    U,
    packed,
    part,
)
from placewright.simulation.layout import DIRECT, LOCAL, NO_LIMIT, VIA_HOST, ProblemArrays


class EventTables(NamedTuple):
    """A problem as the kernel reads it; units, devices and endpoints are numbers.

    Tensors are renumbered, graph inputs first, then by producer, so that a unit's outputs are
    neighbours. An edge is one reader of one tensor. M is the number of endpoints: the devices, then
    the host if it is not a device.
    """

    seconds: FloatArray  # (n_units, n_devices)
    allowed: BoolArray  # (n_units, n_devices)
    factors: FloatArray  # (n_domains, n_devices + 1)
    units: Records  # (n_units + 1,) UNIT_TABLE
    tensors: Records  # (n_tensors + 1,) TENSOR; the last one ends the edges
    origins: Records  # (n_tensors,) ORIGIN
    readers: IntArray  # (n_edges,) unit of each edge, uint32
    edge_tensors: IntArray  # (n_edges,) uint32
    input_edges: IntArray  # (n_edges,) edges by reader, uint32
    rank_edges: Records  # (n_edges,) RANK_EDGE, without those of graph inputs
    pairs: Records  # (M * M,) PAIR
    relay_pairs: Records  # (M * M,) RELAY_PAIR, empty where every way is one hop
    devices: Records  # (_n_rows(n_devices),) DEVICE_TABLE
    weights: Records  # (n_weights + 1,) WEIGHT
    weight_units: IntArray  # units that keep each weight resident, uint32
    # host, has_overheads, is_plain: one hop, one stream, none of these and by rank; dispatch rule
    scalars: IntArray
    pools: Records  # (n_members,) POOL_MEMBER by pool, empty without shared pools
    occupied: Records  # (M * M,) OCCUPIED, empty where no copy occupies a device
    segment_limits: Records  # (n_devices,) SEGMENT_LIMIT, empty if no device has one
    unit_ops: IntArray  # (n_units,) ops of each unit, uint32, or empty
    # (n_devices * n_devices,) 1 for two devices that never compute at once, uint32, or empty
    excludes: IntArray


# Entries of EventTables.scalars.
HOST, HAS_OVERHEADS, IS_PLAIN, DISPATCH = range(4)
# Which unit a device begins: the ready one of highest rank or that waits longest, or as listed.
BY_RANK, IN_TURN, AS_LISTED = range(3)


class PackedTables(NamedTuple):
    """Tables as arguments of a kernel: the two largest and the factors as they are, one block.

    A kernel has an argument for each, since Numba takes longer to open a named tuple.
    """

    seconds: FloatArray
    allowed: BoolArray
    factors: FloatArray
    block: Bytes
    places: IntArray


@substituted
def tables_in(
    seconds: FloatArray, allowed: BoolArray, factors: FloatArray, block: Bytes, places: IntArray
) -> EventTables:
    """The tables, most of which lie in the block; arguments are the fields of `PackedTables`."""
    return EventTables(
        seconds,
        allowed,
        factors,
        part(block, places, 0, UNIT_TABLE),
        part(block, places, 1, TENSOR),
        part(block, places, 2, ORIGIN),
        part(block, places, 3, np.uint32),
        part(block, places, 4, np.uint32),
        part(block, places, 5, np.uint32),
        part(block, places, 6, RANK_EDGE),
        part(block, places, 7, PAIR),
        part(block, places, 8, RELAY_PAIR),
        part(block, places, 9, DEVICE_TABLE),
        part(block, places, 10, WEIGHT),
        part(block, places, 11, np.uint32),
        part(block, places, 12, np.int64),
        part(block, places, 13, POOL_MEMBER),
        part(block, places, 14, OCCUPIED),
        part(block, places, 15, SEGMENT_LIMIT),
        part(block, places, 16, np.uint32),
        part(block, places, 17, np.uint32),
    )


def packed_tables(problem: Problem, arrays: ProblemArrays) -> tuple[PackedTables, IntArray]:
    """Make the tables of a problem.

    Returns:
        The tables, and the number in the unit graph of each of their tensors.
    """
    n_units = problem.n_units
    number = np.argsort(arrays.producer, kind="stable")
    producer = arrays.producer[number]
    counts = np.diff(arrays.consumer_ptr)[number]
    edge_ptr = np.concatenate([[0], np.cumsum(counts)])
    old_edges = np.repeat(arrays.consumer_ptr[number] - edge_ptr[:-1], counts)
    old_edges += np.arange(edge_ptr[-1])
    edge_tensors = np.repeat(np.arange(len(number)), counts)
    readers = arrays.consumers[old_edges]
    tensors, origins = _tensors(arrays, number, edge_ptr, n_units)
    has_overheads = bool(arrays.dispatch.any()) or arrays.has_cuts or bool(arrays.occupied.any())
    has_overheads |= len(arrays.segments) > 0
    shares = len(arrays.excludes) > 0
    is_direct = bool(np.isin(arrays.route, (LOCAL, DIRECT)).all())
    model = problem.execution_model
    rule = IN_TURN if isinstance(model, Event) and model.dispatch == "fifo" else BY_RANK
    has_streams = bool((arrays.streams > 1).any())
    is_plain = is_direct and not (has_overheads or has_streams or shares) and rule == BY_RANK
    block, places = packed(
        [
            _units(n_units, producer, readers),
            tensors,
            origins,
            readers.astype(np.uint32),
            edge_tensors.astype(np.uint32),
            np.argsort(readers, kind="stable").astype(np.uint32),
            _rank_edges(arrays, tensors, origins, edge_tensors, readers, n_units),
            *_pairs(arrays),
            _devices(arrays, n_units),
            _weights(arrays),
            arrays.kept_units.astype(np.uint32),
            np.array([arrays.host, has_overheads, is_plain, rule]),
            _pools(arrays),
            _occupied(arrays),
            _segment_limits(arrays),
            arrays.unit_ops.astype(np.uint32),
            arrays.excludes.astype(np.uint32),
        ]
    )
    tables = PackedTables(
        np.ascontiguousarray(arrays.seconds),
        np.ascontiguousarray(arrays.allowed),
        np.ascontiguousarray(arrays.factors),
        block,
        places,
    )
    return tables, number


def _n_rows(n_devices: int) -> int:
    """Number of devices, rounded up to a multiple of four: the kernel compares four at a time."""
    return -(-n_devices // 4) * 4


def _units(n_units: int, producer: IntArray, readers: IntArray) -> Records:
    units = np.zeros(n_units + 1, UNIT_TABLE)
    units["tensor"] = np.searchsorted(producer, np.arange(n_units + 1))
    n_inputs = np.bincount(readers, minlength=n_units)
    units["n_inputs"][:-1] = n_inputs
    units["input"][1:] = np.cumsum(n_inputs)
    return units


def _devices(arrays: ProblemArrays, n_units: int) -> Records:
    padded = np.zeros(_n_rows(len(arrays.streams)), DEVICE_TABLE)
    devices = padded[: len(arrays.streams)]
    devices["streams"] = np.minimum(arrays.streams, n_units + 1)
    devices["dispatch"] = arrays.dispatch
    devices["memory"] = arrays.memory
    devices["cut"] = arrays.cut
    devices["cut_per_byte"] = arrays.cut_per_byte
    devices["layout"] = arrays.layout
    devices["layout_per_byte"] = arrays.layout_per_byte
    devices["domain"] = np.where(arrays.domain < 0, NO_INDEX, arrays.domain)
    return padded


def _occupied(arrays: ProblemArrays) -> Records:
    """Copies that occupy devices, by source and target."""
    pairs = np.zeros(arrays.occupied.size if arrays.occupied.any() else 0, OCCUPIED)
    if len(pairs):
        pairs["latency"] = arrays.copy_latency.ravel()
        pairs["per_byte"] = arrays.copy_per_byte.ravel()
        pairs["of_sender"] = (arrays.occupied.ravel() & SENDER) > 0
        pairs["of_receiver"] = (arrays.occupied.ravel() & RECEIVER) > 0
    return pairs


def _segment_limits(arrays: ProblemArrays) -> Records:
    limits = np.zeros(len(arrays.segments), SEGMENT_LIMIT)
    # What is above `NO_LIMIT` limits nothing, and has too many bits for a record.
    limits["segments"] = np.minimum(arrays.segments, NO_LIMIT)
    limits["ops"] = np.minimum(arrays.segment_ops, NO_LIMIT)
    return limits


def _pools(arrays: ProblemArrays) -> Records:
    """Devices of shared pools, those of one pool together."""
    pools, devices = np.nonzero(arrays.pool_shares)
    members = np.zeros(len(devices), POOL_MEMBER)
    members["device"], members["pool"] = devices, pools
    members["bytes"] = arrays.pool_bytes[pools]
    members["share"] = arrays.pool_shares[pools, devices]
    return members


def _weights(arrays: ProblemArrays) -> Records:
    weights = np.zeros(len(arrays.kept_ptr), WEIGHT)
    weights["bytes"][:-1] = arrays.kept_bytes
    weights["unit"] = arrays.kept_ptr
    return weights


def _tensors(
    arrays: ProblemArrays, number: IntArray, edge_ptr: IntArray, n_units: int
) -> tuple[Records, Records]:
    tensors, origins = np.zeros(len(number) + 1, TENSOR), np.zeros(len(number), ORIGIN)
    origins["bytes"] = arrays.tensor_bytes[number]
    origins["producer"] = np.where(arrays.producer < 0, n_units, arrays.producer)[number]
    origins["has_layout"] = arrays.has_layout[number]
    own = arrays.own_transfer
    tensors["load"][:-1] = own[number] if len(own) else origins["bytes"]
    tensors["is_output"][:-1] = arrays.is_output[number]
    tensors["edge"] = edge_ptr
    return tensors, origins


def _rank_edges(
    arrays: ProblemArrays,
    tensors: Records,
    origins: Records,
    edge_tensors: IntArray,
    readers: IntArray,
    n_units: int,
) -> Records:
    """Edges by the topological place of their producer, last first."""
    producer = origins["producer"][edge_tensors]
    made = np.flatnonzero(producer < n_units)
    place = np.empty(n_units, dtype=np.int64)
    place[arrays.topological] = np.arange(n_units)
    by_place = made[np.argsort(-place[producer[made]], kind="stable")]
    edges = np.zeros(len(made), RANK_EDGE)
    edges["load"] = tensors["load"][edge_tensors[by_place]]
    edges["producer"] = producer[by_place]
    edges["reader"] = readers[by_place]
    return edges


def _pairs(arrays: ProblemArrays) -> tuple[Records, Records]:
    """The route between any two endpoints: its first hop, and its second hop if it has two."""
    n, host = arrays.route.shape[0], arrays.host
    latency, per_load = arrays.latency, arrays.seconds_per_byte
    if len(arrays.own_transfer):
        latency, per_load = np.zeros((n, n)), np.ones((n, n))
    direct, through = arrays.route == DIRECT, arrays.route == VIA_HOST
    cases = [direct, through, np.eye(n, dtype=np.bool_)]
    pairs, relay_pairs = np.zeros((n, n), PAIR), np.zeros((n, n), RELAY_PAIR)
    pairs["route"] = np.select(cases, [IN_ONE_HOP, THROUGH_HOST, STAYS], NOWHERE)
    pairs["latency"] = np.select(cases, [latency, latency[:, [host]], 0.0], np.inf)
    pairs["per_load"] = np.select(cases, [per_load, per_load[:, [host]], 0.0], 0.0)
    # A tensor that stays where it is goes by a channel of its own, which never makes it wait.
    own = np.full((n, n), arrays.n_channels)
    to_host = np.broadcast_to(arrays.channel[:, [host]], (n, n))
    pairs["channel"] = np.select(cases, [arrays.channel, to_host, own], 0)
    pairs["queues"] = np.select(
        cases, [arrays.queues, np.broadcast_to(arrays.queues[:, [host]], (n, n)), own > 0], True
    )
    relay_pairs["latency"] = np.where(through, latency[[host]], 0.0)
    relay_pairs["per_load"] = np.where(through, per_load[[host]], 0.0)
    return pairs.ravel(), relay_pairs.ravel()[: n * n if through.any() else 0]


# Entries of State.counts.
N_COPIES, N_RELAYS, N_SEGMENTS, FAULT, FAULT_AT, N_COUNTS = range(6)
# Queues of each device.
ARRIVING, RUNNING, N_QUEUES = range(3)

# Events in one slice up to which all pairs are compared.
FEW = U(24)
_MOST_FINE = 2**12  # units
PLACES = 64 * 64  # of ready units, in a block


class State(NamedTuple):
    """The state of one simulated placement.

    A *copy* is a tensor on one endpoint: number t is the tensor t where it was made, number
    n_tensors + h is the copy that hop h brought.
    """

    units: Records  # (n_units,) UNIT
    spans: Records  # (n_units,) SPAN
    cuts: Records  # (n_units,) CUT
    devices: Records  # (_n_rows(n_devices),) DEVICE; below, n_devices includes the added ones
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
    hops: Records  # (n_copies,) HOP: the hop that brought each copy, nothing where it was made
    copy_of_edge: IntArray  # (n_edges,) which copy each edge reads, uint32
    relays: Records  # RELAY: first hops under way, a heap
    charged: IntArray  # per copy: segment that has paid its cut, uint32
    copy_ends: FloatArray  # per copy: seconds until which it is needed
    chain: IntArray  # per coming and going of a copy: the next one in the same slice, uint32
    slices: Records  # (n_devices without the added ones * (slices_per_device + 1),) SLICE
    changes: Records  # (FEW,) CHANGE
    counts: IntArray
    segments: Records  # (n_devices,) SEGMENT_COUNT, of devices with the added ones
    # (n_units,) the unit of the largest number begins first among devices that share processors;
    # empty if none do
    priority: FloatArray


def state_sizes(
    n_units: int,
    n_devices: int,
    n_endpoints: int,
    n_channels: int,
    n_edges: int,
    n_tensors: int,
    has_relays: bool,
    shares_processors: bool,
) -> tuple[tuple[int, np.dtype[np.generic]], ...]:
    """Length and dtype of each array of a state, in its order."""
    n_hops = (n_edges + n_tensors) * (2 if has_relays else 1) + 1
    n_copies = n_hops + n_tensors
    index, seconds = np.dtype(np.uint32), np.dtype(np.float64)
    n_slices = n_devices * (slices_per_device(n_units, n_devices) + 1)
    n_devices = _n_rows(n_devices)
    return (
        (n_units, UNIT),
        (n_units, SPAN),
        (n_units, CUT),
        (n_devices, DEVICE),
        (n_endpoints, ENDPOINT),
        (n_channels + 1, seconds),
        (64 * (n_above(n_units, n_devices) + _n_blocks(n_units, n_devices)), np.dtype(np.uint64)),
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
        (n_devices, SEGMENT_COUNT),
        (n_units if shares_processors else 0, seconds),
    )


def _n_blocks(n_units: int, n_devices: int) -> int:
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
    """The arrays of a state in a block of bytes; `places` (25, 2) are their bytes."""
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
        part(block, places, 23, SEGMENT_COUNT),
        part(block, places, 24, np.float64),
    )
