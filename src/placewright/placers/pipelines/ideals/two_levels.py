"""Best splits over groups of devices: cheaper links within a group than between groups.

Tarnawski et al. 2020 describe hierarchies of accelerators in an appendix, without code; this is
their dynamic program once over groups and once within each:
dp[m][J] = min over ideals I in J and kinds of groups g of max(dp[m - g][I], best_g(J - I)), where
best_g(S) is the program over the ideals between I and J on the devices of one group of kind g. In
it a tensor costs the near price or the far one, depending on S alone: a receiver pays far if the
producer is outside S, a sender if any reader is.

`link_levels` derives the groups from the links: the cost of a transfer to a device must depend on
nothing but whether the other end is in its group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, frozen_ints
from placewright.core.execution_models import MaxLoad
from placewright.core.grouping import DisjointSets, Grouping
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.pipelines.ideals import kernel
from placewright.placers.pipelines.ideals.items import (
    IdealLattice,
    Items,
    chain,
    depth_first_order,
    enumerate_in_time,
    items_of,
)
from placewright.placers.pipelines.ideals.load_model import (
    NO_HOP,
    Hop,
    LoadModel,
    TransferCosts,
    crossing_tensors,
    hop_cost,
    hop_seconds,
    load_model_of,
    why_not_separable,
)
from placewright.placers.pipelines.ideals.program import (
    INEXACT,
    NO_ROOM,
    SPLIT_SHARE,
    TOO_MANY_KINDS,
    ContiguousProgram,
    fits_table,
    is_exact,
    solved_in_order,
    standing_loads,
    unproven,
    why_not_in_order,
    with_room,
)
from placewright.simulation.compiled import compiled
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.layout import NO_ROUTE, VIA_HOST, routes

_SLACK = 1 + 1e-9  # so that rounding never prunes
_FLAT_SHARE = 0.3  # of the seconds, for a split at the far prices
_LINEAR_SHARE = 0.5  # of the seconds, for the split of one linear order
_MOST_MEMBERS = 100_000_000  # limit on items of all ideals, a byte each
_TOO_MANY_ITEMS = "too many ops for groups; best split at the prices between groups"
_ENDED = "the budget ended before the best split"


@dataclass(frozen=True, eq=False)
class LevelledModel:
    """A load model with two prices for each tensor."""

    far: LoadModel  # the model with all transfers at the price between groups
    # near_receive, near_send: prices within a group, shape (n_kinds, n_tensors)
    near_receive: FloatArray
    near_send: FloatArray
    # devices of each group, those of one kind of device in ascending order
    groups: tuple[IntArray, ...]
    kind_of_group: IntArray  # the first group with as many devices of each kind, shape (n_groups,)

    def priced(self, inside: BoolArray, kinds: IntArray) -> LoadModel:
        """The model of one group that carries the items `inside`, shape (n_items,).

        Args:
            inside: items of the group.
            kinds: kind of each of its devices.
        """
        far = self.far
        made_here = inside[np.maximum(far.producers, 0)] & (far.producers >= 0)
        readers = far.consumers
        outside = np.zeros(far.n_tensors, dtype=np.bool_)
        outside[readers.row_of_each()[~inside[readers.indices]]] = True
        return replace(
            far,
            kind_of=kinds,
            seconds=np.where(inside, far.seconds, 0.0),
            receive=np.where(made_here, self.near_receive, far.receive),
            send=np.where(outside, far.send, self.near_send),
        )


def levelled_model(problem: Problem, grouping: Grouping, levels: LinkLevels) -> LevelledModel:
    """The load model of a problem whose links have two levels."""
    near = crossing_tensors(problem, grouping, levels.near)
    traits = np.vstack([near.receive.T, near.send.T])
    far = load_model_of(problem, grouping, levels.far, traits)
    first = np.unique(far.kind_of, return_index=True)[1]
    groups = tuple(
        np.flatnonzero(levels.group_of == group) for group in np.unique(levels.group_of).tolist()
    )
    shapes = [tuple(sorted(far.kind_of[devices].tolist())) for devices in groups]
    return LevelledModel(
        far,
        near.receive[first],
        near.send[first],
        groups,
        np.array([shapes.index(shape) for shape in shapes], dtype=np.int64),
    )


class TwoLevelProgram:
    """The dynamic program over one lattice of ideals and groups of devices.

    Args:
        model: costs of sets of items.
        lattice: ideals of the precedence among items.
        incumbent: the program looks for smaller values only; inf without one.

    Attributes:
        value: of the best split, `incumbent` until there is one.
    """

    def __init__(
        self, model: LevelledModel, lattice: IdealLattice, incumbent: float = np.inf
    ) -> None:
        self.value = incumbent
        self._model, self._lattice = model, lattice
        far = model.far
        self._left = kernel.remaining_work(
            lattice.indptr, lattice.added, lattice.reached, far.scaled_work
        )
        self._rounding = 1e-9 * float(self._left[0])  # of differences of what is left
        self._inside = _members(lattice, far.n_items)
        self._firsts, self._counts = np.unique(model.kind_of_group, return_counts=True)
        used = np.indices(tuple(self._counts + 1)).reshape(len(self._counts), -1)
        self._used = used.T  # (n_states, n_kinds): groups in use
        self._speed = np.array(
            [far.speeds[far.kind_of[model.groups[group]]].sum() for group in self._firsts.tolist()]
        )
        self._capacity = (self._counts - self._used) @ self._speed
        self._idle = self._idle_loads()
        shape = (lattice.n_ideals, len(self._used))
        self._values = np.full(shape, np.inf)
        self._values[0, 0] = 0.0
        self._previous = np.full(shape, -1, dtype=np.int64)
        self._by = np.full(shape, -1, dtype=np.int64)

    @property
    def found(self) -> bool:
        """True if a split beats the initial incumbent."""
        return bool(np.isfinite(self._values[-1]).any())

    def run(self, is_spent: Callable[[], bool] = lambda: False) -> bool:
        """Walk all pairs of ideals; False if `is_spent` ended the walk before it was complete."""
        for origin in range(self._lattice.n_ideals - 1):
            alive = (self._values[origin] < self.value) & self._may_finish(origin)
            usable = [
                kind
                for kind in range(len(self._counts))
                if (alive & (self._used[:, kind] < self._counts[kind])).any()
            ]
            if not usable:
                continue
            reach = float(self._speed[usable].max()) * self.value * _SLACK + self._rounding
            lattice = self._lattice
            for target in _above(
                lattice.indptr, lattice.reached, self._left, origin, reach
            ).tolist():
                self._extend(origin, target, usable, alive, is_spent)
                if is_spent():
                    return False
        return True

    def devices(self) -> IntArray:
        """Device of each item in the best split, shape (n_items,)."""
        model = self._model
        free = [np.flatnonzero(model.kind_of_group == first).tolist() for first in self._firsts]
        device_of = np.empty(model.far.n_items, dtype=np.int64)
        target, state = self._lattice.n_ideals - 1, int(np.argmin(self._values[-1]))
        while target > 0:
            kind, origin = int(self._by[target, state]), int(self._previous[target, state])
            value = self._values[target, state] * _SLACK
            program = self._group_program(origin, target, kind, float(np.nextafter(value, np.inf)))
            program.run(lambda: program.found)  # noqa: B023 - it runs at once
            if not program.found:  # the sums of another walk are rounded in another way
                program = self._group_program(origin, target, kind, math.inf)
                program.run()
            devices = model.groups[free[kind].pop()]
            idle = {
                k: devices[model.far.kind_of[devices] == k].tolist()
                for k in model.far.kind_of[devices].tolist()
            }
            for device_kind, items in program.kind_sets():
                device_of[items] = idle[device_kind].pop(0)
            target, state = origin, state - self._stride(kind)
        return device_of

    def _may_finish(self, ideal: int) -> BoolArray:
        """States whose free groups can carry the rest below the incumbent, (n_states,)."""
        with np.errstate(invalid="ignore"):  # 0 * inf if no group is free and there is no incumbent
            return np.asarray(~(self._left[ideal] > self._capacity * self.value))

    def _extend(
        self,
        origin: int,
        target: int,
        usable: list[int],
        alive: BoolArray,
        is_spent: Callable[[], bool],
    ) -> None:
        """Try the set `target` - `origin` on one more group of each kind in every open state."""
        work = self._left[origin] - self._left[target] - self._rounding
        is_whole = target == self._lattice.n_ideals - 1
        may_finish = self._may_finish(target)
        for kind in usable:
            stride = self._stride(kind)
            states = np.flatnonzero(alive & (self._used[:, kind] < self._counts[kind]))
            states = states[may_finish[states + stride]]
            best = self._values[target, states + stride]
            states = states[self._values[origin, states] < np.minimum(best, self.value)]
            limit = min(self.value, float(best.max(initial=0.0)))
            if len(states) == 0 or work >= self._speed[kind] * self.value * _SLACK:
                continue
            program = self._group_program(origin, target, kind, limit)
            program.run(is_spent)
            if not program.found:
                continue
            after = states + stride
            new = np.maximum(self._values[origin, states], program.value)
            if is_whole:
                new = np.maximum(new, self._idle[after])
            better = (new < self._values[target, after]) & (new < self.value)
            self._values[target, after[better]] = new[better]
            self._previous[target, after[better]] = origin
            self._by[target, after[better]] = kind
            if is_whole:
                self.value = min(self.value, float(new.min()))

    def _group_program(
        self, origin: int, target: int, kind: int, incumbent: float
    ) -> ContiguousProgram:
        """The program of one group that carries the items between two ideals."""
        inside = self._inside[target] & ~self._inside[origin]
        kinds = self._model.far.kind_of[self._model.groups[int(self._firsts[kind])]]
        lattice = self._lattice
        between = IdealLattice(
            *_between(lattice.indptr, lattice.added, lattice.reached, origin, target, inside)
        )
        return ContiguousProgram(self._model.priced(inside, kinds), between, incumbent)

    def _stride(self, kind: int) -> int:
        """Difference of the numbers of two states if one has one more group of a kind."""
        return int(np.prod(self._counts[kind + 1 :] + 1, dtype=np.int64))

    def _idle_loads(self) -> FloatArray:
        """Largest load of an unused group, shape (n_states,)."""
        far, groups = self._model.far, self._model.groups
        standing = standing_loads(far)[far.kind_of]
        idle = np.array([standing[groups[group]].max() for group in self._firsts.tolist()])
        return np.asarray(np.where(self._used < self._counts, idle, 0.0).max(axis=1))


def _members(lattice: IdealLattice, n_items: int) -> BoolArray:
    """Items of every ideal, shape (n_ideals, n_items)."""
    inside = np.zeros((lattice.n_ideals, n_items), dtype=np.bool_)
    for ideal in range(lattice.n_ideals):
        steps = slice(lattice.indptr[ideal], lattice.indptr[ideal + 1])
        reached = lattice.reached[steps]
        inside[reached] = inside[ideal]
        inside[reached, lattice.added[steps]] = True
    return inside


@compiled
def _above(indptr, reached, left, origin, reach) -> IntArray:  # type: ignore[no-untyped-def]
    """Ideals above `origin` with less than `reach` work between, in ascending order."""
    marked = np.zeros(len(left), dtype=np.bool_)
    marked[origin] = True
    ideals = [np.int64(0) for _ in range(0)]
    for ideal in range(origin, len(left)):
        if not marked[ideal]:
            continue
        if ideal > origin:
            ideals.append(np.int64(ideal))
        for at in range(indptr[ideal], indptr[ideal + 1]):
            if left[origin] - left[reached[at]] < reach:
                marked[reached[at]] = True
    return np.array(ideals, dtype=np.int64)


@compiled
def _between(indptr, added, reached, origin, target, inside) -> tuple[IntArray, IntArray, IntArray]:  # type: ignore[no-untyped-def]
    """The lattice of the ideals from `origin` to `target`, whose difference is `inside`."""
    number = np.full(target - origin + 1, -1, dtype=np.int64)
    number[0] = 0
    for ideal in range(origin, target):
        if number[ideal - origin] >= 0:
            for at in range(indptr[ideal], indptr[ideal + 1]):
                if inside[added[at]]:
                    number[reached[at] - origin] = 0
    count = 0
    for ideal in range(len(number)):
        if number[ideal] >= 0:
            number[ideal] = count
            count += 1
    ptr = np.zeros(count + 1, dtype=np.int64)
    items = [np.int64(0) for _ in range(0)]
    ends = [np.int64(0) for _ in range(0)]
    for ideal in range(origin, target):
        if number[ideal - origin] >= 0:
            for at in range(indptr[ideal], indptr[ideal + 1]):
                if inside[added[at]]:
                    items.append(np.int64(added[at]))
                    ends.append(number[reached[at] - origin])
            ptr[number[ideal - origin] + 1] = len(items)
    ptr[count] = len(items)
    return ptr, np.array(items, dtype=np.int64), np.array(ends, dtype=np.int64)


class GroupSplitter:
    """Searches splits of one problem and evaluates them.

    Args:
        problem: its links have two levels.
    """

    def __init__(self, problem: Problem, evaluator: Evaluator) -> None:
        levels = link_levels(problem)
        if levels is None:
            raise InputError(why_not_levelled(problem))
        self._evaluator = evaluator
        self._items: Items = items_of(problem)
        self._model: LevelledModel = levelled_model(problem, self._items.grouping, levels)
        classes = load_model_of(problem, problem.colocation, levels.far)
        evaluator.offer_bound(classes.area_bound, "balanced load")
        self._value = math.inf  # of the best split in groups
        self._doubt = ""  # why the last program proves nothing

    def linear(self) -> Solution:
        """The best split of the depth-first order, after the best one at the far prices."""
        return self._answer(self._linear())

    def _linear(self, share: float = 1.0) -> str:
        """Evaluate the splits of `linear`, within a share of the seconds; return the message."""
        evaluator = self._evaluator
        with evaluator.share(share * _FLAT_SHARE):
            flat = solved_in_order(
                self._model.far, self._items, is_spent=lambda: evaluator.is_spent
            )
        if flat is not None:
            evaluator.evaluate(self._items.grouping.expand(flat.devices()))
        lattice = chain(depth_first_order(self._items.successors))
        if not self._fits_table(lattice):
            return TOO_MANY_KINDS
        if not self._fits_members(lattice):
            return _TOO_MANY_ITEMS
        if not self._run(lattice, share):
            return _ENDED
        if self._doubt == NO_ROOM and not evaluator.is_closed:
            return NO_ROOM
        if evaluator.best is None:
            return "no stretches of the depth-first order fit the devices' memory and support"
        return "best split of one linear order"

    def _answer(self, message: str) -> Solution:
        evaluator = self._evaluator
        solution = evaluator.cut_short() if message == _ENDED else evaluator.solution()
        return replace(solution, message=message)

    def exact(self, max_ideals: int) -> Solution:
        """The best split in which devices and groups are contiguous.

        Args:
            max_ideals: limit on ideals; beyond it the result is the linear split.
        """
        evaluator = self._evaluator
        message = self._linear(_LINEAR_SHARE)
        if evaluator.is_spent or message in (TOO_MANY_KINDS, _TOO_MANY_ITEMS, _ENDED):
            return self._answer(message)
        lattice, _ = enumerate_in_time(
            self._items.successors, max_ideals, lambda: evaluator.remaining_seconds
        )
        if lattice is None or not self._fits_members(lattice) or not self._fits_table(lattice):
            if message == NO_ROOM:
                return unproven(evaluator, NO_ROOM)
            return evaluator.solution(
                message="best linear split: too many ideals for the exact one"
            )
        if not self._run(lattice):
            return replace(evaluator.cut_short(), message="the budget ended before the proof")
        if self._doubt:
            return unproven(evaluator, self._doubt)
        if evaluator.best is None:
            which = f"no split with contiguous groups{self._items.restriction}"
            return evaluator.solution(message=f"{which} fits the devices' memory and support")
        if self._value > evaluator.best_value * _SLACK:  # no split in groups: nothing is proven
            return evaluator.solution()
        absorbed = " and keep ops without run time at their neighbour"
        return evaluator.solution(
            message="optimal among placements whose devices and groups are contiguous"
            + (absorbed if self._items.absorbed_memory else "")
        )

    def _fits_table(self, lattice: IdealLattice) -> bool:
        """True if the tables over groups, and over the devices of each group, are small enough."""
        model = self._model
        firsts, counts = np.unique(model.kind_of_group, return_counts=True)
        tables = [counts]
        for first in firsts.tolist():
            kinds = model.far.kind_of[model.groups[first]]
            tables.append(np.unique(kinds, return_counts=True)[1])
        return all(fits_table(table, lattice.n_ideals) for table in tables)

    def _fits_members(self, lattice: IdealLattice) -> bool:
        return lattice.n_ideals * self._items.n_items <= _MOST_MEMBERS

    def _run(self, lattice: IdealLattice, share: float = 1.0) -> bool:
        """Evaluate the best split over a lattice unless it loses to the incumbent; see `run`."""
        evaluator, model = self._evaluator, self._model
        # Splits as good as the incumbent count, since that need not be a split in groups.
        program = TwoLevelProgram(model, lattice, evaluator.best_value * _SLACK)
        with evaluator.share(share * SPLIT_SHARE):
            is_complete = program.run(lambda: evaluator.is_spent)
        value, self._doubt = self._evaluated(program), ""
        if math.isfinite(value) and not is_exact(model.far, program.value, value):
            self._doubt = INEXACT
        if math.isinf(value) and program.found:
            self._doubt, roomy = NO_ROOM, replace(model, far=with_room(model.far))
            program = TwoLevelProgram(roomy, lattice, evaluator.best_value)
            with evaluator.share(share * SPLIT_SHARE):
                program.run(lambda: evaluator.is_spent)
            self._evaluated(program)
        return is_complete

    def _evaluated(self, program: TwoLevelProgram) -> float:
        """Evaluate the best split of a program; its incumbent's value without one."""
        if not program.found:
            return program.value
        value = self._evaluator.evaluate(self._items.grouping.expand(program.devices()))
        self._value = min(self._value, value)
        return value


