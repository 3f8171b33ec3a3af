"""Light ops join a heavy neighbour; units are bounded, and their graph stays acyclic."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.core.builder import GraphBuilder
from placewright.core.graph import BACKWARD, FORWARD, UPDATE, ComputationGraph
from placewright.core.grouping import quotient
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
