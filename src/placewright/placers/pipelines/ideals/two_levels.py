"""Best splits over groups of devices whose links are of two levels.

Tarnawski et al. 2020 describe hierarchies of accelerators in an appendix, without code; this is
their dynamic program once over groups and once within each:
dp[m][J] = min over ideals I in J and kinds of groups g of max(dp[m - g][I], best_g(J - I)), where
best_g(S) is the program over the ideals between I and J on the devices of one group of kind g. In
it a tensor costs the near price or the far one, and S alone says which: a receiver pays far where
the producer is outside S, a sender where any reader is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.pipelines.ideals import kernel
from placewright.placers.pipelines.ideals.enumeration import IdealLattice
from placewright.placers.pipelines.ideals.link_levels import LinkLevels
from placewright.placers.pipelines.ideals.load_model import LoadModel, load_model_of
from placewright.placers.pipelines.ideals.program import ContiguousProgram, standing_loads
from placewright.placers.pipelines.ideals.transfers import crossing_tensors
from placewright.simulation.compiled import compiled

_SLACK = 1 + 1e-9  # so that rounding never prunes


@dataclass(frozen=True, eq=False)
class LevelledModel:
    """A load model with two prices for each tensor.

    Attributes:
        far: the model with all transfers at the price between groups.
        near_receive, near_send: prices within a group, shape (n_kinds, n_tensors).
        groups: devices of each group, those of one kind of device in ascending order.
        kind_of_group: the first group with as many devices of each kind, shape (n_groups,).
    """

    far: LoadModel
    near_receive: FloatArray
    near_send: FloatArray
    groups: tuple[IntArray, ...]
    kind_of_group: IntArray

    def priced(self, inside: BoolArray, kinds: IntArray) -> LoadModel:
        """The model of one group that carries the items `inside`, shape (n_items,).

        Args:
            inside: what the group carries.
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
        model: what sets of items cost.
        lattice: ideals of the precedence among items.
        incumbent: only splits with a smaller value are looked for; inf without one.

    Attributes:
        value: of the best split found so far, `incumbent` until there is one.
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
        """True when a split better than the given incumbent was found."""
        return bool(np.isfinite(self._values[-1]).any())

    def run(self, is_spent: Callable[[], bool] = lambda: False) -> bool:
        """Walk all pairs of ideals; False when `is_spent` ended the walk before it was complete."""
        for origin in range(self._lattice.n_ideals - 1):
            alive = (self._values[origin] < self.value) & self._may_finish(origin)
            usable = [
                kind
                for kind in range(len(self._counts))
                if (alive & (self._used[:, kind] < self._counts[kind])).any()
            ]
            if not usable:
                continue
            reach = float(self._speed[usable].max()) * self.value * _SLACK
            lattice = self._lattice
            for target in _above(
                lattice.indptr, lattice.reached, self._left, origin, reach
            ).tolist():
                if is_spent():
                    return False
                self._extend(origin, target, usable, alive)
        return True

    def devices(self) -> IntArray:
        """Device of each item in the best split found, shape (n_items,)."""
        model = self._model
        free = [np.flatnonzero(model.kind_of_group == first).tolist() for first in self._firsts]
        device_of = np.empty(model.far.n_items, dtype=np.int64)
        target, state = self._lattice.n_ideals - 1, int(np.argmin(self._values[-1]))
        while target > 0:
            kind, origin = int(self._by[target, state]), int(self._previous[target, state])
            program = self._group_program(origin, target, kind, np.inf)
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
        """States whose free groups can carry what is left below the incumbent, (n_states,)."""
        with np.errstate(invalid="ignore"):  # 0 * inf where no group is free and none is known
            return np.asarray(~(self._left[ideal] > self._capacity * self.value))

    def _extend(self, origin: int, target: int, usable: list[int], alive: BoolArray) -> None:
        """Try the set `target` - `origin` on one more group of each kind in every open state."""
        work = self._left[origin] - self._left[target]
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
            program.run()
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
        """The program of one group that carries what lies between two ideals."""
        inside = self._inside[target] & ~self._inside[origin]
        kinds = self._model.far.kind_of[self._model.groups[int(self._firsts[kind])]]
        lattice = self._lattice
        between = IdealLattice(
            *_between(lattice.indptr, lattice.added, lattice.reached, origin, target, inside)
        )
        return ContiguousProgram(self._model.priced(inside, kinds), between, incumbent)

    def _stride(self, kind: int) -> int:
        """What one more group of a kind adds to the number of a state."""
        return int(np.prod(self._counts[kind + 1 :] + 1, dtype=np.int64))

    def _idle_loads(self) -> FloatArray:
        """Largest load of a group that is not in use, shape (n_states,)."""
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
    found = [np.int64(0) for _ in range(0)]
    for ideal in range(origin, len(left)):
        if not marked[ideal]:
            continue
        if ideal > origin:
            found.append(np.int64(ideal))
        for at in range(indptr[ideal], indptr[ideal + 1]):
            if left[origin] - left[reached[at]] < reach:
                marked[reached[at]] = True
    return np.array(found, dtype=np.int64)


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
