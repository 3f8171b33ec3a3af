"""Plans as options of llama.cpp: by hand, by its rule of layers, and loaded by the engine."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess, the_line
from support.gguf_files import ATTENTION, DENSE, EIGHT, EXPERTS, SHARED, Made, write_gguf
from support.llama_cpp import NO_ENGINE, engine_gguf, program, servers
from support.small_configs import SMALL
from writers.token_plans import plan_with, problem_of

from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.errors import InexpressibleError, InputError
from placewright.execution.engine.programs import Programs
from placewright.frameworks.language.config_model import ConfigFile, built
from placewright.frameworks.language.gguf_file import read_gguf_file
from placewright.frameworks.language.library_names import ARCHITECTURES, tensors_of
from placewright.session.language.engine_run import run_on_engine
from placewright.session.language.run_search import why_inexpressible
from placewright.writers.llama_cpp import command_line, engine_options

LAYERS = 6


def drawn(problem: Problem, rng: np.random.Generator) -> dict[str, str]:
    """A placement with layers in runs: those of the CPU, then those of each card."""
    cards = [name for name in problem.cluster.device_names if name.startswith("card")]
    order = ["cpu", *cards]
    runs = sorted(rng.integers(0, len(order), LAYERS).tolist())
    found = {"head": cards[int(rng.integers(len(cards)))]}
    for layer, run in enumerate(runs):
        for part in ("attention", "router"):
            found[f"layers.{layer}.{part}"] = order[run]
        for part in ("feed-forward", "experts"):
            found[f"layers.{layer}.{part}"] = order[int(rng.integers(len(order)))]
    return {op: at for op, at in found.items() if op in problem.graph.op_index}


def test_options_by_hand(tmp_path: Path) -> None:
    """Layer 0 on the CPU, 1 to 3 and the head on the first card, 4 and 5 on the second."""
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=True)
    problem = problem_of(path, ["CUDA0", "CUDA1"], kv="bf16", sequences=2)
    at = {f"layers.0.{part}": "cpu" for part in ("attention", "router", "experts")}
    at |= {"layers.1.experts": "cpu", "layers.4.experts": "cpu"}
    for layer in (4, 5):
        at |= {f"layers.{layer}.{part}": "card:1" for part in ("attention", "router")}
    assert shlex.split(command_line(plan_with(problem, at))) == [
        "llama-server", "-m", str(path), "-dev", "CUDA0,CUDA1", "-ngl", "6", "-ts", "3,3", "-ot",
        r"^output=CUDA0,blk\.(1|4)\.ffn_(up|down|gate|gate_up)_exps=CPU,"
        r"blk\.5\.ffn_(up|down|gate|gate_up)_exps=CUDA0",
        "--no-op-offload", "-c", "512", "-np", "2", "-b", "2048", "-ub", "512", "-fa", "on",
        "-ctk", "bf16", "-ctv", "bf16",
    ]  # fmt: skip


def test_a_plan_without_cards_names_none(tmp_path: Path) -> None:
    """Without the option, the engine takes all cards that it finds."""
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=False)
    words = engine_options(plan_with(problem_of(path, []), {})).words("m.gguf")
    assert words[words.index("-dev") + 1] == "none"


def test_threads_of_a_measured_host_are_in_the_line(tmp_path: Path) -> None:
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=False)
    problem = problem_of(path, ["CUDA0"])
    assert "-t" not in engine_options(plan_with(problem, {})).words("m.gguf")
    *cards, host = problem.cluster.devices
    measured = replace(host, options={"threads": "3"})
    cluster = replace(problem.cluster, devices=(*cards, measured))
    plan = plan_with(replace(problem, cluster=cluster), {})
    for tool in ("llama-server", "llama-bench"):
        words = engine_options(plan).words("m.gguf", tool)
        assert words[words.index("-t") + 1] == "3"


@pytest.mark.parametrize(
    "name", ["dense", "experts", "shared-experts", "latent", "sinks", "linear-attention", "fused"]
)
def test_options_of_a_configuration_name_tensors_of_its_architecture(
    name: str, tmp_path: Path
) -> None:
    """Moved are the parameters of `layers.1.mlp` by the table of package gguf, but for routers."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL[name]))
    problem = problem_of(Path(f"hf:{folder}"), ["CUDA0"], weights="q8_0")
    moved = [op for op in problem.graph.op_names if op.startswith("layers.1.")]
    moved = [op for op in moved if not op.endswith((".attention", ".router"))]
    plan = plan_with(problem, dict.fromkeys(moved, "cpu"))
    patterns = list(engine_options(plan).overrides)
    library = built(ConfigFile(folder), tuple(ARCHITECTURES))
    own = {
        key: shape
        for key, shape in library.shapes.items()
        if ".layers.1.mlp." in key and ".mlp.gate." not in key and ".mlp.router." not in key
    }
    matched = {
        tensor
        for tensor in tensors_of(library)
        if any(re.search(pattern, tensor) for pattern in patterns) and "norm" not in tensor
    }
    assert matched == set(tensors_of(replace(library, shapes=own)))
    assert command_line(plan).startswith(f"llama-server -m {name}-q8_0.gguf ")
    with pytest.raises(InputError, match="has no weights"):
        run_on_engine(plan, Programs(folder))


