"""Interruptible calls of solvers, which run outside the interpreter for a long time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOKS_EVERY = 0.1  # seconds


def interruptible(
    work: Callable[[], T],
    *,
    stop: Callable[[], None] = lambda: None,
    is_over: Callable[[], bool] = lambda: False,
) -> T:
    """Run `work` in another thread, so that this thread handles signals meanwhile.

    Args:
        work: releases the interpreter lock for most of its time.
        stop: asks the work to end soon; called from this thread, again if Ctrl-C comes meanwhile.
        is_over: asked ten times a second whether the work should end soon.

    Returns:
        What the work returned.

    Raises:
        KeyboardInterrupt: Ctrl-C; the work is asked to stop and not waited for.
        Exception: what the work raised.
    """
    task = _Task(work)
    thread = threading.Thread(target=task.run, daemon=True)
    thread.start()
    asked = False
    try:
        while not task.done.wait(_LOOKS_EVERY):
            if not asked and is_over():
                stop()
                asked = True
    except KeyboardInterrupt:
        if not asked:
            stop()
        raise
    return task.result()


class _Task(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._values: list[T] = []
        self._error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        """Run the work and keep its result or error."""
        try:
            self._values.append(self._work())
        except BaseException as error:  # raised again in the thread that waits
            self._error = error
        finally:
            self.done.set()

    def result(self) -> T:
        """Return the result of the work, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._values[0]
