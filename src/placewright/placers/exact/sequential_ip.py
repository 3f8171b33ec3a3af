"""Integer program for execution model `sequential`, which counts alike items instead of listing.

Layers of a language model are alike: where each of a hundred lies matters less than how many lie on
each device. The program has a column for each kind of item and device, so that it has few columns
however many layers and experts there are. Its optimum is a lower bound. Items then take devices by
the counts (`counted.constructed`), and alike items swap places while that saves messages. If no two
items are alike, the program is exact.

The literature lists each item (Tarnawski et al., NeurIPS 2020, section 5.1); counting is ours.

The integer program over counts: how many items of each kind lie on each device.

n[k, d]: items of kind k on device d, an integer. For each type t of tensors:

- p[t, d]: tensors of the type that are made on d;
- f[t, k, d, e]: pairs of a tensor made on d and a reader of kind k on e;
- y[t, d, e] >= f[t, k, d, e] / (readers of kind k of one tensor): tensors that d sends to e.

Counts, pairs and tensors agree as far as each item makes and reads so many. What devices keep fits
into all limits. Devices in use are connected by tensors, whichever way they are divided. A tensor
enters each part of them, for the unit of the part that comes first, and a tensor leaves it. Each
placement gives such numbers with its own value, so that the optimum is a lower bound; it is exact
if no two items are alike.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import Sequential
from placewright.core.grouping import DisjointSets
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import anytime, found_none, require_counts, why_not_time_alone
from placewright.placers.exact.counted import (
    Messages,
    Symmetry,
    TensorType,
    constructed,
    symmetry_of,
)
from placewright.placers.exact.integer_program import (
    IntegerProgram,
    MipResult,
    ProgramBuilder,
    scale_for,
    solve,
)
from placewright.simulation.bounds.lower import cheapest_units_bound
from placewright.simulation.evaluator import Evaluator

_METHOD = "counted integer program"
_TOLERANCE = 1e-6  # of the solver, relative
_SLACK = 1e-5  # of memory, if a solution of the program is over a limit by its tolerance
_SHARE = 0.5  # of the seconds that are left, for the solver


@dataclass(frozen=True)
class SequentialIp:
    """Counts items on devices, then lays them out.

    Attributes:
        max_nodes: branch-and-bound nodes if the budget has no seconds, >= 1.
    """

    name: ClassVar[str] = "sequential-ip"
    paper: ClassVar[str] = "ours, after Tarnawski et al., NeurIPS 2020"
    objectives: ClassVar[tuple[str, ...]] = ("latency",)
    needs_training: ClassVar[bool] = False

    max_nodes: int = 5000

    def __post_init__(self) -> None:
        require_counts("sequential-ip", self, "max_nodes")

    def why_not(self, problem: Problem) -> str | None:
        """None for execution model `sequential`."""
        if reason := why_not_time_alone(problem):
            return reason
        if isinstance(problem.execution_model, Sequential):
            return None
        return (
            f"it minimises sequential, not '{problem.execution_model.name}'; use execution model "
            "sequential"
        )

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Solve the program, lay out its counts, and evaluate the layouts."""
        del rng
        symmetry = symmetry_of(problem)
        least = cheapest_units_bound(problem)
        evaluator.offer_bound(least, "cheapest units")
        seconds = problem.costs.seconds
        largest = float(seconds[np.isfinite(seconds)].max(initial=0.0))
        scale = scale_for(least, evaluator.best_value, largest)
        counted = counted_program(problem, symmetry, scale)
        result = self._solved(counted, evaluator)
        bound = result.lower_bound / scale * (1.0 - _TOLERANCE)
        if math.isfinite(bound):
            evaluator.offer_bound(bound, _METHOD)
        if result.is_infeasible:
            return evaluator.solution(message=found_none("placement within all limits"))
        if result.columns is not None and not self._laid_out(
            problem, symmetry, counted, result.columns, evaluator
        ):
            self._again(problem, symmetry, scale, evaluator)
        if result.is_out_of_time and not evaluator.is_closed:
            return evaluator.cut_short()
        return evaluator.solution()

    def _solved(self, counted: CountedProgram, evaluator: Evaluator) -> MipResult:
        return solve(
            counted.program,
            seconds=_SHARE * evaluator.remaining_seconds,
            max_nodes=self.max_nodes,
            is_over=lambda: evaluator.is_spent,
        )

    def _laid_out(
        self,
        problem: Problem,
        symmetry: Symmetry,
        counted: CountedProgram,
        columns: FloatArray,
        evaluator: Evaluator,
    ) -> bool:
        """Evaluate layouts of a solution; False if none was feasible."""
        found = False
        messages = Messages(problem, symmetry)
        counts, pairs = found_counts(counted, columns), found_pairs(counted, columns)
        for layout in constructed(symmetry, messages, counts, pairs, lambda: evaluator.is_spent):
            found |= math.isfinite(evaluator.evaluate(problem.colocation.expand(layout)))
        return found

    def _again(
        self, problem: Problem, symmetry: Symmetry, scale: float, evaluator: Evaluator
    ) -> None:
        """Solve with a little less memory: what the solver took for a fit was over a limit."""
        cluster = problem.cluster
        devices = tuple(
            replace(device, memory_bytes=device.memory_bytes * (1.0 - _SLACK))
            for device in cluster.devices
        )
        pools = {name: size * (1.0 - _SLACK) for name, size in cluster.pools.items()}
        tighter = replace(problem, cluster=replace(cluster, devices=devices, pools=pools))
        counted = counted_program(tighter, symmetry, scale)
        result = self._solved(counted, evaluator)
        if result.columns is not None:
            self._laid_out(problem, symmetry, counted, result.columns, evaluator)