def why_not_contiguous_in_groups(problem: Problem) -> str | None:
    """As `why_not_contiguous`, for programs that also take links of two levels."""
    return why_not_in_order(problem) or why_not_levelled(problem)


@dataclass(frozen=True, eq=False)
class LinkLevels:
    """Groups of devices, and the costs of transfers within and between them."""

    group_of: IntArray  # group of each device, shape (n_devices,)
    near: TransferCosts  # costs where the other device is in the same group
    far: TransferCosts  # costs where it is in another


def link_levels(problem: Problem) -> LinkLevels | None:
    """The two levels of a max-load problem's links; None if there are not exactly two.

    A hop is near if it is cheaper than the dearest hop of the device that pays it. Near hops join
    the devices of a group, in one step or several. The host, if it is a device, must be alone in
    its group.
    """
    if problem.unit_transfer_seconds is not None or not isinstance(
        problem.execution_model, MaxLoad
    ):
        return None
    cluster = problem.cluster
    if any(link.channel is not None for link in cluster.links):
        return None
    hops = _hops(problem)
    if hops is None:
        return None
    arriving, leaving = hops
    n = problem.n_devices
    groups = DisjointSets(n)
    for device, costs in enumerate([*arriving, *leaving]):
        dearest = max(costs.values(), default=None)
        for other, hop in costs.items():
            if hop != dearest:
                groups.join(device % n, other)
    group_of = frozen_ints([groups.root(device) for device in range(n)])
    host = problem.cluster.host_endpoint
    if host < n and int((group_of == group_of[host]).sum()) > 1:
        return None
    sides = []
    for side in hops:
        split = [_near_and_far(costs, group_of, device) for device, costs in enumerate(side)]
        if any(pair is None for pair in split):
            return None
        sides.append([pair for pair in split if pair is not None])
    return _levels(problem, group_of, *sides)


