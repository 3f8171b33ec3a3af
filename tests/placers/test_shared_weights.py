"""Units that share a weight stay together only where memory is too short for copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import toys

from placewright.core.arrays import FloatArray, IntArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.learned.training import check_takes_policy
from placewright.placers.registry import make_placer
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator


def unrolled_layer(memory_bytes: float) -> Problem:
    """Six steps of four gates; each gate's 100 bytes are read by all its steps."""
    builder = GraphBuilder()
    weights = [builder.add_weight(100.0) for _ in range(4)]
    before: list[int] = []
    for step in range(6):
        now = []
        for gate, weight in enumerate(weights):
            op = builder.add_op(f"gate{gate}_{step}", "MatMul", inputs=before, weights=[weight])
            now.append(builder.add_tensor(op, 1.0, is_output=step == 5))
        before = now
    costs = CostTable(frozen_floats(np.ones((24, 2))))
    return Problem.of_ops(builder.build(), toys.cluster_of(2, memory_bytes=memory_bytes), costs)


def test_steps_of_a_gate_are_one_class_where_no_device_holds_the_layer() -> None:
    tied = with_shared_weights_tied(unrolled_layer(300.0))
    assert tied.colocation.n_groups == 4
    assert tied.colocation.group_of.reshape(6, 4).tolist() == [[0, 1, 2, 3]] * 6


def test_nothing_changes_where_every_device_holds_all_weights() -> None:
    problem = unrolled_layer(400.0)
    assert with_shared_weights_tied(problem) is problem


@pytest.mark.parametrize(("once", "n_classes"), [(True, 3), (False, 2)])
def test_readers_of_a_weight_that_is_held_once_may_part(once: bool, n_classes: int) -> None:
    """Two towers read 100 bytes, the head 100 others; cores of 120 bytes that share weights or not.

    If they do, one tower fits on a core and the rest on the other; copies would not fit.
    """
    builder = GraphBuilder()
    shared = builder.add_weight(100.0)
    ends = [
        builder.add_tensor(builder.add_op(name, "Op", weights=[shared]), 1.0) for name in ("a", "b")
    ]
    builder.add_op("head", "Op", inputs=ends, weights=[builder.add_weight(100.0)])
    cluster = replace(toys.cluster_of(2, memory_bytes=120.0), shares_weights=once)
    problem = Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(np.ones((3, 2)))))
    assert with_shared_weights_tied(problem).colocation.n_groups == n_classes
    assert np.isfinite(Evaluator(problem).evaluate([0, 1, 1])) == once


@pytest.mark.parametrize(
    "name",
    ["cem", "post", "seq2seq", "grouper-placer", "placeto", "hsdag", "zero-shot"],
)
def test_learners_place_a_layer_that_no_device_holds(name: str) -> None:
    problem = unrolled_layer(300.0)
    evaluator = toys.run(make_placer(name), problem, 60)
    assert evaluator.best is not None
    assert evaluator.simulator.violation(evaluator.best) is None
    assert toys.run(make_placer("random"), problem, 60).best is None


def test_zero_shot_trains_on_units_that_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its episodes choose one device for all steps of a gate, as it does while placing."""
    import torch

    from placewright.placers.learned.zero_shot.algorithm import trainee
    from placewright.placers.learned.zero_shot.placer import ZeroShot

    drawn: list[IntArray] = []
    plain = Evaluator.evaluate_many

    def noted(self: Evaluator, devices_of: IntArray) -> FloatArray:
        drawn.append(devices_of)
        return plain(self, devices_of)

    monkeypatch.setattr(Evaluator, "evaluate_many", noted)
    made = trainee(ZeroShot(hidden=8), [unrolled_layer(300.0)])
    made.episode(0, 0.0, torch.Generator().manual_seed(0))
    (placements,) = drawn
    gates = placements.reshape(-1, 6, 4)
    assert np.array_equal(gates, np.broadcast_to(gates[:, :1], gates.shape))


def test_a_policy_file_is_refused_where_what_is_learned_belongs_to_one_graph() -> None:
    with pytest.raises(InputError, match="'post' takes no policy file"):
        check_takes_policy("post")
