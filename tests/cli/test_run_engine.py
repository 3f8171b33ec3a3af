"""`run --engine`: plans of language models by the real engine, and what goes wrong, in one line."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.runner import InProcess, placewright, the_line
from support.llama_cpp import NO_ENGINE, engine_gguf, free_port, has_engine
from support.warm import COMMAND, Warm

import placewright as pw
from placewright.core.source import CLUSTER as DEVICES
from placewright.errors import InputError
from placewright.execution.engine.programs import engine_at
from placewright.execution.token_work import Phase, TokenRequest
from placewright.files.cluster_file import cluster_data
from placewright.profiling.catalogue import engine_rates
from placewright.session.language.engine_places import Places
from placewright.session.language.engine_run import (
    BY_MEMORY,
    EVEN_SPLIT,
    FITTED,
    Contenders,
    EngineContender,
    EngineRun,
    contenders_of,
    fitted_words,
    run_on_engine,
    verdict_of_rounds,
)
from placewright.session.language.problem import physical_cluster

Run = Callable[..., subprocess.CompletedProcess[str]]
CLUSTER = """
format: placewright.cluster/1
host: cpu
devices:
- {{name: "rpc:0", kind: gpu, memory: 8GiB, peak: {{f16: 50 GFLOPS}}, bandwidth: 8GB/s,
   options: {{llama.cpp: "RPC0[127.0.0.1:{0}]", threads: "1"}}}}
- {{name: "rpc:1", kind: gpu, memory: 8GiB, peak: {{f16: 50 GFLOPS}}, bandwidth: 8GB/s,
   options: {{llama.cpp: "RPC0[127.0.0.1:{1}]", threads: "1"}}}}
- {{name: cpu, memory: 8GiB, peak: {{f32: 50 GFLOPS}}, bandwidth: 8GB/s, options: {{threads: "1"}}}}
"""
RUNS = ("cpu", "rpc:0", "rpc:0", "rpc:0", "rpc:1", "rpc:1")  # of the six layers
PINS = tuple(f"layers.{layer}.attention={at}" for layer, at in enumerate(RUNS))


def planned(folder: Path, *, has_experts: bool = False, pins: tuple[str, ...] = PINS) -> list[int]:
    """Write a model, a cluster and a plan; the ports of its servers."""
    engine_gguf(folder / "m.gguf", 6, has_experts=has_experts, has_tokens=True)
    ports = [free_port(), free_port()]
    (folder / "two.yaml").write_text(CLUSTER.format(*ports))
    pinned = [word for pin in pins for word in ("--pin", pin)]
    words = ("--prompt", "24", "--generate", "6", "--context", "300", "--quiet")
    placed = placewright("place", "m.gguf", "--cluster", "two.yaml", *pinned, *words, cwd=folder)
    assert placed.returncode == 0, placed.stderr
    return ports


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A folder with the pinned plan, and its ports."""
    folder = tmp_path_factory.mktemp("planned")
    return folder, planned(folder)


@pytest.fixture
def ports(once: tuple[Path, list[int]], tmp_path: Path) -> list[int]:
    """Ports of the pinned plan, which is copied into the folder of the test."""
    shutil.copytree(once[0], tmp_path, dirs_exist_ok=True)
    return once[1]


@pytest.fixture
def run(cli: InProcess, tmp_path: Path) -> Run:
    """Call it as ``run("--runs", "1")``."""
    return lambda *words: cli("run", "plan.json", "--engine", "llama.cpp", *words, cwd=tmp_path)


@pytest.mark.parametrize("limit", [0.0, math.inf])
def test_limits_without_a_ratio_make_no_split(limit: float, once: tuple[Path, list[int]]) -> None:
    """Cards whose reserve takes all memory have no shares, nor have those without a limit."""
    plan = pw.read_plan(once[0] / "plan.json")
    cluster = plan.problem.cluster
    for name in ("rpc:0", "rpc:1"):
        cluster = cluster.with_limit(name, limit)
    limited = replace(plan, problem=replace(plan.problem, cluster=cluster))
    found = contenders_of(limited, "m.gguf", list)
    names = {one.name for one in found.measured} | set(found.left_out)
    assert EVEN_SPLIT in names
    assert BY_MEMORY not in names


