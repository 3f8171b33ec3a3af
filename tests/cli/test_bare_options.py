"""``--ray`` and ``--catalogue`` need no value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess

from placewright.cli.app import with_bare_options
from placewright.files.problem_file import write_problem
from placewright.testing.problems import random_problem


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("place m --ray", "place m --ray=auto"),
        ("place --ray m", "place --ray=auto m"),
        ("place --ray zoo:gnmt --seed 1", "place --ray=auto zoo:gnmt --seed 1"),
        ("place m --ray --seed 1", "place m --ray=auto --seed 1"),
        ("place m --ray head:6379", "place m --ray head:6379"),
        ("place m --ray ray://10.0.0.1:10001", "place m --ray ray://10.0.0.1:10001"),
        ("place m --ray local", "place m --ray local"),
        ("place m --ray=x", "place m --ray=x"),
        ("place -- --ray", "place -- --ray"),
        ("devices --catalogue", "devices --catalogue=*"),
        ("devices --catalogue --json", "devices --catalogue=* --json"),
        ("devices --catalogue rtx", "devices --catalogue rtx"),
        ("graph m --ops", "graph m --ops=*"),
        ("graph --ops zoo:gnmt", "graph --ops=* zoo:gnmt"),
        ("graph --ops hf:/", "graph --ops=* hf:/"),
        (f"graph m --ops {'relu;' * 90}", f"graph m --ops {'relu;' * 90}"),
    ],
)
def test_what_follows_is_a_value_where_it_looks_like_one(said: str, meant: str) -> None:
    assert with_bare_options(said.split()) == meant.split()


def test_wrong_workers_are_one_line(tmp_path: Path, cli: InProcess) -> None:
    """With the options' names; nothing is searched before."""
    write_problem(tmp_path / "p.json", random_problem(np.random.default_rng(0), n_ops=5))
    for words, text in (
        (("--workers", 0), "--workers expects a whole number >= 1, got 0"),
        (("--ray=nowhere",), "--ray expects HOST:PORT"),
        (("--placer", "heft", "--workers", 2), "--workers spreads the members of placer auto"),
        (("--workers", 2, "--evaluator", "measured"), "one placement is measured at a time"),
        (("--isolate", "--workers", 2), "--workers starts processes, which --isolate forbids"),
    ):
        done = cli("place", "p.json", *words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert text in done.stderr
        assert len(done.stderr.splitlines()) == 1
