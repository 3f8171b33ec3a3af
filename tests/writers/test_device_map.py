"""A device_map: what can be said, what is refused, and that Accelerate runs by it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_configs import SMALL
from writers.plans import plan_with
from writers.token_plans import plan_with as plan_on_cards
from writers.token_plans import problem_of

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.plan import Plan
from placewright.core.source import ModelSource, Signature
from placewright.errors import InexpressibleError
from placewright.session.export import export, numbering
from placewright.session.models import load_model
from placewright.writers.device_map import device_map, layer_map, main_device, why_refused

CUDA = [Device("cuda:0", "gpu"), Device("cuda:1", "gpu"), Device("cpu")]


def residual_network(*, own_weight: bool = False) -> ComputationGraph:
    """first -> block (left, right, and the block's own Add) -> last; ops 0 .. 4."""
    builder = GraphBuilder()

    def linear(module: str, read: int) -> int:
        weight = builder.add_weight(1600)
        op = builder.add_op(
            f"{module}/MatMul", "MatMul", inputs=[read], module=module, weights=[weight]
        )
        return builder.add_tensor(op, 400)

    first = linear("first", builder.add_input(400))
    branches = [linear("block.left", first), linear("block.right", first)]
    weights = [builder.add_weight(40)] if own_weight else []
    add = builder.add_op("block/Add", "Add", inputs=branches, module="block", weights=weights)
    total = builder.add_tensor(add, 400)
    last = builder.add_op("last/Relu", "Relu", inputs=[total], module="last")
    builder.add_tensor(last, 400, is_output=True)
    return builder.build()


def mapped(devices: list[int], *, own_weight: bool = False) -> dict[str, str]:
    graph = residual_network(own_weight=own_weight)
    return device_map(plan_with(graph, CUDA, lambda op: devices[op]))


def test_whole_modules() -> None:
    assert mapped([0, 1, 1, 1, 2]) == {"first": "cuda:0", "block": "cuda:1", "last": "cpu"}


def test_what_no_op_reads_lies_beside_its_nearest_neighbour() -> None:
    """By module path first (`block.extra` beside its siblings), then by order."""
    graph = residual_network()
    state = (
        "first.weight", "tail.weight", "block.left.weight", "block.extra.inner.weight",
        "block.right.weight", "block.scale", "head.weight", "head.bias",
    )  # fmt: skip
    source = ModelSource("m.pt2", "0", "torch", state=state)
    devices = [0, 1, 1, 1, 2]
    whole = device_map(plan_with(graph, CUDA, lambda op: devices[op], source))
    assert whole == {
        "first": "cuda:0", "block": "cuda:1", "last": "cpu", "tail": "cuda:0", "head": "cuda:1",
    }  # fmt: skip
    devices = [0, 0, 0, 0, 2]
    assert device_map(plan_with(graph, CUDA, lambda op: devices[op], source))["head"] == "cuda:0"


def test_unread_parts_of_a_spread_module_are_mapped_by_themselves() -> None:
    builder = GraphBuilder()
    value = builder.add_input(400)
    for name in ("block.left", "block.right"):
        weights = [builder.add_weight(40)]
        op = builder.add_op(name, "MatMul", inputs=[value], module=name, weights=weights)
        value = builder.add_tensor(op, 400, is_output=True)
    state = ("block.left.w", "block.spare.w", "block.right.w", "block.scale", "other.w")
    source = ModelSource("m.pt2", "0", "torch", state=state)
    assert device_map(plan_with(builder.build(), CUDA, lambda op: op, source)) == {
        "block.left": "cuda:0", "block.right": "cuda:1", "block.spare": "cuda:0",
        "block.scale": "cuda:1", "other": "cuda:1",
    }  # fmt: skip


def test_one_device_is_the_whole_model() -> None:
    assert mapped([1, 1, 1, 1, 1]) == {"": "cuda:1"}


def test_a_block_whose_branches_meet_on_two_devices_is_refused() -> None:
    with pytest.raises(InexpressibleError, match=r"module 'block' is split: its op 'block/Add'"):
        mapped([0, 0, 1, 0, 0])


def test_an_op_that_would_run_elsewhere_is_refused() -> None:
    """Both branches are on cuda:0, the plan wants their sum on cuda:1."""
    with pytest.raises(InexpressibleError, match="is on cuda:1 and reads from cuda:0"):
        mapped([0, 0, 0, 1, 1])


def test_ops_that_read_the_model_s_inputs_run_on_the_main_device() -> None:
    """x + b(a(x)), then c: the inputs are moved to the CPU if it has a module, else to a's card."""

    def of(devices: list[int]) -> dict[str, str]:
        builder = GraphBuilder()
        given = builder.add_input(400)
        value = given
        for name in ("a", "b"):
            op = builder.add_op(name, "MatMul", inputs=[value], module=name)
            value = builder.add_tensor(op, 400)
        total = builder.add_op("total", "Add", inputs=[given, value])
        last = builder.add_op("c", "Relu", inputs=[builder.add_tensor(total, 400)], module="c")
        builder.add_tensor(last, 400, is_output=True)
        return device_map(plan_with(builder.build(), CUDA, lambda op: devices[op]))

    assert of([0, 0, 0, 1]) == {"a": "cuda:0", "b": "cuda:0", "c": "cuda:1"}
    assert of([0, 2, 2, 0]) == {"a": "cuda:0", "b": "cpu", "c": "cuda:0"}
    suited = of([0, 1, 1, 1])
    assert suited == {"a": "cuda:0", "b": "cuda:1", "c": "cuda:1"}
    assert main_device(suited) == "cuda:1"
    with pytest.raises(InexpressibleError, match="'total' is on cuda:0 and reads from cpu and cud"):
        of([0, 0, 0, 2])


def scaled(*shape: int, of: tuple[int, int, int, int]) -> dict[str, str]:
    """The map of c(a(x) * b(x)), where a makes one number of a shape; devices of the four ops."""
    builder = GraphBuilder()
    given = builder.add_input(400)
    first = builder.add_op("a", "ReduceMean", inputs=[given], module="a")
    number = builder.add_tensor(first, 4, shape=shape)
    second = builder.add_op("b", "MatMul", inputs=[given], module="b")
    value = builder.add_tensor(second, 400)
    total = builder.add_op("total", "Mul", inputs=[number, value])
    last = builder.add_op("c", "Relu", inputs=[builder.add_tensor(total, 400)], module="c")
    builder.add_tensor(last, 400, is_output=True)
    return device_map(plan_with(builder.build(), CUDA, lambda op: of[op]))


def test_only_a_tensor_without_dimensions_on_the_cpu_is_read_beside_a_card() -> None:
    """PyTorch refuses one of another card, and from the CPU one of shape (1, 1)."""
    assert scaled(of=(2, 1, 1, 1)) == {"a": "cpu", "b": "cuda:1", "c": "cuda:1"}
    assert scaled(1, 1, of=(1, 1, 1, 0)) == {"a": "cuda:1", "b": "cuda:1", "c": "cuda:0"}
    with pytest.raises(InexpressibleError, match="'total' is on cuda:1 and reads from cpu and cud"):
        scaled(1, 1, of=(2, 1, 1, 1))
    with pytest.raises(InexpressibleError, match="reads from cuda:0 and cuda:1"):
        scaled(of=(0, 1, 1, 1))


def of_scalars(total: int, *, of_input: bool = False) -> dict[str, str]:
    """The map of c(-a(x)), where a makes one number on the CPU, or of c(-s) of an input s."""
    builder = GraphBuilder()
    given, number = builder.add_input(400), builder.add_input(4)
    first = builder.add_op("a", "ReduceMean", inputs=[given], module="a")
    made = builder.add_tensor(first, 4, is_output=of_input)
    read = number if of_input else made
    value = builder.add_tensor(builder.add_op("total", "Neg", inputs=[read]), 4)
    last = builder.add_op("c", "Relu", inputs=[value], module="c")
    builder.add_tensor(last, 4, is_output=True)
    devices = (2, total, 1)
    return device_map(plan_with(builder.build(), CUDA, lambda op: devices[op]))


def test_an_op_that_reads_only_scalars_of_the_cpu_runs_there() -> None:
    """Those of the model's inputs are moved to what reads them, as results of theirs are."""
    assert of_scalars(2) == {"a": "cpu", "c": "cuda:1"}
    with pytest.raises(InexpressibleError, match="'total' is on cuda:1 and reads from cpu"):
        of_scalars(1)
    assert of_scalars(1, of_input=True) == {"a": "cpu", "c": "cuda:1"}


def test_the_main_device_fits_inputs_without_dimensions() -> None:
    """They are moved to it: to the card of the tensor that is scaled by one."""
    builder = GraphBuilder()
    value, factor = builder.add_input(400), builder.add_input(4)
    for name in ("a", "b"):
        op = builder.add_op(name, "MatMul", inputs=[value], module=name)
        value = builder.add_tensor(op, 400)
    builder.add_tensor(builder.add_op("total", "Mul", inputs=[value, factor]), 400, is_output=True)
    found = device_map(plan_with(builder.build(), CUDA, lambda op: min(op, 1)))
    assert found == {"a": "cuda:0", "b": "cuda:1"}
    assert main_device(found) == "cuda:1"


def test_the_line_names_the_main_device(tmp_path: Path) -> None:
    """Without it Accelerate takes any card, and computes the modules of the CPU there."""
    state = ("first.weight", "block.left.weight", "block.right.weight", "last.scale")
    source = ModelSource("m.pt2", "0", "torch", state=state)
    for devices, main in (([1, 0, 0, 0, 2], "cpu"), ([1, 0, 0, 0, 0], "cuda:1")):
        plan = plan_with(residual_network(), CUDA, devices.__getitem__, source)
        line = export(plan, "device-map", tmp_path / "map.json")
        assert f"map.json')), main_device='{main}')" in line


def test_a_module_with_parameters_of_its_own_is_kept_whole() -> None:
    with pytest.raises(InexpressibleError, match="has parameters of its own"):
        mapped([0, 0, 1, 0, 0], own_weight=True)


def test_devices_that_have_no_name_or_one_name_in_pytorch() -> None:
    graph = residual_network()
    for devices, message in (
        ([Device("cpu:0"), Device("cpu:1")], "two devices that PyTorch calls 'cpu'"),
        ([Device("GPU.0", "gpu"), Device("cpu")], "'GPU.0' has no name in PyTorch"),
    ):
        with pytest.raises(InexpressibleError, match=re.escape(message)):
            device_map(plan_with(graph, devices, lambda op: op % 2))


def test_ops_without_modules_are_refused() -> None:
    builder = GraphBuilder()
    value = builder.add_input(4)
    for number in range(2):
        op = builder.add_op(f"op{number}", "Relu", inputs=[value])
        value = builder.add_tensor(op, 4, is_output=True)
    with pytest.raises(InexpressibleError, match="have no module paths"):
        device_map(plan_with(builder.build(), CUDA, lambda op: op))


def test_accelerate_runs_a_split_bert(tmp_path: Path) -> None:
    """Its second half lies on the disk, which to Accelerate is a device like another."""
    import accelerate
    import torch
    from accelerate.utils.modeling import check_device_map
    from torch_programs import read_torch

    from placewright import zoo

    built = zoo.build("bert_base", variant="tiny")
    graph, _ = read_torch(built.module, built.example_inputs)
    assert any(".layer.1." in module for module in graph.op_modules)

    def half(op: int) -> int:
        return int(".layer.1." in graph.op_modules[op] or "pooler" in graph.op_modules[op])

    found = device_map(plan_with(graph, CUDA, half))
    names = [path for path in found if found[path] == "cuda:1"]
    assert any(path.endswith("layer.1") for path in names)
    check_device_map(built.module, found)
    with torch.no_grad():
        expected = built.module(*built.example_inputs)
        places = {"cuda:0": "cpu", "cuda:1": "disk"}
        there = {path: places[device] for path, device in found.items()}
        split = accelerate.dispatch_model(
            built.module, there, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True
        )
        outputs = split(*built.example_inputs)
    for mine, other in zip(_listed(outputs), _listed(expected), strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def bert_without_pooler() -> tuple[Any, tuple[Any, ...]]:
    """A BertModel that returns its hidden states alone: its pooler, and ``spare``, go unread."""
    import torch
    from transformers import BertConfig, BertModel

    class Hidden(BertModel):  # type: ignore[misc]
        def forward(self, ids: Any) -> Any:
            return super().forward(input_ids=ids).last_hidden_state

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16, attn_implementation="sdpa",
    )  # fmt: skip
    module = Hidden(config).eval()
    module.encoder.spare = torch.nn.Parameter(torch.ones(2))
    return module, (torch.arange(8)[None] * 5 % 50,)


@pytest.mark.filterwarnings("ignore:The following device_map keys do not match any submodules")
def test_accelerate_takes_the_map_of_a_model_with_unread_modules(tmp_path: Path) -> None:
    """Its last layer lies on the disk, which to Accelerate is a device like another."""
    import accelerate
    import torch
    from accelerate.utils.modeling import check_device_map

    module, inputs = bert_without_pooler()
    path = tmp_path / "bert.pt2"
    torch.export.save(torch.export.export(module, inputs), path)
    model = load_model(str(path), runtime="torch")
    graph, source = model.graph, model.source
    assert source is not None
    assert "pooler.dense.weight" in source.state
    assert not any("pooler" in name for name in graph.op_modules)

    def last(op: int) -> int:
        return int("encoder.layer.1" in graph.op_modules[op])

    export(plan_with(graph, CUDA, last, source, "torch"), "device-map", tmp_path / "map.json")
    found = json.loads((tmp_path / "map.json").read_text())
    names = [*module.state_dict(), *(name for name, _ in module.named_buffers())]
    for name in names:  # every one is covered by exactly one entry
        assert sum(f"{name}.".startswith(f"{entry}.") for entry in found) == 1, name
    assert found["pooler"] == found["encoder.layer.1"] == "cuda:1"
    assert found["encoder.spare"] == found["encoder.layer.0"] == "cuda:0"
    check_device_map(module, found)
    with pytest.raises(ValueError, match="pooler"):  # the control: what it says without
        check_device_map(module, {k: v for k, v in found.items() if k != "pooler"})
    places = {"cuda:0": "cpu", "cuda:1": "disk"}
    there = {path: places[device] for path, device in found.items()}
    with torch.no_grad():
        expected = module(*inputs).numpy()
        split = accelerate.dispatch_model(
            module, there, main_device="cpu", offload_dir=str(tmp_path / "o"), force_hooks=True
        )
        outputs = split(*inputs).numpy()
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def _listed(outputs: object) -> list[object]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def test_a_model_without_modules_is_refused() -> None:
    """A plain ONNX file: names of nodes that look like paths are no modules."""
    source = ModelSource("m.onnx", "0", "onnx", signature=Signature((), ()))
    for devices in ([0, 0, 0, 0, 0], [0, 1, 1, 1, 2]):
        plan = plan_with(residual_network(), CUDA, devices.__getitem__, source)
        with pytest.raises(InexpressibleError, match=r"'m.onnx' has no PyTorch modules"):
            device_map(plan)


def test_accelerate_checks_the_map() -> None:
    state = ("first.weight", "block.left.weight")
    assert why_refused({"": "cpu"}, state) == ""
    assert why_refused({"first": "cpu", "block.left": "cpu"}, state) == ""
    assert "block.left.weight" in (why_refused({"first": "cpu"}, state) or "")


def test_parts_may_be_called_as_methods_of_a_module_are() -> None:
    module = torch.nn.Module()
    module.double = torch.nn.Linear(2, 2)
    module.half = torch.nn.Sequential(torch.nn.Linear(2, 2))
    state = (*module.state_dict(), "half.0.type", "type")
    assert why_refused({"double": "cpu", "half.0": "cpu", "type": "cpu"}, state) == ""
    assert "type" in (why_refused({"double": "cpu", "half": "cpu"}, state) or "")
    assert why_refused({"": "cpu"}, ("", "a.", ".b")) == ""


def plan_of_layers(folder: Path, kind: str, head: int, layers: list[int]) -> Plan:
    """A small model with its embedding on the CPU, by cards and the CPU: 0, 1, 2."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL[kind]))
    problem = problem_of(Path(f"hf:{folder}"), ["CUDA0", "CUDA1"], weights="q8_0")
    names, at = problem.cluster.device_names, {"head": head}
    for op, module in zip(problem.graph.op_names, problem.graph.op_modules, strict=True):
        if module.startswith("layers."):
            at[op] = layers[int(module.split(".")[1])]
    return plan_on_cards(problem, {op: names[each] for op, each in at.items()})


@pytest.mark.parametrize("kind", ["dense", "experts", "latent", "tied"])
def test_accelerate_runs_layers_of_a_configuration(kind: str, tmp_path: Path) -> None:
    """Cards are the disk here; each parameter's hook has the device of its module in the plan."""
    accelerate = pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    fields = SMALL[kind]
    count = fields["num_hidden_layers"]
    layers = [0] * 3 + [1] * (count - 4) + [2]
    plan = plan_of_layers(tmp_path / "m", kind, 1, layers)
    export(plan, "device-map", tmp_path / "map.json")
    found = json.loads((tmp_path / "map.json").read_text())
    assert found["model.embed_tokens"] == ("cuda:1" if kind == "tied" else "cpu")
    assert found["lm_head"] == found["model.norm"] == "cuda:1"
    cards = [found[f"model.layers.{number}"] for number in range(count)]
    assert cards == [["cuda:0", "cuda:1", "cpu"][at] for at in layers]
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "m")
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.arange(7)[None]
    with torch.no_grad():
        expected = module(input_ids=tokens, use_cache=False).logits
    here = {path: "cpu" if at == "cpu" else "disk" for path, at in found.items()}
    placed = accelerate.dispatch_model(
        module, here, main_device="cpu", offload_dir=str(tmp_path / "disk"), force_hooks=True
    )
    on_disk = {name for name, each in placed.named_parameters() if each.device.type == "meta"}
    assert on_disk
    assert any(name.startswith("model.embed_tokens.") for name in on_disk) == (kind == "tied")
    with torch.no_grad():
        assert torch.equal(placed(input_ids=tokens, use_cache=False).logits, expected)


