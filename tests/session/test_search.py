"""Ctrl-C and SIGTERM at any moment of a search: it raises, with the incumbent. Nothing is timed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

import numpy as np
import pytest
from support.warm import COMMAND, run_warm

import placewright as pw
from placewright.core.costs import CostTable
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget, Solution, Stop
from placewright.core.source import ModelSource
from placewright.errors import InputError, Interrupted, OutOfTime
from placewright.files.problem_file import write_problem
from placewright.placers.exact.parts import programs
from placewright.placers.portfolio import auto, turn
from placewright.placers.portfolio.auto import Auto
from placewright.placers.registry import Placer, make_placer
from placewright.profiling.hardware import NEVER, Deadline
from placewright.report.time_left import CHECKING, SEARCHING, Report, Steps, no_report
from placewright.session import search as searching
from placewright.session.models import ModelOfRequest
from placewright.session.request import request_of
from placewright.session.search import search
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.suites.suite.runs import random_series_parallel_problem
from placewright.testing.problems import random_problem

LONG = Budget(seconds=120.0)  # nothing but the signal ends these searches
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def termination_as_in_a_command() -> Iterator[None]:
    """SIGTERM raises `KeyboardInterrupt`, as in a command; a library leaves the signal alone."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    yield
    signal.signal(signal.SIGTERM, before)


def interrupted_search(problem: Problem, placer: Placer) -> Solution:
    """What a search had found when it was interrupted."""
    with pytest.raises(Interrupted) as caught:
        search(problem, placer, LONG)
    found = caught.value.solution
    assert isinstance(found, Solution)
    assert found.stop is Stop.INTERRUPTED
    return found


PLACER = '''
import os, signal, time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.placers.bases import anytime


@dataclass(frozen=True)
class Signalled:
    """One evaluation; then it gets a signal and never ends by itself."""

    name: ClassVar[str] = "signalled"
    paper: ClassVar[str] = "none"
    objectives: ClassVar[tuple[str, ...]] = ("latency",)
    needs_training: ClassVar[bool] = False

    number: int = 15

    def why_not(self, problem):
        return None

    @anytime
    def place(self, problem, evaluator, rng):
        evaluator.evaluate(np.zeros(problem.n_units, dtype=np.int64))
        os.kill(os.getpid(), self.number)
        while True:
            time.sleep(0.01)
'''


def open_problem() -> Any:
    """Too large for a proof within what these tests take."""
    return random_problem(np.random.default_rng(2), n_ops=60, n_devices=3, constrained=False)


def send_at(patch: pytest.MonkeyPatch, owner: Any, names: str, number: int, at: int) -> None:
    """The signal comes with the `at`-th call of any of the functions, in whatever thread it is."""
    calls = itertools.count(1)  # no two threads get the same number, and none is passed over

    def counting(real: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: Any, **named: Any) -> object:
            if next(calls) == at:
                os.kill(os.getpid(), number)
            return real(*arguments, **named)

        return counted

    for name in names.split():
        patch.setattr(owner, name, counting(getattr(owner, name)))