def test_the_fit_is_measured_on_the_cards_of_the_plan(once: tuple[Path, list[int]]) -> None:
    """The benchmark measures each value of a repeated option, so that none may be repeated."""
    plan = pw.read_plan(once[0] / "plan.json")
    printed = ["-ngl", "5", "-ts", "3,2", "-ot", "a=CPU,b=RPC0", "-ncmoe", "1"]
    found = contenders_of(plan, "m.gguf", lambda: printed)
    (fitted,) = (one for one in found.measured if one.name == FITTED)
    options = dict(zip(fitted.words[::2], fitted.words[1::2], strict=True))
    assert 2 * len(options) == len(fitted.words)
    chosen = {name: options[name] for name in ("-dev", "-ngl", "-ts", "-ot", "-ncmoe")}
    assert chosen == {
        "-dev": "RPC0/RPC1", "-ngl": "5", "-ts": "3/2", "-ot": "a=CPU;b=RPC0", "-ncmoe": "1"
    }  # fmt: skip
    for one in found.measured:
        assert one.words.count("-dev") == 1, one


def test_the_fit_copies_weights_as_its_tool_assumes(tmp_path: Path) -> None:
    """The plan has its host compute all passes of a module, and `-nopo` of its own."""
    path = str(engine_gguf(tmp_path / "m.gguf", 6, has_experts=False))
    said: dict[str, Any] = {
        "pins": {"layers.1.feed-forward": "cpu"},
        "prompt": 100,
        "evaluations": 20,
    }
    plan = pw.place(path, devices="rtx-4090,cpu", **said)
    found = contenders_of(plan, path, lambda: ["-ngl", "5"])
    words = {one.name: one.words for one in found.measured}
    assert "-nopo" in words["plan"]
    assert "-nopo" not in words[FITTED]


def test_margins_leave_out_drivers_and_are_zero_without_a_limit(
    once: tuple[Path, list[int]], tmp_path: Path
) -> None:
    """The tool counts buffers itself: those that the plan's limits leave out are not paid twice."""
    plan = pw.read_plan(once[0] / "plan.json")
    whole = physical_cluster(plan.problem).with_limit("rpc:0", math.inf)
    driver = engine_rates("llama.cpp", "gpu").reserve_bytes
    text = json.dumps(cluster_data(whole.with_limit("rpc:1", driver + 2.0**20)))
    source = plan.problem.source
    assert source is not None
    source = replace(source, options={**source.options, DEVICES: text})
    limited = replace(plan, problem=replace(plan.problem, source=source))
    tool(tmp_path, "llama-fit-params", "import sys; print(*sys.argv[1:])")
    free = {"RPC0": 9 * 2.0**20, "RPC1": 9 * 2.0**20}
    words = fitted_words(engine_at(tmp_path), limited, "m.gguf", free, lambda: None)
    assert words[words.index("-fitt") + 1] == "0,8"


