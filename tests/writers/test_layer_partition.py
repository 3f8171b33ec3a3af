"""Plans as pipeline ranks of vLLM and SGLang, and numbers of cards in all exports."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runner import InProcess
from support.gguf_files import MADE, write_gguf
from support.small_configs import SMALL

from placewright.core.cluster import Device
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InexpressibleError
from placewright.files.plan_file import write_plan
from placewright.session.export import export, numbering, printed
from placewright.session.plans import plan_of
from placewright.session.session import Session
from placewright.simulation.model import Simulator
from placewright.writers.card_numbers import card_numbers
from placewright.writers.layer_partition import ENGINES, pipeline_ranks

CARDS = "rtx-4090,rtx-3090,rtx-3060"


def problem_of(folder: Path, devices: str = CARDS, **said: str) -> Problem:
    path = write_gguf(folder / "a.gguf", MADE["dense"], np.random.default_rng(0), vocabulary=512)
    return Session(str(path), devices=devices, context=256, prompt=20, generate=4, **said).profile()


def plan_with(problem: Problem, layers: list[int], **others: int) -> Plan:
    """A plan with whole layers on devices; ends lie beside the first and the last layer."""
    chosen = []
    for name, module in zip(problem.graph.op_names, problem.graph.op_modules, strict=True):
        at = layers[int(module.split(".")[1])] if module.startswith("layers.") else layers[0]
        chosen.append(others.get(name.replace(".", "_"), layers[-1] if name == "head" else at))
    placement = Placement.of(chosen)
    value = Simulator(problem).value(placement)
    record = PlacerRecord("single", "0", 0, 1, 0.0, ())
    return plan_of(problem, Solution(placement, value, "feasible"), record, "openvino")


@pytest.mark.parametrize("engine", ENGINES)
def test_one_line_by_hand(engine: str, tmp_path: Path) -> None:
    plan = plan_with(problem_of(tmp_path), [0, 0, 2])
    variable, ranks = ENGINES[engine].variable, ENGINES[engine].ranks
    words = shlex.split(printed(plan, engine))
    assert words[:2] == ["CUDA_VISIBLE_DEVICES=0,2", f"{variable}=2,1"]
    assert words[words.index(f"--{ranks}") + 1] == "2"
    assert words[words.index(f"--{ENGINES[engine].context}") + 1] == "256"
    assert str(tmp_path / "a.gguf") in words


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_load_the_folder_of_a_configuration(engine: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL["dense"]))
    for path in (tmp_path, tmp_path / "config.json"):
        problem = Session(f"hf:{path}", devices=CARDS, prompt=20, generate=4).profile()
        words = shlex.split(printed(plan_with(problem, [0] * 9), engine))
        assert str(tmp_path) in words


def test_a_part_of_a_vision_model_is_refused(tmp_path: Path) -> None:
    """The engines load its encoder of images, too, whose weights the plan does not count."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL["dense"]))
    problem = Session(f"hf:{tmp_path}", devices=CARDS, prompt=20, generate=4).profile()
    source = problem.source
    assert source is not None
    part = replace(problem, source=replace(source, state=()))
    with pytest.raises(InexpressibleError, match=r"part of a larger model.*vllm loads"):
        printed(plan_with(part, [0] * 9), "vllm")
    assert printed(plan_with(part, [0] * 9), "llama.cpp")


def test_one_card_needs_no_partition(tmp_path: Path) -> None:
    line = printed(plan_with(problem_of(tmp_path), [1, 1, 1]), "vllm")
    assert line.startswith("CUDA_VISIBLE_DEVICES=1 vllm serve ")


def test_partition_is_that_of_the_function_of_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils = pytest.importorskip("vllm.distributed.utils", reason="vLLM is not here: untested")
    ranks = pipeline_ranks(plan_with(problem_of(tmp_path), [0, 2, 2]))
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", ",".join(map(str, ranks.layers)))
    assert [utils.get_pp_indices(3, rank, 2) for rank in range(2)] == [(0, 1), (1, 3)]