def why_not_levelled(problem: Problem) -> str | None:
    """None if links have one level or two, else the reason."""
    reason = why_not_separable(problem)
    return None if reason is None or link_levels(problem) is not None else reason


def _hops(problem: Problem) -> tuple[list[dict[int, Hop]], list[dict[int, Hop]]] | None:
    """Arriving and leaving hops of each device: other device -> hop; None without a route.

    A receiver pays the last hop of a route, a sender the first one.
    """
    cluster, n, host = problem.cluster, problem.n_devices, problem.cluster.host_endpoint
    route = routes(problem)
    arriving: list[dict[int, Hop]] = [{} for _ in range(n)]
    leaving: list[dict[int, Hop]] = [{} for _ in range(n)]
    for source in range(n):
        for target in range(n):
            if source == target:
                continue
            if route[source, target] == NO_ROUTE:
                return None
            via = route[source, target] == VIA_HOST
            first, last = (source, host if via else target), (host if via else source, target)
            leaving[source][target] = hop_cost(problem, first)
            arriving[target][source] = hop_cost(problem, last)
    graph = problem.unit_graph
    linked = cluster.link_channel >= 0
    away = np.arange(n) != host
    if (graph.tensor_producers < 0).any() and not linked[host, :n][away].all():
        return None
    if graph.tensor_is_output.any() and not linked[:n, host][away].all():
        return None
    return arriving, leaving


