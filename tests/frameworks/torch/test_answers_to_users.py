"""What PyTorch users ran into: pins within a unit, streams of training, maps of torn modules."""

from __future__ import annotations

import numpy as np
import pytest
from support.ordinary_nets import problem_of_net
from support.training_loops import Residual, batches, made, plan_of_step

import placewright as pw
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import FieldError, InexpressibleError, InputError
from placewright.profiling.granularity import with_granularity
from placewright.session.plans import plan_of
from placewright.session.problems import constrained
from placewright.writers.device_map import device_map


def alternating(problem: Problem) -> Plan:
    """Pairs of units on one device and the other in turn."""
    found = Solution(Placement.of(np.arange(problem.n_units) // 2 % 2), 1.0, "feasible", 0.0)
    return plan_of(problem, found, PlacerRecord("manual", "0", 0, 0, 0.0), "torch")


def test_a_map_of_single_ops_names_the_torn_module_and_one_of_modules_does_not() -> None:
    fine = problem_of_net("residual")
    with pytest.raises(InexpressibleError, match=r"module 'blocks\.\d' is split: its op 'add"):
        device_map(alternating(fine))
    mapped = device_map(alternating(with_granularity(fine, "module")))
    assert {mapped[f"blocks.{block}"] for block in range(4)} == {"cuda:0", "cpu"}


def test_pins_on_two_devices_within_a_unit_name_its_ops() -> None:
    """Ops of two layers take two pins."""
    problem = problem_of_net("transformer")
    apart = constrained(problem, {}, {"layers.0": "cuda:0", "layers.1": "cpu"})
    assert len(apart.pins) > 10
    unit = next(u for u in range(problem.n_units) if len(problem.units.members.row(u)) > 1)
    first, second = (problem.graph.op_names[op] for op in problem.units.members.row(unit)[:2])
    with pytest.raises(InputError, match=rf"op '{second}' is pinned to 'cpu'.*moves as one"):
        constrained(problem, {}, {first: "cuda:0", second: "cpu"})


def test_a_training_step_has_no_stream() -> None:
    plan = plan_of_step(made(Residual), next(batches(Residual, 1)), seed=None)
    with pytest.raises(InputError, match="a plan for training has no stream; place for throughput"):
        list(pw.stream(plan, []))


@pytest.mark.parametrize(
    ("word", "message"),
    [("modul", "got 'modul'; did you mean module?"), ("", "is op, module or layer, got ''")],
)
def test_a_granularity_that_does_not_exist(word: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        pw.Request(model="m.onnx", granularity=word)


def test_a_module_without_example_inputs_is_told_to_bring_them() -> None:
    with pytest.raises(InputError, match="; give `example_inputs`, one for each"):
        pw.read(made(Residual))
