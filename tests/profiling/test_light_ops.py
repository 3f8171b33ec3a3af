"""Light ops join a heavy neighbour; units are bounded, and their graph stays acyclic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.core.builder import GraphBuilder
from placewright.core.graph import BACKWARD, FORWARD, UPDATE, ComputationGraph
from placewright.core.grouping import Grouping, quotient
from placewright.profiling import units
from placewright.profiling.units import (
    LARGE_WEIGHT_BYTES,
    is_heavy,
    light_ops_joined,
    numbered_layers,
)


@st.composite
def training_graphs(draw: st.DrawFn) -> ComputationGraph:
    """Random ops in forward, backward and update; nothing of a later pass feeds an earlier one."""
    builder = GraphBuilder()
    weights = [builder.add_weight(size) for size in (8.0, LARGE_WEIGHT_BYTES / 2, 2.0**20)]
    tensors = [(builder.add_input(8.0), FORWARD)]
    n_ops = draw(st.integers(2, 24))
    phases = sorted(draw(st.lists(st.integers(0, 2), min_size=n_ops, max_size=n_ops)))
    for number, phase in enumerate(phases):
        wanted = draw(st.integers(0, min(3, len(tensors))))
        chosen = draw(st.permutations(range(len(tensors))))[:wanted]
        op = builder.add_op(
            f"op{number}",
            "any",
            inputs=[tensors[at][0] for at in chosen],
            flops=draw(st.sampled_from([0.0, 1e6])) if phase != UPDATE else 0.0,
            phase=phase,
            colocation=draw(st.sampled_from([-1, -1, 0, 1])) if phase != UPDATE else 0,
            module=draw(st.sampled_from(["", "layers.0.a", "layers.1.b", "head"])),
            weights=draw(st.lists(st.sampled_from(weights), max_size=2, unique=True)),
        )
        made = builder.add_tensor(op, 8.0)
        if phase != UPDATE or draw(st.booleans()):
            tensors.append((made, phase))
    return builder.build()


@given(training_graphs())
@settings(max_examples=150, deadline=None)
def test_units_are_acyclic_and_keep_what_must_stay_apart(graph: ComputationGraph) -> None:
    units = light_ops_joined(graph)
    quotient(graph, units)  # raises where the groups do not form an acyclic graph
    heavy, layers = is_heavy(graph), numbered_layers(graph.op_modules)
    for group in range(units.n_groups):
        ops = units.members.row(group)
        classes = np.unique(graph.op_colocation[ops])
        assert len(classes[classes >= 0]) <= 1
        assert heavy[ops].sum() <= 1
        assert len(np.unique(graph.op_phases[ops] == FORWARD)) == 1
        if (graph.op_phases[ops] == FORWARD).all():
            assert len({layers[op] for op in ops} - {""}) <= 1
            light = ops[~heavy[ops]]
            assert len(light) <= 1 or graph.op_weight_bytes[light].sum() < LARGE_WEIGHT_BYTES


class PlainRule:
    """The rule word by word: groups are lists of ops, and neighbours are looked up in the graph."""

    def __init__(self, graph: ComputationGraph) -> None:
        self.graph = graph
        self.heavy_ops = is_heavy(graph)
        self.layers = numbered_layers(graph.op_modules)
        self.name = list(range(graph.n_ops))  # of the group of each op: one of its ops

    def ops(self, group: int) -> list[int]:
        return [op for op in range(self.graph.n_ops) if self.name[op] == group]

    def heavy(self, group: int) -> bool:
        return bool(self.heavy_ops[self.ops(group)].any())

    def forward(self, group: int) -> bool:
        return bool(self.graph.op_phases[group] == FORWARD)

    def around(self, group: int, *, behind: bool) -> list[int]:
        edges = self.graph.successors if behind else self.graph.predecessors
        names = {self.name[end] for op in self.ops(group) for end in edges.row(op)} - {group}
        return sorted(names)

    def counted(self, group: int, *, behind: bool) -> list[int]:
        """Neighbours without those of the other pass."""
        others, mine = self.around(group, behind=behind), self.forward(group)
        if behind:
            return [other for other in others if self.forward(other) or not mine]
        return [other for other in others if mine or not self.forward(other)]

    def fit(self, mine: int, other: int) -> bool:
        both = [*self.ops(mine), *self.ops(other)]
        light = [op for op in both if not self.heavy_ops[op]]
        if self.forward(mine) != self.forward(other):
            return False
        if len({int(self.graph.op_colocation[op]) for op in both} - {-1}) > 1:
            return False
        if not self.forward(mine):
            return True
        is_small = self.graph.op_weight_bytes[light].sum() < LARGE_WEIGHT_BYTES
        return is_small and len({self.layers[op] for op in both} - {""}) <= 1

    def join(self, mine: int, other: int) -> None:
        self.name = [other if name == mine else name for name in self.name]

    def has_other_path(self, first: int, second: int) -> bool:
        waiting = [group for group in self.around(first, behind=True) if group != second]
        seen = set(waiting)
        while waiting:
            for group in self.around(waiting.pop(), behind=True):
                if group not in seen:
                    seen.add(group)
                    waiting.append(group)
        return second in seen

    def take_consumers(self, op: int) -> None:
        while self.heavy(mine := self.name[op]):
            consumers = self.counted(mine, behind=True)
            if len(consumers) != 1 or self.heavy(consumers[0]) or not self.fit(mine, *consumers):
                return
            self.join(mine, consumers[0])

    def join_only(self, op: int, *, behind: bool) -> None:
        mine = self.name[op]
        others = self.counted(mine, behind=behind)
        if len(others) == 1 and not self.heavy(mine) and self.fit(mine, others[0]):
            self.join(mine, others[0])

    def join_heaviest(self, op: int) -> None:
        mine = self.name[op]
        sides = [(other, mine, other) for other in self.counted(mine, behind=True)]
        sides += [(other, other, mine) for other in self.counted(mine, behind=False)]
        flops = self.graph.op_flops
        for other, first, second in sorted(
            sides, key=lambda side: (-flops[self.ops(side[0])].sum(), side[0])
        ):
            fits = self.heavy(other) and not self.heavy(mine) and self.fit(mine, other)
            if fits and not self.has_other_path(first, second):
                self.join(mine, other)
                return

    def grouping(self) -> Grouping:
        order = self.graph.topological_order.tolist()
        for op in np.flatnonzero(self.graph.op_phases == UPDATE).tolist():
            for reader in self.graph.successors.row(op).tolist():
                self.join(self.name[op], self.name[reader])
        for op in reversed(order):
            self.take_consumers(op)
        for op in reversed(order):
            self.join_only(op, behind=True)
        for op in order:
            self.join_only(op, behind=False)
        for op in reversed(order):
            self.join_heaviest(op)
        return Grouping.from_labels(self.name)


@given(training_graphs())
@settings(max_examples=150, deadline=None)
def test_the_groups_are_those_of_the_plain_rule(graph: ComputationGraph) -> None:
    expected = PlainRule(graph).grouping().group_of.tolist()
    assert light_ops_joined(graph).group_of.tolist() == expected


@pytest.mark.parametrize("heavy", [None, 0], ids=["no op is heavy", "the first op is heavy"])
def test_the_neighbours_looked_at_grow_with_a_chain_and_not_with_its_square(
    heavy: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = []
    own_root = units._Joining.root

    def counted(self: units._Joining, op: int) -> int:
        looked_up.append(op)
        return own_root(self, op)

    monkeypatch.setattr(units._Joining, "root", counted)
    builder, n_ops = GraphBuilder(), 1000
    tensor = builder.add_input(8.0)
    for number in range(n_ops):
        flops = 1e6 if number == heavy else 1.0
        op = builder.add_op(f"op{number}", "any", inputs=[tensor], flops=flops)
        tensor = builder.add_tensor(op, 8.0)
    assert light_ops_joined(builder.build()).n_groups == 1
    assert len(looked_up) < 20 * n_ops


def test_a_layer_by_hand() -> None:
    """Two products with a light op between, its gradient, and the update of one weight."""
    builder = GraphBuilder()
    x = builder.add_input(4.0)
    ops: dict[str, int] = {}

    def add(name: str, phase: int, sources: list[int], flops: float, colocation: int = -1) -> int:
        ops[name] = builder.add_op(
            name, "any", inputs=sources, flops=flops, phase=phase, colocation=colocation
        )
        return builder.add_tensor(ops[name], 4.0)

    first = add("first", FORWARD, [x], 1000.0, 0)
    activation = add("activation", FORWARD, [first], 1.0)
    second = add("second", FORWARD, [activation], 1000.0, 1)
    slope = add("slope", BACKWARD, [second, activation], 1.0)
    gradient = add("gradient", BACKWARD, [slope, x], 1000.0)
    scaled = add("scaled", UPDATE, [gradient], 1.0, 0)
    add("new", UPDATE, [scaled], 1.0, 0)
    units = light_ops_joined(builder.build())
    group = {name: int(units.group_of[op]) for name, op in ops.items()}
    # In the forward pass only the activation consumes the first product.
    assert group["activation"] == group["first"] != group["second"]
    assert group["slope"] == group["gradient"] == group["scaled"] == group["new"]
    assert units.n_groups == 3


def test_parts_of_a_gradient_are_summed_up_one_by_one() -> None:
    """Four steps share a weight: each product joins the sum that it is added to."""
    builder = GraphBuilder()
    x = builder.add_input(4.0)
    products = [builder.add_op(f"p{i}", "mm", inputs=[x], flops=1e3, phase=1) for i in range(4)]
    parts = [builder.add_tensor(op, 4.0) for op in products]
    total, sums = parts[0], []
    for number, part in enumerate(parts[1:]):
        sums.append(builder.add_op(f"s{number}", "add", inputs=[total, part], flops=1.0, phase=1))
        total = builder.add_tensor(sums[-1], 4.0)
    update = builder.add_op("update", "add", inputs=[total], flops=1.0, phase=UPDATE, colocation=0)
    units = light_ops_joined(builder.build()).group_of
    assert [units[op] for op in sums] == [units[op] for op in products[1:]]
    assert units[update] == units[sums[-1]]
    assert len(np.unique(units)) == 4


def test_a_product_of_one_row_and_a_large_weight_are_heavy() -> None:
    """A product of one row reads its weight once; a view of the weight makes no bytes."""
    builder = GraphBuilder()
    x = builder.add_input(64.0)
    small, large = builder.add_weight(256.0), builder.add_weight(LARGE_WEIGHT_BYTES)
    product = builder.add_op("product", "mm", inputs=[x], flops=512.0, weights=[small])
    made = builder.add_tensor(product, 64.0, dtype="f32")
    table = builder.add_op("table", "gather", inputs=[made], weights=[large])
    row = builder.add_tensor(table, 64.0, dtype="f32")
    view = builder.add_op("view", "t", weights=[large])
    builder.add_tensor(view, 0.0)
    norm = builder.add_op("norm", "norm", inputs=[row], flops=100.0, weights=[small])
    builder.add_tensor(norm, 64.0, dtype="bf16")
    # In bf16 a norm does more than one operation per byte, and waits for memory all the same.
    assert is_heavy(builder.build()).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("dtype", "size"), [("f64", 8), ("i64", 8), ("i16", 2), ("i4", 0.5)])
def test_numbers_of_every_size_count_as_32_bits(dtype: str, size: float) -> None:
    """64 numbers in and 64 out are 512 bytes in f32, whatever their type."""
    builder = GraphBuilder()
    for flops in (500.0, 520.0):
        x = builder.add_input(64 * size, dtype=dtype)
        op = builder.add_op(f"{flops} operations", "any", inputs=[x], flops=flops)
        builder.add_tensor(op, 64 * size, dtype=dtype)
    assert is_heavy(builder.build()).tolist() == [False, True]


def test_layers_are_outermost_numbered_modules_with_modules_inside() -> None:
    paths = ["net.0", "net.1", "", "layers.3", "layers.3.mlp.0.fc", "stages.1.blocks.2.conv"]
    assert numbered_layers(paths) == ["", "", "", "layers.3", "layers.3", "stages.1"]


def test_a_light_op_between_layers_joins_the_heaviest_neighbour_of_its_own() -> None:
    """A norm read by two products; its producer is of the layer before."""
    builder = GraphBuilder()
    tensor = builder.add_input(8.0)

    def add(name: str, module: str, source: int, flops: float) -> int:
        op = builder.add_op(name, "any", inputs=[source], flops=flops, module=module)
        return builder.add_tensor(op, 8.0)

    before = add("before", "layers.0.fc", tensor, 1e3)
    norm = add("norm", "layers.1.norm", before, 1.0)
    for name, flops in (("q", 1e3), ("k", 2e3)):
        builder.mark_output(add(name, f"layers.1.{name}", norm, flops))
    group = light_ops_joined(builder.build()).group_of.tolist()
    assert group[1] == group[3] != group[2]  # k is the heavier one
    assert group[0] != group[1]
