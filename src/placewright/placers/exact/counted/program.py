"""The integer program over counts: how many items of each kind lie on each device.

n[k, d]: items of kind k on device d, an integer. For each type t of tensors:

- p[t, d]: tensors of the type that are made on d;
- f[t, k, d, e]: pairs of a tensor made on d and a reader of kind k on e;
- y[t, d, e] >= f[t, k, d, e] / (readers of kind k of one tensor): tensors that d sends to e.

Counts, pairs and tensors agree as far as each item makes and reads so many. What devices keep fits
into all limits. Devices in use are connected by tensors, whichever way they are divided. Each
placement gives such numbers with its own value, so that the optimum is a lower bound; it is exact
if no two items are alike.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.grouping import DisjointSets
from placewright.core.problem import Problem
from placewright.placers.exact.counted.kinds import Symmetry, TensorType
from placewright.placers.exact.integer_program.program import IntegerProgram, Rows

_MOST_CONNECTED = 8  # devices up to which divisions are listed: there are 2 ** (n - 1) of them


@dataclass
class _Columns:
    upper: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    is_integer: list[bool] = field(default_factory=list)

    def add(self, upper: float, cost: float = 0.0, *, is_integer: bool = False) -> int:
        self.upper.append(upper)
        self.cost.append(cost)
        self.is_integer.append(is_integer)
        return len(self.cost) - 1


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


class _Builder:
    def __init__(self, problem: Problem, symmetry: Symmetry, scale: float) -> None:
        self.problem, self.symmetry, self.scale = problem, symmetry, scale
        self.n_devices = problem.n_devices
        self.columns, self.rows = _Columns(), Rows()
        self.counts = np.full((symmetry.n_kinds, self.n_devices), -1, dtype=np.int64)
        self.pairs: dict[tuple[int, int], IntArray] = {}
        self.made: list[IntArray] = []  # columns of p, (n_sources,)
        self.sent: list[tuple[int, int, int]] = []  # device, device, column of y

    def build(self) -> CountedProgram:
        self._counts()
        for number, each in enumerate(self.symmetry.types):
            self._tensors(number, each)
        for kind in range(self.symmetry.n_kinds):
            self._agree(kind)
        self._memory()
        if not self.symmetry.is_listed and self.n_devices <= _MOST_CONNECTED:
            self._connected()
        columns = self.columns
        program = IntegerProgram(
            self.rows,
            np.array(columns.upper),
            np.array(columns.is_integer, dtype=np.bool_),
            np.array(columns.cost) * self.scale,
        )
        return CountedProgram(program, self.counts, self.pairs)

    def _counts(self) -> None:
        for kind, row in enumerate(self.symmetry.seconds.tolist()):
            n = float(self.symmetry.n_of[kind])
            for device, seconds in enumerate(row):
                if math.isfinite(seconds):
                    self.counts[kind, device] = self.columns.add(n, seconds, is_integer=True)
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
                made[source] = self.columns.add(n if math.isfinite(exits) else 0.0, _finite(exits))
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
            pairs[source, target] = self.columns.add(n * readers)
            if source == target:
                continue
            if (source, target) not in sends:
                sends[source, target] = self.columns.add(n, seconds)
                if tensor_type.source >= 0:
                    self.sent.append((source, target, sends[source, target]))
            column = sends[source, target]
            terms = [column, int(pairs[source, target])]
            self.rows.add(0.0, math.inf, terms, [float(readers), -1.0])

    def _agree(self, kind: int) -> None:
        """Bound the tensors made and read on a device by what its items of a kind make and read."""
        symmetry = self.symmetry
        items = np.flatnonzero(symmetry.kind_of == kind)
        makes: dict[int, IntArray] = {}
        reads: dict[int, IntArray] = {}
        for number, tensor_type in enumerate(symmetry.types):
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
                kept = self.columns.add(1.0)
                terms[device].append((kept, size))
                for kind in kinds:
                    if self.counts[kind, device] >= 0:
                        row = [kept, int(self.counts[kind, device])]
                        self.rows.add(0.0, math.inf, row, [float(symmetry.n_of[kind]), -1.0])
        for device, limit in enumerate(cluster.memory_bytes.tolist()):
            self._at_most(terms[device], limit)
        for pool, limit in enumerate(cluster.pool_bytes.tolist()):
            members = np.flatnonzero(cluster.pool_of == pool).tolist()
            of_pool = [
                (column, size * float(cluster.replicas[device]))
                for device in members
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
        """Require a crossing tensor for each division of used devices, if items are connected."""
        if not _hangs_together(self.symmetry) or not self.sent:
            return
        in_use = [self.columns.add(1.0, is_integer=True) for _ in range(self.n_devices)]
        for kind, device in np.argwhere(self.counts >= 0).tolist():
            row = [int(self.counts[kind, device]), in_use[device]]
            self.rows.add(-math.inf, 0.0, row, [1.0, -float(self.symmetry.n_of[kind])])
        for inside in _divisions(self.n_devices):
            crossing = [column for a, b, column in self.sent if (a in inside) != (b in inside)]
            outside = [device for device in range(self.n_devices) if device not in inside]
            for a, b in itertools.product(inside, outside):
                row = [*crossing, in_use[a], in_use[b]]
                self.rows.add(-1.0, math.inf, row, [*([1.0] * len(crossing)), -1.0, -1.0])


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
