"""Options that a command would ignore, and files that it cannot write, are refused first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess, the_line

from placewright.files.problem_file import write_problem
from placewright.testing.problems import random_problem


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("simulate plan.json --samples 3 --trace t.json", "--trace applies to a single sample"),
        ("run plan.json --samples 20 --runs 3", "--runs applies to single runs"),
        ("run plan.json --seconds 2 --boundaries", "--boundaries applies to single runs"),
        ("run plan.json --seconds 2 --report r.html", "--report applies to single runs"),
        ("run plan.json --in-flight 2", "--in-flight applies to streams"),
        ("run plan.json --engine llama.cpp --in-flight 2", "--in-flight means nothing with"),
        ("run plan.json --engine llama.cpp --latency-limit 1s", "--latency-limit means nothing"),
        ("profile m.onnx --threads 2", "--threads is of an engine; give --engine llama.cpp, too"),
        ("profile m.gguf --engine llama.cpp --devices cpu:0", "--devices means nothing with"),
        ("profile m.gguf --engine llama.cpp --quick", "--quick means nothing with --engine"),
        ("run plan.json --engine llama.cpp --isolate", "--engine starts programs, which --isolate"),
        ("profile m.gguf --engine llama.cpp --isolate", "--isolate forbids; leave out one"),
        ("devices --catalogue rtx --devices cpu:0", "leave out --devices"),
        ("devices --catalogue --cluster c.yaml", "leave out --cluster"),
        ("place m.onnx --optimizer adam", "--optimizer is of a training step"),
        ("place m.onnx --dropout --objective throughput", "--dropout is of a training step"),
        ("place p.json --shape x=1,2", "--shape says how a model is read, but 'p.json' carries"),
        ("compare p.json --state a=b", "--state says how a model is read"),
        ("place p.json --objective training", "training: 'p.json' carries a problem of latency"),
    ],
)
def test_an_option_without_effect(words: str, told: str, tmp_path: Path, cli: InProcess) -> None:
    write_problem(tmp_path / "p.json", random_problem(np.random.default_rng(0), n_ops=5))
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "m.onnx").write_bytes(b"nobody reads it")
    assert told in the_line(cli(*words.split(), cwd=tmp_path), 2)


@pytest.mark.parametrize(
    "words",
    [
        "place m --report none/p.html",
        "advise m --report none/a.html",
        "compare m -o none/c.json",
        "compare m --report none/c.html",
        "profile m -o none/p.json",
        "graph m -o none/g.json",
        "devices -o none/c.yaml",
        "run plan.json --trace none/t.json",
        "run plan.json --report none/r.html",
        "simulate plan.json --trace none/t.json",
        "report plan.json -o none/r.html",
        "export plan.json --to device-map -o none/m.json",
        "bench suite --results none/s.json",
        "bench --report none/b.html suite",
    ],
)
def test_a_folder_that_is_not_there(words: str, tmp_path: Path, cli: InProcess) -> None:
    """Before what may take minutes."""
    told = the_line(cli(*words.split(), cwd=tmp_path), 2)
    assert "folder 'none' of " in told
    assert "does not exist; make it first" in told


def test_a_folder_that_lets_nobody_write(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *words: False)
    told = the_line(cli("place", "m", "--report", "p.html", cwd=tmp_path), 2)
    assert "'plan.json' cannot be written: its folder lets you write no files" in told


def test_a_report_of_benchmarks_is_a_page(tmp_path: Path, cli: InProcess) -> None:
    """It is written at the end, and would replace the rows of `--results`."""
    rows = tmp_path / "rows.json"
    rows.write_text("[]")
    words = ("bench", "--report", "rows.json", "suite", "--results", "rows.json")
    assert "a name that ends in .html" in the_line(cli(*words, cwd=tmp_path), 2)
    assert rows.read_text() == "[]"
    words = ("bench", "--report", "page.html", "suite", "--results", "page.html")
    done = cli(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "--results is a JSON file, got 'page.html'" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_dash_is_no_file(tmp_path: Path, cli: InProcess) -> None:
    assert "'-' names no file" in the_line(cli("place", "m.onnx", "-o", "-", cwd=tmp_path), 2)
    assert list(tmp_path.iterdir()) == []
