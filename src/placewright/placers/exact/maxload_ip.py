"""Integer program for the largest load, contiguous or not, with a start from search.

Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020, section 5.1.3 (non-contiguous: without the z
variables; max forward + max backward: appendix C). HiGHS solves it, and returns incumbent and bound
when time ends.

Departures from the paper: one x variable per colocation class; devices of one kind are told apart
by the costliest class that they may carry; the solver starts from the best of DPL's split and a few
rounds of simulated annealing. Shared processors, memory pools, and limits on energy and price are
rows of ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.execution_models import splits_phases
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import anytime, found_none, require_counts, require_numbers
from placewright.placers.exact.integer_program import MipResult, scale_for, solve
from placewright.placers.exact.max_load.annealing import anneal, annealing_state, fixed_arrays
from placewright.placers.exact.max_load.program import first_devices, max_load_program, relabelled
from placewright.placers.pipelines.ideals.items import (
    Items,
    has_backward_to_forward_edge,
    items_of,
)
from placewright.placers.pipelines.ideals.load_model import (
    LoadModel,
    load_model_of,
    why_not_separable,
)
from placewright.placers.pipelines.ideals.program import SAME, solved_in_order
from placewright.simulation.evaluator import Evaluator

_STEPS_PER_SECOND = 300_000  # of annealing, on a slow core
_STEPS_PER_ITEM = 5000  # of one round: small problems need no more
_IDLE_ROUNDS = 9  # without an improvement, three at each heat
_LINEAR_SHARE = 0.3  # of the seconds, for the split of one linear order
# Presolve of GNMT on four devices (171,000 entries) took 14 s of 10, and removed 9 of 40,308 rows.
_PRESOLVED_PER_SECOND = 10_000
_TOLERANCE = 1e-6  # of the solver, relative to a value near 1000


@dataclass(frozen=True)
class MaxloadIp:
    """Solves the max-load integer program.

    It knows limits on energy and price, and processors that devices share. It refuses named
    channels, and transfers whose time depends on the device at the other end.

    Attributes:
        contiguous: every device's forward set must be contiguous.
        annealing_share: part of the budget's seconds that annealing takes, in [0, 1).
        annealing_steps: most steps of one round, >= 1.
        annealing_rounds: rounds if the budget has no seconds, >= 0.
        max_nodes: branch-and-bound nodes if the budget has no seconds, >= 1.
    """

    name: ClassVar[str] = "maxload-ip"
    paper: ClassVar[str] = "Tarnawski et al., NeurIPS 2020"
    objectives: ClassVar[tuple[str, ...]] = ("throughput",)
    needs_training: ClassVar[bool] = False

    contiguous: bool = False
    annealing_share: float = 0.2
    annealing_steps: int = 1_000_000
    annealing_rounds: int = 3
    max_nodes: int = 500

    def __post_init__(self) -> None:
        require_numbers("maxload-ip", self, "in [0, 1)", "annealing_share")
        require_counts("maxload-ip", self, "annealing_steps", "max_nodes")
        require_counts("maxload-ip", self, "annealing_rounds", least=0)

    def why_not(self, problem: Problem) -> str | None:
        """None for a max-load problem whose transfers do not depend on the other end."""
        if self.contiguous and has_backward_to_forward_edge(problem):
            return "a forward op reads a backward op's output, so contiguous is not defined"
        return why_not_separable(problem)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """DPL's split, annealing, then the integer program with what is left of the budget."""
        classes = load_model_of(problem, problem.colocation)
        evaluator.offer_bound(classes.area_bound, "balanced load")
        items = items_of(problem) if self.contiguous else None
        grouping = problem.colocation if items is None else items.grouping
        model = classes if items is None else load_model_of(problem, grouping)
        start, linear = self._linear_start(problem, grouping, evaluator)
        if items is None:
            start = self._annealed(problem, model, start, evaluator, rng)
        return self._solved(problem, items, model, (start, linear), evaluator)

    def _linear_start(
        self, problem: Problem, grouping: Grouping, evaluator: Evaluator
    ) -> tuple[IntArray | None, float]:
        """DPL's split of the groups, and its value; None and inf if none keeps all limits."""
        if has_backward_to_forward_edge(problem):
            return None, math.inf
        items = items_of(problem)
        model = load_model_of(problem, items.grouping)
        with evaluator.share(_LINEAR_SHARE):
            program = solved_in_order(model, items, is_spent=lambda: evaluator.is_spent)
        if program is None:
            return None, math.inf
        device_of = items.grouping.expand(program.devices())
        value = evaluator.evaluate(device_of)
        if math.isinf(value):  # it ignores limits of pools and amounts
            return None, math.inf
        return device_of[grouping.members.indices[grouping.members.indptr[:-1]]], value

    def _annealed(
        self,
        problem: Problem,
        model: LoadModel,
        start: IntArray | None,
        evaluator: Evaluator,
        rng: np.random.Generator,
    ) -> IntArray | None:
        """Anneal in rounds at falling heat; return the best assignment.

        Annealing knows no limits on energy and price: an assignment that breaks one is no start.
        """
        fixed = fixed_arrays(model, split_phases=splits_phases(problem.execution_model))
        best = _spread(model) if start is None else np.array(start)
        value = math.inf if start is None else evaluator.best_value
        scale = max(model.area_bound, 1e-300) if math.isinf(value) else value
        share = self.annealing_share * evaluator.remaining_seconds
        timed, end, done, idle = math.isfinite(share), evaluator.seconds + share, 0, 0
        keeps_limits = True
        while (evaluator.seconds < end) if timed else (done < self.annealing_rounds):
            if value <= evaluator.lower_bound * (1 + _TOLERANCE):  # also where nothing takes time
                break
            left = end - evaluator.seconds
            steps = min(self.annealing_steps, _STEPS_PER_ITEM * model.n_items)
            if timed:
                steps = min(steps, int(left * _STEPS_PER_SECOND) + 1000)
            heat = scale * (0.1, 0.03, 0.01)[done % 3]
            candidate = best.copy()
            new = anneal(
                fixed, annealing_state(fixed, best), candidate, value, rng,
                steps, heat, scale * 1e-4,
            )  # fmt: skip
            idle += 1
            if new < value:
                best, value, idle = candidate, new, 0
                found = evaluator.evaluate(problem.colocation.expand(best))
                keeps_limits = math.isfinite(found)
            if idle == _IDLE_ROUNDS:
                break
            done += 1
        return best if math.isfinite(value) and keeps_limits else start

    def _solved(
        self,
        problem: Problem,
        items: Items | None,
        model: LoadModel,
        begin: tuple[IntArray | None, float],
        evaluator: Evaluator,
    ) -> Solution:
        """Solve the program and return its result as a solution; with items, a contiguous one."""
        grouping = problem.colocation if items is None else items.grouping
        start, value = begin  # with items the value is that of the start
        if items is not None and not np.isfinite(model.seconds.min(axis=0)).all():
            return evaluator.solution(message=_no_contiguous(items))  # no device takes some item
        entries = np.concatenate([model.seconds, model.receive, model.send], axis=1)
        largest = float(entries[np.isfinite(entries)].max(initial=0.0))
        scale = scale_for(model.area_bound, evaluator.best_value, largest)
        program = max_load_program(
            _scaled(model, scale),
            successors=None if items is None else items.successors,
            split_phases=splits_phases(problem.execution_model),
            may_be=first_devices(model),
        )
        columns = None
        if start is not None:
            columns = np.full(program.program.n_columns, np.nan)
            chosen = relabelled(model, start)[:, None] == np.arange(problem.n_devices)
            used = program.placed >= 0
            columns[program.placed[used]] = chosen[used]
        if evaluator.is_spent:
            return evaluator.solution()
        seconds = evaluator.remaining_seconds * 0.98 - 0.2
        result = solve(
            program.program,
            start=columns,
            seconds=seconds,
            max_nodes=self.max_nodes,
            is_over=lambda: evaluator.is_spent,
            presolve=len(program.program.rows.values) <= _PRESOLVED_PER_SECOND * seconds,
        )
        bound = result.lower_bound / scale * (1 - _TOLERANCE)
        if math.isfinite(bound) and items is None:
            evaluator.offer_bound(bound, "integer program")
        if result.columns is not None:
            values = np.where(program.placed >= 0, result.columns[program.placed], -1.0)
            placement = grouping.expand(values.argmax(axis=1))
            if not evaluator.is_spent:
                value = min(value, evaluator.evaluate(placement))
        return self._verdict(evaluator, result, bound, model, items, value)

    def _verdict(
        self,
        evaluator: Evaluator,
        result: MipResult,
        bound: float,
        model: LoadModel,
        items: Items | None,
        value: float,
    ) -> Solution:
        """Status and message of the solution, of which `value` is that of the program.

        An evaluator may hold a better placement that is not contiguous: of that nothing is proven.
        """
        if result.is_infeasible and items is None:
            return evaluator.solution(message=found_none(_that_fits(model)))
        if items is not None and result.is_infeasible:
            return evaluator.solution(message=_no_contiguous(items))
        if result.is_out_of_time:
            return evaluator.cut_short()
        proven = value <= bound * (1 + 3 * _TOLERANCE)
        if items is not None and proven and value <= evaluator.best_value * (1.0 + SAME):
            return evaluator.solution(
                message=f"optimal among contiguous placements{_fused(items)}{items.restrictions}"
            )
        return evaluator.solution()


