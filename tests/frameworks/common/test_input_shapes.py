"""Open dimensions of inputs: what counts as 1, what is refused, symbols and patterns."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import openvino
import pytest
from onnx import TensorProto, helper

import placewright as pw
from placewright.errors import InputError, UnknownNameError
from placewright.frameworks.input_shapes import StatedInput, fixed_shapes

IMAGE = StatedInput(("image",), ("batch", 3, "height", "width"))
TOKENS = StatedInput(("tokens",), ("batch", "length"))
MASK = StatedInput(("mask",), ("batch", "past + length"))
KEYS = [StatedInput((f"past.{at}.key", f"key{at}"), ("batch", 8, "past", 64)) for at in range(3)]


def refusal(*inputs: StatedInput, **asked: tuple[int, ...]) -> str:
    with pytest.raises(InputError) as caught:
        fixed_shapes(inputs, asked)
    return str(caught.value)


class TestRefusals:
    def test_an_image_is_not_one_pixel(self) -> None:
        assert refusal(IMAGE) == (
            "costs need fixed dimensions, and those of 'image' [batch, 3, height, width] are open; "
            "give sizes of your own, for example argument `shapes` image=1,3,224,224, or, wherever "
            "they occur, argument `shapes` height=224 argument `shapes` width=224"
        )

    def test_a_length_is_no_batch_where_it_comes_first(self) -> None:
        frames = StatedInput(("frames",), ("sequence_length", 576))
        assert refusal(frames) == (
            "costs need fixed dimensions, and those of 'frames' [sequence_length, 576] are open; "
            "give sizes of your own, for example argument `shapes` frames=128,576, or, wherever "
            "they occur, argument `shapes` sequence_length=128"
        )
        assert fixed_shapes([frames], {"sequence_length": (9,)}) == [(9, 576)]

    def test_names_with_spaces_are_quoted_for_a_shell(self) -> None:
        stated = StatedInput(("the image",), ("batch", 3, "its height", 7))
        assert refusal(stated).endswith(
            "for example argument `shapes` 'the image=1,3,224,7', or, wherever they occur, "
            "argument `shapes` 'its height=224'"
        )
        assert refusal(StatedInput(("an input",), None)).endswith("'an input=1,3,224,224'")

    def test_a_dimension_without_a_symbol_is_a_question_mark(self) -> None:
        told = refusal(StatedInput(("x",), ("", 3, "", 7)))
        assert "'x' [?, 3, ?, 7] are open; give sizes of your own, for example " in told
        assert told.endswith("argument `shapes` x=1,3,224,7")

    @pytest.mark.parametrize(
        "inputs", [[IMAGE], [TOKENS, MASK, *KEYS], [StatedInput(("x",), ("", 3, "", 7))]]
    )
    def test_both_examples_can_be_typed_as_they_stand(self, inputs: list[StatedInput]) -> None:
        told = refusal(*inputs).partition("for example ")[2]
        whole, _, by_symbol = told.partition(", or, ")
        of_inputs = dict(re.findall(r"`shapes` (\S+)=([\d,]+)", whole))
        asked = {name: tuple(map(int, text.split(","))) for name, text in of_inputs.items()}
        shown = fixed_shapes(inputs[:4], asked)
        if by_symbol:
            of_symbols = dict(re.findall(r"`shapes` (\S+)=(\d+)", by_symbol))
            sizes = {name: (int(text),) for name, text in of_symbols.items()}
            assert fixed_shapes(inputs, sizes)[:4] == shown

    @pytest.mark.parametrize("first", ["", "?"])
    def test_a_question_mark_names_no_dimension(self, first: str) -> None:
        """Paddle writes it for each; `?=224` would be of inputs with names of one letter."""
        told = refusal(StatedInput(("x",), (first, 3, "?", "?")))
        assert told.endswith("for example argument `shapes` x=1,3,224,224")

    @pytest.mark.parametrize("asked", [{"a": (1, 7)}, {"s": (7,)}])
    def test_an_example_keeps_the_sizes_that_are_known(
        self, asked: dict[str, tuple[int, ...]]
    ) -> None:
        inputs = [StatedInput(("a",), (1, "s")), StatedInput(("b",), (1, "s", "t"))]
        told = refusal(*inputs, **asked)
        assert told.endswith("shapes` b=1,7,128, or, wherever they occur, argument `shapes` t=128")
        assert fixed_shapes(inputs, asked | {"b": (1, 7, 128)}) == [(1, 7), (1, 7, 128)]

    def test_an_input_of_unknown_rank_gets_an_example(self) -> None:
        told = refusal(StatedInput(("x",), None))
        assert told.endswith("give its dimensions, for example argument `shapes` x=1,3,224,224")

    def test_inputs_that_are_given_are_not_named(self) -> None:
        told = refusal(IMAGE, TOKENS, image=(1, 3, 8, 8))
        assert "'tokens'" in told
        assert "image" not in told

    @pytest.mark.parametrize(
        ("asked", "told"),
        [
            ({"image": (1, 3, 8)}, "'image' has 4 dimensions .*gives it \\[1, 3, 8\\]"),
            ({"image": (1, 3, -8, 8)}, "must be >= 0"),
            ({"height": (8, 8)}, "'height' \\[8, 8\\]; expected one number"),
        ],
    )
    def test_what_does_not_fit(self, asked: dict[str, tuple[int, ...]], told: str) -> None:
        with pytest.raises(InputError, match=told):
            fixed_shapes([IMAGE], asked)

    def test_a_scalar_takes_no_dimensions(self) -> None:
        """Its dimensions are none, which is not as if they were unknown."""
        step = StatedInput(("step",), ())
        assert fixed_shapes([step], {"step": ()}) == [()]
        assert "'step' has 0 dimensions [], argument `shapes` gives it [1, 3]" in refusal(
            step, step=(1, 3)
        )

    @pytest.mark.parametrize("asked", [{"image": (1, 3, 8, 2**63)}, {"height": (2**63,)}])
    def test_a_dimension_that_no_file_holds(self, asked: dict[str, tuple[int, ...]]) -> None:
        with pytest.raises(InputError, match=r"argument `shapes` gives .*no dimension has 2\^63"):
            fixed_shapes([IMAGE], asked)

    @pytest.mark.parametrize("name", ["depth", "img*"])
    def test_what_names_nothing(self, name: str) -> None:
        with pytest.raises(UnknownNameError) as caught:
            fixed_shapes([IMAGE], {name: (8,)})
        assert str(caught.value).startswith(f"unknown model input '{name}'; did you mean ")
        assert str(caught.value).endswith("? available: image, batch, height, width")


class TestWhatIsAsked:
    def test_an_open_batch_counts_as_one_and_is_said(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        state = StatedInput(("state",), (2, "batch", 128))
        with caplog.at_level(logging.WARNING):
            assert fixed_shapes([TOKENS, state], {"length": (7,)}) == [(1, 7), (2, 1, 128)]
        assert len(caplog.records) == 1
        assert "'tokens' [batch, length], 'state' [2, batch, 128] counts as 1" in caplog.text

    def test_a_symbol_holds_everywhere_and_in_sums(self) -> None:
        asked = {"past": (100,), "length": (4,), "batch": (2,)}
        found = fixed_shapes([TOKENS, MASK, *KEYS], asked)
        assert found == [(2, 4), (2, 104)] + [(2, 8, 100, 64)] * 3

    @pytest.mark.parametrize(
        ("dimension", "alone", "of_four"),
        [("batch + 1", 2, 5), ("batch + batch + 3", 5, 11)],
    )
    def test_a_dimension_that_follows_from_a_batch_is_computed(
        self, dimension: str, alone: int, of_four: int
    ) -> None:
        computed = StatedInput(("x",), (dimension, 3))
        assert fixed_shapes([computed], {}) == [(alone, 3)]
        asked = {"tokens": (4, 7)}
        assert fixed_shapes([computed, TOKENS], asked)[0] == (of_four, 3)
        told = refusal(computed, TOKENS, tokens=(4, 7), batch=(5,))
        assert "dimension 'batch' has one size in the whole model" in told

    @pytest.mark.parametrize(
        "dimension",
        ["s0//2", "s0 / 2", "batch - 1", "2*s0", "2*n - 1", "floor(n/2)", "n**2", "Max(1, s0)"],
    )
    def test_a_dimension_that_cannot_be_computed_is_no_batch(self, dimension: str) -> None:
        computed = StatedInput(("x",), (dimension, 3))
        assert f"those of 'x' [{dimension}, 3] are open" in refusal(computed, TOKENS, length=(7,))
        assert fixed_shapes([computed], {"x": (8, 3)}) == [(8, 3)]

    @pytest.mark.parametrize("name", ["batch-size", "-1", "None", "", "?", "*", "images"])
    def test_a_first_dimension_of_another_name_is_a_batch(self, name: str) -> None:
        assert fixed_shapes([StatedInput(("x",), (name, 3))], {}) == [(1, 3)]

    def test_a_sum_that_no_file_holds(self) -> None:
        sums = StatedInput(("x",), ("batch", "n + 1"))
        with pytest.raises(InputError, match=r"gives input 'x' .*no dimension has 2\^63"):
            fixed_shapes([sums], {"n": (2**63 - 1,)})
        long = StatedInput(("y",), ("batch", f"n + {'1' * 5000}"))
        with pytest.raises(InputError, match=r"those of 'y' .* are open"):
            fixed_shapes([long], {"n": (2,)})

    def test_a_pattern_gives_many_inputs_their_dimensions(self) -> None:
        keys = [StatedInput(key.names, ("", 8, "", 64)) for key in KEYS]
        asked = {"past.*": (1, 8, 5, 64), "key1": (1, 8, 6, 64)}
        assert fixed_shapes(keys, asked) == [(1, 8, 5, 64), (1, 8, 6, 64), (1, 8, 5, 64)]
        later = {"past.*": (1, 8, 5, 64), "past.2*": (1, 8, 7, 64)}
        assert fixed_shapes(keys, later)[2] == (1, 8, 7, 64)

    def test_a_dimension_of_one_input_holds_in_the_others(self) -> None:
        assert fixed_shapes([TOKENS, IMAGE], {"image": (8, 3, 9, 9), "length": (4,)})[0] == (8, 4)
        found = fixed_shapes([MASK, TOKENS, *KEYS], {"past.0*": (2, 8, 5, 64), "tokens": (2, 3)})
        assert found == [(2, 8), (2, 3)] + [(2, 8, 5, 64)] * 3

    @pytest.mark.parametrize(
        ("asked", "told"),
        [
            (
                {"image": (8, 3, 9, 9), "tokens": (4, 7)},  # and the mask?
                "dimension 'batch' has one size in the whole model, but argument `shapes` "
                "image=8,3,9,9 makes it 8 and argument `shapes` tokens=4,7 makes it 4; give it the "
                "same size",
            ),
            (
                {"batch": (8,), "tokens": (4, 7)},
                "but argument `shapes` batch=8 makes it 8 and argument `shapes` tokens=4,7 makes",
            ),
            (
                {"mask": (1, 9), "tokens": (1, 3), "past": (5,)},
                "dimension 'past + length' has one size in the whole model, but argument `shapes` "
                "past=5 and argument `shapes` tokens=1,3 makes it 8 and argument `shapes` mask=1,9 "
                "makes it 9",
            ),
        ],
    )
    def test_a_symbol_has_one_size(self, asked: dict[str, tuple[int, ...]], told: str) -> None:
        assert told in refusal(IMAGE, TOKENS, MASK, **asked)

    @pytest.mark.parametrize("name", ["-1", "None", "", "?", "7"])
    def test_a_placeholder_is_no_symbol(self, name: str) -> None:
        x = StatedInput(("x",), (name, 3, name, name))
        assert fixed_shapes([x], {"x": (1, 3, 320, 640)}) == [(1, 3, 320, 640)]

    def test_whole_dimensions_are_taken_as_they_are(self) -> None:
        """Some exports use one name for different things."""
        asked = {"image": (8, 3, 9, 9), "tokens": (1, 4), "mask": (2, 9)}
        shapes = fixed_shapes([IMAGE, TOKENS, MASK], asked | {"past": (5,)})
        assert shapes == list(asked.values())


def test_plans_with_two_sizes_for_a_name_are_read_again(tmp_path: Path) -> None:
    name = resized(tmp_path / "resized.onnx")
    asked = {"image": (1, 3, 6, 5), "mask": (4, 1, 6, 5)}
    graph = pw.read(name, runtime="onnxruntime", shapes=asked)
    assert graph.source is not None
    again = pw.read(name, runtime="onnxruntime", shapes=graph.source.shapes)
    assert again.source == graph.source


def test_state_that_grows_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        fixed_shapes(KEYS, {"past": (5,), "batch": (1,)})
        assert caplog.messages == [
            "'past.0.key' (and 2 more) holds state that grows: this is placed for the length that "
            "is given, and another length needs a plan of its own"
        ]
        caplog.clear()
        closed = StatedInput(("past.key",), ("batch", 8, 5, 64))
        asked = {"image": (1, 3, 8, 8), "length": (4,), "batch": (1,)}
        fixed_shapes([closed, IMAGE, TOKENS], asked)
        assert caplog.messages == []


def resized(path: Path) -> str:
    """A convolution of an image of any size, and a mask of the same."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 3, 1, 1], np.ones(6, np.float32))
    inputs = [
        helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"]),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 1, "height", "width"]),
    ]
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], name="conv"),
        helper.make_node("Mul", ["c", "mask"], ["y"], name="mul"),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "resized", inputs, outputs, [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    return str(path)


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_every_reader_of_onnx_files_asks_for_what_is_open(tmp_path: Path, runtime: str) -> None:
    name = resized(tmp_path / "resized.onnx")
    told = r"'image' \[batch, 3, height, width\], 'mask' .* open; give .* image=1,3,224,224"
    with pytest.raises(InputError, match=told):
        pw.read(name, runtime=runtime)
    found = pw.read(name, runtime=runtime, shapes=["height=6", "width=5"])
    assert found.source is not None
    assert found.source.shapes == {"image": (1, 3, 6, 5), "mask": (1, 1, 6, 5)}
    by_pattern = pw.read(name, runtime=runtime, shapes={"*": (2, 3, 4, 4), "mask": (2, 1, 4, 4)})
    assert by_pattern.source is not None
    assert by_pattern.source.shapes["image"] == (2, 3, 4, 4)


def test_an_ir_file_asks_for_what_is_open(tmp_path: Path) -> None:
    ops: ModuleType = openvino.opset13
    x = ops.parameter([-1, 3, -1, 8], np.float32, name="image")
    openvino.save_model(openvino.Model([ops.relu(x)], [x], "open"), str(tmp_path / "open.xml"))
    with pytest.raises(InputError, match=r"'image' \[\?, 3, \?, 8\] are open"):
        pw.read(str(tmp_path / "open.xml"))
    found = pw.read(str(tmp_path / "open.xml"), shapes={"image": (1, 3, 9, 8)})
    assert found.source is not None
    assert found.source.shapes == {"image": (1, 3, 9, 8)}


def test_an_upper_bound_is_taken(tmp_path: Path) -> None:
    ops: ModuleType = openvino.opset13
    bounded = openvino.PartialShape([1, openvino.Dimension(1, 20)])
    x = ops.parameter(bounded, np.float32, name="x")
    openvino.save_model(openvino.Model([ops.relu(x)], [x], "open"), str(tmp_path / "open.xml"))
    found = pw.read(str(tmp_path / "open.xml"))
    assert found.source is not None
    assert found.source.shapes == {"x": (1, 20)}


def with_past(path: Path) -> str:
    """Rows that are added to a past of any length, which is scaled first."""
    value = helper.make_tensor_value_info
    rng = np.random.default_rng(0)
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, [8, 8], rng.standard_normal(64)),
        helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["row"], name="project"),
        helper.make_node("Mul", ["past", "two"], ["scaled"], name="scale"),
        helper.make_node("Concat", ["scaled", "row"], ["present"], axis=1, name="add"),
        helper.make_node("Mul", ["scaled", "two"], ["again"], name="twice"),
    ]
    inputs = [
        value("x", TensorProto.FLOAT, [1, 4, 8]),
        value("past", TensorProto.FLOAT, [1, "length", 8]),
    ]
    outputs = [value(name, TensorProto.FLOAT, [1, None, 8]) for name in ("present", "again")]
    graph = helper.make_graph(nodes, "past", inputs, outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    return str(path)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_the_first_call_of_a_decoder_has_an_empty_past(tmp_path: Path, runtime: str) -> None:
    """An empty tensor goes from core to core, and is an output."""
    name = with_past(tmp_path / "past.onnx")
    plan = pw.place(
        name, devices="cpu:0,cpu:1", runtime=runtime, shapes=["length=0"], evaluations=20,
        pins={"project": "cpu:0", "scale": "cpu:1"}, quick=True,
    )  # fmt: skip
    x, past = np.ones((1, 4, 8), np.float32), np.empty((1, 0, 8), np.float32)
    alone = pw.place(name, devices="cpu:0", runtime=runtime, shapes=["length=0"], quick=True)
    with pw.load(plan) as split, pw.load(alone) as unsplit:
        found, expected = split(x=x, past=past), unsplit(x=x, past=past)
    assert [found["present"].shape, found["again"].shape] == [(1, 4, 8), (1, 0, 8)]
    np.testing.assert_allclose(found["present"], expected["present"], rtol=1e-6)
