"""Coarser units: whole modules and layers, with summed costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.ordinary_nets import NETS, problem_of_net

from placewright.core.builder import GraphBuilder
from placewright.core.graph import BACKWARD
from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.errors import FieldError
from placewright.profiling.units import modules_kept_whole, with_granularity


def paths_of(problem: Problem) -> list[set[str]]:
    """Module paths of each unit."""
    modules = problem.graph.op_modules
    members = problem.units.members
    return [{modules[op] for op in members.row(unit)} for unit in range(problem.n_units)]


@pytest.mark.parametrize("granularity", ["module", "layer"])
@pytest.mark.parametrize("name", sorted(NETS))
def test_costs_add_up_and_units_stay_whole(name: str, granularity: str) -> None:
    fine = problem_of_net(name)
    coarse = with_granularity(fine, granularity)
    assert coarse.n_units <= fine.n_units
    np.testing.assert_allclose(coarse.costs.seconds.sum(0), fine.costs.seconds.sum(0))
    together = np.unique(np.stack([fine.units.group_of, coarse.units.group_of]), axis=1)
    assert together.shape[1] == fine.n_units, "a unit is torn apart"


def test_a_residual_block_is_whole_and_a_sequence_is_not() -> None:
    coarse = with_granularity(problem_of_net("residual"), "module")
    units = {frozenset(paths) for paths in paths_of(coarse)}
    blocks = [unit for unit in units if any("blocks.1" in path for path in unit)]
    assert len(blocks) == 1, "the block adds what it was given"
    assert not any("blocks.0" in path for path in blocks[0])
    assert {"head.0", "head.1"} in units, "a light activation moves with its product"
    assert {"head.2"} in units, "a sequence has no ops of its own"


def test_layers_of_a_transformer_are_single_units() -> None:
    coarse = with_granularity(problem_of_net("transformer"), "layer")
    for layer in range(4):
        units = [paths for paths in paths_of(coarse) if any(f"layers.{layer}." in p for p in paths)]
        assert len(units) == 1


@pytest.mark.parametrize("module", ["", "block"])
def test_modules_move_together_where_an_op_reads_one_number_of_another(module: str) -> None:
    """On two cards PyTorch could not scale one's tensor by the other's number."""
    builder = GraphBuilder()
    given = builder.add_input(400)
    inside = f"{module}." if module else ""
    first = builder.add_op("a", "ReduceMean", inputs=[given], module=f"{inside}a")
    number = builder.add_tensor(first, 4)
    second = builder.add_op("b", "MatMul", inputs=[given], module=f"{inside}b")
    value = builder.add_tensor(second, 400)
    total = builder.add_op("total", "Mul", inputs=[number, value], module=module)
    last = builder.add_op("c", "Relu", inputs=[builder.add_tensor(total, 400)], module="c")
    builder.add_tensor(last, 400, is_output=True)
    assert modules_kept_whole(builder.build()).tolist() == [0, 0, 0, 1]


def test_what_has_no_modules_is_refused() -> None:
    fine = problem_of_net("residual")
    bare = replace(fine, graph=replace(fine.graph, op_modules=("",) * fine.graph.n_ops))
    with pytest.raises(FieldError, match="have no module paths; place a PyTorch module"):
        with_granularity(bare, "module")
    phases = fine.graph.op_phases.copy()
    phases[-1] = BACKWARD
    trained = replace(fine, graph=replace(fine.graph, op_phases=phases))
    with pytest.raises(FieldError, match="no part of it moves as a whole; take op"):
        with_granularity(trained, "layer")


def test_modules_that_share_a_weight_stay_on_one_device() -> None:
    """Accelerate keeps a tied parameter once; what lies between them moves by itself."""
    builder = GraphBuilder()
    weight, read = builder.add_weight(1 << 20), builder.add_input(400)
    for module in ("embedding", "middle", "last", "head"):
        weights = [weight] if module in ("embedding", "head") else [builder.add_weight(400)]
        op = builder.add_op(module, "MatMul", inputs=[read], module=module, weights=weights)
        read = builder.add_tensor(op, 400, is_output=module == "head")
    fine = Problem.from_costs(builder.build(), np.ones((4, 2)), (0.0, 1e9))
    names = ("embedding", "middle", "last", "head")
    source = ModelSource("m.pt2", "0", "torch", state=tuple(f"{name}.weight" for name in names))
    fine = replace(fine, source=source)
    coarse = with_granularity(fine, "module")
    assert coarse.n_units == 4
    classes = coarse.colocation.group_of.tolist()
    assert classes[0] == classes[3]
    assert len(set(classes)) == 3
    assert with_granularity(fine, "layer").colocation.n_groups == 4
    given = replace(source, state=("middle.weight", "last.weight", "scale"))  # as a mask is
    assert with_granularity(replace(fine, source=given), "module").colocation.n_groups == 4
