"""Best contiguous splits of a load model, shared by `ideal-dp`, `dpl` and `pipedream`.

`ContiguousProgram` sets up the states, runs the kernel in slices and reads the split back.

Replicated stages: the dynamic program over ideals that also forms groups of identical devices.

Tarnawski et al. 2020 let a stage run on r accelerators, each taking every r-th sample, in an
appendix without code; PipeDream (Narayanan et al., SOSP 2019) replicates stages of a chain. Here r
identical devices of a pool may carry one set of the program:
dp[m][J] = min over ideals I in J, pools p and r of max(dp[m - r devices of p][I], load_pr(J - I)).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.execution_models import MaxLoad, splits_phases
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices, grouped, one_group_per_size
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.bases import why_not_time_alone
from placewright.placers.pipelines.ideals import kernel
from placewright.placers.pipelines.ideals.items import (
    IdealLattice,
    Items,
    chain,
    depth_first_order,
    enumerate_in_time,
    has_backward_to_forward_edge,
    items_of,
)
from placewright.placers.pipelines.ideals.load_model import (
    AT_HOST,
    LoadModel,
    load_model_of,
    why_not_separable,
)
from placewright.simulation.bounds.feasibility import MEMORY_ROUNDING
from placewright.simulation.compiled import read_only
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

_STEPS_PER_SLICE = 20_000_000  # visited sets times states
MAX_TABLE_ENTRIES = 100_000_000
# Of the seconds that are left: so that the best split by then can still be valued.
SPLIT_SHARE = 0.95
SAME = 1e-9  # relative: values that differ by less are sums in another order
_EXACT = 1e-6  # relative; proofs have a gap of 3e-6 (`evaluator.CLOSED`)
NO_ROOM = "not proven best: a better split may fit where sums of bytes round down"
INEXACT = "not proven best: the times that the program counts are not exact"
COPIES = "not proven best: without replicas a shared weight counts once"
TOO_MANY_KINDS = "too many kinds of devices for a table of all that may be in use"


@dataclass(frozen=True, eq=False)
class Pools:
    """Sets of devices from which stages are served: each stage takes one or more of a pool."""

    pool_of: IntArray  # pool that each kind takes devices from, shape (n_kinds,)
    # devices that each kind takes at once, as replicas, shape (n_kinds,); each pool has a kind of 1
    size: IntArray
    counts: IntArray  # devices in each pool, shape (n_pools,)

    @classmethod
    def of_kinds(cls, model: LoadModel) -> Pools:
        """One pool per kind; a stage takes one device."""
        kinds = np.arange(model.n_kinds)
        return cls(kinds, np.ones_like(kinds), model.counts)

    @property
    def single(self) -> IntArray:
        """Kind of each pool whose stages take one device, shape (n_pools,)."""
        ones = np.flatnonzero(self.size == 1)
        return np.asarray(ones[np.argsort(self.pool_of[ones])], dtype=np.int64)


class ContiguousProgram:
    """The dynamic program over one lattice of ideals.

    Args:
        model: costs of sets of items.
        lattice: ideals of the precedence among items.
        incumbent: only smaller values are searched.
        pools: default `Pools.of_kinds`.
    """

    def __init__(
        self,
        model: LoadModel,
        lattice: IdealLattice,
        incumbent: float = np.inf,
        pools: Pools | None = None,
    ) -> None:
        self._model, self._lattice = model, lattice
        self._kernel_model = _kernel_model(model)
        self._states = _states(model, pools or Pools.of_kinds(model), lattice.n_ideals)
        self._left = kernel.remaining_work(
            lattice.indptr, lattice.added, lattice.reached, self._states.work
        )
        self._incumbent = np.array([incumbent])
        self._seen = np.full(lattice.n_ideals, -1, dtype=np.int64)
        self._next = 0

    @property
    def value(self) -> float:
        """Max-load of the best split so far, or the initial incumbent if that is smaller."""
        return float(self._incumbent[0])

    @property
    def found(self) -> bool:
        """True if a split of all items beats the initial incumbent."""
        return bool(np.isfinite(self._states.value[-1]).any())

    def run(self, is_spent: Callable[[], bool] = lambda: False) -> bool:
        """Walk all ideals; False if `is_spent` ended the walk before the proof was complete."""
        lattice = self._lattice
        growing = _empty_set(self._model)
        visits = max(1, _STEPS_PER_SLICE // len(self._states.capacity))
        while self._next < lattice.n_ideals - 1:
            if is_spent():
                return False
            self._next = kernel.walk(
                (lattice.indptr, lattice.added, lattice.reached, self._left),
                self._kernel_model,
                growing,
                self._states,
                self._incumbent,
                self._seen,
                self._next,
                visits,
            )
        return True

    def kind_sets(self) -> list[tuple[int, IntArray]]:
        """The best split: (kind, items) of each used device, first to last."""
        states = self._states
        ideal = self._lattice.n_ideals - 1
        state = int(np.argmin(states.value[ideal]))
        inside = self._members(ideal)
        result: list[tuple[int, IntArray]] = []
        while ideal > 0:
            kind = int(states.last_kind[ideal, state])
            ideal = int(states.previous[ideal, state])
            state -= int(states.stride[kind])
            before = self._members(ideal)
            result.append((kind, np.flatnonzero(inside & ~before)))
            inside = before
        return result[::-1]

    def devices(self) -> IntArray:
        """Device of each item in the best split, shape (n_items,)."""
        free = [
            np.flatnonzero(self._model.kind_of == kind).tolist()
            for kind in range(self._model.n_kinds)
        ]
        device_of = np.empty(self._model.n_items, dtype=np.int64)
        for kind, items in self.kind_sets():
            device_of[items] = free[kind].pop(0)
        return device_of

    @cached_property
    def _addition(self) -> IntArray:
        """An addition that leads to each ideal, shape (n_ideals,); -1 for the empty set."""
        additions = np.full(self._lattice.n_ideals, -1, dtype=np.int64)
        additions[self._lattice.reached] = np.arange(len(self._lattice.reached))
        return additions

    def _members(self, ideal: int) -> BoolArray:
        """Items of an ideal as a mask, shape (n_items,), by walking additions backwards."""
        lattice = self._lattice
        mask = np.zeros(self._model.n_items, dtype=np.bool_)
        while ideal > 0:
            addition = int(self._addition[ideal])
            mask[lattice.added[addition]] = True
            ideal = int(np.searchsorted(lattice.indptr, addition, side="right")) - 1
        return mask


def fits_table(counts: IntArray, n_ideals: int) -> bool:
    """True if the value table of a program is small enough.

    Args:
        counts: devices of each pool, shape (n_pools,).
    """
    width = 3 * len(counts)  # of each state's own rows
    return bool(math.prod((counts + 1).tolist()) * (n_ideals + width) <= MAX_TABLE_ENTRIES)


def _kernel_model(model: LoadModel) -> kernel.KernelModel:
    n_consumers = np.diff(model.consumers.indptr)
    allowed = np.isfinite(model.seconds)
    model_arrays = kernel.KernelModel(
        seconds=np.ascontiguousarray(np.where(allowed, model.seconds, 0.0).T),
        barred=np.ascontiguousarray(~allowed.T).astype(np.int64),
        receive=np.ascontiguousarray(model.receive.T),
        send=np.ascontiguousarray(model.send.T),
        memory=model.memory * (1.0 + MEMORY_ROUNDING),  # the evaluator decides
        overlaps=model.overlaps,
        input_ptr=model.inputs.indptr,
        inputs=model.inputs.indices,
        output_ptr=model.outputs.indptr,
        outputs=model.outputs.indices,
        n_consumers=n_consumers.astype(np.int64),
        weight_ptr=model.weights.indptr,
        weights=model.weights.indices,
        weight_bytes=model.weight_bytes,
    )
    return read_only(model_arrays)


def standing_loads(model: LoadModel) -> FloatArray:
    """Transfer seconds of an idle device of each kind, shape (n_kinds,).

    The host receives graph outputs and sends graph inputs even if it runs nothing.
    """
    sent = model.send[:, model.producers == AT_HOST].sum(axis=1)
    return np.asarray(model.standing.sum(axis=0) + sent)


def _empty_set(model: LoadModel) -> kernel.GrowingSet:
    transfers = np.zeros((model.n_items + 1, model.n_kinds))
    transfers[0] = standing_loads(model)
    return kernel.GrowingSet(
        compute=np.zeros((model.n_items + 1, model.n_kinds)),
        n_barred=np.zeros(model.n_kinds, dtype=np.int64),
        transfers=transfers,
        resident=np.zeros(model.n_items + 1),
        n_inside=np.zeros(model.n_tensors, dtype=np.int64),
        producer_inside=model.producers == AT_HOST,
        weight_uses=np.zeros(len(model.weight_bytes), dtype=np.int64),
    )


def _states(model: LoadModel, pools: Pools, n_ideals: int) -> kernel.KernelStates:
    counts, single = pools.counts, pools.single
    step = np.concatenate([[1], np.cumprod(counts + 1)[:-1]]).astype(np.int64)
    n_states = int(np.prod(counts + 1))
    used = (np.arange(n_states)[:, None] // step) % (counts + 1)
    standing = standing_loads(model)[single]
    value = np.full((n_ideals, n_states), np.inf)
    value[0, 0] = 0.0
    return kernel.KernelStates(
        n_used=used,
        step=step,
        has_room=np.ascontiguousarray(used[:, pools.pool_of] + pools.size <= counts[pools.pool_of]),
        stride=step[pools.pool_of] * pools.size,
        idle_load=np.where((used == 0) & (counts > 0), standing, 0.0).max(axis=1),
        capacity=((counts - used) * model.speeds[single]).sum(axis=1),
        work=model.scaled_work,
        value=value,
        previous=np.full((n_ideals, n_states), -1, dtype=np.int32),
        last_kind=np.full((n_ideals, n_states), -1, dtype=np.int16),
    )


def why_not_contiguous(problem: Problem) -> str | None:
    """None if a program can compute the best contiguous split, else the reason."""
    return why_not_in_order(problem) or why_not_separable(problem)


def why_not_in_order(problem: Problem) -> str | None:
    """None if a contiguous split is defined and a table of single devices' loads suffices."""
    if reason := why_not_time_alone(problem):
        return reason
    if not isinstance(problem.execution_model, MaxLoad):
        return (
            f"it minimises max-load, not '{problem.execution_model.name}'; use objective throughput"
        )
    if splits_phases(problem.execution_model):
        return "its value is one maximum, not max forward + max backward; use maxload-ip"
    if problem.cluster.shared_processors:
        return "devices share a processor, whose load its table does not have; use maxload-ip"
    if has_backward_to_forward_edge(problem):
        return "a forward op reads a backward op's output, so the forward graph has no ideals"
    if problem.cluster.shared_pools and not problem.keeps_everything:
        return (
            f"its table has no memory that devices share, and pool "
            f"'{problem.cluster.shared_pools[0]}' may be too small; use maxload-ip"
        )
    return None


