"""Outputs are judged slice by slice, and beside what the library's own levels differ by."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.core.placement import Placement
from placewright.execution import comparing
from placewright.execution.comparing import compare_outputs
from placewright.execution.output_check import OutputCheck, Slices, relative_error
from placewright.profiling.stream_calibration import sample_error
from placewright.session.session import Session

CORES: dict[str, Any] = {"runtime": "onnxruntime", "quick": True, "calibrate": False}
NAN, INF = np.nan, np.inf


def write_detector(path: Path, *, mean: float, scores: bool) -> None:
    """x (1, 3, 16, 16) -> a convolution around 100,000, less `mean`, then a sigmoid.

    With `scores` the output has three channels of boxes (the convolution times 300) and one of
    scores (at most 0.02) side by side.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(3)
    arrays = {
        "w": rng.standard_normal((3, 3, 3, 3)) / 5,
        "b": np.full(3, 1e5 if not scores else 0.0),
        "gain": np.ones(3),
        "shift": np.zeros(3),
        "mean": np.full(3, mean),
        "variance": np.ones(3),
        "boxes": np.full(1, 300.0),
        "share": np.full(1, 0.02),
        "first": np.array([0]),
    }
    constants = [
        numpy_helper.from_array(v.astype(np.int64 if n == "first" else np.float32), n)
        for n, v in arrays.items()
    ]
    names = ["c", "gain", "shift", "mean", "variance"]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", names, ["n"], "norm", epsilon=0.0),
        helper.make_node("Sigmoid", ["n"], ["s"], "sigmoid"),
    ]
    if scores:
        nodes += [
            helper.make_node("Mul", ["c", "boxes"], ["box"], "box"),
            helper.make_node("Mul", ["s", "share"], ["score"], "score"),
            helper.make_node("Concat", ["box", "score"], ["y"], "joined", axis=1),
        ]
    output = helper.make_tensor_value_info(
        "y" if scores else "s", TensorProto.FLOAT, [1, 6 if scores else 3, 16, 16]
    )
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])
    graph = helper.make_graph(nodes, "detector", [given], [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


def test_a_detector_whose_levels_differ_is_no_mismatch(tmp_path: Path) -> None:
    """1e5 + c rounds to 4e-3; less 1e5 + 10 that is left: the sigmoid of -10 (4.5e-5) is off by
    4e-3 of itself, unless the library folds the two constants into one. It does at one level."""
    write_detector(tmp_path / "m.onnx", mean=1e5 + 10, scores=False)
    session = Session(str(tmp_path / "m.onnx"), devices="cpu:0,cpu:1", **CORES)
    problem, model = session.problem, session.loaded
    first, second = problem.cluster.devices
    options = {**second.options, "graph_optimization_level": "disabled"}
    devices = (first, replace(second, options=options))
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    found = compare_outputs(problem, Placement.of(np.ones(problem.n_units, dtype=int)), model)
    assert found.error > 1e-3  # five times what the precision explains
    assert found.error <= 2 * found.scatter
    assert found.equal


def test_an_error_of_the_size_of_small_scores_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes of hundreds, scores up to 0.02: half a score is 3e-5 of the tensor's largest value."""
    write_detector(tmp_path / "m.onnx", mean=0.0, scores=True)
    session = Session(str(tmp_path / "m.onnx"), devices="cpu:0,cpu:1", **CORES)
    problem, model = session.problem, session.loaded
    placement = Placement.of(np.arange(problem.n_units) % 2)
    right = compare_outputs(problem, placement, model)
    assert right.equal
    assert right.error < 1e-5
    execute = comparing._split_values

    def halved(*arguments: Any) -> Any:
        execution, *state = execute(*arguments)
        execution.outputs[0][:, 3:] *= 0.5
        return execution, *state

    monkeypatch.setattr(comparing, "_split_values", halved)
    wrong = compare_outputs(problem, placement, model)
    assert not wrong.equal
    assert wrong.part.startswith("3 slices of axis 1")
    assert wrong.excess > 30.0


def test_groups_of_slices() -> None:
    """Channels of 300, 100, 2 and 0: the first two share a decade, the last counts as 300 / 2000;
    a slice needs an eighth value."""
    tensor = np.zeros((1, 4, 8))
    tensor[0, :3, 5] = (300.0, -100.0, 2.0)
    found = Slices.of(tensor)
    assert found.axis == 1
    assert found.group_of.tolist() == [0, 0, 1, 2]
    assert found.scales.tolist() == pytest.approx([300.0, 2.0, 0.15])
    other = tensor.copy()
    other[0, 1, 0] = 3.0
    other[0, 2, 0] = 0.5
    other[0, 3, 0] = 0.15
    np.testing.assert_allclose(found.errors(other, tensor), [0.01, 0.25, 1.0])
    other[0, 0, 0] = np.nan
    assert np.isinf(found.errors(other, tensor)).all()
    assert Slices.of(tensor[:, :, 1:]).axis is None  # slices of seven values: small by chance
    assert Slices.of(tensor[0, :, 5]).axis is None


def test_outputs_that_were_found_to_be_random_are_noted() -> None:
    class Model:
        def tolerance(self, devices: Any) -> float:
            return 2e-4

    fixed, draws = np.ones(8), itertools.count(1.0)

    def plain(inputs: Any) -> list[Any]:
        return [fixed.copy(), np.full(8, next(draws))]

    check = OutputCheck(Model(), [None], plain)  # type: ignore[arg-type, list-item]
    assert check.random == set()
    judged = check.judged([], [fixed, np.full(8, 50.0)], plain([]))
    assert [output.random for output in judged] == [False, True]
    assert check.random == {1}


@pytest.mark.parametrize(("other", "is_open"), [([3, 4], True), ([1, 4], False)])
def test_an_output_without_a_value_that_could_be_compared_is_not_called_equal(
    other: list[int], is_open: bool
) -> None:
    """Each number differs between the levels: whatever a split returned had an error of 0."""

    class Model:
        def tolerance(self, devices: Any) -> float:
            return 2e-4

        def plain_at_other_levels(self, devices: Any) -> Any:
            yield lambda inputs: [np.array(other)]

    check = OutputCheck(Model(), [None], lambda inputs: [np.array([1, 2])])  # type: ignore[arg-type, list-item]
    (judged,) = check.judged([], [np.array([1, 9])], [np.array([1, 2])])
    assert (judged.is_left_open, judged.disputed) == (is_open, 1 + is_open)
    assert (check.random, check.compared) == (set(), set() if is_open else {0})
    assert judged.excess == 0.0


def test_rounding_in_a_dead_channel_is_no_mismatch() -> None:
    """It has no scale of its own: 1e-7 of the tensor's largest value is rounding, 1e-4 is not."""

    class Model:
        def tolerance(self, devices: Any) -> float:
            return 2e-4

    expected = np.ones((1, 2, 16), dtype=np.float32)
    expected[0, 1] = 0.0

    def excess(value: float) -> float:
        found = expected.copy()
        found[0, 1, 3] = value
        check = OutputCheck(Model(), [None], lambda inputs: [expected.copy()])  # type: ignore[arg-type, list-item]
        return check.judged([], [found], [expected])[0].excess

    assert excess(0.0) == 0.0
    assert excess(9e-8) < 1.0
    assert excess(1e-4) > 100.0


def test_samples_of_a_stream_are_judged_alike(tmp_path: Path) -> None:
    """Scores at half their size are a mismatch, though boxes are ten thousand times as large."""
    write_detector(tmp_path / "m.onnx", mean=0.0, scores=True)
    session = Session(str(tmp_path / "m.onnx"), devices="cpu:0,cpu:1", **CORES)
    check = OutputCheck(session.loaded, session.problem.cluster.devices)
    sample = session.loaded.random_inputs(np.random.default_rng(1))
    (right,) = check.plain(sample)
    wrong = right.copy()
    wrong[:, 3:] *= 0.5
    assert sample_error(check, sample, [right], {}) == 0.0
    assert sample_error(check, sample, [wrong], {}) > 30.0 * check.tolerance


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([1.0 + 2e-7, NAN, 2.0], [1.0, NAN, 2.0], 1e-7),
        ([1.0 + 2e-7, INF, -INF, 2.0], [1.0, INF, -INF, 2.0], 1e-7),
        ([NAN, NAN], [NAN, NAN], 0.0),
        ([1.0, NAN], [NAN, 1.0], INF),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, INF], [1.0, NAN], INF),
        ([1.0], [1.0, 1.0], INF),
        ([0.0], [0.0], 0.0),
    ],
)
def test_relative_error(found: list[float], expected: list[float], error: float) -> None:
    assert relative_error(np.array(found), np.array(expected)) == pytest.approx(error, rel=1e-3)


