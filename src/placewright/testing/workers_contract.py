"""The contract of workers: this process, processes of this machine, a Ray cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, frozen_floats
from placewright.errors import InfeasibleError, PlacewrightError, UnknownNameError
from placewright.workers.interface import Workers
from placewright.workers.tasks import Shared, Task, WorkerLost


def check_workers(workers: Workers, folder: Path) -> None:
    """Check all promises of any kind of workers.

    Args:
        workers: open ones.
        folder: an empty one, which the workers can write to.

    Raises:
        AssertionError: a promise is broken.
    """
    squares = workers.results(Task(square, (number,)) for number in range(9))
    assert squares == [number * number for number in range(9)]
    values = Shared(frozen_floats([1.0, 2.0, 4.0]))
    sums = workers.results(Task(scaled_sum, (factor,), values) for factor in (1.0, 3.0))
    assert sums == [(7.0, False), (21.0, False)], sums
    assert list(workers.run(())) == []
    _check_that_tasks_are_taken_when_there_is_room(workers)
    _check_errors(workers)
    if workers.count > 1 or workers.name != "this process":
        _check_losses(workers, folder)
    assert workers.results([Task(square, (3,))]) == [9]  # they go on after all that


def _check_that_tasks_are_taken_when_there_is_room(workers: Workers) -> None:
    """A task can depend on those that have ended."""
    total, given = 0, 0

    def coming() -> Iterator[Task]:
        nonlocal given
        while total < 60:
            given += 1
            yield Task(square, (given,))

    for done in workers.run(coming()):
        total += done.result
    # 1 + 4 + 9 + 16 + 25 = 55, so that the sixth ends it; others were under way meanwhile.
    assert 6 <= given < 6 + 2 * workers.count, given


def _check_errors(workers: Workers) -> None:
    for kind in (UnknownNameError, InfeasibleError):
        text = _error_of(workers, PlacewrightError, Task(refuse, (kind.__name__,)))
        assert "no such thing" in text
        assert "\n" not in text
    text = _error_of(workers, (RuntimeError, ZeroDivisionError), Task(fail))
    assert "division by zero" in text


def _error_of(
    workers: Workers, kinds: type[Exception] | tuple[type[Exception], ...], task: Task
) -> str:
    """The message of the error that a task raises."""
    try:
        workers.results([task, Task(square, (2,))])
    except kinds as error:
        return str(error)
    raise AssertionError(f"nothing was raised for {task.function.__name__}")


def _check_losses(workers: Workers, folder: Path) -> None:
    """Check that a killed worker costs its task a second try, and no more."""
    tasks = [Task(die_once, (str(folder / f"task{at}"), at)) for at in range(2)]
    assert workers.results(tasks) == [0, 1]
    assert sorted(path.name for path in folder.iterdir()) == ["task0", "task1"]
    lost = Task(die, label="a task that kills", tries=1, may_be_lost=True)
    assert [bool(done.lost) for done in workers.run([lost])] == [True]
    killing = Task(die, label="a task that kills", tries=1)
    assert "'a task that kills' was lost once" in _error_of(workers, WorkerLost, killing)
    slow = Task(wait_for_ever, seconds=0.5, tries=1, may_be_lost=True)
    assert [done.lost for done in workers.run([slow])] == ["it took more than 0.5 s"]
    pids = workers.results(Task(process_number, alone=True) for _ in range(2))
    assert len({*pids, os.getpid()}) == 3, pids


def square(number: int) -> int:
    """A task that squares a number."""
    return number * number


def scaled_sum(values: FloatArray, factor: float) -> tuple[float, bool]:
    """A task with a shared value: a sum, and whether the array can be written."""
    return float(np.sum(values) * factor), bool(values.flags.writeable)


def refuse(name: str) -> Any:
    """A task that raises an error on purpose."""
    if name == "UnknownNameError":
        raise UnknownNameError("placer", "no such thing", ["single"])
    raise InfeasibleError("no such thing")


def fail() -> float:
    """A task that divides by zero."""
    return 1 / len([])


def die_once(path: str, value: int) -> int:
    """A task that kills its worker if the file is missing, which it makes first."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return value
    die()
    return -1


def die() -> None:
    """A task that kills its worker."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever() -> None:
    """A task that never ends."""
    while True:
        signal.pause()


def process_number() -> int:
    """A task that returns the number of its process."""
    return os.getpid()
