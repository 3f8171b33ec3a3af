"""Implied inequalities, which every schedule satisfies and the solver does not derive itself.

The rows of the program decide case by case whether a transfer takes place, so that their linear
relaxation is weak. With x[u, d] the literal of unit u on device d, and all ways in ticks, add:

- head[u, d], the least start of u on d, over all devices of its ancestors, and rest[u, d], the
  least time from the end of u on d to the end of all, as `parts.bound` defines them:
  start[u] >= sum over d of head[u, d] x[u, d],  makespan >= end[u] + sum of rest[u, d] x[u, d].
- for each tensor that u makes and v reads, and each device d, with w the least way of the tensor
  from d to another device: start[v] >= end[u] + w (x[u, d] - x[v, d]).

Measured on Inception-V3's parts of 30 and 33 units on two GPUs, with two threads: solved in 1 to 16
core-seconds. Without them, two of five were not solved in 12.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import IntArray
from placewright.placers.exact.schedule_program.variables import Variables
from placewright.simulation.layout import DIRECT, VIA_HOST, hop_seconds

_FAR = 2**60  # ticks where there is no route, or no device


def add_implied(program: Variables) -> None:
    """Add the inequalities of the module."""
    ways = _ways(program)
    seconds = _seconds(program)
    _add_heads(program, _heads(program, ways, seconds))
    _add_rests(program, _rests(program, ways, seconds))
    _add_ways(program, ways)


def _ways(program: Variables) -> IntArray:
    """Ticks of each tensor from each device to each; the host comes last where it is no device.

    Returns:
        Shape (n_tensors, n_endpoints, n_endpoints); rounded down hop by hop, as the program does.
    """
    arrays, graph = program.arrays, program.problem.unit_graph
    n_ends, host = arrays.route.shape[0], arrays.host
    ways = np.full((graph.n_tensors, n_ends, n_ends), _FAR, dtype=np.int64)
    for tensor in range(graph.n_tensors):
        for source in range(n_ends):
            for target in range(n_ends):
                kind = arrays.route[source, target]
                if source == target:
                    ways[tensor, source, target] = 0
                elif kind == DIRECT:
                    ways[tensor, source, target] = _hop(program, tensor, source, target)
                elif kind == VIA_HOST:
                    to_host = _hop(program, tensor, source, host)
                    ways[tensor, source, target] = to_host + _hop(program, tensor, host, target)
    return ways


def _hop(program: Variables, tensor: int, source: int, target: int) -> int:
    return program.ticks.down(float(hop_seconds(program.arrays, tensor, source, target)))


def _seconds(program: Variables) -> IntArray:
    """Ticks of each unit on each device, (n_units, n_devices); far where it may not run."""
    seconds = program.arrays.seconds
    ticks = np.full(seconds.shape, _FAR, dtype=np.int64)
    for unit in range(len(seconds)):
        for device in program.x[int(program.group_of[unit])]:
            ticks[unit, device] = program.ticks.down(float(seconds[unit, device]))
    return ticks


def _heads(program: Variables, ways: IntArray, seconds: IntArray) -> IntArray:
    arrays, graph = program.arrays, program.problem.unit_graph
    n_devices = seconds.shape[1]
    heads = np.zeros(seconds.shape, dtype=np.int64)
    for unit in arrays.topological.tolist():
        for tensor in graph.op_inputs.row(unit).tolist():
            producer, way = int(arrays.producer[tensor]), ways[tensor]
            if producer < 0:
                there = way[arrays.host, :n_devices]
            else:
                ends = heads[producer] + seconds[producer]
                there = (ends[:, None] + way[:n_devices, :n_devices]).min(axis=0)
            heads[unit] = np.minimum(np.maximum(heads[unit], there), _FAR)
    return heads


def _rests(program: Variables, ways: IntArray, seconds: IntArray) -> IntArray:
    arrays, graph = program.arrays, program.problem.unit_graph
    n_devices = seconds.shape[1]
    rests = np.zeros(seconds.shape, dtype=np.int64)
    for unit in arrays.topological[::-1].tolist():
        for tensor in graph.op_outputs.row(unit).tolist():
            way = ways[tensor]
            if arrays.is_output[tensor]:
                rests[unit] = np.maximum(rests[unit], way[:n_devices, arrays.host])
            for reader in graph.tensor_consumers.row(tensor).tolist():
                after = seconds[reader] + rests[reader]
                left = (way[:n_devices, :n_devices] + after[None, :]).min(axis=1)
                rests[unit] = np.maximum(rests[unit], left)
            rests[unit] = np.minimum(rests[unit], _FAR)
    return rests


def _add_heads(program: Variables, heads: IntArray) -> None:
    for unit, row in enumerate(heads):
        literals = program.x[int(program.group_of[unit])]
        terms = [int(row[d]) * x for d, x in literals.items() if 0 < row[d] < _FAR]
        if terms:
            program.model.add(program.start[unit] >= sum(terms))


def _add_rests(program: Variables, rests: IntArray) -> None:
    for unit, row in enumerate(rests):
        literals = program.x[int(program.group_of[unit])]
        terms = [int(row[d]) * x for d, x in literals.items() if 0 < row[d] < _FAR]
        if terms:
            program.model.add(program.makespan >= program.end[unit] + sum(terms))


def _add_ways(program: Variables, ways: IntArray) -> None:
    arrays, graph = program.arrays, program.problem.unit_graph
    for tensor in np.flatnonzero(arrays.producer >= 0).tolist():
        producer = int(arrays.producer[tensor])
        here = program.x[int(program.group_of[producer])]
        for reader in np.unique(graph.tensor_consumers.row(tensor)).tolist():
            there = program.x[int(program.group_of[reader])]
            if program.group_of[producer] == program.group_of[reader]:
                continue
            for device, made in here.items():
                others = [int(ways[tensor, device, other]) for other in there if other != device]
                least = min(others, default=0)
                if 0 < least < _FAR:
                    stays = least * there[device] if device in there else 0
                    program.model.add(
                        program.start[reader] >= program.end[producer] + least * made - stays
                    )
