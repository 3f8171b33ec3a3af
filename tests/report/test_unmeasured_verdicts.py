"""What is said of a plan that nothing was measured of: no split without a doubt, and no proof."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import STREAMED_BY, Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.plan import Measurement, PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.core.source import CLUSTER, ModelSource
from placewright.report.plan_text import plan_lines
from placewright.report.verdict import predicted_gain, prediction_error, verdict_lines
from placewright.session.plans import (
    plan_of,
    predicted_plan,
    recommendation_lines,
    searched_plan,
)
from placewright.session.search import find_plan
from placewright.simulation.model import Simulator


def problem_with(error: float | None) -> Problem:
    """Two ops of a second side by side, on two devices that take 0.1 s for a segment."""
    builder = GraphBuilder()
    given = builder.add_input(4)
    for name in ("left", "right"):
        builder.add_tensor(builder.add_op(name, "MatMul", inputs=[given]), 4, is_output=True)
    devices = tuple(Device(name, dispatch_seconds=0.1) for name in ("a", "b"))
    cluster = Cluster(devices, (Link("a", "b"), Link("b", "a")), "a", prediction_error=error)
    costs = CostTable(frozen_floats(np.ones((2, 2))), "measured")
    return Problem.of_ops(builder.build(), cluster, costs)


def plan_with(error: float | None) -> Plan:
    """The optimal one, which splits."""
    found = find_plan(problem_with(error), budget=Budget(evaluations=50))
    assert sorted(found.placement.device_of.tolist()) == [0, 1]
    assert found.value == pytest.approx(1.1)
    return found


def test_the_error_is_a_share_of_what_overheads_add_and_of_a_twentieth_of_the_rest() -> None:
    """0.5 * (0.1 + 0.05 * 1.0); a device alone was timed as a whole, without its dispatch."""
    plan = plan_with(0.5)
    gain = predicted_gain(plan.problem, plan.placement, plan.value)
    assert gain is not None
    assert gain.error == pytest.approx(0.075)
    assert gain.alone == pytest.approx(2.0)
    assert gain.factor == pytest.approx(2.0 / 1.1)
    assert gain.least_factor == pytest.approx(2.0 / 1.175)
    assert gain.is_sure


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_seconds_of_a_call_lower_the_gain_of_calls_alone(objective: str) -> None:
    plan = plan_with(0.5)
    problem = replace(
        plan.problem,
        cluster=replace(plan.problem.cluster, call_seconds=1.0),
        objective=objective,
        execution_model=MaxLoad() if objective == "throughput" else plan.problem.execution_model,
    )
    gain = predicted_gain(problem, plan.placement, plan.value)
    assert gain is not None
    of_call = 1.0 if objective == "latency" else 0.0
    assert gain.factor == pytest.approx((2.0 + of_call) / (1.1 + of_call))
    assert gain.least_factor == pytest.approx((2.0 + of_call) / (1.175 + of_call))


@pytest.mark.parametrize("error", [None, 0.5])
def test_a_sure_gain_is_a_split_that_was_not_measured(error: float | None) -> None:
    plan = plan_with(error)
    assert predicted_plan(plan) is plan
    sentence = verdict_lines(plan)[0]
    assert sentence.startswith("Split over 2 devices: ")
    assert "not measured" in sentence
    assert ("1.70 times at least" in sentence) == (error is not None)
    assert "not measured" in str(plan)


def test_a_stream_is_named_where_its_period_is_not_the_value() -> None:
    """Max-load is 1 s; each segment of a stream also takes 0.1 s of dispatch."""
    problem = replace(problem_with(None), objective="throughput", execution_model=MaxLoad())
    plan = find_plan(problem, budget=Budget(evaluations=50))
    assert plan.value == pytest.approx(1.0)
    sentence = verdict_lines(plan)[0]
    assert (
        "Split over 2 devices: 1 s (1.1 s as a simulated stream) predicted, 1.82 times" in sentence
    )


def test_a_measured_split_is_compared_with_what_was_measured_with_it() -> None:
    """Predicted 1.1 s against 2.1 s; the machine took twice as long, and 'b' 3.3 s."""
    plan = plan_with(0.5)
    measured = Measurement(2.2, 0.1, 9, {"a": 3.5, "b": 3.3})
    sentence = verdict_lines(replace(plan, measured=measured))[0]
    assert sentence.startswith(
        "Split over 2 devices: 1.1 s predicted, 2.2 s measured, "
        "1.50 times as fast as 'b' alone (3.3 s measured); "
    )
    slower = Measurement(3.4, 0.1, 9, {"a": 3.5, "b": 3.3})
    sentence = verdict_lines(replace(plan, measured=slower))[0]
    assert "3.4 s measured over 2 devices is no gain on 'b' alone (3.3 s measured)" in sentence


def test_a_gain_within_the_error_is_no_split_and_the_plan_holds_the_device() -> None:
    plan = plan_with(10.0)
    assert verdict_lines(plan)[0].startswith("Do not split: ")
    held = predicted_plan(plan)
    assert set(held.placement.device_of.tolist()) == {0}
    assert held.searched is not None
    assert held.searched.value == plan.value
    sentence = verdict_lines(held)[0]
    assert sentence.startswith("Do not split: 'a' runs everything in 2.1 s predicted")
    assert "1.82 times as fast as 'a' alone" in sentence
    assert "may be off by 1.5 s; not measured" in sentence
    assert "no sure gain" in "\n".join(plan_lines(held, "m"))
    assert "argument `searched`" in recommendation_lines(held)[0]
    again = searched_plan(held)
    assert again.placement.device_of.tolist() == plan.placement.device_of.tolist()


def test_no_longer_search_is_advised_where_the_split_that_was_found_is_near_the_bound() -> None:
    """The gap of 2.1 s to 1.1 s is of the device that the plan holds, not of the search."""
    plan = plan_with(10.0)
    source = ModelSource("m.onnx", "0" * 64, "onnx", {}, "1")
    held = predicted_plan(replace(plan, problem=replace(plan.problem, source=source)))
    found = "what the search found is within 0.0% of the bound by these costs"
    assert verdict_lines(held)[1] == (
        f"Next: `placewright run PLAN --searched` measures the split: {found}."
    )
    measured = Measurement(2.0, 0.1, 9, {"searched": 2.2}, "a")
    sentence, following = verdict_lines(replace(held, measured=measured))
    assert "the split that the search found (1.1 s predicted) took 2.2 s; by these" in sentence
    assert following == (
        f"Next: A longer search gains nothing: {found}, and was no faster on the hardware."
    )
    near = replace(held, measured=replace(measured, baselines={"searched": 1.9}))
    assert verdict_lines(near)[1] == (
        f"Next: A longer search gains nothing: {found}, and was not recommended on the hardware."
    )
    assert any("; it was not recommended; argument" in line for line in plan_lines(near, "m"))


def test_a_split_that_was_not_measured_is_not_said_to_be_slower() -> None:
    """A run of the plan measures what it holds beside devices, without what the search found."""
    plan = plan_with(10.0)
    source = ModelSource("m.onnx", "0" * 64, "onnx", {}, "1")
    held = predicted_plan(replace(plan, problem=replace(plan.problem, source=source)))
    run = replace(held, measured=Measurement(2.0, 0.1, 9, {"b": 2.2}, "plan"))
    assert "`placewright run PLAN --searched` measures the split" in verdict_lines(run)[1]
    assert any("; no sure gain; argument" in line for line in plan_lines(run, "m"))
    memory = replace(run, problem=replace(run.problem, source=None))  # no command measures it
    assert "longer search" not in verdict_lines(memory)[1]


@pytest.mark.parametrize(
    ("dispatch", "clause"),
    [
        (0.985, "1.0076 times as fast as 'a' alone (2 s as calibrated), a gain of less than 1%"),
        (1.5, "0.80 times as fast as 'a' alone (2 s as calibrated); not measured"),
    ],
)
def test_a_split_that_gains_too_little_is_not_said_to_be_unsure(
    dispatch: float, clause: str
) -> None:
    """Both ops on one device take 2 s, and the split 1 s and its dispatch; errors are 0."""
    plan = plan_with(0.0)
    devices = tuple(
        replace(device, dispatch_seconds=dispatch) for device in plan.problem.cluster.devices
    )
    cluster = replace(plan.problem.cluster, devices=devices)
    source = ModelSource("m.onnx", "0" * 64, "onnx", {}, "1")
    problem = replace(plan.problem, cluster=cluster, source=source)
    held = predicted_plan(replace(plan, problem=problem, value=1.0 + dispatch))
    sentence = verdict_lines(held)[0]
    assert f"predicted to be {clause}" in sentence
    assert "off by" not in sentence


def test_a_gain_is_on_the_device_that_calibration_names() -> None:
    """Alone 'a' takes 100 s and 'b' 95 s, and each segment 1 s on 'a' and 10 s on 'b'."""
    base = problem_with(10.0)
    devices = tuple(
        replace(device, dispatch_seconds=seconds)
        for device, seconds in zip(base.cluster.devices, (1.0, 10.0), strict=True)
    )
    problem = replace(
        base,
        cluster=replace(base.cluster, devices=devices),
        costs=CostTable(frozen_floats(np.array([[50.0, 47.5], [50.0, 47.5]])), "measured"),
    )
    plan = find_plan(problem, budget=Budget(evaluations=50))
    sentence, following = verdict_lines(plan)
    assert "57.5 s over 2 devices is predicted to be 1.65 times as fast as 'b' alone" in sentence
    assert "'b' alone (95 s as calibrated), and the prediction" in sentence
    assert following == "Next: Use 'b' alone."
    assert set(predicted_plan(plan).placement.device_of.tolist()) == {1}


def test_what_is_proven_is_proven_of_the_costs() -> None:
    for error in (0.5, 10.0):
        found = plan_with(error)
        plan = replace(found, status="optimal", lower_bound=found.value)
        texts = [*verdict_lines(plan), *plan_lines(plan, "m")]
        proofs = [text for text in texts if "no placement" in text]
        assert proofs
        assert "(proven)" in proofs[0]
        for text in proofs:
            assert "by these costs no placement" in text.lower()


def test_a_proof_about_a_language_model_is_of_what_its_engine_can_express() -> None:
    found = plan_with(None)
    source = ModelSource("m.gguf", "0" * 64, "gguf", options={CLUSTER: "{}"})
    whole = replace(found, status="optimal", lower_bound=found.value)
    plan = replace(whole, problem=replace(found.problem, source=source))
    part = replace(plan, status="feasible", lower_bound=1.0)
    none = "by these costs no placement that the engine can express takes less"
    assert f"{none} (proven)." in verdict_lines(plan)[0]
    assert f"{none} than 1 s (gap 10.0%)." in verdict_lines(part)[0]
    for one, said in ((plan, "proven to be the least"), (part, "lower bound")):
        assert f"{said} of the placements that the engine can express" in plan_lines(one, "m")[1]
        assert "s for its engine" in str(one)
    for text in (verdict_lines(whole)[0], plan_lines(whole, "m")[1], str(whole)):
        assert "engine" not in text


def test_a_measured_plan_says_what_was_measured() -> None:
    measured = Measurement(1.2, 0.1, 15, {"a": 2.0}, "plan")
    plan = replace(plan_with(10.0), measured=measured)
    sentence = verdict_lines(plan)[0]
    assert sentence.startswith("Split over 2 devices: ")
    assert "1.2 s measured" in sentence
    assert "not measured" not in sentence


def test_a_split_of_which_a_device_was_measured_to_be_faster_is_not_called_a_split() -> None:
    measured = Measurement(3.4, 0.1, 9, {"b": 3.3}, "b")
    plan = replace(plan_with(0.5), measured=measured)
    text = str(plan)
    assert "verdict    run 'b' instead: it was measured to be as fast or faster" in text
    sentence, following = verdict_lines(plan)
    assert sentence.startswith("Do not split: use 'b', which was faster on the hardware (3.3 s ")
    assert following == "Next: Run 'b' instead of this plan."


def test_seconds_are_not_compared_with_joules() -> None:
    """The split takes 1.1 s and draws less than a device that idles beside; times say nothing."""
    problem = problem_with(None)
    devices = tuple(replace(one, busy_watts=4.0, idle_watts=3.0) for one in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=devices)
    energy = replace(problem, cluster=cluster, objective="energy")
    plan = find_plan(energy, budget=Budget(evaluations=50))
    assert len(set(plan.placement.device_of.tolist())) == 2
    for recommended in ("plan", "a", "all cores"):
        measured = Measurement(1.2, 0.1, 9, {"a": 0.1, "all cores": 0.05}, recommended)
        taken = replace(plan, measured=measured)
        sentence = verdict_lines(taken)[0]
        assert sentence.startswith("Split over 2 devices: ")
        assert "J predicted, its time 1.2 s measured, where 'a' alone (" in sentence
        assert " J) takes 1." in sentence
        assert "verdict    split over 2 devices" in str(taken)


@pytest.mark.parametrize(
    ("factor", "clause"), [(1.005, "is a gain of less than 1% on"), (1.0, "is no gain on")]
)
def test_a_small_gain_in_joules_is_not_called_none(factor: float, clause: str) -> None:
    """The plan file holds the split, and no placement was proven to take less."""
    base = problem_with(None)
    devices = tuple(replace(one, busy_watts=4.0, idle_watts=3.0) for one in base.cluster.devices)
    problem = replace(
        base,
        cluster=replace(base.cluster, devices=devices),
        objective="energy",
    )
    plan = find_plan(problem, budget=Budget(evaluations=50))
    alone = Simulator(problem).value(Placement.on_one_device(2, 0))
    source = ModelSource("m.onnx", "0" * 64, "onnx", {}, "1")
    of_model = replace(problem, source=source)
    sentence = verdict_lines(replace(plan, problem=of_model, value=alone / factor))[0]
    assert f" J over 2 devices {clause} 'a' alone (" in sentence


@pytest.mark.parametrize(("device_of", "used"), [((0, 1, 2), 2), ((0, 2, 2), 2), ((2, 2, 2), 1)])
def test_layers_that_a_card_copies_are_of_the_card_and_the_host(
    device_of: tuple[int, ...], used: int
) -> None:
    """They were a device of their own on the page, and none at all in the text of the plan."""
    builder = GraphBuilder()
    given = builder.add_input(4)
    for name in ("x", "y", "z"):
        builder.add_tensor(builder.add_op(name, "MatMul", inputs=[given]), 4, is_output=True)
    column = Device("cpu+gpu0", options={STREAMED_BY: "gpu0"})
    devices = (Device("cpu"), Device("gpu0", "gpu"), column)
    names = [device.name for device in devices]
    links = tuple(Link(one, two) for one in names for two in names if one != two)
    costs = CostTable(frozen_floats(np.ones((3, 3))))
    problem = Problem.of_ops(builder.build(), Cluster(devices, links, "cpu"), costs)
    placement = Placement.of(np.array(device_of))
    solution = Solution(placement, Simulator(problem).value(placement), "feasible")
    plan = plan_of(problem, solution, PlacerRecord("manual", "0", 0, 0, 0.0), "openvino")
    said = f"split over {used} devices" if used > 1 else "do not split: 'cpu+gpu0' runs everything"
    assert f"verdict    {said}" in str(plan)
    assert verdict_lines(plan)[0].lower().startswith(said)


def test_the_error_of_a_throughput_plan_is_that_of_its_stream() -> None:
    """Max-load is 1 s, and a stream takes 1.1 s for each sample, as it was measured to."""
    problem = replace(problem_with(None), objective="throughput", execution_model=MaxLoad())
    plan = find_plan(problem, budget=Budget(evaluations=50))
    exact = replace(plan, measured=Measurement(1.1, 0.0, 9, {"a": 2.1}))
    assert prediction_error(exact) == pytest.approx(0.0)
    slower = replace(plan, measured=Measurement(1.25, 0.0, 9, {"a": 2.1}))
    assert prediction_error(slower) == pytest.approx(1.1 / 1.25 - 1.0)  # 20 % by max-load
    assert "The prediction is off" not in verdict_lines(slower)[1]
    alone = replace(exact, in_flight=1)  # a sample in flight at a time: as one call
    assert prediction_error(alone) == pytest.approx(0.0)