NORMS: Mapping[str, tuple[int, ...]] = {"post_ffw_norm": (256,), "ffn_post_norm": (256,)}
OF_MODULES: Mapping[str, tuple[Mapping[str, tuple[int, ...]], Mapping[str, int]]] = {
    "gemma3": ({**ATTENTION, **DENSE, **NORMS}, {}),
    "arctic": ({**ATTENTION, **DENSE, **EXPERTS, "ffn_norm_exps": (256,)}, EIGHT),
    "nemotron_h_moe": ({**ATTENTION, **EXPERTS, **SHARED, "ffn_latent_down": (64, 256)}, EIGHT),
    "rwkv6": ({"time_mix_output": (256, 256), "channel_mix_key": (512, 256)}, {}),
}


@pytest.mark.parametrize("architecture", sorted(OF_MODULES))
def test_patterns_move_the_tensors_of_the_module(architecture: str, tmp_path: Path) -> None:
    layer, numbers = OF_MODULES[architecture]
    made = Made(architecture, (layer,) * 2, numbers, dtype="F16")
    path = write_gguf(tmp_path / "m.gguf", made, np.random.default_rng(0), vocabulary=64)
    problem = problem_of(path, ["CUDA0"])
    graph, tensors = problem.graph, read_gguf_file(path).tensors
    fixed = ("attention", "router")
    for op in (x for x in graph.op_names if x.startswith("layers.1.") and not x.endswith(fixed)):
        (pattern,) = engine_options(plan_with(problem, {op: "cpu"})).overrides
        moved = sum(each.n_bytes for each in tensors if re.search(pattern, each.name))
        assert moved == graph.weight_bytes[graph.op_weights.row(graph.op_index[op])].sum(), op


def test_layers_that_predict_further_tokens_have_places(tmp_path: Path) -> None:
    """The engine counts five layers and the head: of cards layer 1 to 4 and the head."""
    layers = ({**ATTENTION, **DENSE},) * 5
    numbers = {"nextn_predict_layers": 2}
    made = Made("glm4moe", layers, numbers, dtype="F16")
    path = write_gguf(tmp_path / "m.gguf", made, np.random.default_rng(0), vocabulary=64)
    problem = problem_of(path, ["CUDA0", "CUDA1"])
    at = {f"layers.0.{part}": "cpu" for part in ("attention", "feed-forward")}
    at |= {f"layers.2.{part}": "card:1" for part in ("attention", "feed-forward")}
    options = engine_options(plan_with(problem, {**at, "head": "card:1"}))
    assert (options.gpu_layers, options.shares, options.overrides) == (5, (1, 4), {})


def test_a_card_without_room_for_copies_is_told_to_copy_nothing(tmp_path: Path) -> None:
    """Its plan has no column for them, and the engine would reserve room for a micro-batch."""
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=True)
    for prompt, micro_batch, told in ((100, 512, True), (20, 512, True), (100, 31, False)):
        said = {"memory": {"card:0": "64MiB"}, "prompt": prompt, "micro_batch": micro_batch}
        problem = problem_of(path, ["CUDA0"], **said)
        assert not any("+" in name for name in problem.cluster.device_names)
        text = command_line(plan_with(problem, dict.fromkeys(problem.graph.op_names, "cpu")))
        assert ("--no-op-offload" in text) == told


def test_more_sequences_than_the_engine_has_room_for_are_refused(tmp_path: Path) -> None:
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=False)
    line = command_line(plan_with(problem_of(path, ["CUDA0"], sequences=256), {}))
    assert " -np 256 " in line
    with pytest.raises(InexpressibleError, match="256 sequences at most, and this plan has 257"):
        command_line(plan_with(problem_of(path, ["CUDA0"], sequences=257), {}))


def test_a_plan_with_wrong_numbers_is_refused(tmp_path: Path) -> None:
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=False)
    plan = plan_with(problem_of(path, ["CUDA0"]), {})
    source = plan.problem.source
    assert source is not None
    wrong = replace(source, options={**source.options, "context": "4k; rm -r x"})
    with pytest.raises(InexpressibleError, match="'context' of this plan's request is '4k"):
        command_line(replace(plan, problem=replace(plan.problem, source=wrong)))