def solved_in_order(
    model: LoadModel,
    items: Items,
    pools: Pools | None = None,
    is_spent: Callable[[], bool] = lambda: False,
) -> ContiguousProgram | None:
    """Find the best split of a depth-first topological order of the items into runs.

    Args:
        is_spent: called between slices; True ends the walk with the best split by then.

    Returns:
        None if no runs fit the devices' memory and support, or the table is too large.
    """
    if not fits_table((pools or Pools.of_kinds(model)).counts, items.n_items + 1):
        return None
    program = ContiguousProgram(model, chain(depth_first_order(items.successors)), pools=pools)
    program.run(is_spent)
    return program if program.found else None


def place_in_order(
    problem: Problem, items: Items, evaluator: Evaluator, stretches: str, best: str
) -> Solution:
    """Evaluate the best split of a depth-first order of the items.

    Args:
        stretches: name of the runs of the order, for messages.
        best: message with the best split.
    """
    evaluator.offer_bound(load_model_of(problem, problem.colocation).area_bound, "balanced load")
    model = load_model_of(problem, items.grouping)
    if not fits_table(model.counts, items.n_items + 1):
        return evaluator.solution(message=TOO_MANY_KINDS)
    with evaluator.share(SPLIT_SHARE):
        program = solved_in_order(model, items, is_spent=lambda: evaluator.is_spent)
        is_over = evaluator.is_spent
    value = math.inf if program is None else evaluate_split(program, items, evaluator)
    if is_over:
        return replace(evaluator.cut_short(), message="the budget ended before the best split")
    if program is None:
        return evaluator.solution(
            message=f"no stretches of the {stretches} fit the devices' memory and support"
        )
    if math.isinf(value):
        return in_order_with_room(model, items, evaluator)
    return evaluator.solution(message=best)


