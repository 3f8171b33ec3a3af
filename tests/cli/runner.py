"""Runs the command line in a process of its own, with a cache folder of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import typer.main
from support.warm import COMMAND, run_warm


def placewright(
    *arguments: object, cwd: Path, cache: Path | None = None, largest_file: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``placewright ARGUMENTS``.

    Args:
        arguments: of the command.
        cwd: the folder that it runs in.
        cache: the user's cache folder, where another than this user's.
        largest_file: bytes; no file can grow beyond, as on a disk that is full.
    """
    words = [str(argument) for argument in arguments]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if cache is not None:
        environment["XDG_CACHE_HOME"] = str(cache)
    program = COMMAND
    if largest_file is not None:
        limits = (largest_file, largest_file)
        program = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, {limits})\n{COMMAND}"
    return run_warm(program, words, cwd=cwd, environment=environment)


def the_line(result: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line of an error, after checking that it is one and no traceback.

    Before it, a command may have said what is ahead, in which precision devices compute, what
    evaluations do not limit, and, where kernels are compiled, how far it is.
    """
    assert result.returncode == code, (result.stdout, result.stderr)
    assert result.stdout == ""
    written = result.stderr.splitlines(keepends=True)
    ahead = re.compile(r": about |: products run in |^\w+: \d+%, |: auto: ")
    lines = [line for line in written if ahead.search(line) is None]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


@contextmanager
def signals_as_before() -> Iterator[None]:
    """Undo what a command does to the signals of its process, which it expects to end with it.

    After a command, its handlers ignore the first signal and end the process at the second one.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)


_command = cache(typer.main.get_command)  # building all options takes longer than most commands


class InProcess:
    """Runs commands in this process, which saves the start of one for each."""

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capture, self._patch = capture, patch

    def __call__(self, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run ``placewright ARGUMENTS`` in the folder `cwd`."""
        from placewright.cli import app, main

        app.app.registered_commands.clear()
        app.app.registered_groups.clear()
        words = [str(argument) for argument in arguments]
        self._capture.readouterr()
        with signals_as_before(), self._patch.context() as patch:
            patch.chdir(cwd)
            patch.setattr(sys, "argv", ["placewright", *words])
            patch.setattr(typer.main, "get_command", _command)
            patch.setattr(app, "leave", lambda code: None)  # a worker of a test ends no other test
            with pytest.raises(SystemExit) as ended:
                main()
        out, err = self._capture.readouterr()
        code = ended.value.code if isinstance(ended.value.code, int) else 0
        return subprocess.CompletedProcess(words, code, out, err)


class Benchmark:
    """Runs ``python -m benchmarks.NAME`` in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capture, self._patch = capture, patch

    def __call__(
        self, name: str, *arguments: object, cwd: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m benchmarks.NAME ARGUMENTS`` in the folder `cwd`."""
        from benchmarks.command import run

        command = getattr(import_module(f"benchmarks.{name}"), name)
        words = [str(argument) for argument in arguments]
        self._capture.readouterr()
        with signals_as_before(), self._patch.context() as patch:
            patch.chdir(cwd)
            patch.setattr(sys, "argv", [name, *words])
            with pytest.raises(SystemExit) as ended:
                run(command)
        out, err = self._capture.readouterr()
        code = ended.value.code if isinstance(ended.value.code, int) else 0
        return subprocess.CompletedProcess(words, code, out, err)
