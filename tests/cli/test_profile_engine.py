"""`profile --engine` by the real engine: rates are kept, and `place` takes them by default."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.runner import InProcess, placewright, the_line
from support.llama_cpp import NO_ENGINE, cache_of_kernels, engine_gguf, free_port, has_engine

import placewright as pw
from placewright.core.cluster import Cluster
from placewright.execution.engine.programs import engine_at
from placewright.files.cluster_file import cluster_data, write_cluster
from placewright.session.language import engine_profile
from placewright.session.language.engine_profile import profile_engine
from placewright.session.language.kept_rates import kept_engine_cluster


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own = cache_of_kernels(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    small = engine_profile.ProbeSize(8, 256, 512, 256)
    monkeypatch.setattr(engine_profile, "SERVED", small)
    monkeypatch.setattr(engine_profile, "PROBE_ROUNDS", 1)
    return own


def measured(formats: dict[str, bool]) -> Cluster:
    servers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    return profile_engine(formats, engine_at(), servers=servers, threads=1)


@pytest.mark.skipif(not has_engine(), reason=NO_ENGINE)
def test_rates_are_kept_and_place_takes_them(cache: Path, tmp_path: Path) -> None:
    assert kept_engine_cluster() is None
    first = measured({"q8_0": True})
    second = measured({"f16": False})
    for cluster, formats in ((first, {"q8_0", "q8_0/experts"}), (second, None)):
        sheet = cluster.devices[0].data_sheet
        assert sheet is not None
        assert sheet.tokens is not None
        assert set(sheet.tokens.products) == (formats or {"f16", "q8_0", "q8_0/experts"})
    kept = kept_engine_cluster()
    assert kept is not None
    assert kept.device_names == ("rpc:0", "rpc:1", "cpu")
    write_cluster(tmp_path / "here.yaml", kept)
    read = pw.read_cluster(tmp_path / "here.yaml")
    assert cluster_data(read) == cluster_data(kept)
    engine_gguf(tmp_path / "m.gguf", 6, has_experts=False, has_tokens=True)
    words = ("--prompt", "24", "--generate", "6", "--context", "300", "--quiet")
    for chosen, names in (((), ("rpc:0", "rpc:1", "cpu")), (("--devices", "rpc:1,cpu"), ("cpu",))):
        done = placewright("place", "m.gguf", *chosen, *words, cwd=tmp_path, cache=cache)
        assert done.returncode == 0, done.stderr
        assert "costs were measured by `placewright profile`: llama.cpp" in done.stdout
        devices = pw.read_plan(tmp_path / "plan.json").problem.cluster.device_names
        assert set(names) <= set(devices)
        assert ("rpc:0" in devices) is (not chosen)
    sheets = placewright(
        "place", "m.gguf", "--devices", "rtx-4090,cpu", *words, cwd=tmp_path, cache=cache
    )
    assert "costs come from data sheets" in sheets.stdout


def test_what_cannot_be_measured_is_one_line(tmp_path: Path, cli: InProcess) -> None:
    engine_gguf(tmp_path / "m.gguf", 2, has_experts=False)
    engine = ("profile", "m.gguf", "--engine", "llama.cpp")

    def line(*words: str, code: int = 2) -> str:
        return the_line(cli(*words, cwd=tmp_path), code)

    assert "--threads must be >= 1" in line(*engine, "--threads", "0")
    assert "program 'llama-bench' is not in '.'" in line(*engine, "--engine-folder", ".")
    assert "--ray means nothing with --engine" in line(*engine, "--ray")
    assert "--engine-folder is of an engine" in line("profile", "m.gguf", "--engine-folder", ".")
    tiny = line("profile", "zoo:rnnlm/tiny", "--engine", "llama.cpp")
    assert "'zoo:rnnlm/tiny' is none" in tiny
    missing = line("place", "m.gguf")
    assert "measure those of this machine with `placewright profile` and --engine" in missing