def test_plans_that_ranks_cannot_express(tmp_path: Path) -> None:
    problem = problem_of(tmp_path)

    def refused(plan: Plan, text: str) -> None:
        with pytest.raises(InexpressibleError, match=text):
            printed(plan, "vllm")

    refused(plan_with(problem, [0, 1, 0]), "do not lie in runs")
    refused(plan_with(problem, [0, 0, 1], layers_1_attention=1), "layer 1 lies on")
    refused(plan_with(problem, [0, 0, 1], head=2), "'head' is on 'rtx-3060'")
    with_cpu = problem_of(tmp_path, f"{CARDS},cpu")
    cpu = with_cpu.cluster.device("cpu")
    refused(plan_with(with_cpu, [0, 0, 0], embedding=cpu), "leave the CPU out")
    small = problem_of(tmp_path, kv="q8_0")
    refused(plan_with(small, [0, 0, 0]), "a cache as q8_0")


def with_options(plan: Plan, at: int, **changed: Any) -> Plan:
    cluster = plan.problem.cluster
    devices = list(cluster.devices)
    devices[at] = replace(devices[at], **changed)
    problem = replace(plan.problem, cluster=replace(cluster, devices=tuple(devices)))
    return replace(plan, problem=problem)


def test_a_rank_is_a_local_card_of_one_vendor(tmp_path: Path) -> None:
    plan = plan_with(problem_of(tmp_path), [0, 0, 2])
    named = with_options(plan, 2, options={"llama.cpp": "CUDA5"})
    assert printed(named, "vllm").startswith("CUDA_VISIBLE_DEVICES=0,5 ")
    remote = with_options(plan, 2, options={"llama.cpp": "RPC0[10.0.0.2:50052]"})
    with pytest.raises(InexpressibleError, match=r"'rtx-3060' is 'RPC0.*needs a local CUDA"):
        printed(remote, "vllm")
    arc = with_options(plan, 2, fingerprint="catalogue:gpu-arc-a770")
    with pytest.raises(InexpressibleError, match="'rtx-3060' is 'SYCL0', and a rank needs"):
        printed(arc, "sglang")
    unused = with_options(plan, 1, fingerprint="catalogue:gpu-arc-a770")
    assert printed(unused, "vllm").startswith("CUDA_VISIBLE_DEVICES=0,1 ")
    mixed = with_options(plan, 2, fingerprint="catalogue:gpu-mi300x")
    with pytest.raises(InexpressibleError, match="on CUDA and ROCm cards"):
        printed(mixed, "vllm")


def test_weights_of_another_format_than_the_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL["dense"], "dtype": "bfloat16"}))
    said: dict[str, Any] = {"devices": "rtx-4090", "context": 256, "prompt": 20, "generate": 4}

    def plan(weights: str | None) -> Plan:
        problem = Session(f"hf:{tmp_path}", weights=weights, **said).profile()
        return plan_with(problem, [0] * 99)

    for engine in ENGINES:
        for same in (None, "bf16"):
            assert str(tmp_path) in printed(plan(same), engine)
        text = rf"counts weights as q8_0, and {tmp_path} has bf16: place again without.*llama\.cpp"
        with pytest.raises(InexpressibleError, match=text):
            printed(plan("q8_0"), engine)
    assert "q8_0.gguf" in printed(plan("q8_0"), "llama.cpp")
    use = export(plan("q8_0"), "device-map", tmp_path / "map.json")
    assert use.endswith(f"{tmp_path} has bf16: load it in a format as small")


def test_command(tmp_path: Path, cli: InProcess) -> None:
    problem_of(tmp_path)
    made = cli("place", "a.gguf", "--devices", "rtx-4090", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    done = cli("export", "plan.json", "--to", "sglang", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "python -m sglang.launch_server --model-path a.gguf" in done.stdout


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["cuda:3", "cuda:1"], (3, 1)),
        (["rtx-4090", "rtx-3060"], (0, 1)),
        (["cuda:3", "rtx-3060"], (0, 1)),  # not all have one
        (["gpu:1", "gpu:0"], (0, 1)),  # a number of the catalogue, not of the driver
        ([], ()),
    ],
)
def test_numbers_by_hand(names: list[str], numbers: tuple[int, ...]) -> None:
    assert card_numbers([Device(name, "gpu") for name in names]) == numbers


