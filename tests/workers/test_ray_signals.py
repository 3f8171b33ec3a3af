"""A signal while work is under way on Ray ends the command, and all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROBLEM = Path(__file__).parents[1] / "data" / "plans" / "pinned.problem.json"
COMMAND = [
    "compare", str(PROBLEM), "--placers", "random", "--evaluations", "1000000000", "--ray", "local",
]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "code", "what"),
    [  # each starts a cluster; one of them stands for all that is tried with every change
        pytest.param(signal.SIGTERM, 143, "Agent", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, "perform", marks=pytest.mark.slow),
        (signal.SIGINT, 130, "perform"),
    ],
)
def test_a_signal_ends_work_on_ray(
    number: signal.Signals, code: int, what: str, tmp_path: Path
) -> None:
    """While the cluster starts (its agents are there), and while a task is done."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    process = subprocess.Popen(
        [sys.executable, "-m", "placewright", *COMMAND],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120.0
        while not at_work(process.pid, what) and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.2)
        os.kill(process.pid, number)
        told = process.communicate(timeout=60.0)[1]
    finally:
        process.kill()
    assert process.returncode == code, told
    assert "SIGSEGV" not in told
    deadline = time.monotonic() + 30.0
    while left(process.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left(process.pid) == []


def at_work(session: int, what: str) -> bool:
    """Whether a process of Ray has this in its name."""
    return any("ray::" in words and what in words for words in of_session(session))


def left(session: int) -> list[str]:
    """What goes on; Ray's agents see within a minute or two that their node has ended."""
    return [words for words in of_session(session) if "Agent" not in words]


def of_session(session: int) -> list[str]:
    """Commands of the living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                words = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(words)
    return found
