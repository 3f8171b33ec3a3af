"""Kernels are compiled once, whoever needs them; a cache that cannot be written to is a warning."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from placewright.simulation import compiled

KERNELS = """
import os, sys
from pathlib import Path
import numba
from numba.core import event
from placewright.simulation import compiled
from placewright.simulation.compiled import keep_kernels, use_folder

compiled._LONG = float("inf")  # no line about time, which depends on the machine
use_folder(Path(sys.argv[1]))
numba.config.CACHE_DIR = sys.argv[1]

class Counter(event.Listener):
    def on_start(self, started):
        handle = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, started.data["dispatcher"].py_func.__name__.encode() + b"\\n")
        os.close(handle)

    def on_end(self, ended):
        pass

event.register("numba:compile", Counter())

def kept(function):
    made = numba.njit(function)
    keep_kernels(made)
    return made

@kept
def inner(x):
    return x * 2 + 1

@kept
def outer(n):
    total = 0
    for i in range(n):
        total += inner(i)
    return total

@kept
def other(x):
    return outer(x) - inner(x)

print(other(10), outer(5), other(2.0 if len(sys.argv) > 3 else 3))
"""


def started(folder: Path, cache: Path, log: Path, **options: object) -> subprocess.Popen[str]:
    script = folder / "kernels.py"
    if not script.exists():
        script.write_text(KERNELS)
    return subprocess.Popen(
        [sys.executable, str(script), str(cache), str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def ended(process: subprocess.Popen[str]) -> str:
    out, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    assert out == "79 25 2\n"  # 10 * 10 - 21, 5 * 5, 3 * 3 - 7
    return told


def test_processes_at_once_compile_each_kernel_once(tmp_path: Path) -> None:
    log = tmp_path / "compiled"
    four = [started(tmp_path, tmp_path / "cache", log) for _ in range(4)]
    assert [ended(process) for process in four] == [""] * 4
    assert sorted(log.read_text().split()) == ["inner", "other", "outer"]


def test_a_cache_that_is_full_or_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    for cache, options in (
        (tmp_path / "full", {"preexec_fn": no_room}),
        (tmp_path / "file" / "below", {}),
    ):
        told = ended(started(tmp_path, cache, Path(os.devnull), **options))
        assert len(told.splitlines()) == 1, told
        assert "and compiled kernels are lost" in told


def test_a_cache_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    """Nothing is compiled where the kernels are, though the folder is not this user's."""
    cache, log = tmp_path / "cache", tmp_path / "compiled"
    ended(started(tmp_path, cache, log))
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    log.unlink()

    def nothing_is_written() -> None:  # for the superuser, whom permissions do not bind
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    assert ended(started(tmp_path, cache, log, preexec_fn=nothing_is_written)) == ""
    assert not log.exists()
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o755)


def test_a_killed_compilation_leaves_nothing_and_holds_nobody(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = started(tmp_path, cache, tmp_path / "compiled")
    while not list(cache.rglob("*.lock")):
        time.sleep(0.01)
    first.kill()
    first.communicate()
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    name = next(path.name for path in folder.glob("*.lock")).removesuffix(".lock")
    left = folder / f"{name}.1.nbc.tmp.0123456789abcdef"
    left.write_bytes(b"half")
    ended(started(tmp_path, cache, tmp_path / "compiled"))
    assert not left.exists()


def test_old_versions_are_removed_but_two_and_those_in_use(tmp_path: Path) -> None:
    names = [f"{room}{number:016x}" for room in ("", "placers-") for number in range(5)]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "in-use").touch()
        os.utime(tmp_path / name / "in-use", (number * 100.0, number * 100.0))
    (tmp_path / "mine").mkdir()
    with (tmp_path / names[0] / "in-use").open() as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        compiled.remove_old_versions(tmp_path)
    kept = {names[0], *names[3:5], *names[8:10], "mine"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_new_version_clears_up(tmp_path: Path) -> None:
    compiled.use_folder.cache_clear()
    for number in range(4):
        compiled.use_folder(tmp_path / f"simulation-{number:016x}")
    assert len(list(tmp_path.iterdir())) == 4  # this process uses them all


def test_one_line_says_that_kernels_are_compiled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever needs them: the first search of a placer alone was silent for minutes."""
    monkeypatch.setattr(compiled, "_spent", [0.0])
    compiled._count(1.5)
    assert caplog.records == []
    compiled._count(1.5)
    compiled._count(1.5)
    compiled.tell_compiling(40.0)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "compiling kernels"
    ]