def test_layers_that_no_map_expresses(tmp_path: Path) -> None:
    plan = plan_of_layers(tmp_path / "m", "dense", 0, [0] * 9)
    problem = plan.problem
    split = plan_on_cards(problem, {"layers.4.feed-forward": "cpu"})
    with pytest.raises(InexpressibleError, match=r"'layers.4' is on cuda:0 and cpu.*pin 'layers.4"):
        export(split, "device-map", tmp_path / "map.json")
    assert problem.source is not None
    file = replace(problem, source=replace(problem.source, state=()))
    with pytest.raises(InexpressibleError, match=r"has no PyTorch modules.*hf:PATH"):
        export(replace(plan, problem=file), "device-map", tmp_path / "map.json")
    options = {**problem.source.options, "cache": "q8_0"}
    small = replace(problem, source=replace(problem.source, options=options))
    with pytest.raises(InexpressibleError, match="a cache as q8_0 is nothing that a device_map"):
        export(replace(plan, problem=small), "device-map", tmp_path / "map.json")
    served = tuple(
        replace(each, options={"llama.cpp": "RPC0[127.0.0.1:50052]"})
        for each in problem.cluster.devices
    )
    other = replace(problem, cluster=replace(problem.cluster, devices=served))
    with pytest.raises(InexpressibleError, match="no device of PyTorch"):
        export(replace(plan, problem=other), "device-map", tmp_path / "map.json")


