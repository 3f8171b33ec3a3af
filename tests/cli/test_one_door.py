"""The same request through the facade and through the command line is the same, to the last bit."""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer
from cli.runner import InProcess, the_line
from support.branching_model import branching_model

import placewright as pw
from placewright.cli.app import app
from placewright.cli.options import document_with_options, option_of, with_options
from placewright.errors import FieldError, InputError
from placewright.files.cluster_file import write_cluster
from placewright.report.timeline_text import timeline_data
from placewright.session import models
from placewright.session.models import runtime_named
from placewright.session.request import Request, words

# Every runtime and every objective once; all pairs of them, and a second model, are slow.
CASES = [
    ("zoo:rnnlm/tiny", "openvino", "throughput"),
    ("zoo:rnnlm/tiny", "onnxruntime", "latency"),
    ("zoo:rnnlm/tiny", "torch", "training"),
    *(
        pytest.param(model, runtime, objective, marks=pytest.mark.slow)
        for model, runtime, objective in (
            ("zoo:rnnlm/tiny", "openvino", "latency"),
            ("zoo:rnnlm/tiny", "onnxruntime", "throughput"),
            ("zoo:rnnlm/tiny", "torch", "latency"),
            ("zoo:rnnlm/tiny", "torch", "throughput"),
            ("zoo:gnmt/tiny", "openvino", "latency"),
            ("zoo:gnmt/tiny", "openvino", "throughput"),
        )
    ),
]
two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def without_times(plan: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(plan.read_text())
    del document["measured"], document["problem"]["path"]
    times = document["placer"].pop("history")
    document["placer"].pop("seconds")
    document["placer"].pop("core_seconds")
    document["placer"]["history"] = [[row[0], *row[2:]] for row in times]
    return document


@two_cores
@pytest.mark.parametrize(("model", "runtime", "objective"), CASES)
def test_one_request_through_facade_and_command_line(
    model: str,
    runtime: str,
    objective: str,
    tmp_path: Path,
    cli: InProcess,
) -> None:
    write_cluster(tmp_path / "pair.yaml", pw.discover("cpu:0,cpu:1", runtime=runtime))
    asked: dict[str, Any] = {
        "cluster": tmp_path / "pair.yaml", "runtime": runtime, "objective": objective,
        "quick": True, "memory": {"cpu:1": "3GiB"},
    }  # fmt: skip
    if objective == "training":
        asked["optimizer"] = "adam"
    if objective == "throughput":
        asked["samples_in_flight"] = "pipeline"
    problem = pw.profile(model, **asked)  # fills the store, so that both find the same costs
    asked["pins"] = {problem.graph.op_names[0]: "cpu:0"}
    plan = pw.place(model, evaluations=40, placer="local-search", settings={}, seed=3, **asked)
    pw.write_plan(tmp_path / "a.json", plan)
    options = ["--cluster", "pair.yaml", "--runtime", runtime, "--objective", objective]
    options += ["--optimizer", "adam"] * (objective == "training")
    options += ["--quick", "--memory", "cpu:1=3GiB", "--evaluations", "40"]
    options += ["--placer", "local-search", "--seed", "3"]
    options += [
        word for op, device in asked["pins"].items() for word in ("--pin", f"{op}={device}")
    ]
    options += ["--samples-in-flight", "pipeline"] * (objective == "throughput")
    done = cli("place", model, *options, "-o", "b.json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    problems = [(tmp_path / f"{name}.problem.json").read_bytes() for name in "ab"]
    assert problems[0] == problems[1]
    assert without_times(tmp_path / "a.json") == without_times(tmp_path / "b.json")


@two_cores
@pytest.mark.parametrize(
    ("runtime", "evaluator"),
    [
        ("openvino", "measured"),
        *((runtime, "simulated") for runtime in ("openvino", "onnxruntime", "torch")),
    ],
)
def test_a_place_loads_its_model_once(
    runtime: str, evaluator: str, tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(cli, InProcess)  # for a cache folder of its own
    model = "zoo:rnnlm/tiny"
    if runtime != "torch":  # fewer units to measure
        model = str(tmp_path / "m.onnx")
        onnx.save(branching_model(), model)
    counts = {"read": 0, "loaded": 0}
    kind = type(runtime_named(runtime))
    load, read = kind.load, models.read_model

    def counted_load(*arguments: Any, **named: Any) -> Any:
        counts["loaded"] += 1
        return load(*arguments, **named)

    def counted_read(*arguments: Any, **named: Any) -> Any:
        counts["read"] += 1
        return read(*arguments, **named)

    monkeypatch.setattr(kind, "load", counted_load)
    monkeypatch.setattr(models, "read_model", counted_read)
    session = pw.Session(
        model, devices="cpu:0,cpu:1", runtime=runtime, evaluator=evaluator,
        evaluations=3, placer="random", calibrate=False,
    )  # fmt: skip
    plan = session.place()
    assert plan.measured is not None, "it was checked on the hardware"
    assert session.table is not None
    assert len(session.run(plan)) == len(session.loaded.signature.outputs)
    assert counts == {"read": 1, "loaded": 1}


@two_cores
def test_a_plan_is_simulated_and_run_alike_through_both(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pw.place(
        "zoo:rnnlm/tiny", devices="cpu:0,cpu:1", placer="random", evaluations=3, check=False,
        calibrate=False,
    )  # fmt: skip
    pw.write_plan(tmp_path / "plan.json", plan)
    problem = plan.problem
    op = problem.graph.op_names[0]
    other = problem.cluster.device_names[
        1 - int(problem.device_of_ops(plan.placement.device_of)[0])
    ]
    found = pw.simulate(plan, {op: other})
    told = cli("simulate", "plan.json", "--set", f"{op}={other}", "--json", cwd=tmp_path)
    assert json.loads(told.stdout) == json.loads(
        json.dumps(timeline_data(found.plan, found.timeline))
    )

    run = pw.Session(plan).measure(plan, runs=1, boundaries=True)
    loads: list[str] = []
    kind = type(runtime_named(plan.runtime))
    load = kind.load
    monkeypatch.setattr(kind, "load", lambda *given: loads.append("load") or load(*given))
    options = ("--runs", 1, "--boundaries", "--trace", "trace.json", "--json")
    told = cli("run", "plan.json", *options, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "trace.json").exists()
    assert loads == ["load"], "measured and traced with one load"
    said = document_with_options(run.data())  # `searched` is --searched on the command line
    both = [json.loads(told.stdout), json.loads(json.dumps(said))]
    for document in both:
        for name in ("measured", "prediction_error", "best_single_device_measured"):
            assert document.pop(name) is not None
        document.pop("changed_devices")
    assert both[0] == both[1]


# Options that are named as a field's, but mean something else.
OWN_OPTIONS = {
    "train --placer": "has to be given",
    "learned --evaluations": "has a default, which a request's has not",
    "run --latency-limit": "decides which contender is recommended, and places nothing",
}


def test_no_command_declares_by_hand_what_a_request_has(tmp_path: Path, cli: InProcess) -> None:
    cli("--version", cwd=tmp_path)  # registers the commands
    fields_of_options = {option_of(name): how for name, how in words().items()}
    own: set[str] = set()
    commands: list[Any] = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            for flag in parameter.opts:
                how = fields_of_options.get(flag)
                if how is not None and parameter.help != with_options(how.help):
                    own.add(f"{command.name} {flag}")
    assert own == set(OWN_OPTIONS)


def test_every_field_is_an_option_and_an_argument(tmp_path: Path, cli: InProcess) -> None:
    """All but what only Python can give: examples of a module, and a calibration left out."""
    listed = cli("place", "--help-all", cwd=tmp_path).stdout
    taken = inspect.signature(pw.place).parameters
    for one in fields(Request):
        assert one.name in taken
        if one.name not in ("model", "example_inputs", "calibrate"):
            assert f" {option_of(one.name)} " in listed, one.name
            assert words()[one.name].help.split()[0] in listed
        else:
            assert one.name not in words()


@pytest.mark.parametrize(
    ("said", "option", "text"),
    [
        ({"memory": ["cpu:0"]}, "--memory", "cpu:0"),
        ({"pins": ["conv"]}, "--pin", "conv"),
        ({"shapes": ["x=-1"]}, "--shape", "x=-1"),
        ({"settings": ["a"]}, "--set-placer", "a"),
        ({"total": "0s"}, "--total", "0s"),
        ({"evaluator": "guessed"}, "--evaluator", "guessed"),
        ({"evaluations": 0}, "--evaluations", "0"),
        ({"samples_in_flight": "many"}, "--samples-in-flight", "many"),
    ],
)
def test_a_wrong_value_names_the_field_and_the_command_line_its_option(
    said: dict[str, Any], option: str, text: str, tmp_path: Path, cli: InProcess
) -> None:
    (field,) = said
    with pytest.raises(FieldError, match=f"^{field}: ") as caught:
        pw.place("m.onnx", **said)
    assert "--" not in str(caught.value)
    (tmp_path / "m.onnx").write_bytes(b"")
    line = the_line(cli("place", "m.onnx", option, text, "--quiet", cwd=tmp_path), 2)
    assert line == f"placewright: {option} {caught.value.fault}\n"


def test_texts_and_values_make_the_same_request() -> None:
    texts = Request(
        "m", pins=["a=b=cpu:0"], memory=["cpu:0=2KiB"], shapes=["x=1,2"], budget="1min",
        resident="x", devices=["cpu:0", "cpu:1"], samples_in_flight="2", settings=["k=1"],
    )  # fmt: skip
    values = Request(
        Path("m"), pins={"a=b": "cpu:0"}, memory={"cpu:0": 2048}, shapes={"x": (1, 2)},
        budget=pw.Budget(seconds=60.0), resident=("x",), devices="cpu:0,cpu:1",
        samples_in_flight=2, settings={"k": "1"},
    )  # fmt: skip
    assert texts == values
    assert texts.limit == pw.Budget(seconds=60.0)
    assert Request("m", evaluations=5).limit == pw.Budget(evaluations=5)
    assert Request("m", quick=True).limit == pw.Budget(seconds=5.0)


def test_an_argument_that_is_no_field_is_refused_with_near_ones() -> None:
    with pytest.raises(InputError, match="place takes no 'pin'; did you mean pins"):
        pw.place("zoo:rnnlm/tiny", pin={"a": "cpu:0"})
    with pytest.raises(InputError, match="compare takes no 'seed'"):
        pw.compare("zoo:rnnlm/tiny", seed=1)
