"""What a plan holds after a check on the hardware: the recommended placement, by made-up seconds.

Devices are this machine's cores and outputs are compared for real; what each way takes is given by
the tests, so that nothing depends on timings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.branching_model import branching_model

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.plan import COPIES, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InfeasibleError, InputError, StalePlanError
from placewright.execution.comparing import Comparison
from placewright.execution.requests import Execution
from placewright.frameworks.openvino.reader import read_openvino
from placewright.frameworks.registry import make_runtime
from placewright.profiling.hardware import NEVER
from placewright.profiling.verdict import median_interval
from placewright.report.comparison_table import ContenderTable
from placewright.report.plan_text import plan_lines
from placewright.report.time_left import no_report
from placewright.report.verdict import verdict_lines
from placewright.session import checking, running
from placewright.session.checking import (
    StreamRounds,
    check_on_hardware,
    probe_on_hardware,
    repeated,
    within_latency,
)
from placewright.session.models import ModelOfRequest, loaded_model
from placewright.session.plans import predicted_plan, recommendation_lines, searched_plan
from placewright.session.request import Request
from placewright.session.running import RunResult, execute, why_away
from placewright.session.search import find_plan
from placewright.simulation.model import Simulator

CORES = [one.name for one in make_runtime("openvino").discover() if one.name.startswith("cpu:")]
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    """The branching model on two cores; each op takes 10 ms, 20 on the second core."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    graph, source = read_openvino(tmp_path / "m.onnx")
    runtime = make_runtime("openvino")
    devices = tuple(runtime.completed(Device(name)) for name in ("cpu:0", "cpu:1"))
    links = tuple(
        Link(a, b, 1e-4) for a in ("cpu:0", "cpu:1", "host") for b in ("cpu:0", "cpu:1", "host")
        if a != b
    )  # fmt: skip
    seconds = frozen_floats(np.tile([0.01, 0.02], (graph.n_ops, 1)))
    return Problem(
        graph,
        Cluster(devices, links),
        CostTable(seconds, "measured"),
        Grouping.identity(graph.n_ops),
        source=source,
    )


def searched_for(problem: Problem, placer: str = "round-robin") -> Plan:
    return find_plan(problem, placer=placer, budget=Budget(evaluations=50), runtime="openvino")


def checked(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, float]
) -> tuple[Plan, ContenderTable]:
    """Check with these seconds of each way; those not named take a second."""

    def measured(runners: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, list[float]]:
        return {name: [seconds.get(name, 1.0)] * 9 for name in runners}

    monkeypatch.setattr(checking, "measure_interleaved", measured)
    return check_on_hardware(plan, loaded_model(plan.problem, plan.runtime))


def devices(plan: Plan) -> list[int]:
    return sorted(set(plan.placement.device_of.tolist()))


