"""Priorities of list schedulers: longest paths, optimistic costs, orders by rank."""

from __future__ import annotations

import heapq

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.list_scheduling.tables import ScheduleTables, schedule_tables
from placewright.simulation.compiled import compiled
from placewright.simulation.ranks import mean_costs, mean_transfer_seconds


def mean_upward_ranks(problem: Problem) -> FloatArray:
    """Upward ranks with mean costs and mean transfers, as HEFT uses them, shape (n_units,).

    Topcuoglu et al. 2002, equation 8.
    """
    costs, transfers = mean_costs(problem), mean_transfer_seconds(problem)
    return np.asarray(_upward(schedule_tables(problem), costs, transfers))


@compiled
def _upward(tables: ScheduleTables, costs: FloatArray, transfers: FloatArray) -> FloatArray:
    rank = np.zeros(len(costs))
    for at in range(len(costs) - 1, -1, -1):
        unit, longest = tables.topological[at], 0.0
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                longest = max(longest, transfers[tensor] + rank[tables.consumers[edge]])
        rank[unit] = costs[unit] + longest
    return rank


def mean_downward_ranks(problem: Problem) -> FloatArray:
    """Longest path from a source to each unit, itself excluded, shape (n_units,).

    Topcuoglu et al. 2002, equation 9.
    """
    costs, transfers = mean_costs(problem), mean_transfer_seconds(problem)
    return np.asarray(_downward(schedule_tables(problem), costs, transfers))


@compiled
def _downward(tables: ScheduleTables, costs: FloatArray, transfers: FloatArray) -> FloatArray:
    rank = np.zeros(len(costs))
    for unit in tables.topological:
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            path = rank[unit] + costs[unit] + transfers[tensor]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                consumer = tables.consumers[edge]
                rank[consumer] = max(rank[consumer], path)
    return rank


def optimistic_costs(problem: Problem) -> FloatArray:
    """OCT: seconds from a unit's end to the end of the program, each successor at its best device.

    Arabnejad and Barbosa 2014, equation 5.

    Returns:
        Shape (n_units, n_devices).
    """
    transfers = mean_transfer_seconds(problem)
    return np.asarray(_optimistic(schedule_tables(problem), problem.allowed, transfers))


@compiled
def _optimistic(tables: ScheduleTables, allowed: BoolArray, transfers: FloatArray) -> FloatArray:
    n_units, n_devices = tables.seconds.shape
    table = np.zeros((n_units, n_devices))
    onward = np.empty(n_devices)
    for at in range(n_units - 1, -1, -1):
        unit = tables.topological[at]
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                successor = tables.consumers[edge]
                least, second, at_least = np.inf, np.inf, -1
                for device in range(n_devices):
                    own = tables.seconds[successor, device]
                    seconds = own if allowed[successor, device] else np.inf
                    onward[device] = table[successor, device] + seconds
                    if onward[device] < least:
                        least, second, at_least = onward[device], least, device
                    elif onward[device] < second:
                        second = onward[device]
                for device in range(n_devices):
                    elsewhere = second if device == at_least else least
                    best = min(onward[device], elsewhere + transfers[tensor])
                    table[unit, device] = max(table[unit, device], best)
    return table


def by_rank(problem: Problem, rank: FloatArray) -> IntArray:
    """Units by decreasing rank; equal ones in topological order."""
    position = np.empty(problem.n_units, dtype=np.int64)
    position[problem.unit_graph.topological_order] = np.arange(problem.n_units)
    # Sums in another order differ in the last digit, which must not decide between equal ranks.
    steps = np.round(rank / max(float(rank.max()), 1e-300) * 1e12)
    return np.asarray(np.lexsort((position, -steps)), dtype=np.int64)


def ready_by_rank(problem: Problem, rank: FloatArray) -> IntArray:
    """Always the ready unit of highest rank, of equal ones the first, shape (n_units,)."""
    return np.asarray(_ready_by_rank(schedule_tables(problem), np.ascontiguousarray(rank)))


@compiled
def _ready_by_rank(tables: ScheduleTables, rank: FloatArray) -> IntArray:
    n_units = len(rank)
    missing = missing_inputs(tables)
    heap = [(0.0, -1)]
    heap.pop()
    for unit in range(n_units):
        if missing[unit] == 0:
            heapq.heappush(heap, (-rank[unit], unit))
    order = np.empty(n_units, np.int64)
    for at in range(n_units):
        _, unit = heapq.heappop(heap)
        order[at] = unit
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                consumer = tables.consumers[edge]
                missing[consumer] -= 1
                if missing[consumer] == 0:
                    heapq.heappush(heap, (-rank[consumer], consumer))
    return order


@compiled
def missing_inputs(tables: ScheduleTables) -> IntArray:
    """Number of inputs of each unit that other units produce, (n_units,)."""
    missing = np.zeros(len(tables.topological), np.int64)
    for unit in range(len(missing)):
        for at in range(tables.input_ptr[unit], tables.input_ptr[unit + 1]):
            missing[unit] += tables.producer[tables.inputs[at]] >= 0
    return missing


def critical_path(problem: Problem, priority: FloatArray) -> IntArray:
    """Units of one longest path: from the source of highest priority, each time the next highest.

    Returns:
        In the order of the path, shape (length,).
    """
    return np.asarray(_critical_path(schedule_tables(problem), priority))


@compiled
def _critical_path(tables: ScheduleTables, priority: FloatArray) -> IntArray:
    missing = missing_inputs(tables)
    unit = -1
    for source in range(len(missing)):
        if missing[source] == 0 and (unit < 0 or priority[source] > priority[unit]):
            unit = source
    path = [unit]
    while True:
        following = -1
        for index in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            tensor = tables.outputs[index]
            for edge in range(tables.consumer_ptr[tensor], tables.consumer_ptr[tensor + 1]):
                other = tables.consumers[edge]
                is_higher = following < 0 or priority[other] > priority[following]
                is_equal = following >= 0 and priority[other] == priority[following]
                if is_higher or (is_equal and other < following):
                    following = other
        if following < 0:
            return np.array(path)
        path.append(following)
        unit = following
