"""Checked streams: mismatches, copies, state and precisions, with servers that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placewright.core.placement import Placement
from placewright.core.plan import COPIES, MODE, PLAN, Measurement, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.core.source import ModelSource, Port, Signature
from placewright.errors import InputError, MismatchError, OutOfTime
from placewright.execution.requests import Execution
from placewright.profiling.hardware import Deadline, Stopwatch
from placewright.profiling.stream_calibration import StreamRound
from placewright.session import checking, streams
from placewright.session.checking import (
    check_on_hardware,
    execute_stream,
    probe_on_hardware,
    recommended_stream,
)
from placewright.session.contenders import Contender, Contenders
from placewright.session.streams import StreamLength, candidates
from placewright.simulation.model import Simulator
from tests.session.stream_plans import result, two_stages


class Ones:
    """A model whose only output is eight times 1, at one level only."""

    signature = Signature((), (Port("y", (8,), "f32", 0),))
    keeps_state = False

    def __init__(self) -> None:
        self.asked: list[set[str]] = []  # devices whose levels were asked for

    def tolerance(self, devices: Any) -> float:
        return 1e-4

    def plain(self, device: Any) -> Any:
        return lambda inputs: [np.ones(8)]

    def plain_at_other_levels(self, devices: Any) -> Any:
        self.asked.append({one.name for one in devices})
        return iter(())

    def random_inputs(self, rng: np.random.Generator) -> list[Any]:
        return [rng.random(1)]


class Keeping(Ones):
    """The same, with state."""

    keeps_state = True


class Answering:
    """A server whose outputs all have one value; a sample takes 0.1 s of a clock."""

    def __init__(self, value: float, burst: int = 1) -> None:
        self.value, self.burst, self.samples = value, burst, 0

    def outcomes(self, samples: Any) -> Any:
        for _ in samples:
            self.samples += 1
            yield Execution((np.full(8, self.value),), {}, 0.1, ((0.0, 0.1),), 0.0)


def served_by(monkeypatch: pytest.MonkeyPatch, servers: Mapping[str, Answering]) -> Plan:
    """A plan of two stages with these contenders."""
    found = two_stages()
    costs = replace(found.problem.costs, source="measured")
    source = ModelSource("m.onnx", "0", "onnx")
    plan = replace(found, problem=replace(found.problem, source=source, costs=costs))

    def opening(server: Any) -> Any:
        return lambda stack, in_flight: server

    members = tuple(
        Contender(name, plan.placement if name == PLAN else None, None, opening(server))
        for name, server in servers.items()
    )
    played = Simulator(plan.problem).stream(plan.placement, samples=20)
    all_of_them: Contenders[Any] = Contenders(members, played=played)
    monkeypatch.setattr(checking, "stream_contenders", lambda *_, **__: all_of_them)
    monkeypatch.setattr(checking, "check_devices", lambda *_: None)
    return plan


@pytest.mark.parametrize(("value", "fault"), [(2.0, MismatchError), (1.0, OutOfTime)])
def test_the_end_of_the_total_hides_no_mismatch(
    value: float, fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan was written, because nothing else could be compared after its 100 samples."""
    mine = Answering(value)
    plan = served_by(monkeypatch, {COPIES: Answering(1.0), PLAN: mine})
    deadline = Deadline.after(5.0, Stopwatch(lambda: 0.1 * mine.samples))
    model: Any = Ones()
    with pytest.raises(fault, match=r"differ from|the total ended"):
        check_on_hardware(plan, model, deadline=deadline)
    assert mine.samples == 100