def _near_and_far(hops: dict[int, Hop], group_of: IntArray, device: int) -> tuple[Hop, Hop] | None:
    """The only hop within the group and the only hop beyond it; None if there are several."""
    same = {hop for other, hop in hops.items() if group_of[other] == group_of[device]}
    others = {hop for other, hop in hops.items() if group_of[other] != group_of[device]}
    if len(same) > 1 or len(others) > 1:
        return None
    near = min(same | others, default=NO_HOP)
    far = min(others, default=near)
    if same and (near not in same or near[0] > far[0] or near[1] > far[1]):
        return None
    return near, far


def _levels(
    problem: Problem,
    group_of: IntArray,
    arriving: list[tuple[Hop, Hop]],
    leaving: list[tuple[Hop, Hop]],
) -> LinkLevels:
    cluster, host, n = problem.cluster, problem.cluster.host_endpoint, problem.n_devices
    linked = cluster.link_channel >= 0
    inwards, outwards = [], []
    for device in range(n):
        into, out = (host, device), (device, host)
        inwards.append(hop_cost(problem, into) if linked[into] else NO_HOP)
        outwards.append(hop_cost(problem, out) if linked[out] else NO_HOP)
    from_host, to_host = hop_seconds(problem, inwards), hop_seconds(problem, outwards)
    near, far = (
        TransferCosts(
            hop_seconds(problem, [pair[level] for pair in arriving]),
            hop_seconds(problem, [pair[level] for pair in leaving]),
            from_host,
            to_host,
        )
        for level in (0, 1)
    )
    return LinkLevels(group_of, near, far)
