"""A duration without a unit is taken as seconds, and one line says so."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from cli.runner import placewright

import placewright as pw
from placewright.core.execution_models import MaxLoad
from placewright.core.solution import Budget
from placewright.core.source import Call
from placewright.errors import FieldError, InputError
from placewright.execution.processor import processor_text
from placewright.session.parsing import each_size, parse_tokens
from placewright.session.request import request_of


@pytest.mark.parametrize("field", ["budget", "total", "profiling", "latency_limit"])
def test_a_text_without_a_unit(field: str, caplog: pytest.LogCaptureFixture) -> None:
    request = pw.Request("m.onnx", objective="throughput", **{field: "30"})  # type: ignore[arg-type]
    assert getattr(request, field) == 30.0
    assert [record.getMessage() for record in caplog.records] == [
        f"argument `{field}` 30 is taken as 30 seconds; write 30s"
    ]


@pytest.mark.parametrize("given", ["30s", 30.0, "2min", "inf"])
def test_what_needs_no_word(given: object, caplog: pytest.LogCaptureFixture) -> None:
    pw.Request("m.onnx", budget=given)  # type: ignore[arg-type]
    pw.Request("m.onnx", core_seconds="30")  # type: ignore[arg-type]
    assert caplog.records == []


@pytest.mark.parametrize(
    "given",
    ["cpu:0=1KiB,cpu:1=2KiB", "cpu:0=1KiB, cpu:1=2KiB", ["cpu:0=1KiB", "cpu:1=2KiB"]],
)
def test_limits_of_several_devices(given: str | list[str]) -> None:
    request = pw.Request("m.onnx", memory=given)  # type: ignore[arg-type]
    assert request.memory == {"cpu:0": 1024.0, "cpu:1": 2048.0}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"memory": "cpu:0=4"}, "argument `memory` 4 is taken as 4 bytes; write 4B"),
        ({"limits": "latency=4"}, "argument `limits` 4 is taken as 4 seconds; write 4s"),
        ({"limits": "energy=4"}, "argument `limits` 4 is taken as 4 joules; write 4J"),
    ],
)
def test_an_amount_without_a_unit(
    said: dict[str, str], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    pw.Request("m.onnx", **said)  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [told]


def test_numbers_of_numpy_are_taken() -> None:
    request = pw.Request("m.onnx", evaluations=np.int64(9), seed=np.uint8(3))
    assert (request.evaluations, request.seed) == (9, 3)
    assert (type(request.evaluations), type(request.seed)) == (int, int)
    assert parse_tokens(np.int32(2000), "context") == 2000
    for wrong in ({"evaluations": np.int64(0)}, {"seed": np.True_}, {"seed": np.float32(3)}):
        with pytest.raises(FieldError, match="expects a whole number"):
            pw.Request("m.onnx", **wrong)  # type: ignore[arg-type]


def test_the_command_names_its_option(tmp_path: Path) -> None:
    done = placewright("place", "missing.onnx", "--budget", "30", "--total", "9", cwd=tmp_path)
    first, second = done.stderr.splitlines()[:2]
    assert first == "--budget 30 is taken as 30 seconds; write 30s"
    assert second == "--total 9 is taken as 9 seconds; write 9s"


def test_a_process_that_is_kept_on_a_core_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured there is kept apart from what all cores of the machine took."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 6}, raising=False)
    assert processor_text().endswith("; 3 cores")


@pytest.mark.parametrize("given", ["energy=3J,price=1e-6", ["energy=3J", "price=1e-6"]])
def test_limits_of_several_quantities(given: str | list[str]) -> None:
    request = pw.Request("m.onnx", limits=given)  # type: ignore[arg-type]
    assert request.limits == {"energy": 3.0, "price": 1e-6}


def test_texts_of_a_generator_are_not_lost() -> None:
    request = pw.Request("m.onnx", pins=(f"{name}=cpu:0" for name in ("a", "b")))  # type: ignore[arg-type]
    assert request.pins == {"a": "cpu:0", "b": "cpu:0"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shapes", {"x": [1.9, 3]}),
        ("shapes", {"x": [math.inf]}),
        ("shapes", {"x": [True, 3]}),
        ("shapes", {"x": [2**63]}),
        ("shapes", "x=99999999999999999999"),
        ("samples_in_flight", 10**30),
        ("values", {"x": 10**400}),
        ("values", {"x": "1" * 400 + "e1"}),
        ("values", {"x": [[1, 2], [3]]}),
        ("calls", 300),
        ("calls", {"300": {"x": [1]}}),
        ("calls", [Call(-1.0, {})]),
        ("calls", [Call(math.nan, {})]),
        ("calls", [(10**400, {})]),
    ],
)
def test_values_of_another_kind_are_refused_by_their_field(field: str, value: object) -> None:
    with pytest.raises(FieldError, match=rf"^{field}: "):
        pw.Request("m.onnx", **{field: value})  # type: ignore[arg-type]


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    """Python neither reads nor writes them."""
    digits = "9" * 5000
    for said in ({"samples_in_flight": digits}, {"samples_in_flight": 10**5000},
                 {"shapes": {"x": 10**5000}}):  # fmt: skip
        with pytest.raises(FieldError, match=r"digits|64 bits"):
            pw.Request("m.onnx", **said)  # type: ignore[arg-type]
    with pytest.raises(FieldError, match=r"expects NAME=64\|128 or NAME=64\.\.512"):
        each_size([f"x=1..{digits}"])


def test_a_field_of_a_later_call_takes_the_place_of_the_earlier_one() -> None:
    """Also if an object of the earlier request had set it."""
    first = pw.Request(
        "m.onnx", budget=Budget(60.0, 100), execution_model=MaxLoad(1), devices="cpu"
    )
    again = request_of(first, {"budget": Budget(evaluations=5000), "execution_model": MaxLoad(4)})
    assert (again.budget, again.evaluations, again.samples_in_flight) == (None, 5000, 4)
    assert again.devices == "cpu"
    assert request_of(first, {"seed": 3}).evaluations == 100
    assert request_of(again, {"cluster": "c.yaml"}).devices is None
    assert request_of(first, {"cluster": None}).devices == "cpu"
    assert request_of(first, {"execution_model": "max-load"}).samples_in_flight is None
    with pytest.raises(InputError, match="takes no 'sead'; did you mean seed"):
        request_of(first, {"sead": 3})