def test_cards_keep_the_numbers_of_their_options(tmp_path: Path) -> None:
    """The embedding is on the CPU, layers and the head on both cards, which are in no order."""
    plan = plan_of_layers(tmp_path / "m", "dense", 1, [0] * 5 + [1] * 4)
    problem = plan.problem

    def named(*names: str) -> Plan:
        cards = problem.cluster.devices[: len(names)]
        devices = tuple(
            replace(card, options={"llama.cpp": name})
            for card, name in zip(cards, names, strict=True)
        )
        cluster = replace(
            problem.cluster, devices=(*devices, *problem.cluster.devices[len(names) :])
        )
        return replace(plan, problem=replace(problem, cluster=cluster))

    swapped = named("CUDA1", "ROCm0")
    export(swapped, "device-map", tmp_path / "map.json")
    found = json.loads((tmp_path / "map.json").read_text())
    assert (found["model.layers.0"], found["lm_head"]) == ("cuda:1", "cuda:0")
    assert numbering(swapped, "device-map") is None
    with pytest.raises(InexpressibleError, match="PyTorch has one name, 'cuda:2', for 'card:0'"):
        export(named("CUDA2", "ROCm2"), "device-map", tmp_path / "map.json")


def test_only_the_longest_list_is_that_of_the_layers(tmp_path: Path) -> None:
    """Gemma 3n has lists of projections before and behind its layers."""
    plan = plan_of_layers(tmp_path / "m", "dense", 1, [0] * 5 + [1] * 4)
    source = plan.problem.source
    assert source is not None
    lists = [f"model.projections.{number}.weight" for number in range(3)]
    state = (source.state[0], *lists, *source.state[1:], "model.unembed_projections.0.weight")
    problem = replace(plan.problem, source=replace(source, state=state))
    export(replace(plan, problem=problem), "device-map", tmp_path / "map.json")
    found = json.loads((tmp_path / "map.json").read_text())
    assert [found[path.removesuffix(".weight")] for path in lists] == ["cpu"] * 3
    assert found["model.unembed_projections.0"] == found["lm_head"] == "cuda:1"
    assert found["model.layers.0"] == "cuda:0"


