"""The human expert's rule of each family, worked by hand on small graphs without names, and the
family of every zoo model and of exported transformers."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.zoo_families import FAMILY_OF

from placewright import zoo
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.graph import BACKWARD, ComputationGraph
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.baselines.expert import families
from placewright.placers.baselines.expert.families import TooManyPieces, contiguous, experts
from placewright.placers.baselines.expert.forward import ForwardGraph
from placewright.placers.baselines.expert.placer import (
    FAMILIES,
    Expert,
    by_layers,
    by_rule,
    family_of,
)
from placewright.session.models import load_model


class Net:
    """A graph by short calls: each adds one op without a module path and returns its name."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.builder = GraphBuilder()
        self.tensor = {
            name: self.builder.add_input(4, shape=shape, dtype="i64")
            for name, shape in inputs.items()
        }

    def op(
        self,
        name: str,
        kind: str,
        *inputs: str,
        weight: int | None = None,
        shape: tuple[int, ...] = (),
        phase: int = 0,
    ) -> str:
        heavy = 10.0 if kind in ("MatMul", "Convolution", "mm") else 1.0
        weights = [] if weight is None else [weight]
        tensors = [self.tensor[name] for name in inputs]
        op = self.builder.add_op(
            name, kind, inputs=tensors, flops=heavy, weights=weights, phase=phase
        )
        self.tensor[name] = self.builder.add_tensor(op, 4, shape=shape)
        return name

    def product(self, name: str, source: str, weight: int | None = None) -> str:
        held = self.builder.add_weight(100) if weight is None else weight
        return self.op(name, "MatMul", source, weight=held)

    def convolution(self, name: str, source: str, shape: tuple[int, ...]) -> str:
        return self.op(
            name, "Convolution", source, weight=self.builder.add_weight(100), shape=shape
        )

    def build(self, output: str) -> ComputationGraph:
        self.builder.mark_output(self.tensor[output])
        return self.builder.build()


def placed(graph: ComputationGraph, n_devices: int, speeds: list[float] | None = None) -> list[int]:
    """What the rule that `auto` takes gives, on `n_devices` accelerators and an idle CPU."""
    devices = (Device("cpu", "cpu"), *(Device(f"gpu:{d}", "gpu") for d in range(n_devices)))
    seconds = np.ones((graph.n_ops, n_devices + 1)) / np.array([1.0, *(speeds or [1] * n_devices)])
    problem = Problem.of_ops(graph, Cluster(devices), CostTable(seconds))
    return (by_rule(problem) - 1).tolist()


def by_name(graph: ComputationGraph, device_of: list[int]) -> dict[str, int]:
    return dict(zip(graph.op_names, device_of, strict=True))


@pytest.mark.parametrize(
    ("weights", "shares", "expected"),
    [
        ([1] * 6, [1, 1], [0, 0, 0, 1, 1, 1]),
        ([1] * 5, [1, 1], [0, 0, 0, 1, 1]),
        ([1] * 12, [1] * 8, [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7]),
        # 3 of 4 pieces for three quarters of the speed.
        ([1] * 4, [3, 1], [0, 0, 0, 1]),
        # 4/3 on one device as on both (1/3 + 1): both take part.
        ([1, 1], [3, 1], [0, 1]),
        ([1, 1], [1, 2, 2], [1, 2]),
        # 11 + 13 and 19 + 11: 24^2 + 30^2 = 1476; 11 and the rest: 121 + 43^2 is more.
        ([11, 13, 19, 11], [1, 1], [0, 0, 1, 1]),
    ],
)
def test_runs_follow_the_shares(
    weights: list[float], shares: list[float], expected: list[int]
) -> None:
    assert contiguous(weights, shares).tolist() == expected


def unrolled(steps: int = 3, layers: int = 2) -> ComputationGraph:
    """A language model: look-up, LSTM layers with one product per step, head."""
    net = Net(tokens=(steps,))
    weights = [net.builder.add_weight(100) for _ in range(layers)]
    embedded = net.op("embed", "Gather", "tokens", weight=net.builder.add_weight(1000))
    state: dict[int, str] = {}
    for step, layer in itertools.product(range(steps), range(layers)):
        tag = f"{layer}.{step}"
        x = net.op(f"step{step}", "Slice", embedded) if layer == 0 else state[layer - 1]
        joined = net.op(f"concat{tag}", "Concat", x, *([state[layer]] if step else []))
        gates = net.product(f"gates{tag}", joined, weights[layer])
        gate = net.op(f"gate{tag}", "Sigmoid", net.op(f"split{tag}", "Slice", gates))
        state[layer] = net.op(f"state{tag}", "Multiply", gate, gates)
    return net.build(net.product("head", net.op("stack", "Concat", state[layers - 1])))


