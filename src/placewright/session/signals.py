"""A search that is asked to end by the system ends like one that the user interrupts."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from placewright.io.signals_in_imports import import_depth, waits_for_import


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Within the block SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does.

    Where it comes in an import, it does so once the module is whole. Only the main thread may
    change what a signal does; in others nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    depth = import_depth(sys._getframe())

    def interrupt(number: int, frame: FrameType | None) -> None:
        if waits_for_import(number, frame, depth):
            return
        if callable(before):  # such as the command line's, which remembers what came
            before(number, frame)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


_ends_all: ContextVar[bool] = ContextVar("_ends_all", default=False)


@contextmanager
def interrupts_end_all() -> Iterator[None]:
    """Within the block searches are steps of something longer, which ends with one of them.

    `session.search.search` then raises `KeyboardInterrupt` instead of giving its incumbent.
    """
    token = _ends_all.set(True)
    try:
        yield
    finally:
        _ends_all.reset(token)


def must_end_all() -> bool:
    """Whether an interrupted search is no answer, because it is within `interrupts_end_all`."""
    return _ends_all.get()
