"""Integer program for execution model `sequential`, which counts alike items instead of listing.

Layers of a language model are alike: where each of a hundred lies matters less than how many lie on
each device. The program (`counted.program`) has a column for each kind of item and device, so that
it has few columns however many layers and experts there are. Its optimum is a lower bound. Items
then take devices by the counts (`counted.program.constructed`), and alike items swap places while
that saves messages. If no two items are alike, the program is exact.

The literature lists each item (Tarnawski et al., NeurIPS 2020, section 5.1); counting is ours.

The integer program over counts: how many items of each kind lie on each device.

n[k, d]: items of kind k on device d, an integer. For each type t of tensors:

- p[t, d]: tensors of the type that are made on d;
- f[t, k, d, e]: pairs of a tensor made on d and a reader of kind k on e;
- y[t, d, e] >= f[t, k, d, e] / (readers of kind k of one tensor): tensors that d sends to e.

Counts, pairs and tensors agree as far as each item makes and reads so many. What devices keep fits
into all limits. Devices in use are connected by tensors, whichever way they are divided. Each
placement gives such numbers with its own value, so that the optimum is a lower bound; it is exact
if no two items are alike.

Placements with given counts are constructed: items take devices in topological order; then items
of one kind swap devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import Sequential
from placewright.core.grouping import DisjointSets
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.bases import anytime, found_none, why_not_time_alone
from placewright.placers.exact.counted import Symmetry, TensorType, symmetry_of
from placewright.placers.exact.integer_program import IntegerProgram, MipResult, Rows, solve
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.sequential import cheapest_units_bound

_METHOD = "counted integer program"
_SCALE = 1000.0  # of the bound without messages: tolerances of the solver are absolute
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
        if self.max_nodes < 1:
            raise InputError(f"sequential-ip: max_nodes must be >= 1, got {self.max_nodes}")

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
        scale = _SCALE / least if least > 0 else 1.0
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


_HALF = 0.5  # of a pair: the solver's numbers are nearly whole
_MOST_ORDERS = 120
_MANY_ITEMS = 2000  # above which few orders of devices are tried, and nothing is swapped
_FEW_ORDERS = 6


class Messages:
    """Seconds of the transfers of a placement, a term of its value under `sequential`."""

    def __init__(self, problem: Problem, symmetry: Symmetry) -> None:
        self.symmetry, self.host = symmetry, problem.cluster.host_endpoint
        self.n_devices = problem.n_devices
        type_of = {
            tensor: number for number, each in enumerate(symmetry.types) for tensor in each.tensors
        }
        self.type_of = [type_of[tensor] for tensor in range(len(symmetry.tensors))]
        n_items = len(symmetry.kind_of)
        self.made: list[list[int]] = [[] for _ in range(n_items)]
        self.read: list[list[int]] = [[] for _ in range(n_items)]
        for tensor, each in enumerate(symmetry.tensors):
            if each.source >= 0:
                self.made[each.source].append(tensor)
            for reader in each.readers:
                self.read[reader].append(tensor)

    def total(self, device_of: list[int]) -> float:
        """Seconds of all transfers."""
        return sum(self.of_tensor(tensor, device_of) for tensor in range(len(self.type_of)))

    def around(self, item: int, device_of: list[int]) -> FloatArray:
        """Seconds of the transfers from and to an item if it were on each device: (n_devices,)."""
        found, before = np.zeros(self.n_devices), device_of[item]
        tensors = [*self.made[item], *self.read[item]]
        for device in range(self.n_devices):
            device_of[item] = device
            found[device] = sum(self.of_tensor(tensor, device_of) for tensor in tensors)
        device_of[item] = before
        return found

    def of_tensor(self, tensor: int, device_of: list[int]) -> float:
        """Seconds of the transfers of one tensor, to the host included."""
        each, kind = self.symmetry.tensors[tensor], self.symmetry.types[self.type_of[tensor]]
        source = device_of[each.source] if each.source >= 0 else self.host
        targets = {device_of[reader] for reader in each.readers} - {source}
        seconds = sum(float(kind.arrival[source, target]) for target in targets)
        return seconds + (float(kind.exits[source]) if each.is_output else 0.0)


def constructed(
    symmetry: Symmetry,
    messages: Messages,
    counts: IntArray,
    pairs: dict[tuple[int, int], FloatArray],
    is_over: Callable[[], bool],
) -> Iterator[IntArray]:
    """Yield up to three placements of the items with the given counts, none worse than the last.

    The first uses one order of devices, the second the best of several orders, the third swaps.

    Args:
        counts: items of each kind on each device, (n_kinds, n_devices).
        pairs: (type of tensor, kind of its reader) -> number of such reads from each device to
            each device in the program's solution, which the placements follow.
        is_over: True ends the search after the present step.
    """
    best, best_value, first_value = None, math.inf, math.inf
    for order in _orders(symmetry, counts):
        device_of = _in_turn(symmetry, messages, counts, pairs, order)
        value = messages.total(device_of)
        if best is None:
            yield np.array(device_of, dtype=np.int64)
            first_value = value
        if value < best_value:
            best, best_value = device_of, value
        if is_over():
            break
    if best is None:
        return
    if best_value < first_value:
        yield np.array(best, dtype=np.int64)
    if len(symmetry.kind_of) <= _MANY_ITEMS:
        _swap(symmetry, messages, best, is_over)
        yield np.array(best, dtype=np.int64)


def _orders(symmetry: Symmetry, counts: IntArray) -> Iterator[tuple[int, ...]]:
    used = np.flatnonzero(counts.sum(axis=0)).tolist()
    many = len(symmetry.kind_of) > _MANY_ITEMS
    return itertools.islice(itertools.permutations(used), _FEW_ORDERS if many else _MOST_ORDERS)


def _in_turn(
    symmetry: Symmetry,
    messages: Messages,
    counts: IntArray,
    pairs: dict[tuple[int, int], FloatArray],
    order: tuple[int, ...],
) -> list[int]:
    """Give each item, producers first, the device on which it uses most of the left `pairs`.

    Among equals an item takes the device of the last item of its kind, then the first in order.
    """
    left, pairs_left = counts.tolist(), {key: value.copy() for key, value in pairs.items()}
    last = [-1] * symmetry.n_kinds
    device_of = [-1] * len(symmetry.kind_of)
    for item in symmetry.order.tolist():
        kind = int(symmetry.kind_of[item])
        ways = []
        for tensor in messages.read[item]:
            source = symmetry.tensors[tensor].source
            at = device_of[source] if source >= 0 else messages.host
            if at >= 0:
                ways.append((pairs_left[messages.type_of[tensor], kind], at))
        device = max(
            (device for device in order if left[kind][device] > 0),
            key=lambda device: (
                sum(rows[at, device] > _HALF for rows, at in ways),
                device == last[kind],
                -order.index(device),
            ),
        )
        for rows, at in ways:
            rows[at, device] -= 1.0
        left[kind][device] -= 1
        last[kind] = device_of[item] = device
    return device_of


def _swap(
    symmetry: Symmetry, messages: Messages, device_of: list[int], is_over: Callable[[], bool]
) -> None:
    """Swap the devices of two items of a kind while that saves seconds; counts do not change."""
    around = np.array([messages.around(item, device_of) for item in range(len(device_of))])
    neighbours = _neighbours(symmetry)
    while not is_over():
        at = np.array(device_of)
        gain = around - around[np.arange(len(at)), at][:, None]
        swapped = False
        for first, second in _candidates(symmetry, at, gain):
            before = _cost(messages, first, second, device_of)
            device_of[first], device_of[second] = device_of[second], device_of[first]
            if _cost(messages, first, second, device_of) < before - 1e-12 * abs(before):
                for item in {first, second, *neighbours[first], *neighbours[second]}:
                    around[item] = messages.around(item, device_of)
                swapped = True
                break
            device_of[first], device_of[second] = device_of[second], device_of[first]
        if not swapped:
            return


def _candidates(symmetry: Symmetry, at: IntArray, gain: FloatArray) -> Iterator[tuple[int, int]]:
    """Pairs of items of a kind whose swap may save seconds, largest first.

    For each two devices it is the pair of the items that would save most if each moved alone.
    """
    found = []
    for kind in range(symmetry.n_kinds):
        items = np.flatnonzero(symmetry.kind_of == kind)
        devices = np.unique(at[items]).tolist()
        for device, other in itertools.combinations(devices, 2):
            here, there = items[at[items] == device], items[at[items] == other]
            first = int(here[np.argmin(gain[here, other])])
            second = int(there[np.argmin(gain[there, device])])
            saved = float(gain[first, other] + gain[second, device])
            if saved < 0:
                found.append((saved, first, second))
    for _, first, second in sorted(found):
        yield first, second


def _cost(messages: Messages, first: int, second: int, device_of: list[int]) -> float:
    """Seconds of the transfers from and to two items; a transfer between them counts once."""
    of_both = {tensor for item in (first, second) for tensor in messages.made[item]}
    of_both |= {tensor for item in (first, second) for tensor in messages.read[item]}
    return sum(messages.of_tensor(tensor, device_of) for tensor in sorted(of_both))


def _neighbours(symmetry: Symmetry) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in symmetry.kind_of]
    for tensor in symmetry.tensors:
        ends = [end for end in (tensor.source, *tensor.readers) if end >= 0]
        for end in ends:
            found[end].update(ends)
    return found
