"""A problem as the event kernel takes it: a handful of record arrays, made once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.execution_models import Event
from placewright.core.problem import Problem
from placewright.simulation.blocks import Bytes, packed, part
from placewright.simulation.compiled import substituted
from placewright.simulation.event.arrays import DIRECT, LOCAL, VIA_HOST, EventArrays
from placewright.simulation.records import (
    DEVICE_TABLE,
    IN_ONE_HOP,
    NO_INDEX,
    NOWHERE,
    ORIGIN,
    PAIR,
    RANK_EDGE,
    RELAY_PAIR,
    STAYS,
    TENSOR,
    THROUGH_HOST,
    UNIT_TABLE,
    WEIGHT,
    Records,
)


class EventTables(NamedTuple):
    """All that the kernel reads; units, devices and endpoints are numbers.

    Tensors are numbered anew, graph inputs first, then by producer, so that a unit's outputs are
    neighbours. An edge is one reader of one tensor. M is the number of endpoints: the devices, then
    the host where it is no device.
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
    devices: Records  # (n_rows(n_devices),) DEVICE_TABLE
    weights: Records  # (n_weights + 1,) WEIGHT
    weight_units: IntArray  # units that keep each weight resident, uint32
    # host, has_overheads, is_plain: one hop, one stream, none of these and by rank; dispatch rule
    scalars: IntArray


# Entries of EventTables.scalars.
HOST, HAS_OVERHEADS, IS_PLAIN, DISPATCH = range(4)
# Which unit a device begins: the ready one of highest rank or that waits longest, or as listed.
BY_RANK, IN_TURN, AS_LISTED = range(3)


class PackedTables(NamedTuple):
    """Tables as a kernel takes them: the largest two and the factors as they are, one block.

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
    """The tables, of which most lie in a block; arguments as `PackedTables` has them."""
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
    )


def packed_tables(problem: Problem, arrays: EventArrays) -> tuple[PackedTables, IntArray]:
    """Lay a problem out for the event kernel.

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
    has_overheads = bool(arrays.dispatch.any()) or arrays.has_cuts
    is_direct = bool(np.isin(arrays.route, (LOCAL, DIRECT)).all())
    model = problem.execution_model
    rule = IN_TURN if isinstance(model, Event) and model.dispatch == "fifo" else BY_RANK
    has_streams = bool((arrays.streams > 1).any())
    is_plain = is_direct and not has_overheads and not has_streams and rule == BY_RANK
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


def n_rows(n_devices: int) -> int:
    """Devices and, up to a multiple of four, more that have no units: the kernel asks by fours."""
    return -(-n_devices // 4) * 4


def _units(n_units: int, producer: IntArray, readers: IntArray) -> Records:
    units = np.zeros(n_units + 1, UNIT_TABLE)
    units["tensor"] = np.searchsorted(producer, np.arange(n_units + 1))
    n_inputs = np.bincount(readers, minlength=n_units)
    units["n_inputs"][:-1] = n_inputs
    units["input"][1:] = np.cumsum(n_inputs)
    return units


def _devices(arrays: EventArrays, n_units: int) -> Records:
    padded = np.zeros(n_rows(len(arrays.streams)), DEVICE_TABLE)
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


def _weights(arrays: EventArrays) -> Records:
    weights = np.zeros(len(arrays.kept_ptr), WEIGHT)
    weights["bytes"][:-1] = arrays.kept_bytes
    weights["unit"] = arrays.kept_ptr
    return weights


def _tensors(
    arrays: EventArrays, number: IntArray, edge_ptr: IntArray, n_units: int
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
    arrays: EventArrays,
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


def _pairs(arrays: EventArrays) -> tuple[Records, Records]:
    """The way between any two endpoints: its first hop, and the second one where there is one."""
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
    # What stays where it is goes by a channel of its own, which never makes it wait.
    own = np.full((n, n), arrays.n_channels)
    to_host = np.broadcast_to(arrays.channel[:, [host]], (n, n))
    pairs["channel"] = np.select(cases, [arrays.channel, to_host, own], 0)
    pairs["queues"] = np.select(
        cases, [arrays.queues, np.broadcast_to(arrays.queues[:, [host]], (n, n)), own > 0], True
    )
    relay_pairs["latency"] = np.where(through, latency[[host]], 0.0)
    relay_pairs["per_load"] = np.where(through, per_load[[host]], 0.0)
    return pairs.ravel(), relay_pairs.ravel()[: n * n if through.any() else 0]