@cache
def compile_kernels() -> None:
    """Search once in this process: a compiler may swallow a signal."""
    search(open_problem(), Auto(), Budget(evaluations=100))


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("at", [1, 2, 20, 300])
def test_auto_hands_its_incumbent_over(
    number: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = open_problem()
    compile_kernels()
    send_at(monkeypatch, Simulator, "value values", number, at)
    found = interrupted_search(problem, Auto())
    assert (found.placement is None) == (found.evaluations == 0) == (at == 1)
    monkeypatch.undo()
    if found.placement is None:
        return
    assert Simulator(problem).value(found.placement) == found.value


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (searching, "quick_bounds"),
        (turn, "relaxed_bounds"),
        (programs, "_solver"),
        (auto, "make_ready"),
    ],
)
def test_before_a_bound_and_within_a_proof(
    owner: Any, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before anything was valued: then there is nothing to hand back."""
    problem = random_problem(np.random.default_rng(5), n_ops=30, n_devices=2, constrained=False)
    if name == "_solver":
        problem = random_series_parallel_problem(np.random.default_rng(3), 120, 2)  # has parts
    send_at(monkeypatch, owner, name, number, 1)
    found = interrupted_search(problem, Auto())
    assert (found.placement is None) == (found.evaluations == 0)


class Asks:
    """A placer that notes what SIGTERM does while it searches."""

    name: ClassVar[str] = "asks"
    objectives: ClassVar[tuple[str, ...]] = ("latency",)

    def __init__(self) -> None:
        self.found: list[Any] = []

    def why_not(self, problem: Problem) -> None:
        del problem

    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        del problem, rng
        self.found.append(signal.getsignal(signal.SIGTERM))
        return evaluator.solution()


def test_a_search_leaves_the_handlers_of_signals_alone() -> None:
    asking = Asks()
    before = signal.getsignal(signal.SIGTERM)
    search(open_problem(), asking, Budget(evaluations=3))  # type: ignore[arg-type]
    assert asking.found == [before]


def test_a_solver_is_interrupted_while_it_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes with the first solution, from the solver's own thread."""
    pytest.importorskip("ortools")
    problem = open_problem()
    value = Evaluator.evaluate
    calls = [0]

    def evaluate(self: Evaluator, *arguments: Any, **named: Any) -> float:
        calls[0] += 1
        if calls[0] == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return value(self, *arguments, **named)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    found = interrupted_search(problem, make_placer("cp-sat"))
    assert found.placement is not None


@pytest.mark.parametrize("number", SIGNALS)
def test_the_command_writes_its_plan(number: int, tmp_path: Path) -> None:
    (tmp_path / "signalled.py").write_text(PLACER)
    write_problem(tmp_path / "p.json", open_problem())
    words = ["place", "p.json", "--placer", "signalled:Signalled", "--budget", "3600s", "--json"]
    words += ["--set-placer", f"number={int(number)}", "-o", "plan.json"]
    done = run_warm(COMMAND, words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert len(plan["placement"]) == 60
    assert plan["placer"]["stop"] == "interrupted"
    assert any("interrupted" in what for what in plan["left_out"])


SCRIPT = """
import os, sys
import placewright as pw
from placewright.session.session import Session
problem = pw.read_problem("p.json")
number = int(sys.argv[1])
said = dict(placer="signalled:Signalled", settings={"number": str(number)}, budget="3600s")
try:
    if sys.argv[2] == "place":
        pw.place(problem, **said)
    else:
        pw.compare(problem, [f"signalled:Signalled:number={number}"], budget="3600s")
except KeyboardInterrupt as interrupt:
    plan = getattr(interrupt, "plan", None)
    print("raised", None if plan is None else (plan.placer.stop.value, plan.placer.evaluations))
else:
    print("went on")
"""


def run_script(folder: Path, number: int, what: str) -> subprocess.CompletedProcess[str]:
    """A user's script, whose call gets a signal in the middle."""
    (folder / "signalled.py").write_text(PLACER)
    write_problem(folder / "p.json", open_problem())
    return run_warm(SCRIPT, [str(number), what], cwd=folder)


@pytest.mark.parametrize(
    ("what", "told"), [("place", "raised ('interrupted', 1)"), ("compare", "raised None")]
)
def test_ctrl_c_in_a_script_raises(what: str, told: str, tmp_path: Path) -> None:
    """The script's own `except KeyboardInterrupt` runs, and `place` hands the incumbent over."""
    done = run_script(tmp_path, signal.SIGINT, what)
    assert (done.stdout.strip(), done.returncode) == (told, 0), done.stderr


@pytest.mark.parametrize("what", ["place", "compare"])
def test_sigterm_ends_a_script(what: str, tmp_path: Path) -> None:
    """A scheduler that ends a job ends it: nothing of the script runs after the call."""
    done = run_script(tmp_path, signal.SIGTERM, what)
    assert (done.stdout, done.returncode) == ("", -signal.SIGTERM), done.stderr


def test_the_check_on_the_hardware_tells_its_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was announced is left while nothing is done, and then what the pace leaves."""
    told, now = list[str](), 0.0

    def check(plan: object, model: object, report: Report, **_: object) -> tuple[str, str]:
        nonlocal now
        report(0.0, "checking")
        now = 10.0
        report(0.5, "checking")
        return "plan", "table"

    monkeypatch.setattr(searching, "check_on_hardware", check)
    steps = Steps(lambda fraction, what: told.append(what), clock=lambda: now)
    steps.expect({CHECKING: 50.0}, "5 units")
    anything: Any = MagicMock()
    searching._checked(anything, anything, steps, NEVER)
    assert told == ["checking, about 50 s left", "checking, about 10 s left"]


@pytest.mark.parametrize(
    ("limits", "uncounted"),
    [
        ({"evaluations": 200}, "the search of 200 evaluations"),
        ({"core_seconds": 30}, "the search of 30 core-seconds"),
        ({"budget": "5s", "evaluations": 200}, ""),
        ({}, ""),
    ],
)
def test_a_search_without_a_clock_is_announced_by_its_own_size(
    limits: dict[str, Any], uncounted: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What two hundred evaluations take nobody knows: exact methods ask for few."""
    steps = searching.steps_of(request_of("m.onnx", limits), no_report)
    with caplog.at_level("INFO"):
        steps.expect({SEARCHING: steps.search_seconds}, "5 units")
    assert ("without" in caplog.text) == (uncounted != "")
    assert uncounted in caplog.text
    assert (steps.search_seconds > 0) == (uncounted == "")


def test_a_check_that_is_not_possible_is_named() -> None:
    """A request without `check` asks for none of a problem in memory."""
    problem = random_problem(np.random.default_rng(0))
    asked = pw.place(problem, evaluations=20, check=True)
    assert "check on the hardware: it has no model; place a model file" in asked.left_out
    assert not any("check" in clause for clause in pw.place(problem, evaluations=20).left_out)


def test_a_plan_that_an_unfinished_check_improved_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the search had found was returned, and the candidate that was measured was lost."""

    def ended(plan: pw.Plan, *_: object, **__: object) -> None:
        error = OutOfTime("enough was measured")
        error.plan = replace(plan, placer=replace(plan.placer, version="of the check"))
        raise error

    monkeypatch.setattr(searching, "check_on_hardware", ended)
    monkeypatch.setattr(searching, "why_no_check", lambda plan: None)
    monkeypatch.setattr(ModelOfRequest, "loaded", lambda *_: None)
    problem = random_problem(np.random.default_rng(0))
    plan = pw.place(problem, evaluations=20, check=True)
    assert plan.placer.version == "of the check"
    assert any("the total ended before enough was measured" in what for what in plan.left_out)


def test_a_plan_names_what_its_check_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clauses of the check were overwritten by those of the search."""

    def checked(plan: pw.Plan, *_: object, **__: object) -> tuple[pw.Plan, None]:
        return replace(plan, left_out=("outputs: of the check",)), None

    monkeypatch.setattr(searching, "check_on_hardware", checked)
    monkeypatch.setattr(searching, "why_no_check", lambda plan: None)
    monkeypatch.setattr(ModelOfRequest, "loaded", lambda *_: None)
    problem = random_problem(np.random.default_rng(0))
    plan = pw.place(problem, evaluations=20, check=True)
    assert "outputs: of the check" in plan.left_out


def test_a_search_that_measured_is_told_apart_from_a_verdict_by_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a check nothing said so, and the verdict could contradict the plan."""
    by_index = nullcontext(lambda placement: 1e6 + float(placement.device_of.sum()))
    monkeypatch.setattr(searching, "measure_of", lambda *_: by_index)
    problem = random_problem(np.random.default_rng(0), constrained=False)
    plan = pw.place(problem, evaluations=20, placer="random", evaluator="measured")
    assert searching.UNJUDGED in plan.left_out


@pytest.mark.parametrize(("total", "is_counted"), [(None, True), (60.0, False)])
def test_a_total_limits_the_check_of_a_search_without_a_clock(
    total: float | None, is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = list[Any]()
    monkeypatch.setattr(
        searching, "check_on_hardware", lambda *_, check, **__: checks.append(check)
    )
    model: Any = MagicMock()
    model.request = request_of("m.onnx", {"evaluations": 20})
    plan: Any = MagicMock()
    steps = searching.steps_of(model.request, no_report)
    searching._checked(plan, model, steps, Deadline.after(total))
    assert [check.is_counted for check in checks] == [is_counted]


def measured_elsewhere(folder: Path, objective: Objective = "latency") -> str:
    """The path of a stored problem of devices that are not here; its model would be m.onnx."""
    problem = random_problem(np.random.default_rng(0), objective=objective, constrained=False)
    costs = CostTable(problem.costs.seconds, source="measured")
    source = ModelSource(str(folder / "m.onnx"), "0" * 64, "onnx")
    write_problem(folder / "p.json", replace(problem, costs=costs, source=source))
    return str(folder / "p.json")


@pytest.mark.parametrize("has_model", [False, True])
def test_a_stored_problem_of_another_machine_is_placed_and_not_checked(
    has_model: bool, tmp_path: Path
) -> None:
    """Its model is missing, or only its devices are."""
    if has_model:
        (tmp_path / "m.onnx").touch()
    plan = pw.place(measured_elsewhere(tmp_path), evaluations=20)
    assert plan.measured is None
    clause = "check on the hardware: it needs the model and the devices that were measured: "
    assert [text for text in plan.left_out if text.startswith(clause)] != []


def test_a_check_that_is_asked_for_refuses_a_model_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        pw.place(measured_elsewhere(tmp_path), evaluations=20, check=True)


def test_state_refuses_the_stream_of_a_stored_problem_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check refused it, after the whole search."""
    loaded, search_for = MagicMock(keeps_state=True), MagicMock()
    monkeypatch.setattr(searching, "why_away", lambda *_: None)
    monkeypatch.setattr(searching, "find_plan", search_for)
    monkeypatch.setattr(ModelOfRequest, "loaded", lambda *_: loaded)
    with pytest.raises(InputError, match="keeps state from call to call"):
        pw.place(measured_elsewhere(tmp_path, "throughput"), evaluations=20)
    assert not search_for.called
