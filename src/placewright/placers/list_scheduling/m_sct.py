"""m-SCT: earliest task first where a device waits for its last unit's favourite child.

C. Hanen and A. Munier, "An approximation algorithm for scheduling dependent tasks on m processors
with small communication delays", ETFA 1995, with Baechi's memory check (Jeon et al., SoCC 2020,
section 3.3). The favourite children come from the linear program over x[i, j] in [0, 1] (0: j runs
right after i on the same device):

    minimise w  with  start[i] + seconds[i] + transfer[i, j] x[i, j] <= start[j] for edges (i, j),
    start[i] + seconds[i] <= w,
    sum over j of x[i, j] >= successors(i) - 1,  sum over i of x[i, j] >= predecessors(j) - 1,

rounded: j is the favourite child of i where x[i, j] < threshold, at most one child per unit and one
unit per child (the smallest x first).

Departures from the paper: mean seconds and mean transfers over devices, since theirs are alike;
devices that differ and memory as in `m_etf`. The rounding keeps one child per unit where the
authors' code lets the last edge win. A device is held as Hanen and Munier define it, until the
child could start elsewhere; the authors' code holds it only once all inputs of the child are made.
A limit in seconds gives the linear program half of them; if it is not solved by then, no unit has a
favourite child.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.bases import ForLatency, anytime
from placewright.placers.legal import evaluate_within_limits
from placewright.placers.list_scheduling.earliest_first import propose_earliest_first
from placewright.placers.list_scheduling.ranks import mean_transfers
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import mean_costs

_PROGRAM_SHARE = 0.5  # of the seconds, for the linear program


@dataclass(frozen=True)
class MSct(ForLatency):
    """Small communication times.

    Attributes:
        threshold: a favourite child has an x below this, in (0, 0.5].
    """

    name: ClassVar[str] = "m-sct"
    paper: ClassVar[str] = "Jeon et al. (Baechi), SoCC 2020"

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 0.5:
            raise InputError(f"m-sct: threshold must be in (0, 0.5], got {self.threshold}")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng
        seconds = _PROGRAM_SHARE * evaluator.remaining_seconds
        favourite = favourite_children(problem, self.threshold, seconds)
        children = None
        if favourite:
            children = np.full(problem.n_units, -1, dtype=np.int64)
            children[list(favourite)] = list(favourite.values())
        evaluate_within_limits(evaluator, propose_earliest_first(evaluator, children))
        return evaluator.solution()


def favourite_children(
    problem: Problem, threshold: float = 0.5, limit: float = math.inf
) -> dict[int, int]:
    """Unit -> favourite child, by the rounded linear program.

    Args:
        threshold: a favourite child has an x below this.
        limit: seconds of the solver, after which no unit has a favourite; inf is none.
    """
    successors = problem.unit_graph.successors
    sources, targets = successors.row_of_each(), successors.indices
    if len(sources) == 0:
        return {}
    x = _relaxed(problem, sources, targets, limit)
    favourite: dict[int, int] = {}
    taken: dict[int, None] = {}
    for edge in np.lexsort((np.arange(len(x)), x)).tolist():
        unit, child = int(sources[edge]), int(targets[edge])
        if x[edge] < threshold and unit not in favourite and child not in taken:
            favourite[unit] = child
            taken[child] = None
    return favourite


def _edge_seconds(problem: Problem, sources: IntArray, targets: IntArray) -> FloatArray:
    """Mean transfer seconds of the largest tensor of each edge."""
    graph, n_units = problem.unit_graph, problem.n_units
    transfers = mean_transfers(problem)
    tensors = graph.tensor_consumers.row_of_each()
    producers = graph.tensor_producers[tensors]
    made = producers >= 0
    keys = producers[made] * n_units + graph.tensor_consumers.indices[made]
    edge_keys = sources * n_units + targets
    seconds = np.zeros(len(sources))
    np.maximum.at(seconds, np.searchsorted(edge_keys, keys), transfers[tensors[made]])
    return seconds


def _relaxed(problem: Problem, sources: IntArray, targets: IntArray, limit: float) -> FloatArray:
    """x of each edge; variables are the edges, the starts, and the makespan."""
    n_units, n_edges = problem.n_units, len(sources)
    seconds, transfers = mean_costs(problem), _edge_seconds(problem, sources, targets)
    # The tolerances of the solver are absolute, and a microsecond would be next to nothing.
    unit = float(seconds.sum() + transfers.sum()) / (n_units + n_edges) or 1.0
    seconds, transfers = seconds / unit, transfers / unit
    edges, units = np.arange(n_edges), np.arange(n_units)
    last = n_edges + n_units
    many_after = np.flatnonzero(np.bincount(sources, minlength=n_units) > 0)
    many_before = np.flatnonzero(np.bincount(targets, minlength=n_units) > 0)
    row_after = np.full(n_units, -1)
    row_after[many_after] = n_edges + n_units + np.arange(len(many_after))
    row_before = np.full(n_units, -1)
    row_before[many_before] = n_edges + n_units + len(many_after) + np.arange(len(many_before))
    ones_e, ones_u = np.ones(n_edges), np.ones(n_units)
    data: list[FloatArray] = [transfers, ones_e, -ones_e, ones_u, -ones_u, -ones_e, -ones_e]
    rows = [edges, edges, edges, n_edges + units, n_edges + units]
    rows += [row_after[sources], row_before[targets]]
    columns = [edges, n_edges + sources, n_edges + targets, n_edges + units]
    columns += [np.full(n_units, last), edges, edges]
    most = np.concatenate(
        [
            -seconds[sources],
            -seconds,
            1.0 - np.bincount(sources, minlength=n_units)[many_after],
            1.0 - np.bincount(targets, minlength=n_units)[many_before],
        ]
    )
    matrix = coo_array(
        (np.concatenate(data), (np.concatenate(rows), np.concatenate(columns))),
        shape=(len(most), last + 1),
    ).tocsr()
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    bounds = np.zeros((last + 1, 2))
    bounds[:, 1] = np.where(np.arange(last + 1) < n_edges, 1.0, np.inf)
    options = {} if math.isinf(limit) else {"time_limit": max(limit, 1e-3)}
    solution = linprog(  # type: ignore[call-overload]  # the stubs know no sparse matrices
        cost, A_ub=matrix, b_ub=most, bounds=bounds, method="highs", options=options
    )
    return np.asarray(solution.x[:n_edges]) if solution.success else np.ones(n_edges)
