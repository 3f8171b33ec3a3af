"""Ctrl-C and SIGTERM, safe in every phase: one line, files as they were, a documented exit code.

A signal is an exception while a command works (within an import, once the module is whole). Once
its end has begun (`state.is_ending`), the first one changes nothing more, and a second one ends the
process at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from types import FrameType

from placewright.io.signals_in_imports import import_depth, send_again, waits_for_import

EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


@dataclass
class _State:
    """What has come.

    Attributes:
        is_ending: the command is over. It is an attribute, not a function, because Python looks for
            signals when a function is called, but not when an attribute is set: nothing comes
            between a clause that catches an exception and such a line at its beginning.
        received: numbers of the signals that were exceptions.
        while_ending: how many came later.
        home: the process that the handlers are for.
        depth: `import_depth` where the handlers were set.
    """

    is_ending: bool = False
    received: list[int] = field(default_factory=list)
    while_ending: int = 0
    home: int = 0
    depth: int = 0


state = _State()


def handle() -> None:
    """Let both signals raise `KeyboardInterrupt` in this process, and be remembered.

    Where the exception is lost, as in a compiler's callback that turns every exception into its
    own, `received` still tells that the failure was the user's wish.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    state.home = os.getpid()
    state.depth = import_depth(sys._getframe())
    sys.unraisablehook = _raise_later
    atexit.register(_ignore)  # before any library's: it is called after theirs
    for number in _CODES:
        signal.signal(number, _note)


def _note(number: int, frame: FrameType | None) -> None:
    if os.getpid() != state.home:  # a child of a fork has none of our files to care for
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    if state.is_ending:
        state.while_ending += 1
        if state.while_ending > 1:
            os._exit(_CODES[signal.Signals(number)])
        return
    if waits_for_import(number, frame, state.depth):
        return
    state.received.append(number)
    raise KeyboardInterrupt


def _raise_later(lost: sys.UnraisableHookArgs) -> None:
    """An exception that Python can only print: one in a finalizer or a library's callback.

    A signal's exception would be lost there, and the command would go on; so the signal comes
    again, when the finalizer is over.
    """
    is_signal = issubclass(lost.exc_type, KeyboardInterrupt) and state.received
    if is_signal and not state.is_ending and os.getpid() == state.home:
        send_again(state.received[-1])
        return
    sys.__unraisablehook__(lost)


def _ignore() -> None:
    """Python resets its handlers before it is gone; a signal would then be the exit code."""
    if os.getpid() == state.home:
        for number in _CODES:
            signal.signal(number, signal.SIG_IGN)


def forget() -> None:
    """Let the exit code be the one that is asked for, whatever was interrupted.

    Python remembers a `KeyboardInterrupt` that left a text in `exec` or `eval`, and both data
    classes and named tuples are made by these. `python -m` then ends by SIGINT, though the
    exception was caught. Each text that is evaluated clears the mark.
    """
    eval("None")


def received() -> int | None:
    """The exit code for the signal that came, None where none did."""
    if not state.received:
        return None
    return EXIT_TERMINATED if signal.SIGTERM in state.received else EXIT_INTERRUPTED


def word() -> str:
    """What the line says after the signal that came."""
    return "terminated" if received() == EXIT_TERMINATED else "interrupted"


def tell() -> None:
    """Write the line where nothing that writes lines has been imported."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, full or none at all
        sys.stderr.write(f"placewright: {word()}\n")


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