@pytest.mark.parametrize(("burst", "compared"), [(1, 3), (6, 12), (16, 32)])
def test_outputs_of_every_copy_are_compared(
    burst: int, compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three samples reach three copies."""
    copies = Answering(1.0, burst)
    plan = served_by(monkeypatch, {COPIES: copies, PLAN: Answering(1.0)})

    def ended(*_: Any) -> None:
        raise OutOfTime("all had run")

    monkeypatch.setattr(checking, "StreamRounds", ended)
    model: Any = Ones()
    with pytest.raises(OutOfTime):
        execute_stream(plan, model, length=StreamLength(20))
    assert copies.samples == compared


def test_a_model_that_keeps_state_has_no_stream_to_measure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each slot began with a state of its own: a right plan was called unequal."""
    plan = served_by(monkeypatch, {PLAN: Answering(1.0)})
    model: Any = Keeping()
    with pytest.raises(InputError, match="keeps state from call to call"):
        execute_stream(plan, model)


@pytest.mark.parametrize(
    ("placed", "used"), [([0, 0], {"a"}), ([0, 1], {"a", "b"}), ([1, 1], {"a", "b"})]
)
def test_samples_are_judged_by_the_precisions_of_the_devices_that_run(
    placed: list[int], used: set[str]
) -> None:
    model: Any = Ones()
    compare = checking._Comparing(model, two_stages())
    server: Any = Answering(2.0)
    found = compare.worst(server, [[np.zeros(1)]], Placement.of(np.array(placed)))
    assert found == (1, 0, pytest.approx(1.0))
    assert model.asked == [used]


def test_levels_of_the_same_devices_are_loaded_once() -> None:
    model: Any = Ones()
    compare = checking._Comparing(model, two_stages())
    server: Any = Answering(2.0)
    for placed in ([0, 0], [1, 1], [0, 1], [0, 0]):
        compare.worst(server, [[np.zeros(1)]], Placement.of(np.array(placed)))
    compare.worst(server, [[np.zeros(1)]])
    assert model.asked == [{"a"}, {"a", "b"}]


class Undecided(Ones):
    """Its only output is one 1; at another level the input is added."""

    signature = Signature((), (Port("y", (1,), "i64", 0),))

    def plain(self, device: Any) -> Any:
        return lambda inputs: [np.ones(1, dtype=np.int64)]

    def plain_at_other_levels(self, devices: Any) -> Any:
        yield lambda inputs: [1 + inputs[0]]


class AtOtherLevel:
    """A server that rounds like that level."""

    def outcomes(self, samples: Any) -> Any:
        for (value,) in samples:
            yield Execution((1 + value,), {}, 0.1, ((0.0, 0.1),), 0.0)


@pytest.mark.parametrize(("values", "named"), [((0, 1), ()), ((1, 1), ("y",))])
def test_an_output_is_named_where_no_sample_could_be_compared(
    values: tuple[int, ...], named: tuple[str, ...]
) -> None:
    """One sample without a value to compare made the output random, whatever the others had."""
    some: Any = (Undecided(), AtOtherLevel())
    compare = checking._Comparing(some[0], two_stages())
    samples = [[np.full(1, value)] for value in values]
    assert compare.worst(some[1], samples) == (2, 0, 0.0)
    assert compare.random == named


@pytest.mark.parametrize("is_open_first", [True, False])
def test_an_output_that_only_another_contender_could_compare_is_named(
    is_open_first: bool,
) -> None:
    """The plan's output was called equal, because another way could be compared."""
    some: Any = (Undecided(), AtOtherLevel())
    compare = checking._Comparing(some[0], two_stages())
    streams = [[[np.full(1, value)] for _ in range(2)] for value in (1, 0)]
    for samples in streams if is_open_first else streams[::-1]:
        assert compare.worst(some[1], samples) == (2, 0, 0.0)
    assert compare.random == ("y",)


@pytest.mark.parametrize(
    ("recommended", "mine", "fault"), [(1.0, 2.0, MismatchError), (2.0, 1.0, OutOfTime)]
)
def test_only_a_mismatch_of_the_plan_is_called_one(
    recommended: float, mine: float, fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recommended way is compared first: its mismatch was the plan's, whose own was lost."""
    own = Answering(mine)
    servers = {COPIES: Answering(recommended), PLAN: own, MODE: Answering(1.0)}
    plan = served_by(monkeypatch, servers)
    monkeypatch.setattr(checking, "contender_to_run", lambda _: COPIES)
    deadline = Deadline.after(0.25, Stopwatch(lambda: 0.1 * own.samples))
    model: Any = Ones()
    with pytest.raises(fault, match=r"differ from|the total ended"):
        execute_stream(plan, model, length=StreamLength(20), deadline=deadline)
    assert own.samples == 3


class MadeUpRounds:
    """Nine rounds of each contender, of which the plan is the fastest."""

    def __init__(self, servers: Mapping[str, Any], *_: Any) -> None:
        self.names = tuple(servers)

    def more(self, before: Any) -> dict[str, list[StreamRound]]:
        return {
            name: [StreamRound(1.0 if name == PLAN else 2.0, np.ones(20))] * 9
            for name in self.names
        }


def test_a_check_judges_the_plan_and_not_the_way_that_it_recommended_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A difference of the recommended way was called the plan's, which was not written."""
    own = Answering(1.0)
    plan = served_by(monkeypatch, {COPIES: Answering(2.0), MODE: Answering(1.0), PLAN: own})
    monkeypatch.setattr(checking, "StreamRounds", MadeUpRounds)
    plan = replace(plan, measured=Measurement(1.0, 0.0, 9, {}, COPIES))
    model: Any = Ones()
    found, table = check_on_hardware(plan, model)
    assert own.samples == 100
    assert found.measured is not None
    assert found.measured.recommendation == PLAN
    assert f"'{COPIES}' is not comparable: its outputs differ" in table.verdict


class LatePlan(MadeUpRounds):
    """The same rounds; samples of the plan take 2 s, and those of others 1 s."""

    def more(self, before: Any) -> dict[str, list[StreamRound]]:
        return {
            name: [replace(one, latencies=np.full(20, 2.0 if name == PLAN else 1.0)) for one in row]
            for name, row in super().more(before).items()
        }


@pytest.mark.parametrize(
    ("limit", "recommended", "says"),
    [
        (3.0, PLAN, ""),
        (1.5, "a", "; run 'a': the plan does not keep the latency limit, and this is the fastest"),
        (0.5, PLAN, "; no contender keeps the latency limit; let fewer samples in, or raise the"),
    ],
)
def test_a_probe_recommends_no_way_whose_measured_latency_exceeds_the_limit(
    limit: float, recommended: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds per sample alone decided, and the plan has the fewest of them."""
    plan = served_by(monkeypatch, {"a": Answering(1.0), PLAN: Answering(1.0)})
    monkeypatch.setattr(checking, "StreamRounds", LatePlan)
    model: Any = Ones()
    found, left_out = probe_on_hardware(plan, lambda _: model, limit=limit)
    assert found.measured is not None
    assert found.measured.recommendation == recommended
    assert left_out.partition(" only, in 9 rounds")[2].startswith(says)
    assert ("latency limit" in left_out) == (says != "")


def test_a_plan_says_that_nothing_keeps_the_latency_limit_or_could_be_compared() -> None:
    """Only the table said so, which a caller in Python does not see."""
    plan = two_stages()
    measured = result(plan, {}, {"a": 9.0, PLAN: 5.0}, 0.5)
    found, table = recommended_stream(plan, replace(measured, random=("noise",)))
    noise, late = found.left_out
    assert noise.startswith("the output of 'noise' could not be compared")
    assert late.startswith("latency limit: no contender keeps the latency limit")
    assert all(c.removeprefix("latency limit: ") in table.verdict for c in found.left_out)
    kept = recommended_stream(plan, result(plan, {}, {"a": 9.0, PLAN: 5.0}, 20.0))[0]
    assert kept.left_out == ()


@pytest.mark.parametrize(("is_counted", "seconds"), [(False, 2.0), (True, None)])
def test_other_placers_take_no_longer_than_the_total_allows(
    is_counted: bool, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets, real = list[Budget](), streams.Evaluator

    def evaluator(problem: Problem, budget: Budget) -> Any:
        budgets.append(budget)
        return real(problem, budget)

    monkeypatch.setattr(streams, "Evaluator", evaluator)
    deadline = Deadline(2.0, Stopwatch(lambda: 0.0))
    rng = np.random.default_rng(0)
    candidates(two_stages(), rng, is_counted=is_counted, deadline=deadline)
    assert {budget.seconds for budget in budgets} == {seconds}