def test_one_recurrent_layer_per_device() -> None:
    graph = unrolled()
    found = by_name(graph, placed(graph, 2))
    assert found["embed"] == 0
    assert {found[name] for name in found if name[-3:-1] == "0."} == {0}
    assert {found[name] for name in found if name[-3:-1] == "1."} == {1}
    assert found["head"] == found["stack"] == 1
    assert by_name(graph, placed(graph, 3))["head"] == 2  # a device left over takes the softmax
    assert set(placed(graph, 4)) == {0, 1, 2}
    # On one fast and one slow device a layer is still a layer: one each.
    assert placed(graph, 2, [9, 1]) == placed(graph, 2)


def test_neighbouring_recurrent_layers_share_a_device_by_its_speed() -> None:
    graph = unrolled(layers=4)
    assert [by_name(graph, placed(graph, 2))[f"gates{layer}.1"] for layer in range(4)] == [
        0,
        0,
        1,
        1,
    ]
    found = by_name(graph, placed(graph, 2, [3, 1]))
    assert [found[f"gates{layer}.1"] for layer in range(4)] == [0, 0, 0, 1]


def test_encoder_and_decoder_layers_share_devices_until_there_are_enough() -> None:
    """Two layers of fused LSTM each; the decoder's reads other tokens and attends to the encoder.

    On two devices layer i of both is on device i, attention with the last; on five, each layer has
    its own, attention is with the last and the head takes the fifth.
    """
    net = Net(source=(3,), target=(3,))
    memory = net.op("embed_source", "Gather", "source", weight=net.builder.add_weight(1000))
    for layer in range(2):
        memory = net.op(f"encoder{layer}", "LSTMSequence", memory, weight=0)
    x = net.op("embed_target", "Gather", "target", weight=0)
    x = net.op("decoder0", "LSTMSequence", x, weight=0)
    score = net.op("softmax", "Softmax", net.op("score", "MatMul", x, memory))
    context = net.op("context", "MatMul", score, memory)
    x = net.op("decoder1", "LSTMSequence", net.op("both", "Concat", x, context), weight=0)
    graph = net.build(net.product("head", x))
    assert family_of(graph) == "recurrent"
    assert by_name(graph, placed(graph, 2)) == {
        "embed_source": 0, "encoder0": 0, "encoder1": 1, "embed_target": 0, "decoder0": 0,
        "score": 1, "softmax": 1, "context": 1, "both": 1, "decoder1": 1, "head": 1,
    }  # fmt: skip
    assert by_name(graph, placed(graph, 5)) == {
        "embed_source": 0, "encoder0": 0, "encoder1": 1, "embed_target": 2, "decoder0": 2,
        "score": 3, "softmax": 3, "context": 3, "both": 3, "decoder1": 3, "head": 4,
    }  # fmt: skip


def residual_net() -> ComputationGraph:
    """Stages of 8 x 8, 4 x 4 and 2 x 2 pixels with 1, 2 and 1 blocks of two convolutions."""
    net = Net(image=(1, 3, 8, 8))
    x = net.convolution("stem", "image", (1, 4, 8, 8))
    for block, size in enumerate((8, 4, 4, 2)):
        shape = (1, 4, size, size)
        inner = net.convolution(f"{block}.b", net.convolution(f"{block}.a", x, shape), shape)
        x = net.op(f"{block}.sum", "Add", inner, x, shape=shape)
    return net.build(net.product("head", net.op("pool", "ReduceMean", x, shape=(1, 4, 1, 1))))


def test_residual_nets_are_cut_between_stages_while_they_last() -> None:
    """Layers: stem + 2, 4, 2 + head = 3, 4, 3. Two devices: 3 | 7 and 7 | 3 are equal (58), the
    earlier run is the longer. Four devices: blocks of 3, 2, 2, 3 layers."""
    graph = residual_net()
    two, three, four = (by_name(graph, placed(graph, n)) for n in (2, 3, 4))
    assert [two[f"{block}.sum"] for block in range(4)] == [0, 0, 0, 1]
    assert [three[f"{block}.sum"] for block in range(4)] == [0, 1, 1, 2]
    assert [four[f"{block}.sum"] for block in range(4)] == [0, 1, 2, 3]
    assert (four["stem"], four["pool"], four["head"]) == (0, 3, 3)
    assert all(four[f"{block}.a"] == four[f"{block}.sum"] for block in range(4))


