"""Sums of `max-load` that can be redone in part: by blocks of units, tensors and kept entries.

Every sum is one over blocks of sums within a block, each in ascending order. Whoever changes the
devices of a few units redoes the blocks that they touch and gets, bit for bit, what summing all of
them anew gives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.simulation.compiled import compiled
from placewright.simulation.event.arrays import DIRECT, NO_ROUTE

BLOCK = 64


class LoadTables(NamedTuple):
    """What the sums read. M is the number of endpoints, as in `EventArrays`."""

    seconds: FloatArray  # (n_units, n_devices), divided by the device's streams and replicas
    exchange: FloatArray  # (n_units, n_devices) seconds of exchanging gradients; empty without
    phase: IntArray  # (n_units,)
    n_phases: int
    input_ptr: IntArray  # (n_units + 1,)
    inputs: IntArray
    output_ptr: IntArray  # (n_units + 1,)
    outputs: IntArray
    consumer_ptr: IntArray  # (n_tensors + 1,)
    consumers: IntArray
    producer: IntArray  # (n_tensors,)
    is_output: BoolArray  # (n_tensors,)
    tensor_bytes: FloatArray  # (n_tensors,)
    own_transfer: FloatArray  # (n_tensors,) or empty
    route: IntArray  # (M, M)
    latency: FloatArray
    seconds_per_byte: FloatArray
    channel: IntArray
    n_channels: int
    host: int
    share: FloatArray  # (n_devices,) part of a transfer that a device pays: 1 / replicas, or 0
    kept_ptr: IntArray  # (n_kept + 1,)
    kept_units: IntArray  # units that need each entry
    kept_bytes: FloatArray  # (n_kept,)
    of_units_ptr: IntArray  # (n_units + 1,)
    of_units: IntArray  # entries that each unit needs


class Sums(NamedTuple):
    """Sums of each block; a row of `tensors` holds, for each phase, the transfers of each device
    and the load of each channel.
    """

    units: FloatArray  # (n_blocks, 2 * n_phases * n_devices) seconds of compute, then of exchange
    tensors: FloatArray  # (n_blocks, n_phases * (n_devices + n_channels))
    kept: FloatArray  # (n_blocks, n_devices) bytes
    cut_off: IntArray  # (n_blocks,) a tensor of the block without a route, -1 for none


def new_sums(tables: LoadTables) -> Sums:
    """Room for the sums of one placement."""
    n_units, n_devices = tables.seconds.shape
    width = tables.n_phases * (n_devices + tables.n_channels)
    n_tensor_blocks = _n_blocks(len(tables.producer))
    return Sums(
        np.zeros((_n_blocks(n_units), 2 * tables.n_phases * n_devices)),
        np.zeros((n_tensor_blocks, width)),
        np.zeros((_n_blocks(len(tables.kept_bytes)), n_devices)),
        np.full(n_tensor_blocks, -1),
    )


def _n_blocks(count: int) -> int:
    return -(-count // BLOCK)


@compiled
def sum_all(tables: LoadTables, device_of: IntArray, sums: Sums) -> None:
    """Fill all blocks for a placement (n_units,)."""
    for block in range(len(sums.units)):
        sum_units(tables, device_of, block, sums)
    for block in range(len(sums.tensors)):
        sum_tensors(tables, device_of, block, sums)
    for block in range(len(sums.kept)):
        sum_kept(tables, device_of, block, sums)


@compiled
def sum_units(tables: LoadTables, device_of: IntArray, block: int, sums: Sums) -> None:
    """Seconds of compute, and of exchanging gradients, of the units of one block."""
    n_units, n_devices = tables.seconds.shape
    row = sums.units[block]
    row[:] = 0.0
    for unit in range(block * BLOCK, min(n_units, (block + 1) * BLOCK)):
        device = device_of[unit]
        slot = tables.phase[unit] * n_devices + device
        row[slot] += tables.seconds[unit, device]
        if len(tables.exchange):
            row[tables.n_phases * n_devices + slot] += tables.exchange[unit, device]


@compiled
def sum_tensors(tables: LoadTables, device_of: IntArray, block: int, sums: Sums) -> None:
    """Transfers and channel loads of the tensors of one block.

    A receiver pays the hop that reaches it; a sender pays the longest of its first hops, once.
    """
    n_devices, n_tensors = tables.seconds.shape[1], len(tables.producer)
    row = sums.tensors[block]
    row[:] = 0.0
    sums.cut_off[block] = -1
    seen = np.full(tables.route.shape[0], -1, np.int64)
    for tensor in range(block * BLOCK, min(n_tensors, (block + 1) * BLOCK)):
        producer = tables.producer[tensor]
        source = device_of[producer] if producer >= 0 else tables.host
        part = tables.phase[producer] if producer >= 0 else 0
        first_slot = part * (n_devices + tables.n_channels)
        sent = 0.0
        stop = tables.consumer_ptr[tensor + 1]
        for edge in range(tables.consumer_ptr[tensor], stop + 1):
            if edge < stop:
                target = device_of[tables.consumers[edge]]
            elif tables.is_output[tensor]:
                target = tables.host
            else:
                break
            if seen[target] == tensor or target == source:
                continue
            seen[target] = tensor
            if tables.route[source, target] == NO_ROUTE:
                sums.cut_off[block] = tensor
                continue
            direct = tables.route[source, target] == DIRECT
            middle = target if direct else tables.host
            first = last = _hop_seconds(tables, tensor, source, middle)
            row[first_slot + n_devices + tables.channel[source, middle]] += first
            if not direct:
                last = _hop_seconds(tables, tensor, middle, target)
                row[first_slot + n_devices + tables.channel[middle, target]] += last
            sent = max(sent, first)
            if target < n_devices:
                row[first_slot + target] += last * tables.share[target]
        if source < n_devices:
            row[first_slot + source] += sent * tables.share[source]


@compiled
def sum_kept(tables: LoadTables, device_of: IntArray, block: int, sums: Sums) -> None:
    """Bytes of the kept entries of one block, each once per device."""
    row = sums.kept[block]
    row[:] = 0.0
    seen = np.full(tables.seconds.shape[1], -1, np.int64)
    n_kept = len(tables.kept_bytes)
    for entry in range(block * BLOCK, min(n_kept, (block + 1) * BLOCK)):
        for at in range(tables.kept_ptr[entry], tables.kept_ptr[entry + 1]):
            device = device_of[tables.kept_units[at]]
            if seen[device] != entry:
                seen[device] = entry
                row[device] += tables.kept_bytes[entry]


@compiled
def _hop_seconds(tables: LoadTables, tensor: int, source: int, target: int) -> float:
    if len(tables.own_transfer):
        return float(tables.own_transfer[tensor])
    per_byte = tables.seconds_per_byte[source, target]
    return float(tables.latency[source, target] + tables.tensor_bytes[tensor] * per_byte)