def _no_contiguous(items: Items) -> str:
    which = f"contiguous placement{_fused(items)}{items.restriction}"
    return found_none(f"{which} within memory, support and limits")


def _fused(items: Items) -> str:
    """Words for a message about placements of items that fuse several classes."""
    return " of fused classes" if items.has_fused_classes else ""


def _scaled(model: LoadModel, factor: float) -> LoadModel:
    """The model with all times multiplied, since the tolerances of the solver are absolute."""
    return replace(
        model,
        seconds=model.seconds * factor,
        forward_seconds=model.forward_seconds * factor,
        receive=model.receive * factor,
        send=model.send * factor,
        standing=model.standing * factor,
        limits=tuple(
            (replace(of, always=of.always / factor, used=of.used / factor), most)
            for of, most in model.limits
        ),
    )


def _spread(model: LoadModel) -> IntArray:
    """Place heaviest items first, each on the allowed device with the least compute so far."""
    seconds = model.seconds[model.kind_of]  # (n_devices, n_items)
    load = np.zeros(len(seconds))
    device_of = np.zeros(model.n_items, dtype=np.int64)
    for item in np.argsort(-model.seconds.min(axis=0), kind="stable").tolist():
        device_of[item] = int(np.argmin(load + seconds[:, item]))
        load[device_of[item]] += seconds[device_of[item], item]
    return device_of


def _that_fits(model: LoadModel) -> str:
    if model.limits:
        return "placement that keeps memory, support and limits"
    total = model.weight_bytes.sum()
    held = model.most_bytes
    return f"packing of {total:.0f} B into {held:.0f} B on all devices"