def test_modules_with_branches_stay_whole() -> None:
    """Modules of 3 branches, the second of which (as NASNet's) also reads what the first one read:
    layers 3, 3 and 3 on three devices."""
    net = Net(image=(1, 3, 8, 8))
    before, x = "image", "image"
    for cell in range(3):
        branches = [
            net.convolution(f"{cell}.{number}", source, (1, 4, 8, 8))
            for number, source in enumerate((x, x, before))
        ]
        before, x = x, net.op(f"{cell}.concat", "Concat", *branches, shape=(1, 12, 8, 8))
    graph = net.build(x)
    assert placed(graph, 3) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_a_net_of_very_many_blocks_is_cut_by_layers() -> None:
    """The cut of 5,001 pieces would compare 25 million pairs of ends for each device."""
    net = Net(image=(1, 3, 8, 8))
    last = "image"
    for number in range(5001):
        last = net.convolution(str(number), last, (1, 4, 8, 8))
    graph = net.build(last)
    assert family_of(graph) == "convolutional"
    counts = np.bincount(placed(graph, 3)).tolist()
    assert max(counts) - min(counts) <= 1


def test_a_net_whose_skips_leave_no_block_is_cut_by_layers() -> None:
    """A U-Net of four convolutions: the first feeds the last, the second the third."""
    net = Net(image=(1, 3, 8, 8))
    first = net.convolution("down0", "image", (1, 4, 8, 8))
    second = net.convolution("down1", first, (1, 4, 4, 4))
    middle = net.convolution("middle", second, (1, 4, 4, 4))
    up = net.convolution("up1", net.op("cat1", "Concat", middle, second), (1, 4, 4, 4))
    graph = net.build(net.convolution("up0", net.op("cat0", "Concat", up, first), (1, 4, 8, 8)))
    assert by_name(graph, placed(graph, 2)) == {
        "down0": 0, "down1": 0, "middle": 0, "cat1": 0, "up1": 1, "cat0": 1, "up0": 1,
    }  # fmt: skip


def transformer(layers: int) -> ComputationGraph:
    """Look-up, layers of attention and one product with residual sums, head."""
    net = Net(tokens=(3,))
    x = net.op("embed", "Gather", "tokens", weight=net.builder.add_weight(1000))
    for layer in range(layers):
        q, k, v = (net.product(f"{layer}.{part}", x) for part in "qkv")
        scores = net.op(f"{layer}.softmax", "Softmax", net.op(f"{layer}.scores", "MatMul", q, k))
        mixed = net.product(f"{layer}.o", net.op(f"{layer}.mix", "MatMul", scores, v))
        x = net.op(f"{layer}.sum", "Add", mixed, x)
        x = net.op(f"{layer}.end", "Add", net.product(f"{layer}.mlp", x), x)
    return net.build(net.op("softmax", "Softmax", net.product("head", x)))


def test_transformers_are_cut_into_equal_runs_of_layers() -> None:
    graph = transformer(4)
    found = by_name(graph, placed(graph, 2))
    assert {name: device for name, device in found.items() if name[0] in "0123"} == {
        name: int(name[0]) // 2 for name in found if name[0] in "0123"
    }
    assert (found["embed"], found["head"], found["softmax"]) == (0, 1, 1)
    uneven = by_name(graph, placed(graph, 2, [3, 1]))
    assert [uneven[f"{layer}.end"] for layer in range(4)] == [0, 0, 0, 1]
    assert max(placed(transformer(2), 4)) == 1  # as many devices as there are layers


def mixture(n_experts: int, *, gated: bool = True) -> ComputationGraph:
    """Experts of two products each behind a gate; without the gate, just branches."""
    net = Net(x=(3,))
    return net.build(net.product("head", add_experts(net, "x", n_experts, gated=gated)))


def add_experts(net: Net, source: str, n_experts: int, *, gated: bool = True, tag: str = "") -> str:
    """A layer of experts that reads `source`; the name of its last op."""
    start = net.product(f"{tag}trunk", source)
    gate = net.op(f"{tag}weights", "Softmax", net.product(f"{tag}gate", start)) if gated else start
    total = start
    for expert in range(n_experts):
        name = f"{tag}{expert}"
        inner = net.op(f"{name}.gelu", "Gelu", net.product(f"{name}.up", start))
        outer = net.product(f"{name}.down", inner)
        total = net.op(f"{name}.sum", "Add", total, net.op(f"{name}.mul", "Multiply", outer, gate))
    return total