def test_the_best_single_device_is_written_and_the_split_kept_beside_it(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = searched_for(problem)
    assert devices(before) == [0, 1]
    found, table = checked(before, monkeypatch, {"cpu:1": 0.2, "plan": 0.5})
    path = tmp_path / "plan.json"
    pw.write_plan(path, found)
    document = json.loads(path.read_text())
    assert set(document["placement"].values()) == {"cpu:1"}
    assert document["measured"]["recommendation"] == "cpu:1"
    assert document["measured"]["median"] == 0.2
    assert document["measured"]["baselines"]["searched"] == 0.5
    alone = pw.Placement.on_one_device(problem.n_units, 1)
    assert document["predicted"]["value"] == Simulator(problem).value(alone)
    assert document["predicted"]["lower_bound"] <= document["predicted"]["value"]
    assert document["predicted"]["memory"]["cpu:0"] == 0
    assert [segment["device"] for segment in document["segments"]] == ["cpu:1"]
    assert document["searched"]["value"] == before.value
    assert set(document["searched"]["placement"].values()) == {"cpu:0", "cpu:1"}
    assert table.verdict.splitlines()[1].startswith("'cpu:1' is faster")  # its advice is above
    assert "do not split" not in table.verdict
    assert any(
        line.startswith("the plan holds the unsplit model on 'cpu:1'; the search found another")
        for line in plan_lines(found, "m")
    )
    again = searched_plan(pw.read_plan(path))
    assert again.placement.device_of.tolist() == before.placement.device_of.tolist()
    assert again.value == before.value
    assert again.segments == before.segments


def test_a_split_that_wins_is_the_plan(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    before = searched_for(problem)
    found, table = checked(before, monkeypatch, {"plan": 0.5})
    assert found.searched is None
    assert found.placement is before.placement
    assert found.measured is not None
    assert found.measured.recommendation == "plan"
    assert table.verdict.splitlines()[1].startswith("run the plan")
    assert recommendation_lines(found) == []


@pytest.mark.parametrize(("faster", "held"), [("plan", [0, 1]), ("cpu:0", [0])])
def test_the_default_is_a_name_and_the_plan_the_best_placement(
    faster: str, held: list[int], problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, table = checked(searched_for(problem), monkeypatch, {faster: 0.5, "all cores": 0.2})
    assert found.measured is not None
    assert found.measured.recommendation == "all cores"
    assert found.measured.median == 0.5
    assert devices(found) == held
    for text in (table.verdict, "\n".join(recommendation_lines(found))):
        assert "--devices cpu" in text
        assert "openvino.Core().compile_model(" in text
    call = recommendation_lines(found)[-1].partition("in Python: ")[2]
    assert eval(call, {"openvino": __import__("openvino")}).outputs  # what is told works


def test_the_default_of_another_precision_has_no_command(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--devices cpu` would compute in the device's own, and was not what was measured."""
    found, _ = checked(searched_for(problem), monkeypatch, {"plan": 0.5, "all cores": 0.2})
    cluster = found.problem.cluster
    own = [
        replace(each, options={**each.options, "INFERENCE_PRECISION_HINT": "bf16"})
        for each in cluster.devices
    ]
    other = replace(found.problem, cluster=replace(cluster, devices=tuple(own)))
    text = "\n".join(recommendation_lines(replace(found, problem=other)))
    assert "--devices cpu" not in text
    assert "'INFERENCE_PRECISION_HINT': 'bf16'" in text


def test_an_even_split_may_be_recommended(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, table = checked(searched_for(problem), monkeypatch, {"even split": 0.5})
    assert found.searched is not None
    assert devices(found) == [0, 1]
    assert "use the simpler split: 'even split' is faster" in table.verdict
    assert "this plan holds 'even split'" in recommendation_lines(found)[0]
    sentence, step = verdict_lines(found)
    assert sentence.startswith("Split evenly over 2 devices: ")
    assert "instead of this plan" not in step


def test_an_even_split_that_is_only_the_best_placement_is_no_recommendation(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime's default wins, and the plan holds the even split."""
    seconds = {"all cores": 0.1, "even split": 0.3, "cpu:0": 0.4, "cpu:1": 0.4, "plan": 0.5}
    found, _ = checked(searched_for(problem), monkeypatch, seconds)
    assert devices(found) == [0, 1]
    assert verdict_lines(found)[0].startswith("Do not split: use 'all cores'")


def test_what_the_search_found_alone_is_measured_once(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The searched placement is a single device: no second row for the same thing."""
    found, table = checked(searched_for(problem, "single"), monkeypatch, {"cpu:0": 0.5})
    assert [row[0] for row in table.rows] == [
        "cpu:0, searched (single)", "cpu:1", "all cores", "even split", "lower bound"
    ]  # fmt: skip
    assert found.searched is None
    assert table.verdict.splitlines()[1].startswith("the search found 'cpu:0' alone")
    same, _ = checked(searched_for(problem, "even-split"), monkeypatch, {"plan": 0.5})
    assert same.measured is not None
    assert "even split" not in same.measured.baselines


def test_a_placement_with_other_outputs_is_never_recommended(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first core computes wrongly: the second fastest way is taken."""
    right = checking.compare_outputs

    def compare(problem: Problem, placement: Any, model: Any) -> Comparison:
        wrong = not placement.device_of.any()
        return Comparison(0.7, 2e-4, "gate") if wrong else right(problem, placement, model)

    monkeypatch.setattr(checking, "compare_outputs", compare)
    seconds = {"cpu:0": 0.1, "cpu:1": 0.2, "plan": 0.5}
    found, table = checked(searched_for(problem), monkeypatch, seconds)
    assert devices(found) == [1]
    assert "'cpu:0' is not comparable: its outputs differ" in table.verdict
    assert found.measured is not None
    assert "cpu:0" not in found.measured.baselines


def test_random_outputs_are_named_and_not_called_equal(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = Comparison(0.0, 2e-4, "gate", random=("noise",))
    monkeypatch.setattr(checking, "compare_outputs", lambda *_: same)
    found, table = checked(searched_for(problem), monkeypatch, {"plan": 0.5})
    first, second, *_ = table.verdict.splitlines()
    assert first.startswith("other outputs equal to the unsplit model (relative error 0, ")
    assert second.startswith("the output of 'noise' could not be compared: runs of ")
    assert found.left_out == (second,)


def test_a_pin_leaves_out_everything_that_breaks_it(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = problem.graph.op_names[0]
    pinned = replace(problem, pins={0: 1})
    found, table = checked(searched_for(pinned), monkeypatch, {"cpu:0": 0.1, "all cores": 0.1})
    assert found.measured is not None
    assert found.measured.recommendation not in ("cpu:0", "all cores")
    assert found.placement.device_of[0] == 1
    not_comparable = [row[0] for row in table.rows if row[2] == "not comparable"]
    assert not_comparable == ["cpu:0", "all cores"]
    assert f"'all cores' is not comparable: op '{op}' is pinned to 'cpu:1'" in table.verdict


def test_a_memory_limit_leaves_out_everything_that_breaks_it(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole model does not fit on the second core, so neither in the memory of all cores."""
    whole = pw.Placement.on_one_device(problem.n_units, 1)
    peak = float(Simulator(problem).memory_peaks(whole)[1])
    fast = {"cpu:1": 0.1, "all cores": 0.1, "even split": 0.3, "cpu:0": 0.4, "plan": 0.5}
    for limit, allowed in ((peak - 1, False), (peak, True)):
        one, other = problem.cluster.devices
        cluster = replace(problem.cluster, devices=(one, replace(other, memory_bytes=limit)))
        limited = replace(problem, cluster=cluster)
        found, table = checked(searched_for(limited), monkeypatch, fast)
        assert found.measured is not None
        rows = {row[0]: row[2] for row in table.rows}
        assert (rows["cpu:1"] == "not comparable") is not allowed
        assert (rows["all cores"] == "not comparable") is not allowed
        assert ("keeps the whole model" in table.verdict) is not allowed
        assert (found.measured.recommendation in ("cpu:1", "all cores")) is allowed
        assert Simulator(limited).violation(found.placement) is None


def test_devices_that_drifted_apart_are_named(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One core takes twice as long as predicted, the other half as long."""
    devices = [replace(d, speed_scatter=0.05) for d in problem.cluster.devices]
    known = replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))
    plan = searched_for(known)
    simulator = Simulator(known)
    alone = [pw.Placement.on_one_device(known.n_units, device) for device in (0, 1)]
    first, second = (simulator.value(placement) for placement in alone)
    _, table = checked(plan, monkeypatch, {"cpu:0": 2 * first, "cpu:1": second / 2})
    assert (
        "times have changed: 'cpu:0' takes 2.00 times, 'cpu:1' takes 0.50 times as long"
        in table.verdict
    )
    _, table = checked(plan, monkeypatch, {"cpu:0": 1.1 * first, "cpu:1": 1.04 * second})
    assert "times have changed: 'cpu:0' takes 1.10 times as long" in table.verdict


def test_an_even_split_that_cannot_be_is_said(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every op is pinned to the first core but one: only one placement is left."""
    pins = {op: int(op == 3) for op in range(problem.graph.n_ops)}
    found, table = checked(searched_for(replace(problem, pins=pins)), monkeypatch, {})
    assert [row[0] for row in table.rows if row[2] == "not comparable"] == [
        "cpu:0", "cpu:1", "all cores"
    ]  # fmt: skip
    assert found.measured is not None
    assert found.measured.recommendation == "plan"
    assert "nothing simpler keeps the constraints" in table.verdict


def test_without_a_check_a_split_that_gains_nothing_is_not_held(
    problem: Problem, tmp_path: Path
) -> None:
    """Two ways in turns over two devices: the best device alone is predicted to be faster."""
    found = searched_for(problem)
    held = predicted_plan(found)
    assert devices(held) == [0]
    assert held.searched is not None
    assert held.searched.placement is found.placement
    alone = pw.Placement.on_one_device(problem.n_units, 0)
    assert held.value == Simulator(problem).value(alone) < found.value
    pw.write_plan(tmp_path / "plan.json", held)
    again = pw.read_plan(tmp_path / "plan.json")
    told = [*verdict_lines(again), *plan_lines(again, "m")]
    assert told[0].startswith("Do not split: 'cpu:0' runs everything")
    assert any("no sure gain; argument `searched` takes it" in line for line in told)
    assert devices(pw.read_plan(tmp_path / "plan.json", searched=True)) == [0, 1]


@pytest.mark.parametrize(("gain", "source", "held"), [
    (1.002, "measured", [0]), (1.002, "roofline", [0]), (1.002, "workload", [0, 1]),
    (1.2, "measured", [0, 1]), (1.0, "workload", [0]),
])  # fmt: skip
def test_a_predicted_gain_within_what_predictions_are_off_by_is_not_held(
    gain: float, source: str, held: list[int], problem: Problem
) -> None:
    """What a verdict recommends is what the plan holds, and costs of a workload are exact."""
    priced = replace(problem, costs=CostTable(problem.costs.seconds, source))
    alone = Simulator(priced).value(pw.Placement.on_one_device(priced.n_units, 0))
    plan = predicted_plan(replace(searched_for(priced), value=alone / gain))
    assert devices(plan) == held
    assert verdict_lines(plan)[0].startswith("Do not split" if held == [0] else "Split")


def test_place_holds_what_it_recommends_when_nothing_is_checked(tmp_path: Path) -> None:
    """Ops in turns on two cores, `quick` and without a check: ten hand-overs gain nothing."""
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    for how in ({"quick": True}, {"check": False, "calibrate": False}):
        plan = pw.place(
            str(tmp_path / "m.onnx"), devices="cpu:0,cpu:1", placer="round-robin",
            evaluations=5, **how,
        )  # fmt: skip
        assert plan.measured is None
        verdict = verdict_lines(plan)[0]
        assert verdict.startswith("Do not split" if len(devices(plan)) == 1 else "Split"), verdict


def test_a_run_says_slower_do_not_split(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = searched_for(problem)
    model = loaded_model(problem, plan.runtime)
    rounds = np.linspace(0.9, 1.1, 15)

    def result_of(mine: float, alone: float, runs: int = 15) -> RunResult:
        found = {"plan": (mine * rounds).tolist(), "cpu:0": (alone * rounds[::-1]).tolist()}
        monkeypatch.setattr(
            running, "measure_interleaved",
            lambda *_, **__: {name: row[:runs] for name, row in found.items()},
        )  # fmt: skip
        return execute(plan, model, runs=runs)

    slower = result_of(0.5, 0.2)
    ratio, low, high = median_interval(0.5 * rounds / (0.2 * rounds[::-1]))
    assert slower.ratio == (ratio, low, high)
    assert f"the plan takes 2.50 of its time (95 % interval {low:.2f} to {high:.2f})" in (
        slower.verdict
    )
    assert slower.verdict.startswith("slower, do not split: use 'cpu:0' alone;")
    assert slower.verdict in slower.lines()
    assert slower.data()["verdict"] == slower.verdict
    assert result_of(0.2, 0.5).verdict.startswith("faster than 'cpu:0' alone: the plan takes 0.40")
    assert result_of(0.2, 0.2).verdict.startswith("as fast as 'cpu:0' alone within noise")
    assert result_of(0.5, 0.2, runs=5).verdict == ""  # too few for an interval of 95 %


def probed(
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    seconds: Mapping[str, float],
    *,
    is_asked: bool = False,
) -> tuple[Plan, str, list[str]]:
    """Probe with these seconds of each contender; also return the names that were measured."""
    names: list[str] = []

    def measured(runners: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, list[float]]:
        names.extend(runners)
        return {name: [seconds[name]] * 9 for name in runners}

    monkeypatch.setattr(checking, "measure_interleaved", measured)
    plan, left_out = probe_on_hardware(
        plan, lambda name: loaded_model(plan.problem, name), is_asked=is_asked
    )
    return plan, left_out, names


def test_a_probe_keeps_the_split_only_if_it_is_faster(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By costs the split takes a third less than cpu:0; what was measured decides."""
    quick = replace(problem, cluster=replace(problem.cluster, prediction_error=0.1))
    before = find_plan(quick, placer="auto", budget=Budget(evaluations=50), runtime="openvino")
    assert devices(before) == [0, 1]
    slower, left_out, names = probed(before, monkeypatch, {"cpu:0": 1.0, "plan": 1.05})
    assert names == ["cpu:0", "plan"]  # cpu:1 takes twice as long by the same costs
    assert devices(slower) == [0]
    assert slower.searched is not None
    assert slower.measured is not None
    assert "measured beside 'cpu:0' only, in 9 rounds" in left_out
    assert verdict_lines(slower)[0].startswith("Do not split")
    faster, _, _ = probed(before, monkeypatch, {"cpu:0": 1.0, "plan": 0.9})
    assert devices(faster) == [0, 1]
    assert faster.searched is None
    assert verdict_lines(faster)[0].startswith("Split")


def test_a_probe_decides_where_a_predicted_gain_is_within_the_error(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such plans went to one device unmeasured, and gains of a tenth were missed."""
    unsure = replace(problem, cluster=replace(problem.cluster, prediction_error=9.0))
    before = find_plan(unsure, placer="auto", budget=Budget(evaluations=50), runtime="openvino")
    faster, _, names = probed(before, monkeypatch, {"cpu:0": 1.0, "cpu:1": 2.0, "plan": 0.9})
    assert "plan" in names
    assert devices(faster) == [0, 1]
    assert verdict_lines(faster)[0].startswith("Split")


def test_a_probe_measures_no_single_device_that_exceeds_the_latency_limit(problem: Problem) -> None:
    """It could win, and the plan then failed by its limit, although the search had kept it."""
    of_unit = np.arange(problem.n_units) % 2
    seconds = np.where(of_unit[:, None] == np.arange(2), 0.01, 0.1)  # each core is bad at the rest
    costs = CostTable(frozen_floats(seconds), "measured")
    streamed = replace(problem, costs=costs, objective="throughput", execution_model=MaxLoad())
    plan = find_plan(
        streamed, placer="auto", budget=Budget(evaluations=50), runtime="openvino", seed=1
    )
    simulator = Simulator(streamed)
    assert within_latency(simulator, plan.placement, 0.2) is not None
    with pytest.raises(InfeasibleError):
        within_latency(simulator, Placement.on_one_device(streamed.n_units, 0), 0.2)
    probed, left_out = probe_on_hardware(plan, lambda name: loaded_model(streamed, name), limit=0.2)
    assert probed is plan
    assert "no single device keeps the latency limit" in left_out
    measured, left_out = probe_on_hardware(plan, lambda name: loaded_model(streamed, name))
    assert measured.measured is not None
    assert "measured beside" in left_out


def test_devices_that_have_changed_are_not_measured(problem: Problem) -> None:
    """A stored problem of another machine was checked on this one, if a check was asked for."""
    first, second = problem.cluster.devices
    devices = (first, replace(second, fingerprint="another core"))
    cluster = replace(problem.cluster, devices=devices, prediction_error=0.1)
    plan = find_plan(
        replace(problem, cluster=cluster),
        placer="auto",
        budget=Budget(evaluations=50),
        runtime="openvino",
    )
    with pytest.raises(StalePlanError, match="device 'cpu:1' has changed"):
        check_on_hardware(plan, loaded_model(plan.problem, plan.runtime))
    with pytest.raises(StalePlanError, match="device 'cpu:1' has changed"):
        probe_on_hardware(plan, lambda name: loaded_model(plan.problem, name))


def test_the_devices_of_the_runtime_that_is_asked_for_are_looked_at_before_the_search(
    problem: Problem,
) -> None:
    """Only those of the runtime that measured were: the check then failed after the search."""

    def away(**said: Any) -> str | None:
        return why_away(problem, ModelOfRequest(Request(problem, **said)))

    assert away() is None
    assert away(runtime="openvino") is None
    with pytest.raises(InputError, match=r"^'onnxruntime' cannot check what 'openvino' measured"):
        away(runtime="onnxruntime")


def test_devices_are_looked_at_once_where_no_runtime_is_asked_for(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(running, "changed_device", lambda _, runtime: asked.append(runtime))
    assert why_away(problem, ModelOfRequest(Request(problem))) is None
    assert asked == [None]
    assert why_away(problem, ModelOfRequest(Request(problem, runtime="onnxruntime"))) is None
    assert asked == [None, None, "onnxruntime"]


def test_only_a_split_that_would_be_recommended_is_probed(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = searched_for(problem, "single")
    same, left_out, names = probed(alone, monkeypatch, {})
    assert same is alone
    assert names == []
    assert "nor simpler ways measured" in left_out


def test_a_split_that_the_search_has_measured_is_probed_whatever_is_predicted(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict was by prediction, and advised against the plan."""
    split = searched_for(problem)
    assert probed(split, monkeypatch, {})[2] == []
    seconds = {"cpu:0": 1.0, "plan": 0.5}
    found, left_out, names = probed(split, monkeypatch, seconds, is_asked=True)
    assert names == ["cpu:0", "plan"]
    assert "measured beside 'cpu:0' only" in left_out
    assert devices(found) == [0, 1]
    assert verdict_lines(found)[0].startswith("Split")


def test_samples_repeat_until_their_seconds_have_passed() -> None:
    """Each look at the clock is a tenth of a second later: the first sets the end, 49 samples."""
    ticks = iter(range(100))
    samples = [[np.zeros(1)], [np.ones(1)]]
    taken = list(repeated(samples, 5.0, lambda: next(ticks) / 10))
    assert [float(sample[0][0]) for sample in taken] == [0.0, 1.0] * 24 + [0.0]


class Bursting:
    """Equal copies that begin together: so many samples are done at once, 0.1 s for each."""

    def __init__(self, burst: int) -> None:
        self.burst = burst

    def outcomes(self, samples: Any) -> Any:
        took = 0.1 * self.burst
        starts = [at // self.burst * took for at in range(len(samples))]
        return iter([Execution((), {}, took, ((0.0, took),), start) for start in starts])


@pytest.mark.parametrize("burst", [32, 40, 64, 70, 130])
def test_a_round_has_a_whole_burst_however_many_samples_are_in_flight(burst: int) -> None:
    """Of 100 samples, 36 copies and more were measured over a part of a burst: 40 as too slow, and
    70 as fast without an end."""
    servers: Any = {"a": Bursting(1), COPIES: Bursting(burst)}
    found = StreamRounds(servers, [[np.zeros(1)]] * 100, 3, no_report, NEVER).more({})
    for row in found.values():
        assert [one.period for one in row] == pytest.approx([0.1] * 3)
