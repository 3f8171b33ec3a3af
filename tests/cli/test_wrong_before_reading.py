"""What is wrong with devices and libraries is found before the model is read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from cli.runner import InProcess, the_line

from placewright.errors import MissingExtraError

FILE = """\
format: placewright.cluster/1
devices:
- {name: "cpu:0"}
- {name: "cpu:77"}
"""
SEGMENTS = """\
format: placewright.cluster/1
devices:
- {name: "cpu:0", segments: 2}
"""


@pytest.fixture(autouse=True)
def _unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("the model was read")

    monkeypatch.setattr("placewright.session.models.read_model", read)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--devices", "cpu:0,cpu:77"], "'cpu:77'"),
        (["--cluster", "pair.yaml"], "'cpu:77'"),
        (["--devices", "catalogue:9gpu"], "9gpu"),
        (["--devices", "cpu", "--memory", "gpu:9=1GiB"], "'gpu:9'"),
        (["--devices", "cpu", "--pin", "conv1=gpu:9"], "'gpu:9'"),
        (["--runtime", "openvno"], "'openvno'"),
        (["--placer", "metiss"], "'metiss'"),
        (["--evaluator", "guessed"], "'guessed'"),
        (
            ["--devices", "cpu", "--objective", "throughput", "--limit", "latency=20ms"],
            "latency is of one sample",
        ),
        (
            ["--cluster", "segments.yaml", "--objective", "throughput"],
            "which execution model 'max-load' does not count",
        ),
    ],
)
@pytest.mark.parametrize("command", ["place", "compare"])
def test_a_wrong_name(
    command: str, words: list[str], named: str, tmp_path: Path, cli: InProcess
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"large")
    (tmp_path / "pair.yaml").write_text(FILE)
    (tmp_path / "segments.yaml").write_text(SEGMENTS)
    if command == "compare" and words[0] == "--placer":
        words = ["--placers", *words[1:]]
    assert named in the_line(cli(command, "m.onnx", *words, "--quiet", cwd=tmp_path), 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["1"], "--pareto needs at least 2 searches, got 1"),
        (["3", "--objective", "throughput"], "objective throughput has no front"),
        (["3", "--evaluator", "measured"], "--pareto is of predicted values"),
        (["3"], "no energy of device 'cpu'"),
    ],
)
def test_a_front_that_cannot_be(
    words: list[str], told: str, tmp_path: Path, cli: InProcess
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"large")
    asked = ("compare", "m.onnx", "--devices", "cpu", "--pareto", *words, "--quick")
    assert told in the_line(cli(*asked, cwd=tmp_path), 2)


def test_a_language_model_that_is_not_there(tmp_path: Path, cli: InProcess) -> None:
    told = the_line(cli("place", "hf:nix", "--quiet", cwd=tmp_path), 2)
    assert "'hf:nix' does not exist; give a file, zoo:NAME, or hf:FOLDER" in told
    told = the_line(cli("place", "hf:", "--quiet", cwd=tmp_path), 2)
    assert "'hf:' names no file; give a file, zoo:NAME, or hf:FOLDER" in told
    told = the_line(cli("graph", "hf:nix", "--shape", "context=-1", cwd=tmp_path), 2)
    assert "with numbers >= 0, got 'context=-1'" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rtx4090,cpu"], "did you mean gpu-rtx-4090 or"),
        (["cpu:0"], "available: cpu-desktop, "),
        (["4090"], "available: gpu-k80, "),
        (["rtx-3060", "--memory", "gpu=1GiB"], "'gpu'; available: rtx-3060"),
        (["RTX-3060,CPU", "--memory", "x=1GiB"], "'x'; available: rtx-3060, cpu"),
        (["catalogue:rtx-3060,catalogue:cpu", "--memory", "x=1GiB"], "'x'; available: gpu, cpu"),
        (["rtx-3060", "--context", "10"], "do not fit into it"),
        (["rtx-3060", "--runtime", "openvino"], "no effect on a language model"),
    ],
)
def test_a_wrong_word_about_a_language_model(
    words: list[str], told: str, tmp_path: Path, cli: InProcess
) -> None:
    """Importing the reader's library takes seconds, so that what needs no model comes first."""
    (tmp_path / "config.json").write_text("{}")
    asked = ("place", f"hf:{tmp_path}", "--devices", *words, "--quiet")
    assert told in the_line(cli(*asked, cwd=tmp_path), 2)


def test_a_runtime_that_is_not_installed(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, *others: Any) -> Any:
        raise MissingExtraError(name, name, f"runtime '{name}'")

    monkeypatch.setattr("placewright.session.models.make_runtime", missing)
    (tmp_path / "m.onnx").write_bytes(b"large")
    line = the_line(cli("place", "m.onnx", "--runtime", "onnxruntime", cwd=tmp_path), 2)
    assert "pip install 'placewright[onnxruntime]'" in line


@pytest.mark.parametrize(
    ("placer", "package", "extra"),
    [
        ("metis", "pymetis", "partitioning"),
        ("scotch", "pyscotch", "partitioning"),
        ("mt-kahypar", "mtkahypar", "partitioning"),
        ("accelerate", "accelerate", "accelerate"),
        ("hsdag", "torch_geometric", "learned"),
    ],
)
def test_a_placer_whose_library_is_not_installed(
    placer: str,
    package: str,
    extra: str,
    tmp_path: Path,
    cli: InProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "m.onnx").write_bytes(b"large")
    line = the_line(cli("place", "m.onnx", "--placer", placer, cwd=tmp_path), 2)
    assert f"pip install 'placewright[{extra}]'" in line