def test_experts_are_spread_and_the_rest_is_on_the_first_device() -> None:
    graph = mixture(4)
    assert family_of(graph) == "mixture-of-experts"
    found = by_name(graph, placed(graph, 2))
    inside = ("up", "gelu", "down")
    assert [found[f"{e}.{part}"] for e in range(4) for part in inside] == [0] * 6 + [1] * 6
    assert {found[name] for name in found if name.split(".")[-1] not in inside} == {0}
    assert [by_name(graph, placed(graph, 2, [1, 3]))[f"{e}.up"] for e in range(4)] == [0, 1, 1, 1]
    assert family_of(mixture(4, gated=False)) == "layers"


class Counted(list[int]):
    """A list that counts the entries of its slices and walks."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.read += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.read += len(self)
        return super().__iter__()


def test_an_expert_is_found_among_the_ops_of_its_layer() -> None:
    """Eight layers of four experts: each walks over the 23 ops of its layer twice at most."""
    net = Net(x=(3,))
    last = "x"
    for layer in range(8):
        last = add_experts(net, last, 4, tag=f"layer{layer}.")
    view = ForwardGraph(net.build(net.product("head", last)))
    found = experts(view)
    assert [len(layer) for layer in found] == [4] * 8
    view.order = order = Counted(view.order)
    assert experts(view) == found
    assert order.read <= 8 * 4 * 2 * 23


def test_views_of_an_expert_alone_belong_to_it() -> None:
    """Those before it that nothing else reads, and what follows its products with one input."""
    net = Net(x=(3,))
    start = net.product("trunk", "x")
    gate = net.op("weights", "Softmax", net.product("gate", start))
    total = start
    for expert in range(2):
        own = net.op(f"{expert}.own", "Reshape", start)
        inner = net.op(f"{expert}.gelu", "Gelu", net.product(f"{expert}.up", own))
        bias = net.op(f"{expert}.bias", "Add", net.product(f"{expert}.down", inner))
        total = net.op(
            f"{expert}.sum", "Add", total, net.op(f"{expert}.mul", "Multiply", bias, gate)
        )
    graph = net.build(net.product("head", total))
    names = [
        [[graph.op_names[op] for op in one] for one in row] for row in experts(ForwardGraph(graph))
    ]
    parts = ("own", "up", "gelu", "down", "bias")
    assert names == [[[f"{expert}.{part}" for part in parts] for expert in range(2)]]


def test_backward_ops_go_with_their_forward_ops() -> None:
    """Two layers of a transformer; each product's gradient reads what the product read."""
    net = Net(tokens=(3,))
    forward = transformer(2)
    x = net.op("embed", "Gather", "tokens", weight=net.builder.add_weight(1000))
    for layer in range(2):
        scores = net.op(f"{layer}.softmax", "Softmax", net.op(f"{layer}.scores", "MatMul", x, x))
        x = net.product(f"{layer}.o", net.op(f"{layer}.mix", "MatMul", scores, x))
    net.op("gradient", "ones_like", x, phase=BACKWARD)
    net.op("1.back", "mm", "gradient", "1.mix", phase=BACKWARD)
    net.op("1.plain", "mul", "1.back", phase=BACKWARD)
    net.op("0.back", "mm", "1.plain", "0.mix", phase=BACKWARD)
    graph = net.build("1.o")
    found = by_name(graph, placed(graph, 2))
    assert (found["0.o"], found["1.o"]) == (0, 1)
    assert found["1.back"] == found["1.plain"] == found["gradient"] == 1
    assert found["0.back"] == 0
    assert family_of(forward) == family_of(graph) == "transformer"


def test_a_rule_that_does_not_apply_says_what_the_graph_is() -> None:
    graph = residual_net()
    cluster = Cluster((Device("gpu:0", "gpu"), Device("gpu:1", "gpu")))
    problem = Problem.of_ops(graph, cluster, CostTable(np.ones((graph.n_ops, 2))))
    with pytest.raises(InputError, match="'recurrent' does not apply: this graph is convolutional"):
        by_rule(problem, "recurrent")
    with pytest.raises(InputError, match=r"unknown rule of the expert 'lstm'; .*available: auto"):
        Expert(rule="lstm")
    assert by_rule(problem, "convolutional").tolist() == by_rule(problem).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
@pytest.mark.parametrize(
    ("runtime", "objective"),
    [("openvino", "latency"), ("torch", "latency"), ("torch", "training")],
)
def test_every_zoo_model_is_of_its_family_at_full_size(
    name: str, runtime: str, objective: str
) -> None:
    """The smallest variants are looked at where their graphs are read for other tests."""
    model = load_model(f"zoo:{name}", runtime=runtime, objective=objective)  # type: ignore[arg-type]
    assert family_of(model.graph) == FAMILY_OF[name]


