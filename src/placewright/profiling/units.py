"""Units: the finest convex grouping of ops that keeps the fused ops of every device together.

Each device tells which ops it executes as one kernel. A library that fuses nothing, such as
PyTorch, has thousands of views, element-wise functions and updates that take microseconds each.
Placing one of them away from its neighbours never pays, so `light_ops_joined` gives each to a heavy
op. What it lets a unit hold is bounded:

- one heavy op: a large computation, or a weight of 1 MiB or more;
- light ops with less than 1 MiB of weights together;
- forward ops of one layer of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from placewright.core.arrays import BoolArray, Csr, FloatArray, IntArray, frozen_ints
from placewright.core.graph import FORWARD, UPDATE, ComputationGraph
from placewright.core.grouping import DisjointSets, Grouping
from placewright.core.problem import Problem
from placewright.core.residency import tied_ops
from placewright.errors import FieldError

LARGE_WEIGHT_BYTES = 2.0**20
_FLOPS_PER_BYTE = 1.0  # ops below it wait for memory: a softmax has 0.6, a matrix product more
_BYTES_OF_A_NUMBER = {
    "f64": 8, "i64": 8, "u64": 8, "f16": 2, "bf16": 2, "i16": 2, "u16": 2, "i8": 1, "u8": 1,
    "boolean": 1, "i4": 0.5, "u4": 0.5, "f4e2m1": 0.5, "i2": 0.25, "u2": 0.25, "complex64": 8,
}  # fmt: skip
_F32_BYTES = 4.0
_MOST_LOOKED_AT = 200  # groups behind a light op that a search for another path visits


def common_units(graph: ComputationGraph, fused: Iterable[Grouping]) -> Grouping:
    """Join the groups of all devices to the finest grouping with an acyclic quotient.

    Each group is then convex, and a union of every device's groups.

    Groups of different devices that share an op join; then groups that need each other in a cycle
    join: the strongly connected components of the quotient are the finest way to break its cycles.

    Args:
        fused: of each device, the ops that it executes as one kernel.
    """
    labels = np.arange(graph.n_ops, dtype=np.int64)
    for grouping in fused:
        # The join is the components of the bipartite graph of present and the device's groups.
        n_labels = int(labels.max()) + 1
        n_nodes = n_labels + grouping.n_groups
        ends = (labels, grouping.group_of + n_labels)
        labels = _components(ends, n_nodes, "weak")[:n_labels][labels]
    labels = _acyclic(graph, labels)
    position = np.empty(graph.n_ops, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.n_ops)
    by_position = labels[graph.topological_order]
    return Grouping(Grouping.from_labels(by_position).group_of[position])


def _acyclic(graph: ComputationGraph, labels: IntArray) -> IntArray:
    sources = labels[graph.successors.row_of_each()]
    targets = labels[graph.successors.indices]
    components = _components((sources, targets), int(labels.max()) + 1, "strong")
    return components[labels]


def _components(
    ends: tuple[IntArray, IntArray], n_nodes: int, connection: Literal["weak", "strong"]
) -> IntArray:
    # SciPy takes long to import, and a command that only refuses its input never comes here.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    matrix = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(n_nodes, n_nodes))
    _, component_of = connected_components(matrix.tocsr(), directed=True, connection=connection)
    return np.asarray(component_of, dtype=np.int64)


def light_ops_joined(graph: ComputationGraph) -> Grouping:
    """Group at most one heavy op with the light ops around it.

    A light op joins a heavy op whose only consumer it is, else its only consumer, else its only
    producer, else its heaviest neighbour. The edge to an only neighbour can be contracted without
    making a cycle; for the heaviest one a search shows that no other path leads there. Neighbours
    in the other pass do not count, since nothing of the backward pass or the update feeds the
    forward pass: of a forward op only forward consumers count, of other ops only producers outside
    it.

    No group has ops of two colocation classes, or forward ops and others. The updates of a
    parameter are in one group, perhaps with ops that make its gradient.
    """
    joining = _Joining(graph)
    joining.join_updates()
    order = graph.topological_order.tolist()
    # Against the order, so that each heavy op takes the sum to which it is added. The gradient of a
    # weight that many steps share is then summed up step by step, and no step's part waits.
    for op in reversed(order):
        joining.take_consumers(op)
    # Against the order: consumers have joined before, so that chains end at one op.
    joining.each_light(reversed(order), joining.join_consumer)
    joining.each_light(order, joining.join_producer)
    groups = joining.ordered()
    joining.each_light(reversed(order), lambda group: joining.join_heaviest(group, groups))
    return joining.grouping()


def is_heavy(graph: ComputationGraph) -> BoolArray:
    """True where an op has a large weight or computes much, shape (n_ops,).

    Much is more than one operation per byte of inputs and outputs, as if they were 32-bit numbers.
    Weights do not count there: a matrix product of one row reads them once, and takes long. Views
    of a weight make no bytes, and updates belong to their parameter: they stay light.
    """
    numbers = np.array([_F32_BYTES / _BYTES_OF_A_NUMBER.get(d, _F32_BYTES)
                        for d in graph.tensor_dtypes])  # fmt: skip
    sizes = graph.tensor_bytes * numbers
    made = _sums(graph.op_outputs, sizes, graph)
    moved = _sums(graph.op_inputs, sizes, graph) + made
    holds = (largest_weight(graph) >= LARGE_WEIGHT_BYTES) & (made > 0)
    result: BoolArray = (graph.op_flops > _FLOPS_PER_BYTE * moved) | (
        holds & (graph.op_phases != UPDATE)
    )
    return result


def largest_weight(graph: ComputationGraph) -> FloatArray:
    """Bytes of the largest weight of each op, shape (n_ops,)."""
    largest = np.zeros(graph.n_ops)
    rows = graph.op_weights
    np.maximum.at(largest, rows.row_of_each(), graph.weight_bytes[rows.indices])
    return largest


def numbered_layers(modules: Iterable[str]) -> list[str]:
    """The layer of each module path: its outermost numbered module that has modules inside.

    ``layers.3.attention`` is of ``layers.3``; ``net.0`` is of none if nothing is inside it.
    """
    paths = [tuple(path.split(".")) for path in modules]
    insides = {path[:at] for path in paths for at in range(1, len(path))}
    return [
        next(
            (".".join(path[:at]) for at in range(1, len(path) + 1)
             if path[at - 1].isdigit() and path[:at] in insides),
            "",
        )
        for path in paths
    ]  # fmt: skip


def _sums(tensors: Csr, sizes: FloatArray, graph: ComputationGraph) -> FloatArray:
    sums = np.bincount(tensors.row_of_each(), sizes[tensors.indices], minlength=graph.n_ops)
    return sums.astype(np.float64)


def _rows(edges: Csr) -> list[list[int]]:
    return [edges.row(index).tolist() for index in range(edges.n_rows)]


class _Joining:
    """Groups that are joined step by step, as a forest of ops with data at each root."""

    def __init__(self, graph: ComputationGraph) -> None:
        self.graph = graph
        self.parent = list(range(graph.n_ops))
        self.joins = 0  # number of them until now
        self.flops = graph.op_flops.tolist()
        # Per root, ops of the groups around it. Those that have joined go when it is next read, so
        # that no op of a large group is looked at again for each op that joins it.
        self.behind = _rows(graph.successors)
        self.before = _rows(graph.predecessors)
        heavy = is_heavy(graph)
        self.heavy = heavy.tolist()
        self.light_bytes = np.where(heavy, 0.0, graph.op_weight_bytes).tolist()
        self.colocation = graph.op_colocation.tolist()
        self.is_forward = (graph.op_phases == FORWARD).tolist()
        self.layer = numbered_layers(graph.op_modules)

    def root(self, op: int) -> int:
        """The op that represents the group of `op`."""
        while self.parent[op] != op:
            self.parent[op] = self.parent[self.parent[op]]
            op = self.parent[op]
        return op

    def each_light(self, ops: Iterable[int], join: Callable[[int], None]) -> None:
        """Call `join` with each light group of `ops`, and again only after something has joined."""
        tried: dict[int, int] = {}
        for op in ops:
            group = self.root(op)
            if not self.heavy[group] and tried.get(group) != self.joins:
                tried[group] = self.joins
                join(group)

    def join_updates(self) -> None:
        """Join updates that pass tensors to each other; nothing else reads from them."""
        graph = self.graph
        for op in np.flatnonzero(graph.op_phases == UPDATE).tolist():
            for reader in graph.successors.row(op).tolist():
                self._join(self.root(op), self.root(reader))

    def take_consumers(self, op: int) -> None:
        """Join light groups to the heavy group of `op` while a single group consumes from it."""
        mine = self.root(op)
        while self.heavy[mine]:
            consumers = self._consumers(mine)
            if len(consumers) != 1 or self.heavy[consumers[0]]:
                return
            if not self._fit(mine, consumers[0]):
                return
            self._join(mine, consumers[0])
            mine = consumers[0]

    def join_consumer(self, mine: int) -> None:
        """Join a light group to the only group that consumes from it."""
        self._join_only(mine, self._consumers(mine))

    def join_producer(self, mine: int) -> None:
        """Join a light group to the only group from which it consumes."""
        self._join_only(mine, self._producers(mine))

    def join_heaviest(self, mine: int, order: _Order) -> None:
        """Join a light group to the heaviest neighbour that it can join."""
        sides = [(other, mine, other) for other in self._consumers(mine)]
        sides += [(other, other, mine) for other in self._producers(mine)]
        sides.sort(key=lambda side: (-self.flops[side[0]], side[0]))
        for other, first, second in sides:
            if self.heavy[other] and self._fit(mine, other) and order.contract(first, second):
                self._join(mine, other)
                order.rename(second, other)
                return

    def ordered(self) -> _Order:
        """The groups in an order in which producers come first."""
        groups = [op for op in range(self.graph.n_ops) if self.parent[op] == op]
        behind = {group: self._neighbours(group, self.behind) for group in groups}
        left = Counter(other for others in behind.values() for other in others)
        ready, order = [group for group in groups if not left[group]], []
        while ready:
            order.append(ready.pop())
            for other in behind[order[-1]]:
                left[other] -= 1
                if not left[other]:
                    ready.append(other)
        return _Order(lambda group: self._neighbours(group, self.behind), order)

    def _consumers(self, mine: int) -> list[int]:
        others = self._neighbours(mine, self.behind)
        return [other for other in others if self.is_forward[other] or not self.is_forward[mine]]

    def _producers(self, mine: int) -> list[int]:
        others = self._neighbours(mine, self.before)
        return [other for other in others if self.is_forward[mine] or not self.is_forward[other]]

    def _neighbours(self, mine: int, around: list[list[int]]) -> list[int]:
        roots = dict.fromkeys(self.root(end) for end in around[mine])
        roots.pop(mine, None)
        around[mine] = list(roots)
        return around[mine]

    def _join_only(self, mine: int, others: list[int]) -> None:
        if len(others) == 1 and self._fit(mine, others[0]):
            self._join(mine, others[0])

    def _fit(self, mine: int, other: int) -> bool:
        classes = (self.colocation[mine], self.colocation[other])
        apart = min(classes) >= 0 and classes[0] != classes[1]
        if apart or self.is_forward[mine] != self.is_forward[other]:
            return False
        if not self.is_forward[mine]:
            return True  # gradients and updates follow the classes of their parameters
        layers = (self.layer[mine], self.layer[other])
        within = layers[0] == layers[1] or "" in layers
        return within and self.light_bytes[mine] + self.light_bytes[other] < LARGE_WEIGHT_BYTES

    def _join(self, mine: int, other: int) -> None:
        if mine == other:
            return
        self.parent[mine] = other
        self.joins += 1
        self.flops[other] += self.flops[mine]
        for around in (self.behind, self.before):
            around[other] += around[mine]
            around[mine] = []
        self.heavy[other] = self.heavy[other] or self.heavy[mine]
        self.light_bytes[other] += self.light_bytes[mine]
        self.colocation[other] = max(self.colocation[mine], self.colocation[other])
        self.layer[other] = self.layer[other] or self.layer[mine]

    def grouping(self) -> Grouping:
        """The groups, numbered by their first op."""
        return Grouping.from_labels([self.root(op) for op in range(self.graph.n_ops)])


class _Order:
    """A topological order of groups, kept while edges are contracted (Pearce and Kelly 2006).

    Args:
        behind: the groups that consume from a group.
        order: of all groups.
    """

    def __init__(self, behind: Callable[[int], list[int]], order: list[int]) -> None:
        self._behind = behind
        self._order = order
        self._place = {group: at for at, group in enumerate(order)}

    def contract(self, first: int, second: int) -> bool:
        """Contract an edge unless another path leads from its producer to its consumer.

        The two groups are then one, at the consumer's place. False also if the search for a path
        would visit too many groups.
        """
        place, end = self._place, self._place[second]
        waiting = [group for group in self._behind(first) if group != second and place[group] < end]
        seen = set(waiting)
        while waiting:
            for group in self._behind(waiting.pop()):
                if group == second or len(seen) > _MOST_LOOKED_AT:
                    return False
                if place[group] < end and group not in seen:
                    seen.add(group)
                    waiting.append(group)
        # What lies behind the producer goes behind the pair; the producer's slot stays empty.
        start = place[first]
        window = [group for group in self._order[start + 1 : end] if group >= 0]
        moved = [group for group in window if group not in seen]
        moved += [second, *(group for group in window if group in seen)]
        self._order[start : end + 1] = [-1] * (end + 1 - start - len(moved)) + moved
        for at, group in enumerate(moved, end + 1 - len(moved)):
            place[group] = at
        return True

    def rename(self, group: int, name: int) -> None:
        """Give a group another name."""
        at = self._place.pop(group)
        self._order[at] = name
        self._place[name] = at


Granularity = Literal["op", "module", "layer"]
GRANULARITIES: tuple[str, ...] = get_args(Granularity)


def with_granularity(problem: Problem, granularity: str) -> Problem:
    """The problem with coarser units, whose costs are the sums of those of its own units.

    Args:
        problem: with its own units.
        granularity: ``"op"`` keeps them, ``"layer"`` joins those of a numbered layer, ``"module"``
            those of a module (see `modules_kept_whole`). Modules of a tied parameter then stay on
            one device.

    Raises:
        FieldError: the ops have no module paths, or the problem is a training step.
    """
    if granularity == "op":
        return problem
    graph = problem.graph
    if not any(graph.op_modules):
        raise FieldError(
            "granularity",
            f"{granularity}: the ops of this model have no module paths; place a PyTorch module, a "
            ".pt2 file or a zoo model, or take op",
        )
    if (graph.op_phases != FORWARD).any():
        raise FieldError(
            "granularity",
            f"{granularity}: the backward ops of a training step follow its forward ops in "
            "reverse, so that no part of it moves as a whole; take op",
        )
    labels = layer_labels(graph) if granularity == "layer" else modules_kept_whole(graph)
    joined = common_units(graph, [problem.units, Grouping.from_labels(labels)])
    first = problem.units.members.indices[problem.units.members.indptr[:-1]]
    if granularity == "module":
        state = () if problem.source is None else problem.source.state
        problem = replace(problem, graph=_tied_together(graph, state))
    return problem.coarsened(Grouping.from_labels(joined.group_of[first]))


def layer_labels(graph: ComputationGraph) -> IntArray:
    """A label per op: its numbered layer, else its module; an op outside of all has its own."""
    layers = numbered_layers(graph.op_modules)
    return _numbered(
        [
            layer or path or f"#{op}"
            for op, (layer, path) in enumerate(zip(layers, graph.op_modules, strict=True))
        ]
    )


def modules_kept_whole(graph: ComputationGraph) -> IntArray:
    """A label per op: the module that stays whole so that Accelerate can run the placement.

    A library that moves modules runs the ops between them where their inputs lie. So a module is
    opened, and its children move by themselves, only if all its own ops allow it: they have no
    weights, and none reads from two of the children, or from ops outside the module. Each of these
    ops goes with the child that it reads. The model itself is opened even if an op reads from
    several children, which then move as one, unless it has weights of its own.
    """
    labels = [f"#{op}" for op in range(graph.n_ops)]
    _open("", graph.topological_order.tolist(), graph, labels)
    return _numbered(labels)


def _tied_together(graph: ComputationGraph, state: Sequence[str]) -> ComputationGraph:
    """Colocate ops of a tied parameter: a library that moves modules keeps it on one device."""
    tied, own = tied_ops(graph, state), graph.op_colocation
    if not tied:
        return graph
    classes = [np.flatnonzero(own == number).tolist() for number in np.unique(own[own >= 0])]
    sets = DisjointSets(graph.n_ops)
    for ops in (*classes, *tied):
        for op in ops:
            sets.join(ops[0], op)
    roots = np.array([sets.root(op) for op in range(graph.n_ops)], dtype=np.int64)
    is_alone = np.bincount(roots, minlength=graph.n_ops)[roots] == 1
    return replace(graph, op_colocation=frozen_ints(np.where(is_alone, -1, roots)))


def _open(path: str, ops: list[int], graph: ComputationGraph, labels: list[str]) -> None:
    """Label the ops of a module: as a whole, or those of its children.

    Args:
        ops: of the module, producers first.
    """
    depth = len(path.split(".")) if path else 0
    children: dict[str, list[int]] = {}
    own: list[int] = []
    for op in ops:
        parts = graph.op_modules[op].split(".") if graph.op_modules[op] else []
        if len(parts) == depth:
            own.append(op)
        else:
            children.setdefault(".".join(parts[: depth + 1]), []).append(op)
    for child, inside in children.items():
        _open(child, inside, graph, labels)
    has_weights = any(len(graph.op_weights.row(op)) for op in own)
    if children and not has_weights and _joined(own, set(ops), graph, labels, is_root=not path):
        return
    for op in ops:
        labels[op] = path or "the model"


def _joined(
    own: list[int], inside: set[int], graph: ComputationGraph, labels: list[str], *, is_root: bool
) -> bool:
    """Give each op of a module the label of the child that it reads; False if the module is whole.

    In the model itself two children that an op reads become one.
    """
    for op in own:
        read: dict[str, None] = {}
        for tensor in graph.op_inputs.row(op).tolist():
            maker = int(graph.tensor_producers[tensor])
            if maker < 0:
                continue
            if maker not in inside:
                return False  # it would run where that op lies
            if not labels[maker].startswith("#"):
                read[labels[maker]] = None
        if len(read) > 1 and not is_root:
            return False
        if read:
            first, *others = read
            labels[op] = first
            for other in inside if others else ():
                if labels[other] in others:
                    labels[other] = first
    return True


def _numbered(labels: list[str]) -> IntArray:
    number = {label: at for at, label in enumerate(dict.fromkeys(labels))}
    return np.array([number[label] for label in labels], dtype=np.int64)
