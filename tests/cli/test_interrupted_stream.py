"""Ctrl-C while samples follow each other: one line, exit code 130, nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from own_order.models import WRITERS
from own_order.plans import split_plan
from support.warm import Warm

import placewright as pw

# Ctrl-C comes to the process while other samples are under way: at the fifth output of the named
# way, in the phase that compares outputs or in the one that measures.
INTERRUPTED = """
import os, signal
os.setsid()
import placewright.session.checking as checking
from placewright.cli import main
held, calls = checking.{function}, []
def interrupted(*arguments, **named):
    calls.append(1)
    if len(calls) == {call}:
        os.kill(os.getpid(), signal.SIGINT)
    return held(*arguments, **named)
checking.{function} = interrupted
main()
"""


@pytest.mark.parametrize(
    ("runtime", "function", "call", "samples"),
    [("onnxruntime", "sample_error", 5, 100_000), ("torch", "measure_streams", 1, 20)],
)
def test_ctrl_c_ends_a_long_stream(
    runtime: str, function: str, call: int, samples: int, tmp_path: Path
) -> None:
    file = "m.pt2" if runtime == "torch" else "m.onnx"
    WRITERS[file](tmp_path / file)
    pw.write_plan(tmp_path / "plan.json", split_plan(tmp_path / file, runtime))
    before = sorted(one.name for one in tmp_path.iterdir())
    program = INTERRUPTED.format(function=function, call=call)
    words = ["run", "plan.json", "--samples", str(samples), "--quiet"]
    process = Warm(program, words, tmp_path, os.environ)
    done = process.ended()
    assert (done.returncode, done.stdout) == (130, "")
    lines = [line for line in done.stderr.splitlines() if ": about " not in line]
    assert lines == ["placewright: interrupted"]
    assert sorted(one.name for one in tmp_path.iterdir()) == before
    assert processes_of_session(process.pid) == []


def processes_of_session(session: int) -> list[str]:
    """Numbers of the processes that a command has left."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session and int(entry.parent.name) != os.getpid():
            found.append(entry.parent.name)
    return found
