"""Ctrl-C and SIGTERM end a command with a line and exit code 130 or 143, wherever they come."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# The signal comes inside a callback that makes another exception of every exception, as compilers
# have them, or swallows it and fails later.
LOST = """
import os, signal
import placewright.session.session as session
from placewright.cli import main
def compiled(*arguments, **named):
    try:
        os.kill(os.getpid(), signal.{signal})
        while True:
            pass
    except BaseException as error:
        raise {error} from error
session.build = compiled
main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    "error", ["SystemError('a result with an exception set')", "ValueError('x')", "error"]
)
def test_a_signal_that_became_another_exception(name: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"never read")
    result = subprocess.run(
        [sys.executable, "-c", LOST.format(signal=name, error=error), "place", "m.onnx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    code, word = (130, "interrupted") if name == "SIGINT" else (143, "terminated")
    assert (result.returncode, result.stderr) == (code, f"placewright: {word}\n")
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


# A device that died: the segment's thread never returns, and the process ends all the same.
STUCK = """
import threading
import placewright.session.running as running
from placewright.cli import main
from placewright.errors import TimedOut
def execute(plan, model, **named):
    worker = threading.Thread(target=threading.Event().wait, name="placewright cpu:0")
    worker.start()
    raise TimedOut("segment 3 on 'cpu:0' [a, b] has not returned after 60 s")
running.execute = execute
main()
"""


def test_a_stuck_segment_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    for name in ("lost.json", "lost.problem.json", "branching.onnx"):
        shutil.copy(Path(__file__).parents[1] / "data" / "plans" / name, tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", STUCK, "run", "lost.json", "--timeout", "1s", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("placewright: segment 3 on 'cpu:0' [a, b] has not returned")


def test_a_timeout_that_is_none(tmp_path: Path) -> None:
    from cli.runner import placewright, the_line

    plan = Path(__file__).parents[1] / "data" / "plans" / "lost.json"
    line = the_line(placewright("run", plan, "--timeout", "0s", cwd=tmp_path), 2)
    assert "--timeout must be above 0 s" in line
