"""A lower bound that is a sum over the parts between articulation units.

Every unit is an ancestor or a descendant of an articulation unit. Nothing after such a unit starts
before it ends, in any placement and order, so that a schedule is a sequence of parts: the units
between two articulation units run between their ends.

Let a_1, ..., a_k be the articulation units in topological order, p_i the device of a_i, and T_i the
seconds from the end of a_i to the end of a_(i + 1) (T_0 from the start, T_k to the end of all). In
every schedule these intervals follow each other without a gap, so that the value is their sum.
With L_i(p, q) <= T_i for every schedule in which a_i is on p and a_(i + 1) on q,

    value = sum of T_i >= min over p_1, ..., p_k of sum of L_i(p_i, p_(i + 1)),

which a dynamic program over the devices finds. L_i must hold inside any graph, so it depends only
on what no other unit can change. Units of part i (those after a_i and before a_(i + 1)) and a_(i +
1) start after a_i ends. Counted from the end of a_i on p:

(1) start[u, d] = max over inputs t of u that a unit v of the part makes of
    min over d' of end[v, d'] + way(t, d', d), and way(t, p, d) for those that a_i makes; other
    inputs may be there already (0), but a graph input comes no sooner than over its way from the
    host, which counts in the first part; end[u, d] = start[u, d] + seconds[u, d].
    By induction along the graph u starts no sooner on d: v is on one of the d', a transfer takes
    its way or longer (it may wait), and overheads and contention only add.
(2) rest[u, d]: seconds from the end of u on d to the end of a_(i + 1) on q, the same backwards; in
    the last part to the end of all, with ways of outputs to the host.
(3) So T >= min over d of end[u, d] + rest[u, d] for every u, and T >= end[a_(i + 1), q].
(4) Load. On device d units of the part run between c'[d] = least start there and T - c''[d], the
    least rest there. A device with s streams does at most s max(0, T - c'[d] - c''[d]) seconds of
    them; one that runs none does 0 <= that. For weights z >= 0 (sum 1) of the devices,
    sum over d of z[d] max(0, T - c[d]) >= sum over d of z[d] load[d] / s[d]
    >= W(z) = sum over units of min over d of z[d] seconds[u, d] / s[d],
    and the least T for which the left side reaches W(z) is a bound. A part either stays together
    (T >= all its seconds) or pays for what goes elsewhere and comes back. Steps as those of
    `balanced_load_bound` look for good weights; every z is valid.

Memory, waiting for channels, and orders other than of inputs are left out, which only lowers L.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import BoolArray, Csr, FloatArray, IntArray, positions_in
from placewright.core.execution_models import Event
from placewright.core.problem import Problem
from placewright.simulation.compiled import compiled
from placewright.simulation.layout import ProblemArrays, problem_arrays, transfer_seconds

_MOST_WORK = 2e7  # n_units x n_devices ** 3: some core-seconds
_STEPS = 40  # of the search for the best weights of devices


def parts_bound(problem: Problem) -> float:
    """The bound, in seconds; 0 for another execution model and for problems that are too large."""
    if not isinstance(problem.execution_model, Event) or is_too_large(problem):
        return 0.0
    value, _ = least_sum(least_of_parts(problem))
    return value * (1.0 - 1e-9) if np.isfinite(value) else 0.0


def least_sum(table: FloatArray) -> tuple[float, list[tuple[int, int]]]:
    """The least sum over the parts, and its devices before and after each part (0 for none).

    Args:
        table: as `least_of_parts` returns it.
    """
    n_parts, n_devices = table.shape[0], table.shape[1]
    reached = np.full(n_devices, np.inf)
    reached[0] = 0.0
    came = np.zeros((n_parts, n_devices), dtype=np.int64)
    for part in range(n_parts):
        sums = reached[:, None] + table[part]
        came[part] = sums.argmin(axis=0)
        reached = sums.min(axis=0)
    after = int(reached.argmin())
    total, pairs = float(reached[after]), []
    for part in range(n_parts - 1, -1, -1):
        before = int(came[part, after])
        pairs.append((before, after))
        after = before
    return total, pairs[::-1]


def is_too_large(problem: Problem) -> bool:
    """True if the bound would take too long."""
    return bool(problem.n_units * problem.n_devices**3 > _MOST_WORK)


def least_of_parts(problem: Problem) -> FloatArray:
    """L of each part for all devices of the articulation units around it, in seconds.

    Returns:
        Shape (n_articulation_units + 1, n_devices, n_devices); inf if a device may not run the
        unit, or if the pair parts two units of one colocation class. The first part begins at
        device 0 and the last part ends at device 0, which stand for none.
    """
    cuts = articulation_units(problem)
    position = positions_in(problem.unit_graph.topological_order)
    allowed = problem.allowed_by_class[problem.colocation.group_of]
    ends = np.concatenate([position[cuts], [problem.n_units]])
    table = np.asarray(_table(problem_arrays(problem), allowed, position, ends))
    classes = problem.colocation.group_of[cuts]
    stay = classes[:-1] == classes[1:]
    table[1:-1][stay[:, None, None] & ~np.eye(problem.n_devices, dtype=np.bool_)] = np.inf
    return table


@compiled
def _table(
    arrays: ProblemArrays, allowed: BoolArray, position: IntArray, ends: IntArray
) -> FloatArray:
    """`least_of_parts`; `ends` are places of articulation units, then the number of units."""
    n_units, n_devices = arrays.seconds.shape
    longest = 0
    for part in range(len(ends)):
        longest = max(longest, ends[part] - (ends[part - 1] if part > 0 else -1))
    start = np.empty((n_devices, longest, n_devices))
    rest = np.empty((n_devices, longest, n_devices))
    table = np.full((len(ends), n_devices, n_devices), np.inf)
    for part in range(len(ends)):
        first, stop = ends[part - 1] if part > 0 else -1, ends[part]
        n_before = n_devices if first >= 0 else 1
        n_after = n_devices if stop < n_units else 1
        for device in range(n_before):
            _fill_start(arrays, allowed, position, first, stop, device, start[device])
        for device in range(n_after):
            _fill_rest(arrays, allowed, position, first, stop, device, rest[device])
        for after in range(n_after):
            if stop < n_units and not allowed[arrays.topological[stop], after]:
                continue
            for before in range(n_before):
                if first < 0 or allowed[arrays.topological[first], before]:
                    table[part, before, after] = _least(
                        arrays, allowed, first, stop, before, after, start[before], rest[after]
                    )
    return table


@compiled
def _fill_start(
    arrays: ProblemArrays,
    allowed: BoolArray,
    position: IntArray,
    first: int,
    stop: int,
    before: int,
    start: FloatArray,
) -> None:
    """Earliest starts of the units at places first + 1 .. stop, as (1) has them; -1 is no unit."""
    n_devices = start.shape[1]
    for place in range(first + 1, min(stop + 1, len(position))):
        unit = arrays.topological[place]
        for device in range(n_devices):
            latest = 0.0
            for at in range(arrays.input_ptr[unit], arrays.input_ptr[unit + 1]):
                tensor = arrays.inputs[at]
                producer = arrays.producer[tensor]
                there = 0.0
                if producer < 0:
                    if first < 0:
                        there = transfer_seconds(arrays, tensor, arrays.host, device)
                elif position[producer] == first:
                    there = transfer_seconds(arrays, tensor, before, device)
                elif position[producer] > first:
                    there = np.inf
                    row = position[producer] - first - 1
                    for source in range(n_devices):
                        if allowed[producer, source]:
                            end = start[row, source] + arrays.seconds[producer, source]
                            way = transfer_seconds(arrays, tensor, source, device)
                            there = min(there, end + way)
                latest = max(latest, there)
            start[place - first - 1, device] = latest


@compiled
def _fill_rest(
    arrays: ProblemArrays,
    allowed: BoolArray,
    position: IntArray,
    first: int,
    stop: int,
    after: int,
    rest: FloatArray,
) -> None:
    """Seconds that follow the units of the part, as (2) has them."""
    n_devices = rest.shape[1]
    for place in range(min(stop, len(position)) - 1, first, -1):
        unit = arrays.topological[place]
        for device in range(n_devices):
            longest = 0.0
            for index in range(arrays.output_ptr[unit], arrays.output_ptr[unit + 1]):
                tensor = arrays.outputs[index]
                if arrays.is_output[tensor] and stop == len(position):
                    home = transfer_seconds(arrays, tensor, device, arrays.host)
                    longest = max(longest, home)
                for edge in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
                    reader = arrays.consumers[edge]
                    if position[reader] > stop:
                        continue
                    left = np.inf
                    if position[reader] == stop:
                        way = transfer_seconds(arrays, tensor, device, after)
                        left = way + arrays.seconds[reader, after]
                    else:
                        row = position[reader] - first - 1
                        for target in range(n_devices):
                            if allowed[reader, target]:
                                way = transfer_seconds(arrays, tensor, device, target)
                                own = arrays.seconds[reader, target] + rest[row, target]
                                left = min(left, way + own)
                    longest = max(longest, left)
            rest[place - first - 1, device] = longest


@compiled
def _least(
    arrays: ProblemArrays,
    allowed: BoolArray,
    first: int,
    stop: int,
    before: int,
    after: int,
    start: FloatArray,
    rest: FloatArray,
) -> float:
    """L of one part and one pair of devices."""
    n_units, n_devices = len(arrays.topological), start.shape[1]
    least = 0.0
    if stop < n_units:
        least = start[stop - first - 1, after]
        least += arrays.seconds[arrays.topological[stop], after]
    elif first >= 0:
        least = _home(arrays, arrays.topological[first], before)
    idle = np.full(n_devices, np.inf)  # before the first unit of the part and after the last
    tail = np.full(n_devices, np.inf)
    for place in range(first + 1, stop):
        unit, row = arrays.topological[place], place - first - 1
        through = np.inf
        for device in range(n_devices):
            if allowed[unit, device]:
                idle[device] = min(idle[device], start[row, device])
                tail[device] = min(tail[device], rest[row, device])
                own = arrays.seconds[unit, device]
                through = min(through, start[row, device] + own + rest[row, device])
        least = max(least, through)
    if stop - first < 2 or not np.isfinite(least):
        return least
    return max(least, _loaded(arrays, allowed, first, stop, idle + tail))


@compiled
def _home(arrays: ProblemArrays, unit: int, device: int) -> float:
    """Seconds until the outputs of the last articulation unit are with the host."""
    longest = 0.0
    for index in range(arrays.output_ptr[unit], arrays.output_ptr[unit + 1]):
        tensor = arrays.outputs[index]
        if arrays.is_output[tensor]:
            longest = max(longest, transfer_seconds(arrays, tensor, device, arrays.host))
    return longest


@compiled
def _loaded(
    arrays: ProblemArrays, allowed: BoolArray, first: int, stop: int, idle: FloatArray
) -> float:
    """The best load bound of a part that the steps find, as (4) has it."""
    n_devices = len(idle)
    weights, best = np.zeros(n_devices), 0.0
    for device in range(n_devices):
        weights[device] = 1.0 if np.isfinite(idle[device]) else 0.0
    weights /= weights.sum()
    loads = np.empty(n_devices)
    for step in range(_STEPS):
        work = 0.0
        loads[:] = 0.0
        for place in range(first + 1, stop):
            unit = arrays.topological[place]
            chosen, cheapest = -1, np.inf
            for device in range(n_devices):
                if allowed[unit, device]:
                    own = arrays.seconds[unit, device] / arrays.streams[device]
                    if weights[device] * own < cheapest:
                        chosen, cheapest = device, weights[device] * own
            if chosen < 0:
                return best
            work += cheapest
            loads[chosen] += arrays.seconds[unit, chosen] / arrays.streams[chosen]
        best = max(best, _filled(weights, idle, work))
        for device in range(n_devices):
            if np.isfinite(idle[device]):
                loads[device] += idle[device]
        most = loads.max()
        if most <= 0.0:
            break
        for device in range(n_devices):
            weights[device] *= np.exp((loads[device] / most - 1.0) * 2.0 / (step + 2.0) ** 0.5)
        weights /= weights.sum()
    return best


@compiled
def _filled(weights: FloatArray, idle: FloatArray, work: float) -> float:
    """The least T for which the sum of weights x max(0, T - idle) reaches `work`."""
    if work <= 0.0:
        return 0.0
    total, level, least = 0.0, 0.0, np.inf
    for device in np.argsort(idle):
        if weights[device] > 0.0 and np.isfinite(idle[device]):
            if total > 0.0 and (work + level) / total <= idle[device]:
                break
            total += weights[device]
            level += weights[device] * idle[device]
            least = (work + level) / total
    return float(least) if np.isfinite(least) else 0.0


def articulation_units(problem: Problem) -> IntArray:
    """Units that every other unit is an ancestor or a descendant of, in topological order.

    Proof of the test: take ready units out one by one. Where `a` is the only ready one, each unit
    that is left has an ancestor that is ready, so that all are descendants of `a`. Backwards the
    same with ancestors. If both hold and the two numbers add up to all other units, each other
    unit is one of them. And where each other unit is one of them, `a` is the only ready one once
    its ancestors are taken out, both ways.

    Returns:
        Shape (n_articulation_units,).
    """
    graph = problem.unit_graph
    after = _left_when_alone(graph.successors, graph.predecessors)
    before = _left_when_alone(graph.predecessors, graph.successors)
    is_one = (after >= 0) & (before >= 0) & (after + before == problem.n_units - 1)
    order = graph.topological_order
    return np.asarray(order[is_one[order]], dtype=np.int64)


def _left_when_alone(successors: Csr, predecessors: Csr) -> IntArray:
    waiting = np.diff(predecessors.indptr)
    return np.asarray(_count_left(successors.indptr, successors.indices, waiting))


@compiled
def _count_left(indptr: IntArray, successors: IntArray, waiting: IntArray) -> IntArray:
    """Units that are left after each unit that was the only ready one; -1 for the others."""
    n_units = len(waiting)
    left, ready = np.full(n_units, -1, np.int64), np.empty(n_units, np.int64)
    done = n_ready = 0
    for unit in range(n_units):
        if waiting[unit] == 0:
            ready[n_ready] = unit
            n_ready += 1
    while done < n_ready:
        unit = ready[done]
        done += 1
        if done == n_ready:
            left[unit] = n_units - done
        for at in range(indptr[unit], indptr[unit + 1]):
            other = successors[at]
            waiting[other] -= 1
            if waiting[other] == 0:
                ready[n_ready] = other
                n_ready += 1
    return left