_MOST_CONNECTED = 8  # devices up to which divisions are listed: there are 2 ** (n - 1) of them


@dataclass(frozen=True, eq=False)
class CountedProgram:
    """The program, and where its columns are."""

    program: IntegerProgram  # to be solved
    counts: IntArray  # column of n[k, d], -1 where the kind may not run, (n_kinds, n_devices)
    # type, kind of reader -> columns of f, (n_sources, n_devices)
    pairs: dict[tuple[int, int], IntArray]


def counted_program(problem: Problem, symmetry: Symmetry, scale: float) -> CountedProgram:
    """Make the program of a problem; its values are seconds times `scale`."""
    return _Builder(problem, symmetry, scale).build()


class _Builder(ProgramBuilder):
    def __init__(self, problem: Problem, symmetry: Symmetry, scale: float) -> None:
        super().__init__()
        self.problem, self.symmetry, self.scale = problem, symmetry, scale
        self.n_devices = problem.n_devices
        self.counts = np.full((symmetry.n_kinds, self.n_devices), -1, dtype=np.int64)
        self.pairs: dict[tuple[int, int], IntArray] = {}
        self.made: list[IntArray] = []  # columns of p, (n_sources,)
        # types that items of each kind make or read
        self.types_of: list[list[int]] = [[] for _ in range(symmetry.n_kinds)]
        for number, each in enumerate(symmetry.types):
            for kind in dict.fromkeys([*[each.source] * (each.source >= 0), *each.readers]):
                self.types_of[kind].append(number)
        self.has_inputs = any(each.source < 0 for each in symmetry.types)
        # device or the host's endpoint, device, column of y: of items' tensors and graph inputs
        self.sent: list[tuple[int, int, int]] = []
        self.given: list[tuple[int, int, int]] = []

    def build(self) -> CountedProgram:
        self._counts()
        for number, each in enumerate(self.symmetry.types):
            self._tensors(number, each)
        for kind in range(self.symmetry.n_kinds):
            self._agree(kind)
        self._memory()
        if not self.symmetry.is_listed and self.n_devices <= _MOST_CONNECTED:
            self._connected()
        program = self.program()
        program = replace(program, cost=program.cost * self.scale)
        return CountedProgram(program, self.counts, self.pairs)

    def _counts(self) -> None:
        for kind, row in enumerate(self.symmetry.seconds.tolist()):
            n = float(self.symmetry.n_of[kind])
            for device, seconds in enumerate(row):
                if math.isfinite(seconds):
                    self.counts[kind, device] = self.column(n, seconds, is_integer=True)
            used = self._used(kind)
            self.rows.add(n, n, used, [1.0] * len(used))

    def _used(self, kind: int) -> list[int]:
        return [int(column) for column in self.counts[kind] if column >= 0]

    def _tensors(self, number: int, tensor_type: TensorType) -> None:
        """Columns and rows of one type; devices that cannot be the source have no column."""
        n, n_devices = float(len(tensor_type.tensors)), self.n_devices
        sources = (
            range(n_devices) if tensor_type.source >= 0 else [self.problem.cluster.host_endpoint]
        )
        made = np.full(len(tensor_type.arrival), -1, dtype=np.int64)
        for source in sources:
            if tensor_type.source < 0 or self.counts[tensor_type.source, source] >= 0:
                exits = float(tensor_type.exits[source]) if source < n_devices else 0.0
                made[source] = self.column(n if math.isfinite(exits) else 0.0, _finite(exits))
        present = made[made >= 0].tolist()
        self.rows.add(n, n, present, [1.0] * len(present))
        self.made.append(made)
        sends: dict[tuple[int, int], int] = {}
        for kind, readers in tensor_type.readers.items():
            pairs = np.full((len(made), n_devices), -1, dtype=np.int64)
            for source in np.flatnonzero(made >= 0).tolist():
                self._pairs(tensor_type, readers, (source, kind), pairs, sends)
                columns = pairs[source][pairs[source] >= 0].tolist()
                coefficients = [1.0] * len(columns) + [-float(readers)]
                self.rows.add(0.0, 0.0, [*columns, int(made[source])], coefficients)
            self.pairs[number, kind] = pairs

    def _pairs(
        self,
        tensor_type: TensorType,
        readers: int,
        at: tuple[int, int],
        pairs: IntArray,
        sends: dict[tuple[int, int], int],
    ) -> None:
        """Columns f of one source and kind of reader, and the columns y that they need."""
        source, kind = at
        n = float(len(tensor_type.tensors))
        for target in range(self.n_devices):
            seconds = float(tensor_type.arrival[source, target])
            if self.counts[kind, target] < 0 or not math.isfinite(seconds):
                continue
            pairs[source, target] = self.column(n * readers)
            if source == target:
                continue
            if (source, target) not in sends:
                sends[source, target] = self.column(n, seconds)
                of_items = tensor_type.source >= 0
                sent = self.sent if of_items else self.given
                sent.append((source, target, sends[source, target]))
            column = sends[source, target]
            terms = [column, int(pairs[source, target])]
            self.rows.add(0.0, math.inf, terms, [float(readers), -1.0])

    def _agree(self, kind: int) -> None:
        """Bound the tensors made and read on a device by what its items of a kind make and read."""
        symmetry = self.symmetry
        items = np.flatnonzero(symmetry.kind_of == kind)
        makes: dict[int, IntArray] = {}
        reads: dict[int, IntArray] = {}
        for number in self.types_of[kind]:
            tensor_type = symmetry.types[number]
            members = [symmetry.tensors[tensor] for tensor in tensor_type.tensors]
            if tensor_type.source == kind:
                makes[number] = _per_item([tensor.source for tensor in members], items)
            if kind in tensor_type.readers:
                reads[number] = _per_item(
                    [item for tensor in members for item in tensor.readers], items
                )
        for device in range(self.n_devices):
            made = {t: [int(self.made[t][device])] for t in makes}
            read = {t: self._into(t, kind, device) for t in reads}
            self._agree_on(kind, device, makes, made)
            self._agree_on(kind, device, reads, read)

    def _into(self, number: int, kind: int, device: int) -> list[int]:
        column = self.pairs[number, kind][:, device]
        return [int(entry) for entry in column if entry >= 0]

    def _agree_on(
        self, kind: int, device: int, per_item: dict[int, IntArray], columns: dict[int, list[int]]
    ) -> None:
        if not per_item:
            return
        groups = [[number] for number in per_item]
        if len(per_item) > 1:
            groups.append(list(per_item))
        for group in groups:
            counts = sum(per_item[number] for number in group)
            terms = [column for number in group for column in columns[number] if column >= 0]
            self._between(terms, int(self.counts[kind, device]), np.asarray(counts))

    def _between(self, terms: list[int], count: int, per_item: IntArray) -> None:
        """Add rows: the sum of terms is between `count` times the least and the most per item."""
        least, most = float(per_item.min()), float(per_item.max())
        ones = [1.0] * len(terms)
        if count < 0:
            if terms:
                self.rows.add(0.0, 0.0, terms, ones)
        elif least == most:
            self.rows.add(0.0, 0.0, [*terms, count], [*ones, -least])
        else:
            self.rows.add(0.0, math.inf, [*terms, count], [*ones, -least])
            self.rows.add(-math.inf, 0.0, [*terms, count], [*ones, -most])

    def _memory(self) -> None:
        symmetry, cluster = self.symmetry, self.problem.cluster
        if self.problem.keeps_everything:
            return
        terms: list[list[tuple[int, float]]] = [[] for _ in range(self.n_devices)]
        for kind, device in np.argwhere(self.counts >= 0).tolist():
            terms[device].append((int(self.counts[kind, device]), float(symmetry.own_bytes[kind])))
        for size, kinds in symmetry.shared:
            for device in range(self.n_devices):
                kept = self.column(1.0)
                terms[device].append((kept, size))
                for kind in kinds:
                    if self.counts[kind, device] >= 0:
                        row = [kept, int(self.counts[kind, device])]
                        self.rows.add(0.0, math.inf, row, [float(symmetry.n_of[kind]), -1.0])
        for device, limit in enumerate(cluster.memory_bytes.tolist()):
            self._at_most(terms[device], limit)
        for shares, limit in zip(cluster.pool_shares, cluster.pool_bytes.tolist(), strict=True):
            of_pool = [
                (column, size * float(shares[device]))
                for device in np.flatnonzero(shares).tolist()
                for column, size in terms[device]
            ]
            self._at_most(of_pool, limit)

    def _at_most(self, terms: list[tuple[int, float]], limit: float) -> None:
        if math.isinf(limit):
            return
        size = max(limit, 1.0)
        kept = [(column, each / size) for column, each in terms if each > 0]
        columns, values = [column for column, _ in kept], [value for _, value in kept]
        self.rows.add(-math.inf, limit / size, columns, values)

    def _connected(self) -> None:
        """Require tensors between the parts of each division of the devices in use."""
        in_use = [self.column(1.0, is_integer=True) for _ in range(self.n_devices)]
        for kind, device in np.argwhere(self.counts >= 0).tolist():
            row = [int(self.counts[kind, device]), in_use[device]]
            self.rows.add(-math.inf, 0.0, row, [1.0, -float(self.symmetry.n_of[kind])])
        self.sent, self.given = self._together(self.sent), self._together(self.given)
        is_one = _hangs_together(self.symmetry) and bool(self.sent)
        first, last = _ends_of_order(self.problem, self.symmetry)
        for inside in _divisions(self.n_devices):
            outside = tuple(device for device in range(self.n_devices) if device not in inside)
            crossing = [column for a, b, column in self.sent if (a in inside) != (b in inside)]
            for a, b in itertools.product(inside, outside) if is_one else ():
                row = [*crossing, in_use[a], in_use[b]]
                self.rows.add(-1.0, math.inf, row, [*([1.0] * len(crossing)), -1.0, -1.0])
            for part in (inside, outside):
                self._entered(part, in_use, first)
                leaving = [x for a, b, x in self.sent if a in part and b not in part]
                self._at_least_one(leaving, part, in_use, last)

    def _together(self, columns: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """One column, at most the sum of its columns y, for each two devices.

        The rows of all divisions would otherwise repeat the columns of every type.
        """
        by_ends: dict[tuple[int, int], list[int]] = {}
        for source, target, column in columns:
            by_ends.setdefault((source, target), []).append(column)
        sums = []
        for (source, target), those in by_ends.items():
            total = self.column(1.0)
            self.rows.add(0.0, math.inf, [*those, total], [*([1.0] * len(those)), -1.0])
            sums.append((source, target, total))
        return sums

    def _entered(self, part: tuple[int, ...], in_use: list[int], first: list[int]) -> None:
        """Require a tensor that enters a part, unless graph inputs may be there already."""
        if not self.has_inputs or self.problem.cluster.host_endpoint not in part:
            sent = [*self.sent, *self.given]
            entering = [x for a, b, x in sent if a not in part and b in part]
            self._at_least_one(entering, part, in_use, first)

    def _at_least_one(
        self, crossing: list[int], part: tuple[int, ...], in_use: list[int], kinds: list[int]
    ) -> None:
        """Require a tensor, or an item of some kinds in the part, if a device of it is in use."""
        items = [int(self.counts[k, d]) for k in kinds for d in part if self.counts[k, d] >= 0]
        for device in part:
            row = [*crossing, *items, in_use[device]]
            self.rows.add(0.0, math.inf, row, [*([1.0] * (len(row) - 1)), -1.0])


def _ends_of_order(problem: Problem, symmetry: Symmetry) -> tuple[list[int], list[int]]:
    """Kinds of the items with a unit that reads no tensor, and with one whose tensors none reads.

    All other units come after, or before, another one.
    """
    graph, group_of = problem.unit_graph, problem.colocation.group_of
    units = np.arange(problem.n_units)
    read = [graph.tensor_consumers.row(tensor) for tensor in range(graph.n_tensors)]
    readers = np.concatenate([*read, np.empty(0, dtype=np.int64)])
    makers = [graph.tensor_producers[tensor] for tensor, row in enumerate(read) if len(row)]
    first, last = np.setdiff1d(units, readers), np.setdiff1d(units, makers)
    kinds = [np.unique(symmetry.kind_of[group_of[ends]]).tolist() for ends in (first, last)]
    return kinds[0], kinds[1]


def _finite(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0


def _per_item(named: list[int], items: IntArray) -> IntArray:
    """For each item, the number of its occurrences in a list."""
    return np.bincount(named, minlength=int(items.max()) + 1)[items]


def _divisions(n_devices: int) -> list[tuple[int, ...]]:
    """Proper subsets of the devices that contain device 0: one for each division in two."""
    others = range(1, n_devices)
    return [
        (0, *chosen)
        for size in range(n_devices - 1)
        for chosen in itertools.combinations(others, size)
    ]


def _hangs_together(symmetry: Symmetry) -> bool:
    sets = DisjointSets(len(symmetry.kind_of))
    for tensor in symmetry.tensors:
        for reader in tensor.readers:
            if tensor.source >= 0:
                sets.join(tensor.source, reader)
    return sets.grouping().n_groups == 1


def found_counts(counted: CountedProgram, columns: FloatArray) -> IntArray:
    """Items of each kind on each device in a solution, (n_kinds, n_devices)."""
    values = np.where(counted.counts >= 0, columns[counted.counts], 0.0)
    return np.asarray(np.rint(values), dtype=np.int64)


def found_pairs(counted: CountedProgram, columns: FloatArray) -> dict[tuple[int, int], FloatArray]:
    """Pairs of tensors and readers in a solution, by type and kind of reader."""
    return {key: np.where(at >= 0, columns[at], 0.0) for key, at in counted.pairs.items()}
