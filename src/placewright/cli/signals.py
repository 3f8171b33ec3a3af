"""Ctrl-C and SIGTERM, safe in every phase: one line, files as they were, a documented exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
_received: list[int] = []


@contextmanager
def handled() -> Iterator[None]:
    """Let both signals raise `KeyboardInterrupt` in this process, and be remembered.

    Where the exception is lost, as in a compiler's callback that turns every exception into its
    own, `received` still tells that the failure was the user's wish.
    """
    _received.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    home = os.getpid()

    def note(number: int, _: FrameType | None) -> None:
        if os.getpid() != home:  # a child of a fork has none of our files to care for
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        _received.append(number)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, note) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def received() -> int | None:
    """The exit code for the signal that came, None where none did."""
    if not _received:
        return None
    return EXIT_TERMINATED if signal.SIGTERM in _received else EXIT_INTERRUPTED


def leave(code: int) -> None:
    """After a time limit or a signal: end at once where a worker is stuck in a library.

    Libraries wait for their own threads when the interpreter ends, and one that never returns
    would make the end of the process wait for ever.
    """
    stuck = [one for one in threading.enumerate() if one.name.startswith("placewright ")]
    if not stuck:
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)