def evaluate_split(program: ContiguousProgram, items: Items, evaluator: Evaluator) -> float:
    """Value of the best split of a program, expanded to units."""
    return evaluator.evaluate(items.grouping.expand(program.devices()))


def with_room(model: LoadModel) -> LoadModel:
    """The model whose programs find splits that fit however their bytes are added."""
    return replace(model, memory=model.memory * (1.0 - 2.0 * MEMORY_ROUNDING))


def evaluate_with_room(program: ContiguousProgram, items: Items, evaluator: Evaluator) -> None:
    """Evaluate the best split of a program of `with_room`, if there is one."""
    with evaluator.share(SPLIT_SHARE):
        program.run(lambda: evaluator.is_spent)
    if program.found:
        evaluate_split(program, items, evaluator)


def in_order_with_room(model: LoadModel, items: Items, evaluator: Evaluator) -> Solution:
    """Evaluate the best split of the depth-first order that fits however bytes are added."""
    order = chain(depth_first_order(items.successors))
    evaluate_with_room(ContiguousProgram(with_room(model), order), items, evaluator)
    return unproven(evaluator, NO_ROOM)


def unproven(evaluator: Evaluator, why: str) -> Solution:
    """The incumbent as a solution, with the reason why a program does not prove it."""
    solution = evaluator.cut_short() if evaluator.is_spent else evaluator.solution()
    return solution if evaluator.is_closed else replace(solution, message=why)


