"""Runs a task in its own process, so that a crash or hang of a library ends only that."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from placewright.isolation.confined import end_with_parent

Row = TypeVar("Row")


def in_a_process(
    task: Callable[..., Iterable[Row]], arguments: tuple[Any, ...], seconds: float
) -> tuple[list[Row], str]:
    """The rows of a task, and the reason why it did not end; "" if it did.

    Args:
        task: a function of a module, called in the other process.
        arguments: of the task.
        seconds: limit of the task.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, task, arguments), daemon=True)
    began = time.monotonic()
    process.start()
    theirs.close()
    rows: list[Row] = []
    try:
        while ours.poll(max(0.0, began + seconds - time.monotonic())):
            row = ours.recv()
            if row is None:
                return rows, ""
            rows.append(row)
        return rows, f"it took more than {seconds:.0f} s"
    except EOFError:
        process.join()
        return rows, f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
        ours.close()


def _answer(
    answers: Connection, task: Callable[..., Iterable[Any]], arguments: tuple[Any, ...]
) -> None:
    end_with_parent()
    for row in task(*arguments):
        answers.send(row)
    answers.send(None)
