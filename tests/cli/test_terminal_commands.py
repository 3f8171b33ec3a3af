"""Every command that prints tables: within 80 columns, no control codes where there is no terminal.

A terminal gets its own width.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import onnx
import pytest
from cli.runner import InProcess
from support.branching_model import branching_model

from placewright.cli.inspect import _print_cluster
from placewright.cli.output import error_line
from placewright.core.cluster import Cluster, Device, Link

CORES = ("--devices", "cpu:0,cpu:1", "--evaluations", 20)
EDGES = "┃│━╇"
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if any(edge in line for edge in EDGES)]


def test_commands_print_plain_tables_of_80_columns(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    commands: list[tuple[object, ...]] = [
        ("place", "m.onnx", *CORES, "--quick", "--no-check"),
        ("simulate", "plan.json"),
        ("run", "plan.json", "--runs", 3),
        ("compare", "m.onnx", *CORES, "--quick", "--placers", "heft,local-search,random"),
        ("graph", "m.onnx"),
        ("profile", "m.onnx", "--devices", "cpu:0,cpu:1", "--quick"),
        ("diff", "plan.json", "plan.json"),
        ("devices", "--devices", "cpu:0,cpu:1"),
        ("placers",),
    ]
    for command in commands:
        done = cli(*command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
        assert "\x1b" not in done.stdout + done.stderr, command
        assert "\r" not in done.stdout + done.stderr, command
        lines = table_lines(done.stdout)
        if command[0] not in ("place", "run"):  # without a check, no table
            assert lines, command
        assert max(map(len, lines), default=0) <= 80, (command, lines)
    plan = json.loads((tmp_path / "plan.json").read_text())
    explained = cli("explain", "plan.json", next(iter(plan["placement"])), cwd=tmp_path)
    assert max(map(len, table_lines(explained.stdout))) <= 80


def test_a_link_without_a_bandwidth_has_no_limit(capsys: pytest.CaptureFixture[str]) -> None:
    links = (Link("a", "b", 2e-5, math.inf), Link("b", "a", 0.0, 1024.0**3))
    _print_cluster(Cluster((Device("a"), Device("b")), links), "Devices")
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert [row[2].strip() for row in rows] == ["no limit", "1.00 GiB/s"]


def test_the_verdict_comes_first_and_the_timeline_with_it(tmp_path: Path, cli: InProcess) -> None:
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    words = (*CORES, "--quick", "--no-check")
    placed = cli("place", "m.onnx", *words, cwd=tmp_path).stdout.splitlines()
    simulated = cli("simulate", "plan.json", cwd=tmp_path).stdout.splitlines()
    for lines in (placed, simulated):
        assert lines[0].startswith(("Split over", "Do not split"))
        assert lines[1].startswith("Next: ")
        assert any(line.startswith("critical path") for line in lines)
    compared = cli("compare", "m.onnx", *CORES, "--quick", "--placers", "heft,random", cwd=tmp_path)
    assert "the smallest value" in compared.stdout.splitlines()[0]


def on_a_terminal(folder: Path, columns: int, *words: str) -> str:
    """What a command writes to a terminal of that many columns, standard error included."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "placewright", *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=folder,
        env=dict(environment, TERM="xterm-256color"),
    )
    os.close(follower)
    parts = []
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # nobody holds the other end any more
            break
        if not part:
            break
        parts.append(part)
    os.close(leader)
    assert process.wait() == 0, b"".join(parts)
    return b"".join(parts).decode()


def test_a_terminal_gets_its_own_width(tmp_path: Path) -> None:
    text = on_a_terminal(tmp_path, 76, "placers")
    lines = table_lines(text.replace("\r", ""))
    assert "\x1b[" in text  # headings stand out
    plain = [line for line in lines if "\x1b" not in line]
    assert plain
    assert max(map(len, plain)) <= 76


def test_a_long_error_keeps_its_hint() -> None:
    hint = "the smallest change found: --memory gpu:1=50962432B, 28.60 MiB more (proven: none "
    hint += "fits below 36.58 MiB), or 2 more devices like 'gpu:0'"
    line = error_line(f"no placement is possible: {'a long proof, ' * 30}; {hint}")
    assert line.endswith(f" ... {hint}")
    assert line.startswith("placewright: no placement is possible: a long proof")
    assert len(line) <= 499


def test_a_line_of_a_few_facts_is_whole() -> None:
    """The name of a device was cut out of the middle of such a line."""
    names = " and ".join(f"'accelerator-{at}'" for at in range(8))
    message = (
        f"no placement is possible: the ops that only {names} may run keep 60.00 MiB in memory, "
    )
    message += (
        "and one of them needs 4.00 MiB more for its inputs and outputs; 'accelerator-3' is short"
    )
    assert error_line(message) == f"placewright: {message}"
    assert len(message) > 299