def test_first_experts_in_ram_have_an_option(tmp_path: Path) -> None:
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=True)
    long = {"prompt": 100, "context": 256}
    problem = problem_of(path, ["CUDA0"], **long)
    streamed = {f"layers.{layer}.experts": "cpu+card:0" for layer in range(3)}
    text = command_line(plan_with(problem, streamed))
    assert " -ngl 7 -ncmoe 3 -c 256 -np 1" in text
    computed = {op: "cpu" for op in streamed}
    assert " -ngl 7 -ncmoe 3 --no-op-offload -c 256" in command_line(plan_with(problem, computed))


def test_shared_experts_on_a_card_are_not_moved_with_the_first_ones(tmp_path: Path) -> None:
    """The engine's own option moves those in chunks, too, so that patterns name the others."""
    layers = ({**ATTENTION, **EXPERTS, **SHARED},) * 2
    made = Made("nemotron_h_moe", layers, EIGHT, dtype="F16")
    path = write_gguf(tmp_path / "m.gguf", made, np.random.default_rng(0), vocabulary=64)
    problem = problem_of(path, ["CUDA0"])
    experts = {"layers.0.experts": "cpu"}
    options = engine_options(plan_with(problem, experts))
    moved = r"blk\.0\.ffn_(up|down|gate|gate_up)_exps"
    assert (options.cpu_experts, options.overrides) == (0, {moved: "CPU"})
    shared = {f"layers.{layer}.shared-experts": "cpu" for layer in range(2)}
    assert engine_options(plan_with(problem, experts | shared)).cpu_experts == 1


def test_a_second_card_of_a_server_is_refused(tmp_path: Path) -> None:
    """The engine would take the first one in its place."""
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=False)
    for names, refused in (
        (["RPC1[127.0.0.1:7]"], "RPC1"),
        (["RPC1[127.0.0.1:7]", "RPC0[127.0.0.1:7]"], "RPC1"),
        (["RPC0[127.0.0.1:7]", "RPC00[127.0.0.1:8]"], "RPC00"),
    ):
        with pytest.raises(InexpressibleError, match=rf"'{refused}\[.*one rpc-server for each"):
            command_line(plan_with(problem_of(path, names), {}))
    options = engine_options(plan_with(problem_of(path, ["RPC0[a:1]", "RPC0[b:1]"]), {}))
    assert (options.devices, options.servers) == (("RPC0", "RPC1"), ("a:1", "b:1"))


def test_experts_beside_a_feed_forward_module_stay(tmp_path: Path) -> None:
    """`ffn_` alone would move the router and the experts of the layer, too."""
    made = Made("arctic", ({**ATTENTION, **DENSE, **EXPERTS},) * 2, EIGHT, dtype="F16")
    path = write_gguf(tmp_path / "m.gguf", made, np.random.default_rng(0), vocabulary=64)
    problem = problem_of(path, ["CUDA0"])
    overrides = engine_options(plan_with(problem, {"layers.1.feed-forward": "cpu"})).overrides
    assert overrides == {r"blk\.1\.ffn_(up|down|gate)\.": "CPU"}
    names = ("ffn_up.weight", "ffn_gate_inp.weight", "ffn_up_exps.weight", "ffn_norm.weight")
    assert [bool(re.search(next(iter(overrides)), f"blk.1.{name}")) for name in names] == [
        True, False, False, False,
    ]  # fmt: skip


def test_layers_without_attention_count(tmp_path: Path) -> None:
    """Of three layers the second one has none: the engine still lays three, and the head."""
    layers = ({**ATTENTION, **DENSE}, DENSE, {**ATTENTION, **DENSE})
    made = Made("deci", layers, {"attention.head_count_kv": 2}, dtype="F16")
    path = write_gguf(tmp_path / "m.gguf", made, np.random.default_rng(0), vocabulary=64)
    problem = problem_of(path, ["CUDA0", "CUDA1"])
    options = engine_options(plan_with(problem, {}))
    assert (options.gpu_layers, options.shares, options.overrides) == (4, (4, 0), {})
    at = {f"layers.2.{part}": "card:1" for part in ("attention", "feed-forward")}
    options = engine_options(plan_with(problem, {**at, "head": "card:1"}))
    assert (options.gpu_layers, options.shares, options.overrides) == (4, (2, 2), {})
    assert why_inexpressible(
        problem, plan_with(problem, {"layers.1.feed-forward": "cpu"}).placement
    )


