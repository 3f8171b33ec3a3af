"""Operations per op against hand-computed values, the same for both readers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from placewright.frameworks import flops

# A 3x3 convolution, 8 -> 16 channels on 10x10, stride 1, no padding: 8x8 outputs.
CONVOLUTION = 2 * 16 * 8 * 8 * 3 * 3 * 8
GROUPED = 2 * 16 * 8 * 8 * 3 * 3 * 2  # four groups: each output reads two channels
TRANSPOSED = 2 * 8 * 10 * 10 * 3 * 3 * 16
BATCHED_MATMUL = 2 * 5 * 6 * 7 * 9  # (5, 6, 9) x (5, 9, 7)
# Two heads, 5 queries of width 4, 6 keys, values of width 3: products, scale and softmax.
ATTENTION = 2 * (2 * 5 * 6 * 4 + 5 * 6 + 5 * 5 * 6 + 2 * 5 * 6 * 3)
# Batch 2, 3 inputs, 4 hidden: two products with 16 gate rows, 13 operations per hidden unit.
LSTM_STEP = 2 * (2 * 16 * 3 + 2 * 16 * 4 + 13 * 4)
GRU_STEP = 2 * (2 * 12 * 3 + 2 * 12 * 4 + 11 * 4)


def test_formulas() -> None:
    assert flops.convolution((1, 16, 8, 8), (3, 3), 8) == CONVOLUTION
    assert flops.convolution((1, 16, 8, 8), (3, 3), 8, bias=True) == CONVOLUTION + 16 * 8 * 8
    assert flops.convolution((1, 16, 8, 8), (3, 3), 2) == GROUPED
    assert flops.transposed_convolution((1, 8, 10, 10), (3, 3), 16) == TRANSPOSED
    assert flops.matmul((5, 6, 7), 9) == BATCHED_MATMUL
    assert flops.einsum("...ij, ...jk -> ...ik", [(5, 6, 9), (1, 9, 7)]) == BATCHED_MATMUL
    assert flops.einsum("bij,bjk->bik", [(5, 6, 9), (5, 9, 7)]) == BATCHED_MATMUL
    assert flops.attention((1, 2, 5, 4), 6, 3) == ATTENTION
    assert flops.lstm(2, 1, 3, 4) == LSTM_STEP
    assert flops.lstm(2, 7, 3, 4) == 7 * LSTM_STEP
    assert flops.gru(2, 1, 3, 4) == GRU_STEP
    assert flops.rnn(2, 1, 3, 4) == 2 * (2 * 4 * 7 + 8)
    assert flops.pooling((1, 2, 5, 5), (2, 2)) == 200
    assert flops.softmax((2, 10)) == 100
    assert flops.normalisation((2, 10)) == 100
    assert flops.batch_normalisation((2, 10)) == 40


class TestOpenVino:
    @pytest.fixture(autouse=True)
    def _openvino(self) -> None:
        import openvino

        self.ov = openvino
        self.op = self.ov.opset13

    def parameter(self, *shape: int) -> Any:
        return self.op.parameter(list(shape), np.float32)

    def zeros(self, *shape: int) -> Any:
        return self.op.constant(np.zeros(shape, np.float32))

    def count(self, node: Any) -> float:
        from placewright.frameworks.openvino.flops import flops_of

        return flops_of(node)

    def test_convolutions(self) -> None:
        image, ones, none = self.parameter(1, 8, 10, 10), [1, 1], [0, 0]
        dense = self.op.convolution(image, self.zeros(16, 8, 3, 3), ones, none, none, ones)
        assert self.count(dense) == CONVOLUTION
        grouped = self.op.group_convolution(
            image, self.zeros(4, 4, 2, 3, 3), ones, none, none, ones
        )
        assert self.count(grouped) == GROUPED
        transposed = self.op.convolution_backprop_data(image, self.zeros(8, 16, 3, 3), ones)
        assert self.count(transposed) == TRANSPOSED
        offsets, kernel = self.parameter(1, 18, 8, 8), self.zeros(16, 8, 3, 3)
        moved = self.op.deformable_convolution(image, offsets, kernel, ones, none, none, ones)
        assert self.count(moved) == CONVOLUTION

    def test_products_and_attention(self) -> None:
        left, right = self.parameter(5, 6, 9), self.parameter(5, 7, 9)
        assert self.count(self.op.matmul(left, right, False, True)) == BATCHED_MATMUL
        turned = self.parameter(5, 9, 6)
        assert self.count(self.op.matmul(turned, right, True, True)) == BATCHED_MATMUL
        query, key, value = (self.parameter(1, 2, *s) for s in ((5, 4), (6, 4), (6, 3)))
        attention = self.op.scaled_dot_product_attention(query, key, value)
        assert self.count(attention) == ATTENTION
        assert self.count(self.op.einsum([left, right], "bik,bjk->bij")) == BATCHED_MATMUL

    def test_recurrent_cells_and_sequences(self) -> None:
        x, h, c = self.parameter(2, 3), self.parameter(2, 4), self.parameter(2, 4)
        cell = self.op.lstm_cell(x, h, c, self.zeros(16, 3), self.zeros(16, 4), self.zeros(16), 4)
        assert self.count(cell) == LSTM_STEP
        gru = self.op.gru_cell(x, h, self.zeros(12, 3), self.zeros(12, 4), self.zeros(12), 4)
        assert self.count(gru) == GRU_STEP
        steps = self.op.constant(np.array([7, 7], np.int64))
        sequence = self.op.lstm_sequence(
            self.parameter(2, 7, 3), self.parameter(2, 2, 4), self.parameter(2, 2, 4), steps,
            self.zeros(2, 16, 3), self.zeros(2, 16, 4), self.zeros(2, 16), 4, "BIDIRECTIONAL",
        )  # fmt: skip
        assert self.count(sequence) == 2 * 7 * LSTM_STEP

    def test_the_rest(self) -> None:
        image = self.parameter(1, 2, 10, 10)
        pool = self.op.avg_pool(image, [2, 2], [0, 0], [0, 0], [2, 2], True)
        assert self.count(pool) == 2 * 5 * 5 * 4
        assert self.count(self.op.softmax(image, 1)) == 5 * 200
        assert self.count(self.op.add(image, self.zeros(1, 2, 1, 1))) == 200
        assert self.count(self.op.mvn(image, np.array([2, 3]), True, 1e-5, "inside_sqrt")) == 1000
        assert self.count(self.op.reduce_mean(image, np.array([2, 3]))) == 200
        assert self.count(self.op.transpose(image, np.array([0, 2, 3, 1]))) == 0


class TestFx:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        import torch

        self.torch = torch

    def counts(self, function: Any, *shapes: tuple[int, ...]) -> dict[str, float]:
        """Kind -> operations of the exported `function`."""
        from torch_programs import read_torch

        class Module(self.torch.nn.Module):  # type: ignore[name-defined, misc]
            def forward(self, *inputs: Any) -> Any:
                return function(*inputs)

        examples = tuple(self.torch.ones(*shape) for shape in shapes)
        graph, _ = read_torch(Module(), examples)
        return dict(zip(graph.op_kinds, graph.op_flops.tolist(), strict=True))

    def test_convolutions(self) -> None:
        f = self.torch.nn.functional
        image, kernel = (1, 8, 10, 10), (16, 8, 3, 3)
        assert self.counts(f.conv2d, image, kernel)["conv2d"] == CONVOLUTION
        with_bias = self.counts(f.conv2d, image, kernel, (16,))["conv2d"]
        assert with_bias == CONVOLUTION + 16 * 8 * 8
        grouped = self.counts(lambda x, w: f.conv2d(x, w, groups=4), image, (16, 2, 3, 3))
        assert grouped["conv2d"] == GROUPED
        turned = self.counts(f.conv_transpose2d, image, (8, 16, 3, 3))
        assert turned["conv_transpose2d"] == TRANSPOSED

    def test_products_and_attention(self) -> None:
        f, torch = self.torch.nn.functional, self.torch
        assert self.counts(torch.bmm, (5, 6, 9), (5, 9, 7))["bmm"] == BATCHED_MATMUL
        assert self.counts(torch.matmul, (5, 6, 9), (5, 9, 7))["matmul"] == BATCHED_MATMUL
        assert self.counts(f.linear, (5, 6), (7, 6), (7,))["linear"] == 2 * 5 * 6 * 7 + 35
        assert self.counts(torch.addmm, (7,), (5, 6), (6, 7))["addmm"] == 2 * 5 * 6 * 7 + 35
        shapes = (1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 3)

        def summed(a: Any, b: Any) -> Any:
            return torch.einsum("bij,bjk->bik", a, b)

        assert self.counts(summed, (5, 6, 9), (5, 9, 7))["einsum"] == BATCHED_MATMUL
        counted = self.counts(lambda a, b: torch.tensordot(a, b, dims=2), (6, 3, 3), (3, 3, 7))
        assert counted["tensordot"] == 2 * 6 * 7 * 9
        assert self.counts(torch.inner, (6, 9), (7, 9))["inner"] == 2 * 6 * 7 * 9
        counted = self.counts(f.bilinear, (6, 3), (6, 4), (5, 3, 4))
        assert counted["bilinear"] == 2 * 6 * 5 * 3 * 4
        counted = self.counts(f.scaled_dot_product_attention, *shapes)
        assert counted["scaled_dot_product_attention"] == ATTENTION

    def test_the_rest(self) -> None:
        f, torch = self.torch.nn.functional, self.torch
        image = (1, 2, 10, 10)
        assert self.counts(lambda x: f.avg_pool2d(x, 2), image)["avg_pool2d"] == 200
        assert self.counts(lambda x: torch.softmax(x, 1), image)["softmax"] == 1000
        assert self.counts(lambda x: f.layer_norm(x, (10,)), image)["layer_norm"] == 1000
        assert self.counts(lambda x: x.mean((2, 3)), image)["mean"] == 200
        assert self.counts(f.instance_norm, image)["instance_norm"] == 1000
        pooled = self.counts(lambda x: f.adaptive_avg_pool1d(x, 1), (1, 20, 10))
        assert pooled["adaptive_avg_pool1d"] == 200
        assert self.counts(lambda x: x.transpose(1, 2) + 1, image) == {"transpose": 0, "add": 200}

    def test_recurrent_layers(self) -> None:
        from torch_programs import read_torch

        nn = self.torch.nn
        cases = [  # the first layer reads 3 values, the second both directions of the first
            (nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), flops.lstm, (2, 7, 3)),
            (nn.GRU(3, 4, 2, bidirectional=True), flops.gru, (7, 2, 3)),
            (nn.RNN(3, 4, 2, bidirectional=True), flops.rnn, (7, 2, 3)),
        ]
        for layer, count, shape in cases:
            graph, _ = read_torch(layer.eval(), (self.torch.ones(*shape),))
            expected = 2 * (count(2, 7, 3, 4) + count(2, 7, 8, 4))
            assert graph.op_flops.max() == expected
        narrow = nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2)
        graph, _ = read_torch(narrow.eval(), (self.torch.ones(7, 2, 3),))
        per_step = [2 * 4 * 4 * (inputs + 2) + 13 * 4 + 2 * 4 * 2 for inputs in (3, 4)]
        assert graph.op_flops.max() == 2 * 2 * 7 * sum(per_step)

    def test_products_under_other_names(self) -> None:
        aten = self.torch.ops.aten
        counted = self.counts(aten.addbmm, (3, 5), (7, 3, 4), (7, 4, 5))
        assert counted["addbmm"] == 7 * 2 * 3 * 4 * 5 + 3 * 5

        def whole(x: Any, y: Any) -> Any:
            return aten._int_mm(x.to(self.torch.int8), y.to(self.torch.int8))

        assert self.counts(whole, (32, 16), (16, 8))["_int_mm"] == 2 * 32 * 16 * 8

    def test_a_convolution_s_gradient_costs_its_forward_pass_twice(self) -> None:
        torch = self.torch

        def backward(gradient: Any, x: Any, w: Any) -> Any:
            return torch.ops.aten.convolution_backward(
                gradient, x, w, [16], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
            )

        counted = self.counts(backward, (1, 16, 8, 8), (1, 8, 10, 10), (16, 8, 3, 3))
        assert counted["convolution_backward"] == 2 * CONVOLUTION + 16 * 8 * 8