def is_exact(model: LoadModel, least: float, value: float) -> bool:
    """True if rounding hides no split that is better than the best one of a program.

    Transfers are added and taken off again, so that their sum rounds as the largest of them does.

    Args:
        least: value of the best split by the program.
        value: its value by the evaluator.
    """
    if value == 0.0 or math.isinf(value):
        return value == 0.0
    moved = (np.abs(model.receive) + model.send).sum(axis=1) + standing_loads(model)
    rounded = 2.0**-52 * model.n_tensors * float(moved.max())
    return max(rounded, abs(value - least)) <= _EXACT * value


_MOST_IDEALS = 1_000_000


@dataclass(frozen=True, eq=False)
class Replicated:
    """The best groups, and the split that uses them."""

    problem: Problem  # its devices are the groups, and the remaining single devices
    device_of: IntArray | None  # the split of the groups, shape (n_units,); None without one
    message: str  # the proof, or why there is none

    @property
    def value(self) -> float:
        """Value of the split in the problem's time unit; inf without one that keeps every limit."""
        if self.device_of is None:
            return math.inf
        return Simulator(self.problem).value(Placement.of(self.device_of))


def replicated(
    problem: Problem, seconds_left: Callable[[], float] = lambda: math.inf
) -> Replicated:
    """Form the groups of the best contiguous split in which stages may be replicated.

    Exact as `ideal-dp` is: over all ways of grouping devices of one pool (`alike_devices`) and all
    contiguous splits. Beyond a million ideals, or if no seconds are left, the result is the
    incumbent, at least the best split of one depth-first order if there was time for it. Nor is it
    exact where devices hold a shared weight once: beside replicas each device has a copy, which the
    program also counts without replicas.

    Args:
        problem: of single devices, under max-load, with links of one level.
        seconds_left: called between slices; 0 or less ends the walk.

    Raises:
        InputError: another execution model, links of several levels, no two alike devices, or a
            training graph without gradients or bandwidth to exchange them.
        ClusterError: a device stands for several already.
    """
    problem.cluster.require_single_devices("a search for groups")
    if reason := why_not_contiguous(problem):
        raise InputError(f"stages cannot be replicated: {reason}")
    alike = alike_devices(problem)
    if alike.is_identity:
        raise InputError(
            "stages cannot be replicated: no two devices are alike (the same costs, memory, links "
            "and pins; the host stands alone)"
        )
    sizes = one_group_per_size(problem)
    items = items_of(sizes)
    kept = [one.kept.bytes_by_label(items.grouping.group_of) for one in (problem, sizes)]
    has_copies = not problem.keeps_everything and not np.array_equal(kept[0], kept[1])
    counts = np.diff(alike.members.indptr)
    pools = Pools(alike.group_of, sizes.cluster.replicas, counts.astype(np.int64))
    model = load_model_of(sizes, items.grouping, traits=np.stack([pools.pool_of, pools.size]))
    if not fits_table(pools.counts, items.n_items + 1):
        return Replicated(problem, None, TOO_MANY_KINDS)
    program = solved_in_order(model, items, pools, lambda: seconds_left() <= 0)
    is_over = seconds_left() <= 0
    lattice, _ = enumerate_in_time(items.successors, _MOST_IDEALS, seconds_left)
    if lattice is not None and not fits_table(pools.counts, lattice.n_ideals):
        lattice = None
    if is_over:
        proven = "the budget ended before the best split"
    elif lattice is None:
        proven = "not proven best: too many ideals; best split of one linear order"
    else:
        known = math.inf if program is None else program.value
        exact = ContiguousProgram(model, lattice, known, pools)
        is_complete = exact.run(lambda: seconds_left() <= 0)
        best = COPIES if has_copies else _proof(items)
        proven = best if is_complete else "the budget ended before the proof"
        program = exact if exact.found else program
    if program is None and seconds_left() <= 0:
        return Replicated(problem, None, "the budget ended before a split was found")
    if program is None:
        which = "split of one linear order" if lattice is None else "contiguous split"
        return Replicated(problem, None, _none_fits(which + items.restriction, has_copies))
    found = _replicated(problem, program, pools, items, proven)
    value = found.value
    if math.isinf(value):
        program = solved_in_order(with_room(model), items, pools, lambda: seconds_left() <= 0)
        if program is None:
            return Replicated(problem, None, NO_ROOM)
        return _replicated(problem, program, pools, items, NO_ROOM)
    if proven == _proof(items) and not is_exact(model, program.value, value):
        return replace(found, message=INEXACT)
    return found