def test_an_earlier_plan_is_refused_before_a_program_is_looked_for(
    once: tuple[Path, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that the plan uses is none of its cluster's; the engine's folder is empty."""
    monkeypatch.chdir(once[0])  # the plan names its model from there
    plan = pw.read_plan("plan.json")
    source = plan.problem.source
    assert source is not None
    renamed = source.options[DEVICES].replace('"rpc:1"', '"rpc:9"')
    source = replace(source, options={**source.options, DEVICES: renamed})
    earlier = replace(plan, problem=replace(plan.problem, source=source))
    with pytest.raises(InputError, match=r"rpc:1' and counts buffers .* place it again"):
        run_on_engine(earlier, engine_at(tmp_path))


def tool(folder: Path, name: str, body: str) -> None:
    """A program in place of the engine's, for what real ones rarely do."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)


def nobody_listens(ports: list[int]) -> bool:
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return False
    return True


@pytest.mark.skipif(not has_engine(), reason=NO_ENGINE)
@pytest.mark.parametrize("has_experts", [False, True])
def test_the_engine_runs_a_plan(has_experts: bool, tmp_path: Path, run: Run) -> None:
    moved = ("layers.2.experts=cpu", "layers.3.experts=rpc:1") if has_experts else ()
    ports = planned(tmp_path, has_experts=has_experts, pins=(*PINS, *moved))
    done = run("--runs", "1", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["equal"]
    assert document["place_faults"] == []
    assert [row["equal"] for row in document["equal_tokens"]] == [6, 6, 6]
    assert document["moved_tensors"] >= (6 if has_experts else 0)
    weights = {name: each["printed_weights"] for name, each in document["memory"].items()}
    assert sorted(weights) == ["CPU", *(f"RPC0[127.0.0.1:{port}]" for port in sorted(ports))]
    assert min(weights.values()) > 0
    if not has_experts:
        for name, each in document["memory"].items():
            if name != "CPU":
                assert each["buffers"] == pytest.approx(each["printed_buffers"], rel=0.1)
    plan = document["contenders"]["plan"]
    for phase, tokens in (("prefill", 24), ("decode", 6)):
        assert plan[phase]["tokens_per_second"] == pytest.approx(tokens / plan[phase]["median"])
    assert "the engine's fit" in document["contenders"]
    assert "pinned" in document["left_out"]["rpc:0"]
    assert nobody_listens(ports)


@pytest.mark.skipif(not has_engine(), reason=NO_ENGINE)
def test_the_text_has_a_verdict(tmp_path: Path, run: Run) -> None:
    """Without pins, each device alone is measured, too; servers are given."""
    planned(tmp_path, pins=())
    ports = [free_port(), free_port()]
    given = ",".join(f"127.0.0.1:{port}" for port in ports)
    done = run("--runs", "1", "--servers", given)
    assert done.returncode == 0, (done.stdout, done.stderr)
    for text in ("where the plan has them", f"RPC0[127.0.0.1:{ports[0]}]", "  rpc:0: prefill"):
        assert text in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("no verdict: the plan takes ")
    assert last.endswith(" in 1 round; a 95 % interval needs 6 (--runs)")
    last = run("--runs", "6", "--servers", given).stdout.splitlines()[-1]
    assert any(word in last for word in ("run the plan", "do not split", "use the simpler split"))


def faster_plan(rounds: int) -> EngineRun:
    """A plan that is twice as fast as an even split in each round."""
    ways = [EngineContender(name, (), None, True) for name in ("plan", EVEN_SPLIT)]
    seconds: dict[str, dict[Phase, list[float]]] = {
        way.name: {"prefill": [took] * rounds, "decode": [took] * rounds}
        for way, took in zip(ways, (1.0, 2.0), strict=True)
    }
    verdict = verdict_of_rounds(Contenders(tuple(ways), {}), seconds)
    places = Places((), {}, 6, 0)
    return EngineRun("1", TokenRequest(24, 6, 300), places, {}, seconds, {}, {}, verdict)


@pytest.mark.parametrize(("rounds", "shown"), [(1, "1 round"), (2, "2 rounds"), (5, "5 rounds")])
def test_fewer_than_six_rounds_have_no_verdict(rounds: int, shown: str) -> None:
    data = faster_plan(rounds).data()
    assert data["recommendation"] is None
    assert data["verdict"] == (
        f"no verdict: the plan takes 0.50 of the time of 'even split' in {shown}; a 95 % interval "
        "needs 6 (argument `runs`)"
    )
    enough = faster_plan(6).data()
    assert enough["recommendation"] == "plan"
    assert "95 % interval 2.00 to 2.00" in enough["verdict"]


@pytest.mark.usefixtures("ports")
def test_a_missing_program_is_one_line(run: Run) -> None:
    line = the_line(run("--engine-folder", "."), 2)
    assert "program 'ggml-rpc-server' is not in '.'" in line
    assert "--engine-folder" in line
    assert "there is no folder 'away'" in the_line(run("--engine-folder", "away"), 2)


def test_a_taken_port_is_one_line(ports: list[int], tmp_path: Path, run: Run) -> None:
    port = ports[1]
    tool(tmp_path, "ggml-rpc-server", "import time; time.sleep(60)")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        line = the_line(run("--engine-folder", "."), 2)
    assert f"port {port} of 127.0.0.1 is taken" in line
    assert f"--servers 127.0.0.1:{port}" in line


def test_a_server_that_ends_is_one_line(ports: list[int], tmp_path: Path, run: Run) -> None:
    port = ports[0]
    tool(tmp_path, "ggml-rpc-server", "import sys; sys.exit('error: no such device')")
    line = the_line(run("--engine-folder", "."), 1)
    assert f"the server on 127.0.0.1:{port} ended with code 1: error: no such device" in line


LISTENS = """
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1]))):
    time.sleep(600)
"""


def test_a_program_that_fails_is_one_line(ports: list[int], tmp_path: Path, run: Run) -> None:
    tool(tmp_path, "ggml-rpc-server", LISTENS)
    tool(tmp_path, "llama-bench", "import sys; print('error: bad', file=sys.stderr); sys.exit(3)")
    line = the_line(run("--engine-folder", "."), 1)
    assert "'llama-bench' ended with code 3: error: bad" in line
    tool(tmp_path, "llama-bench", "print('Available devices:\\n  RPC0: a (9 MiB, 9 MiB free)')")
    line = the_line(run("--engine-folder", "."), 2)
    assert "no device 'RPC1' here; it has: RPC0" in line
    assert nobody_listens(ports)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_the_command(number: int, ports: list[int], tmp_path: Path) -> None:
    tool(tmp_path, "ggml-rpc-server", LISTENS)
    marker = tmp_path / "asleep"
    tool(tmp_path, "llama-bench", f"import time; open({str(marker)!r}, 'w'); time.sleep(600)")
    words = ["run", "plan.json", "--engine", "llama.cpp", "--engine-folder", "."]
    process = Warm(COMMAND, words, tmp_path, os.environ)
    end = time.monotonic() + 120
    while not marker.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not nobody_listens(ports)
    os.kill(process.pid, number)
    ended = process.ended(60)
    expected = {signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    assert ended.returncode == expected[signal.Signals(number)], ended.stderr
    for _ in range(100):  # the kernel ends children of a killed process a moment later
        if nobody_listens(ports):
            break
        time.sleep(0.05)
    assert nobody_listens(ports)


@pytest.mark.parametrize("threads", ["0", "two", "1.5"])
def test_wrong_threads_are_one_line(threads: str, tmp_path: Path, run: Run, cli: InProcess) -> None:
    engine_gguf(tmp_path / "m.gguf", 6, has_experts=False, has_tokens=True)
    cluster = CLUSTER.format(free_port(), free_port()).replace('"1"', f'"{threads}"')
    (tmp_path / "two.yaml").write_text(cluster)
    placed = cli("place", "m.gguf", "--cluster", "two.yaml", "--quiet", cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    line = the_line(run("--engine-folder", "."), 2)
    assert f"option threads must be a whole number above 0, got '{threads}'" in line


def test_caches_that_the_benchmark_lacks_are_one_line(
    tmp_path: Path, run: Run, cli: InProcess
) -> None:
    engine_gguf(tmp_path / "m.gguf", 6, has_experts=False, has_tokens=True)
    (tmp_path / "two.yaml").write_text(CLUSTER.format(free_port(), free_port()))
    words = ("--context", "2k", "--kv", "f32", "--quiet")
    placed = cli("place", "m.gguf", "--cluster", "two.yaml", *words, cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    line = the_line(run("--engine-folder", "."), 2)
    assert "caches of f32" in line
    assert "--kv f16" in line


@pytest.mark.usefixtures("ports")
def test_options_that_contradict_each_other(tmp_path: Path, run: Run, cli: InProcess) -> None:
    plain = cli("run", "plan.json", cwd=tmp_path)
    assert "which an engine runs; give --engine llama.cpp" in the_line(plain, 2)
    alone = cli("run", "plan.json", "--servers", "a:1", cwd=tmp_path)
    assert "--servers is of an engine; give --engine llama.cpp" in the_line(alone, 2)
    other = cli("run", "plan.json", "--engine", "vllm", cwd=tmp_path)
    assert "unknown engine 'vllm'" in the_line(other, 2)
    assert "--samples means nothing with --engine" in the_line(run("--samples", "3"), 2)
    assert "--runs must be >= 1" in the_line(run("--runs", "0"), 2)
    few = run("--servers", "127.0.0.1:1")
    assert "--servers has 1 addresses for the 2 cards" in the_line(few, 2)
    wrong = run("--servers", "here,there")
    assert "'here' is no address; give host:port" in the_line(wrong, 2)
    (tmp_path / "m.gguf").unlink()
    assert "'m.gguf' is not there, or has changed" in the_line(run(), 2)