def test_order_gives_no_number_that_another_card_has() -> None:
    cards = [Device(name, "gpu") for name in ("a", "b")]
    assert card_numbers(cards, [0, 2]) == (1, 3)


def renamed(plan: Plan, *names: str) -> Plan:
    cluster = plan.problem.cluster
    devices = tuple(replace(d, name=n) for d, n in zip(cluster.devices, names, strict=True))
    links = ()
    problem = replace(plan.problem, cluster=replace(cluster, devices=devices, links=links))
    return replace(plan, problem=problem)


def test_a_cpu_without_layers_is_no_card(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "cpu,rtx-4090,rtx-3060")
    line = printed(plan_with(problem, [1, 2, 2]), "vllm")
    assert line.startswith("CUDA_VISIBLE_DEVICES=0,1 ")


def test_own_numbers_go_into_every_format_and_need_no_note(tmp_path: Path) -> None:
    plan = plan_with(problem_of(tmp_path), [0, 0, 2])
    note = numbering(plan, "llama.cpp")
    assert note is not None
    assert "rtx-4090 is CUDA0, rtx-3090 is CUDA1, rtx-3060 is CUDA2" in note
    own = renamed(plan, "cuda:2", "cuda:0", "cuda:1")
    assert printed(own, "vllm").startswith("CUDA_VISIBLE_DEVICES=2,1 ")
    assert "-dev CUDA2,CUDA0,CUDA1 " in printed(own, "llama.cpp")
    assert numbering(own, "llama.cpp") is None
    mixed = renamed(plan, "cuda:1", "big", "cuda:0")
    assert printed(mixed, "vllm").startswith("CUDA_VISIBLE_DEVICES=0,2 ")
    listed = "(cuda:1 is CUDA0, big is CUDA1, cuda:0 is CUDA2)"
    assert listed in str(numbering(mixed, "llama.cpp"))
    assert "big is cuda:1" in str(numbering(mixed, "device-map"))


def test_the_note_has_the_names_of_the_line(tmp_path: Path) -> None:
    plan = plan_with(problem_of(tmp_path), [0, 0, 2])
    named = with_options(plan, 0, options={"llama.cpp": "CUDA1"})
    assert "-dev CUDA1,CUDA0,CUDA2 " in printed(named, "llama.cpp")
    assert "(rtx-3090 is CUDA0, rtx-3060 is CUDA2)" in str(numbering(named, "llama.cpp"))
    other = with_options(plan, 1, fingerprint="catalogue:gpu-rx-7900-xtx")
    assert "-dev CUDA0,ROCm0,CUDA1 " in printed(other, "llama.cpp")
    listed = "(rtx-4090 is CUDA0, rtx-3090 is ROCm0, rtx-3060 is CUDA1)"
    assert listed in str(numbering(other, "llama.cpp"))


@pytest.mark.parametrize("name", ["CUDA0", "RPC0[127.0.0.1:50052]"])
def test_two_cards_with_one_name_are_refused(name: str, tmp_path: Path) -> None:
    plan = plan_with(problem_of(tmp_path), [0, 0, 2])
    for at in (0, 1):
        plan = with_options(plan, at, options={"llama.cpp": name})
    text = f"llama.cpp has one name, '{name}', for 'rtx-4090' and 'rtx-3090'"
    with pytest.raises(InexpressibleError, match=re.escape(text)):
        printed(plan, "llama.cpp")
    with pytest.raises(InexpressibleError, match="has one name"):
        printed(plan, "vllm")


def test_the_note_is_beside_the_line(tmp_path: Path, cli: InProcess) -> None:
    write_plan(tmp_path / "plan.json", plan_with(problem_of(tmp_path), [0, 0, 2]))
    shown = cli("export", "plan.json", "--to", "sglang", cwd=tmp_path)
    assert shown.stdout.startswith("CUDA_VISIBLE_DEVICES=0,2 ")
    assert "by their order in --devices (rtx-4090 is CUDA0" in shown.stderr
