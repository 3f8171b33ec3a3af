"""Ctrl-C and SIGTERM end a command with a line and exit code 130 or 143, wherever they come."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli.runner import InProcess
from support.warm import run_warm


def placing_ends_by(signal: str, program: str, folder: Path, seconds: float) -> None:
    """`place`, in a program that sends itself a signal, says so in one line and by its code."""
    (folder / "m.onnx").write_bytes(b"never read")
    result = run_warm(program, ["place", "m.onnx"], cwd=folder, timeout=seconds)
    code, word = (130, "interrupted") if signal == "SIGINT" else (143, "terminated")
    assert (result.returncode, result.stderr) == (code, f"placewright: {word}\n")


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
    placing_ends_by(name, LOST.format(signal=name, error=error), tmp_path, 600)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


# The signal comes inside a finalizer, whose exceptions Python prints and forgets.
IN_FINALIZER = """
import os, signal, time
import placewright.session.session as session
from placewright.cli import main
class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.{signal})
        for _ in range(1000):
            pass
def compiled(*arguments, **named):
    held = Held()
    del held
    time.sleep(60)
session.build = compiled
main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_in_a_finalizer_is_not_lost(name: str, tmp_path: Path) -> None:
    placing_ends_by(name, IN_FINALIZER.format(signal=name), tmp_path, 50)


# A device that died: the segment's thread never returns, and the process ends all the same.
STUCK = """
import threading
import placewright.session.running as running
from placewright.cli import main
from placewright.errors import RuntimeFailure, TimedOut
def execute(plan, model, **named):
    worker = threading.Thread(target=threading.Event().wait, name="placewright cpu:0")
    worker.start()
    raise {error}("segment 3 on 'cpu:0' [a, b] has not returned after 60 s")
running.execute = execute
running.check_devices = lambda problem, runtime: None  # the plan was made on another machine
main()
"""


@pytest.mark.parametrize("error", ["TimedOut", "RuntimeFailure"])  # also after another error
def test_a_stuck_segment_does_not_keep_the_process_alive(error: str, tmp_path: Path) -> None:
    for name in ("lost.json", "lost.problem.json", "branching.onnx"):
        shutil.copy(Path(__file__).parents[1] / "data" / "plans" / name, tmp_path)
    words = ["run", "lost.json", "--timeout", "1s", "--quiet"]
    result = run_warm(STUCK.format(error=error), words, cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("placewright: segment 3 on 'cpu:0' [a, b] has not returned")


def test_a_timeout_that_is_none(tmp_path: Path) -> None:
    from cli.runner import placewright, the_line

    plan = Path(__file__).parents[1] / "data" / "plans" / "lost.json"
    line = the_line(placewright("run", plan, "--timeout", "0s", cwd=tmp_path), 2)
    assert "--timeout needs seconds > 0, such as 60s, got '0s'" in line


# Python marks an interrupt that leaves a text in exec(), and `python -m` then ends by the signal.
IN_A_TEXT = """
import os, signal
import placewright.session.session as session
from placewright.cli import main
def built(*arguments, **named):
    exec("os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass")
session.build = built
main()
"""


def _as_module(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "m.onnx").write_bytes(b"never read")
    (folder / "started.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "started", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_an_interrupt_in_a_text_that_is_evaluated(tmp_path: Path) -> None:
    result = _as_module(tmp_path, IN_A_TEXT, "place", "m.onnx")
    assert (result.returncode, result.stderr) == (130, "placewright: interrupted\n")


# A second signal at one step of the end: when the line is written, when the command has returned,
# while Python waits for threads, among the functions that are called at the exit, and when its
# own objects are let go.
AT_THE_END = """
import atexit, os, signal, sys, threading
from placewright.cli import main
def send(*ignored):
    os.kill(os.getpid(), signal.{second})
def built(*arguments, **named):
    os.kill(os.getpid(), signal.{first})
    while True:
        pass
class Last:
    def __del__(self, send=send):
        send()
import placewright.cli.app as app
import placewright.session.session as session
session.build = built
step = "{step}"
if step == "telling":
    held = app.error_line
    app.error_line = lambda text: (send(), held(text))[1]
elif step == "exiting":
    held_exit = sys.exit
    sys.exit = lambda code: (send(), held_exit(code))[1]
elif step == "threads":
    threading._register_atexit(send)
elif step == "last function":
    atexit.register(send)
elif step == "objects":
    sys.kept = Last()
main()
"""


@pytest.mark.parametrize("step", ["telling", "exiting", "threads", "last function", "objects"])
@pytest.mark.parametrize(("first", "second"), [("SIGINT", "SIGTERM"), ("SIGTERM", "SIGINT")])
def test_a_second_signal_at_the_end(step: str, first: str, second: str, tmp_path: Path) -> None:
    placing_ends_by(first, AT_THE_END.format(step=step, first=first, second=second), tmp_path, 600)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_commands_are_imported(name: str, tmp_path: Path) -> None:
    text = (
        "import builtins, os, signal\n"
        "held = builtins.__import__\n"
        "def imported(name, *rest):\n"
        "    if name == 'typer':\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "    return held(name, *rest)\n"
        "from placewright.cli import main\n"
        "builtins.__import__ = imported\n"
        "main()\n"
    )
    result = _as_module(tmp_path, text, "place", "m.onnx")
    code, word = (130, "interrupted") if name == "SIGINT" else (143, "terminated")
    assert (result.returncode, result.stderr) == (code, f"placewright: {word}\n")


# A module that is half done when the signal comes: what imports it again would find it broken, and
# a compiled one may end the process.
IN_AN_IMPORT = """
import os, sys
import placewright.session.session as session
from placewright.cli import main
sys.path.insert(0, ".")
def built(*arguments, **named):
    import slow_module
    while True:
        pass
session.build = built
main()
"""
SLOW_MODULE = """
import os, signal, time
os.kill(os.getpid(), signal.{name})
time.sleep(0.2)
os.kill(os.getpid(), signal.{name})
time.sleep(0.2)
open("whole", "w").close()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_waits_for_the_end_of_an_import(name: str, tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE.format(name=name))
    result = _as_module(tmp_path, IN_AN_IMPORT, "place", "m.onnx")
    code, word = (130, "interrupted") if name == "SIGINT" else (143, "terminated")
    assert (result.returncode, result.stderr) == (code, f"placewright: {word}\n")
    assert (tmp_path / "whole").exists()


def test_a_program_that_is_itself_imported_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"never read")
    (tmp_path / "program.py").write_text(LOST.format(signal="SIGTERM", error="ValueError('x')"))
    result = subprocess.run(
        [sys.executable, "-c", "import program", "place", "m.onnx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (result.returncode, result.stderr) == (143, "placewright: terminated\n")


def test_commands_in_the_process_of_the_tests_leave_its_signals(
    cli: InProcess, tmp_path: Path
) -> None:
    """Their handlers ignore a signal once the command ended: a later test would wait for it."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers], sys.unraisablehook
    assert cli("graph", "none.onnx", cwd=tmp_path).returncode == 2
    assert ([signal.getsignal(number) for number in numbers], sys.unraisablehook) == before