def test_a_parameter_of_the_model_itself_has_an_entry_of_its_own(tmp_path: Path) -> None:
    """An entry "" holds for the whole model."""
    plan = plan_of_layers(tmp_path / "m", "dense", 1, [0] * 5 + [1] * 4)
    source = plan.problem.source
    assert source is not None
    problem = replace(plan.problem, source=replace(source, state=("scale", *source.state)))
    export(replace(plan, problem=problem), "device-map", tmp_path / "map.json")
    found = json.loads((tmp_path / "map.json").read_text())
    assert "" not in found
    assert found["scale"] == found["model.embed_tokens"] == "cpu"


def test_a_parameter_of_a_module_around_the_layers_has_an_entry_of_its_own(tmp_path: Path) -> None:
    """An entry of the module would hold for what has none, and lie around those of the layers."""
    plan = plan_of_layers(tmp_path / "m", "dense", 1, [0] * 5 + [1] * 4)
    source = plan.problem.source
    assert source is not None
    state = ("model.scale", "model.layers.gain", *source.state)
    problem = replace(plan.problem, source=replace(source, state=state))
    export(replace(plan, problem=problem), "device-map", tmp_path / "map.json")
    found = json.loads((tmp_path / "map.json").read_text())
    assert not {"model", "model.layers"} & set(found)
    assert found["model.scale"] == found["model.layers.gain"] == "cpu"
    assert found["model.layers.0"] == "cuda:0"