@pytest.mark.parametrize("seed", range(30))
def test_the_engine_s_rule_of_layers_gives_ours(seed: int, tmp_path: Path) -> None:
    """`load_tensors`: the first card whose cumulated share, in f32, is above i / layers."""
    rng = np.random.default_rng(seed)
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=bool(seed % 2))
    names = [f"CUDA{at}" for at in range(1 + seed % 3)]
    problem = problem_of(path, names)
    at = drawn(problem, rng)
    options = engine_options(plan_with(problem, at))
    shares = np.cumsum(np.array(options.shares, dtype=np.float32))
    shares = shares / shares[-1]
    begin = LAYERS + 1 - options.gpu_layers
    for layer in range(LAYERS):
        where = np.float32(layer - begin) / np.float32(options.gpu_layers)
        card = int(np.searchsorted(shares, where, side="right"))
        expected = "cpu" if layer < begin else f"card:{card}"
        assert at[f"layers.{layer}.attention"] == expected


def test_plans_that_break_a_rule_are_refused(tmp_path: Path) -> None:
    path = engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=False)
    problem = problem_of(path, ["CUDA0", "CUDA1"])
    with pytest.raises(InexpressibleError, match="do not lie in runs"):
        command_line(plan_with(problem, {"layers.0.attention": "card:1"}))
    mixed = {"head": "cpu"}
    assert "^output=CPU" in command_line(plan_with(problem, mixed))


def test_the_command_prints_one_line(tmp_path: Path, cli: InProcess) -> None:
    engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=True)
    words = ("place", "m.gguf", "--devices", "rtx-4090,rx-7900-xtx,cpu", "--context", "2k")
    assert cli(*words, cwd=tmp_path).returncode == 0
    shown = cli("export", "plan.json", "--to", "llama.cpp", cwd=tmp_path)
    assert shown.stdout.startswith("llama-server -m m.gguf -dev CUDA0,ROCm0 -ngl 7 ")
    assert shown.stdout.count("\n") == 1
    cli("export", "plan.json", "--to", "llama.cpp", "-o", "run.sh", cwd=tmp_path)
    assert (tmp_path / "run.sh").read_text() == shown.stdout
    refused = cli("export", "plan.json", "--to", "device-map", cwd=tmp_path)
    assert "--output is needed" in the_line(refused, 2)


def test_a_card_that_the_engine_has_no_name_for_is_refused(tmp_path: Path, cli: InProcess) -> None:
    engine_gguf(tmp_path / "m.gguf", LAYERS, has_experts=False)
    words = ("place", "m.gguf", "--devices", "npu-lunar-lake,cpu", "--context", "2k")
    assert cli(*words, cwd=tmp_path).returncode == 0
    refused = cli("export", "plan.json", "--to", "llama.cpp", cwd=tmp_path)
    assert "(npu) has no name in llama.cpp" in the_line(refused, 1)


@pytest.mark.skipif(program("llama-bench") is None, reason=NO_ENGINE)
@pytest.mark.skipif(program("ggml-rpc-server") is None, reason=NO_ENGINE)
@pytest.mark.parametrize("has_experts", [False, True])
def test_the_engine_puts_tensors_where_the_plan_has_them(has_experts: bool, tmp_path: Path) -> None:
    """Its own print of layers, moved tensors, and bytes of weights and caches of each device."""
    path, bench = tmp_path / "m.gguf", program("llama-bench")
    engine_gguf(path, LAYERS, has_experts=has_experts)
    rng = np.random.default_rng(3)
    with servers(2) as addresses:
        buffers = [f"RPC0[{address}]" for address in addresses]
        for _ in range(4):
            problem = problem_of(path, buffers)
            at = drawn(problem, rng)
            plan = plan_with(problem, at)
            words = engine_options(plan).words(str(path), "llama-bench")
            done = subprocess.run(
                [str(bench), *words[1:], "-p", "4", "-n", "2", "-r", "1", "-t", "1", "-v"],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-2000:]
            check_layers(done.stderr, at)
            check_bytes(done.stderr, plan, dict(zip(buffers, ("card:0", "card:1"), strict=True)))


def check_layers(log: str, at: dict[str, str]) -> None:
    printed = re.findall(r"layer +(\d+) assigned to device (\S+),", log)
    names = {"CPU": "cpu", "RPC0": "card:0", "RPC1": "card:1"}
    for layer, device in printed[:LAYERS]:
        assert at[f"layers.{layer}.attention"] == names[device]


def check_bytes(log: str, plan: Plan, device_of: dict[str, str]) -> None:
    """Weights and caches of the servers; the engine prints hundredths of a MiB."""
    found = dict.fromkeys(device_of.values(), 0.0)
    for what in ("model", "KV"):
        sizes = re.findall(rf"(RPC\d\[\S+\]) {what} buffer size = +([\d.]+) MiB", log)
        for buffer, size in dict(sizes).items():
            found[device_of[buffer]] += float(size) * 2**20
    for name, size in found.items():
        own = plan.memory[name]  # logits are smaller than the buffers, which memory does not hold
        assert size == pytest.approx(own, abs=2 * 0.01 * 2**20)
