"""Inputs and outputs in the model's own order and by name: every format under every runtime.

The reference is NumPy by hand; which order is the model's own, its own library says.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_order.models import CASES, INPUTS, OUTPUTS, SHAPE, WRITERS, by_hand, values
from own_order.plans import own_order, split_plan

import placewright as pw
from placewright.errors import FileFormatError, InputError, UnknownNameError
from placewright.execution.comparing import compare_outputs
from placewright.execution.output_check import RoundsOtherwise
from placewright.session.models import loaded_model


def test_every_exchange_shows() -> None:
    """The control: exchanged inputs or outputs are other numbers, by far."""
    given = values()
    right = by_hand(**given)
    assert np.abs(right["deep"] - right["shallow"]).max() > 0.5
    for order in list(itertools.permutations(INPUTS))[1:]:
        wrong = by_hand(**dict(zip(INPUTS, (given[name] for name in order), strict=True)))
        for name in OUTPUTS:
            assert np.abs(wrong[name] - right[name]).max() > 0.5, (order, name)


@pytest.mark.parametrize(("file", "runtime"), CASES)
def test_by_position_and_by_name(file: str, runtime: str, tmp_path: Path) -> None:
    path = tmp_path / file
    WRITERS[file](path)
    plan = split_plan(path, runtime)
    inputs, outputs = own_order(path, runtime)
    given = values()
    right = by_hand(**given)
    in_a_row: list[Any] = pw.run(plan, [given[name] for name in inputs])
    assert isinstance(in_a_row, list)
    for name, found in zip(outputs, in_a_row, strict=True):
        np.testing.assert_allclose(found, right[name], rtol=1e-5, atol=1e-5)
    named = pw.run(plan, {name: given[name] for name in reversed(inputs)})
    assert [name.partition(":")[0] for name in named] == outputs
    for name, found in named.items():
        np.testing.assert_allclose(found, right[name.partition(":")[0]], rtol=1e-5, atol=1e-5)
    if (file, runtime) == ("m.pt2", "torch"):
        assert list(named) == list(OUTPUTS)


@pytest.mark.parametrize(("file", "runtime"), CASES)
def test_the_check_sees_an_exchange(file: str, runtime: str, tmp_path: Path) -> None:
    """The check compares with the library's own call, so an order of ours that is wrong shows."""
    from dataclasses import replace

    path = tmp_path / file
    WRITERS[file](path)
    plan = split_plan(path, runtime)
    problem = plan.problem
    assert compare_outputs(problem, plan.placement, loaded_model(problem, runtime)).equal
    source = problem.source
    assert source is not None
    assert source.signature is not None
    for side in ("inputs", "outputs"):
        ports = getattr(source.signature, side)
        exchanged = replace(source.signature, **{side: (ports[1], ports[0], *ports[2:])})
        other = replace(problem, source=replace(source, signature=exchanged))
        found = compare_outputs(other, plan.placement, loaded_model(other, runtime))
        assert not found.equal, side
        assert found.error > 0.1


@pytest.mark.parametrize(("file", "runtime"), CASES)
def test_other_levels_compute_the_same_model(file: str, runtime: str, tmp_path: Path) -> None:
    """The check of outputs takes the library's scatter from them: it must be rounding alone."""
    path = tmp_path / file
    WRITERS[file](path)
    problem = split_plan(path, runtime).problem
    model, device = loaded_model(problem, runtime), problem.cluster.devices[0]
    assert isinstance(model, RoundsOtherwise)
    given = model.random_inputs(np.random.default_rng(0))
    expected = model.plain(device)(given)
    levels = list(model.plain_at_other_levels([device]))
    assert levels
    for level in levels:
        for found, right in zip(level(given), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


WRONG: list[tuple[Any, str]] = [
    ({"a": 0, "b": 0}, r"input 'c' \[2, 3\] has no value; got a, b"),
    ({"a": 0, "b": 0, "c": 0, "d": 0}, "unknown model input 'd'"),
    ([0, 0], r"the model has 3 inputs \(a, b, c\), got values for 2"),
    ([0, 0, 0, 0], "got values for 4"),
    (
        {"a": 0, "b": 0, "c": np.zeros((3, 2), np.float32)},
        r"input 'c' is float32 \[3, 2\], expected float32 \[2, 3\]",
    ),
    (
        {"a": 0, "b": np.zeros(SHAPE), "c": 0},
        r"input 'b' is float64 \[2, 3\], expected float32 \[2, 3\]",
    ),
    ({"a": "text", "b": 0, "c": 0}, "input 'a'"),
    ({"a": [[1, 2, 3], [4, 5]], "b": 0, "c": 0}, "input 'a': a list is no array"),
    ({"a": [[1e39] * 3] * 2, "b": 0, "c": 0}, r"input 'a' is float64 \[2, 3\], expected float32"),
    (np.zeros((3, *SHAPE), np.float32), "the model has 3 inputs \\(a, b, c\\), got values for 1"),
]


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime", "torch"])
def test_wrong_inputs_are_refused_in_one_line(runtime: str, tmp_path: Path) -> None:
    WRITERS["m.pt2"](tmp_path / "m.pt2")
    plan = split_plan(tmp_path / "m.pt2", runtime)
    right = np.zeros(SHAPE, np.float32)

    def filled(given: Any) -> Any:
        def one(value: Any) -> Any:
            return right if isinstance(value, int) else value

        if isinstance(given, dict):
            return {name: one(value) for name, value in given.items()}
        return [one(value) for value in given] if isinstance(given, list) else given

    for given, message in WRONG:
        with pytest.raises((InputError, UnknownNameError), match=message) as caught:
            pw.run(plan, filled(given))
        assert "\n" not in str(caught.value)


def test_numbers_in_lists_are_taken(tmp_path: Path) -> None:
    WRITERS["m.onnx"](tmp_path / "m.onnx")
    plan = split_plan(tmp_path / "m.onnx", "onnxruntime")
    given = {name: np.full(SHAPE, at + 1, np.float32) for at, name in enumerate(INPUTS)}
    found = pw.run(plan, {name: value.astype(int).tolist() for name, value in given.items()})
    for name, value in by_hand(**given).items():
        np.testing.assert_allclose(found[name], value)


def test_an_earlier_version_s_file_gets_the_order_from_the_model(tmp_path: Path) -> None:
    """A stored problem whose source does not tell it."""
    from dataclasses import replace

    for file, runtime in (("m.xml", "openvino"), ("m.onnx", "onnxruntime"), ("m.pt2", "torch")):
        WRITERS[file](tmp_path / file)
        plan = split_plan(tmp_path / file, runtime)
        assert plan.problem.source is not None
        without = replace(plan.problem.source, signature=None, state=())
        old = replace(plan, problem=replace(plan.problem, source=without))
        found = pw.run(old, values())
        for name, value in by_hand(**values()).items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)


def test_files_keep_the_order(tmp_path: Path) -> None:
    WRITERS["m.xml"](tmp_path / "m.xml")
    problem = split_plan(tmp_path / "m.xml", "openvino").problem
    pw.write_problem(tmp_path / "p.json", problem)
    again = pw.read_problem(tmp_path / "p.json")
    assert again.source == problem.source
    entry = '"name": "a", "shape": [2, 3], "dtype": "f32", "tensor": '
    text = (tmp_path / "p.json").read_text()
    assert entry in text
    (tmp_path / "p.json").write_text(text.replace(entry, f"{entry}9"))
    with pytest.raises(FileFormatError, match="the signature names other inputs"):
        pw.read_problem(tmp_path / "p.json")