def test_an_embedding_for_each_layer_stays_with_the_lookup(tmp_path: Path) -> None:
    """Some models make it behind their layers, and the head's card has no room for it."""
    plan = plan_of_layers(tmp_path / "m", "tied", 1, [0] * SMALL["tied"]["num_hidden_layers"])
    source = plan.problem.source
    assert source is not None
    state = (*source.state, "model.embed_tokens_per_layer.weight", "model.projection.weight")
    other = replace(plan.problem, source=replace(source, state=state))
    found = layer_map(replace(plan, problem=other))
    assert found["model.embed_tokens_per_layer"] == "cpu"
    assert found["model.projection"] == found["model.embed_tokens"] == "cuda:1"


def test_modules_that_share_a_parameter_are_on_one_device() -> None:
    """Accelerate ties them to one tensor, which the other module's device cannot read."""
    builder = GraphBuilder()
    weight, read = builder.add_weight(1 << 20), builder.add_input(400)
    for module in ("first", "middle", "last"):
        weights = [] if module == "middle" else [weight]
        op = builder.add_op(module, "MatMul", inputs=[read], module=module, weights=weights)
        read = builder.add_tensor(op, 400, is_output=module == "last")
    graph = builder.build()
    source = ModelSource("m.pt2", "0", "torch", state=("first.weight", "last.weight"))
    with pytest.raises(InexpressibleError, match="'first' on cuda:0 and 'last' on cuda:1 share"):
        device_map(plan_with(graph, CUDA, lambda op: int(op == 2), source))
    assert device_map(plan_with(graph, CUDA, lambda op: int(op == 1), source))["last"] == "cuda:0"
    given = replace(source, state=("first.weight", "last.scale.weight"))  # as a mask is
    device_map(plan_with(graph, CUDA, lambda op: int(op == 2), given))