def test_an_exported_transformer_without_names_is_recognised(tmp_path: Path) -> None:
    """BERT from `transformers` through ONNX and as OpenVINO IR: four layers on two devices."""
    import openvino
    import torch
    import transformers

    config = transformers.BertConfig(
        num_hidden_layers=4, hidden_size=32, num_attention_heads=2, intermediate_size=64,
        vocab_size=50,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    ids = torch.randint(50, (1, 8), generator=torch.Generator().manual_seed(0))
    onnx_file, ir_file = tmp_path / "bert.onnx", tmp_path / "bert.xml"
    torch.onnx.export(model, (ids,), onnx_file, dynamo=True, verbose=False)
    openvino.save_model(openvino.convert_model(model, example_input=ids), ir_file)
    for path, runtime in (
        (onnx_file, "openvino"),
        (onnx_file, "onnxruntime"),
        (ir_file, "openvino"),
    ):
        shapes = {"input_ids": (1, 8)} if path == ir_file else {}  # the IR file has open ones
        graph = load_model(str(path), shapes=shapes, runtime=runtime).graph
        assert family_of(graph) == "transformer"
        flops = np.bincount(placed(graph, 2), graph.op_flops)
        assert abs(flops[0] / flops.sum() - 0.5) < 0.05, (path, runtime)
    assert set(FAMILY_OF.values()) == set(FAMILIES)


def test_runs_of_many_layers_are_cut_in_little_memory() -> None:
    """A table of all starts and ends of 4,000 layers has 128 MB."""
    tracemalloc.start()
    try:
        device_of = contiguous([1.0] * 4000, [1.0, 1.0])
        assert tracemalloc.get_traced_memory()[1] < 80e6
    finally:
        tracemalloc.stop()
    assert np.bincount(device_of).tolist() == [2000, 2000]


def test_a_chain_of_very_many_pieces_is_not_cut() -> None:
    with pytest.raises(TooManyPieces):
        contiguous([1.0] * 5001, [1.0, 1.0])
    assert contiguous([1.0] * 5001, [1.0]).tolist() == [0] * 5001


def test_a_family_with_too_many_pieces_is_cut_by_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of attention and four experts: it gets no rule of transformers either."""
    net = Net(x=(3,))
    q, k, v = (net.product(part, "x") for part in "qkv")
    scores = net.op("softmax", "Softmax", net.op("scores", "MatMul", q, k))
    mixed = net.product("o", net.op("mix", "MatMul", scores, v))
    graph = net.build(net.product("head", add_experts(net, mixed, 4)))
    cluster = Cluster((Device("gpu:0", "gpu"), Device("gpu:1", "gpu")))
    problem = Problem.of_ops(graph, cluster, CostTable(np.ones((graph.n_ops, 2))))
    layers = by_layers(problem).tolist()
    assert by_rule(problem).tolist() != layers
    monkeypatch.setattr(families, "_MOST_PIECES", 3)
    assert by_rule(problem).tolist() == layers
    assert family_of(graph) == "mixture-of-experts"
    message = "'mixture-of-experts' cuts at most 5,000 pieces; rule=layers takes any number"
    with pytest.raises(InputError, match=message):
        by_rule(problem, "mixture-of-experts")


def test_gated_layers_with_weights_of_their_own_are_not_recurrent() -> None:
    """Each layer adds a product of x times sigmoid(x): an LSTM reads one weight at every step."""
    net = Net(x=(3,))
    x = net.product("first", "x")
    for layer in range(4):
        gate = net.op(f"{layer}.gate", "Sigmoid", x)
        silu = net.op(f"{layer}.silu", "Mul", x, gate)
        x = net.op(f"{layer}.sum", "Add", x, net.product(f"{layer}.product", silu))
    assert family_of(net.build(x)) == "layers"
    assert family_of(unrolled()) == "recurrent"


def test_families_are_found_without_a_walk_from_each_op(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    plain = ForwardGraph.before_through

    def noted(view: ForwardGraph, op: int, passes: Callable[[int], bool]) -> list[int]:
        asked.append(op)
        return plain(view, op, passes)

    monkeypatch.setattr(ForwardGraph, "before_through", noted)
    monkeypatch.setattr(ForwardGraph, "after_through", noted)
    assert family_of(unrolled(6)) == "recurrent"
    assert family_of(mixture(4, gated=False)) == "layers"
    assert not asked