def test_complex_numbers_and_integers() -> None:
    assert relative_error(np.array([1 + 1j]), np.array([1 + 1.1j])) < 0.1
    assert relative_error(np.array([1, 2]), np.array([1, 2])) == 0.0
    assert relative_error(np.array([1, 2]), np.array([1, 3])) == INF


def levels_excess(actual: Any, plain: Any, other: Any) -> float:
    """Excess of an output whose library gives `other` at another optimization level."""

    class Model:
        def tolerance(self, devices: Any) -> float:
            return 2e-4

        def plain_at_other_levels(self, devices: Any) -> Any:
            yield lambda inputs: [np.array(other)]

    check = OutputCheck(Model(), [None], lambda inputs: [np.array(plain)])  # type: ignore[arg-type, list-item]
    return check.judged([], [np.array(actual)], [np.array(plain)])[0].excess


@pytest.mark.parametrize(
    ("plain", "other", "right", "wrong"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 4], [9, 9, 9, 9]),
        ([1.0, NAN, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, NAN, 9.0]),
        ([1.0, NAN, 3.0], [1.0, 2.0, 3.0], [1.0, INF, 3.0], [NAN, NAN, 3.0]),
        ([1.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 9.0, 3.0]),
        ([1.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_levels_that_differ_in_some_values_excuse_no_others(
    plain: list[float], other: list[float], right: list[float], wrong: list[float]
) -> None:
    assert levels_excess(right, plain, other) == 0.0
    assert levels_excess(wrong, plain, other) > 1.0