def _replicated(
    problem: Problem, program: ContiguousProgram, pools: Pools, items: Items, message: str
) -> Replicated:
    groups, group_of = _groups(program, pools)
    return Replicated(grouped(problem, groups), items.grouping.expand(group_of), message)


def _groups(program: ContiguousProgram, pools: Pools) -> tuple[list[list[int]], IntArray]:
    """Devices of each group, by the first of them, and the group of each item."""
    free = [np.flatnonzero(pools.pool_of == pool).tolist() for pool in range(len(pools.counts))]
    stages = []
    for kind, members in program.kind_sets():
        pool, size = free[int(pools.pool_of[kind])], int(pools.size[kind])
        stages.append(([pool.pop(0) for _ in range(size)], members))
    unused = [([device], np.empty(0, dtype=np.int64)) for pool in free for device in pool]
    ordered = sorted([*stages, *unused], key=lambda stage: stage[0][0])
    group_of = np.empty(sum(len(members) for _, members in ordered), dtype=np.int64)
    for group, (_, members) in enumerate(ordered):
        group_of[members] = group
    return [devices for devices, _ in ordered], group_of


def _none_fits(which: str, has_copies: bool) -> str:
    if has_copies:
        return f"no {which} fits with replicas; without them one may: a shared weight counts once"
    return f"no {which} fits, with replicas or without"


def _proof(items: Items) -> str:
    return f"best over groups of alike devices and contiguous splits{items.restrictions}"
