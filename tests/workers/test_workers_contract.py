"""All kinds of workers do alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from placewright.errors import FieldError, InputError
from placewright.testing.workers_contract import check_workers, process_number, wait_for_ever
from placewright.workers import processes
from placewright.workers.interface import Attempt, ThisProcess
from placewright.workers.processes import Processes, open_workers
from placewright.workers.ray_workers import RayWorkers
from placewright.workers.served import VARIABLES
from placewright.workers.tasks import (
    TRIES,
    Task,
    WorkerLost,
    difference,
    performed,
    result_of,
    versions_here,
)


def test_this_process(tmp_path: Path) -> None:
    with open_workers(None) as workers:
        assert isinstance(workers, ThisProcess)
        check_workers(workers, tmp_path)
        assert workers.results([Task(process_number)]) == [os.getpid()]


def test_a_path_that_is_no_text_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own search for modules ignores it, too."""
    monkeypatch.setattr(sys, "path", [Path("none"), *sys.path])
    with Processes(1) as workers:
        assert len(workers.results([Task(process_number)])) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_processes(count: int, tmp_path: Path) -> None:
    with Processes(count) as workers:
        check_workers(workers, tmp_path)
        pids = workers.results([Task(process_number)] * 2)
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("count", [0, -1])
def test_numbers_of_workers_below_one_are_refused(count: int) -> None:
    with pytest.raises(FieldError, match=f"expects a whole number >= 1, got {count}"):
        open_workers(count)


def test_leaving_the_block_ends_what_is_under_way() -> None:
    """Whoever stops to listen, or is interrupted, leaves nothing running."""
    before = set(_children())  # of other tests
    with Processes(2) as workers:
        for done in workers.run([Task(process_number), Task(wait_for_ever), Task(wait_for_ever)]):
            first = done.result
            break
        children = set(_children()) - before
        assert first in children
    assert not children & set(_children())


def test_a_task_that_no_new_process_lives_to_take_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that the socket holds as a whole was; for a larger one processes began for ever."""
    started: list[int] = []

    def program(handle: int, threads: int | None) -> str:
        started.append(handle)
        assert len(started) <= TRIES
        return "raise SystemExit(3)"

    monkeypatch.setattr(processes, "_program", program)
    with Processes(1) as workers, pytest.raises(WorkerLost, match=r"3 times, .* ended with 3$"):
        workers.results([Task(len, (bytes(4 << 20),))])
    assert len(started) == TRIES


def test_a_killed_process_may_have_met_a_full_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(processes, "_program", lambda handle, threads: killed)
    with Processes(1) as workers, pytest.raises(WorkerLost, match=r"ended with -9; .* no memory"):
        workers.results([Task(len, (bytes(4 << 20),))])


def test_a_task_that_stands_twice_in_a_list_has_two_results() -> None:
    twice = Task(process_number)
    with open_workers(None) as workers:
        assert workers.results([twice, Task(len, ("a",)), twice]) == [os.getpid(), 1, os.getpid()]


def test_threads_of_a_worker_are_said() -> None:
    """Whatever the environment of the driver says."""
    with Processes(1, threads=3) as workers:
        found = workers.results([Task(_threads)])[0]
    assert found == (3, ["3"] * len(VARIABLES))


def _threads() -> tuple[int | None, list[str]]:
    return os.cpu_count(), [os.environ[name] for name in VARIABLES]


def test_other_versions_are_refused_in_one_line() -> None:
    """Before the task is even read."""
    ours = versions_here()
    assert difference(ours, ours) == ""
    outcome = performed(b"no pickle", (), {**ours, "placewright": "9.9"})
    with pytest.raises(InputError, match=r"worker there: it has placewright .* has 9.9; install"):
        result_of(outcome, "there")
    assert "no numpy, of which" in difference(ours, {**ours, "numpy": ""})


SCRIPT = """
import os, signal, sys
from placewright.testing.workers_contract import process_number, wait_for_ever
from placewright.workers.processes import Processes
from placewright.workers.tasks import Task

with Processes(2) as workers:
    print(*workers.results([Task(process_number)]), flush=True)
    for done in workers.run([Task(process_number), Task(wait_for_ever)]):
        os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [9, 2])
def test_workers_end_with_the_driver(number: int, tmp_path: Path) -> None:
    """Killed or interrupted; its script needs no guard for the name of its module."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(path), str(number)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == -number
    pid = int(done.stdout)
    assert _ends(pid), "a worker is still there"


def _ends(pid: int) -> bool:
    """True when the process has ended; the system kills it soon after its driver, not with it."""
    import time

    for _ in range(600):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def _children() -> list[int]:
    """Processes that this one has started and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


class _Cluster:
    """A stand-in for Ray: its task ends between the first look and the second."""

    def __init__(self) -> None:
        self._looks = 0

    def wait(self, references: list[str], timeout: float) -> tuple[list[str], list[str]]:
        self._looks += 1
        return ([], references) if self._looks == 1 else (references, [])

    def cancel(self, reference: str, force: bool) -> None:
        pytest.fail(f"'{reference}' was cancelled")


def test_a_task_on_ray_that_ends_at_its_deadline_is_not_lost() -> None:
    workers = RayWorkers.__new__(RayWorkers)
    workers._ray = _Cluster()
    workers._busy = {"call": (Attempt(Task(process_number)), 0.0)}
    assert workers._wait() == []
    assert list(workers._busy) == ["call"]


def test_ray(ray_here: Any, tmp_path: Path) -> None:
    """On a cluster that is there; it stays when the workers are closed."""
    with RayWorkers() as workers:
        assert workers.count == 2
        check_workers(workers, tmp_path)
    with RayWorkers(count=1) as workers:
        assert workers.count == 1
        assert ray_here.is_initialized()
