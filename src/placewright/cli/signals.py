"""Ctrl-C and SIGTERM, safe in every phase: one line, files as they were, a documented exit code.

While a command works, a signal raises an exception. Once the command ends (`state.is_ending`), the
first signal has no effect, and the second ends the process at once.

A signal that arrives during an import waits until the module is complete. An exception out of a
half-imported module would leave it incomplete, and a compiled module that calls Python meanwhile
may end the process: PyTorch aborts when its first import is interrupted.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from types import FrameType

EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


@dataclass
class _State:
    """Signals that arrived, and the phase of the command."""

    # the command is over. This is an attribute, not a function, because Python checks for signals
    # when a function is called, but not when an attribute is set: no signal arrives between
    # `except` and such a line at the beginning of its block
    is_ending: bool = False
    # numbers of the signals that raised an exception
    received: list[int] = field(default_factory=list)
    while_ending: int = 0  # number of signals that arrived later
    home: int = 0  # number of the process that the handlers belong to
    depth: int = 0  # `import_depth` of the frame that set the handlers


state = _State()


def handle() -> None:
    """Let both signals raise `KeyboardInterrupt` in this process, and remember them.

    A compiler's callback may replace the exception by its own; `received` still shows that a
    signal caused the failure.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    state.home = os.getpid()
    state.depth = import_depth(sys._getframe())
    sys.unraisablehook = _raise_later
    atexit.register(_ignore)  # registered first, so that it is called after those of libraries
    for number in _CODES:
        signal.signal(number, _note)


def _note(number: int, frame: FrameType | None) -> None:
    if os.getpid() != state.home:  # a forked child has no files to protect
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
    """Handle an exception that Python can only print, from a finalizer or a library's callback.

    A signal's exception would be lost there and the command would go on, so the signal is sent
    again after the finalizer.
    """
    is_signal = issubclass(lost.exc_type, KeyboardInterrupt) and state.received
    if is_signal and not state.is_ending and os.getpid() == state.home:
        send_again(state.received[-1])
        return
    sys.__unraisablehook__(lost)


def _ignore() -> None:
    """Ignore signals while Python ends, when they would change the exit code."""
    if os.getpid() == state.home:
        for number in _CODES:
            signal.signal(number, signal.SIG_IGN)


def forget() -> None:
    """Clear the mark of Python that would replace the exit code.

    Python remembers a `KeyboardInterrupt` that left `exec` or `eval`, and both data classes and
    named tuples use these. `python -m` then ends by SIGINT although the exception was caught.
    Every call of `eval` clears the mark.
    """
    eval("None")


def received() -> int | None:
    """The exit code for the signal that arrived, None if none did."""
    if not state.received:
        return None
    return EXIT_TERMINATED if signal.SIGTERM in state.received else EXIT_INTERRUPTED


def answer() -> None:
    """Take a signal as answered by the incumbent's plan; an error of later work is its own."""
    state.received.clear()


def word() -> str:
    """Name of the signal that arrived, as the printed line has it."""
    return "terminated" if received() == EXIT_TERMINATED else "interrupted"


def tell() -> None:
    """Print the line without any import, for a signal that arrived before the imports."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, full or missing
        sys.stderr.write(f"placewright: {word()}\n")


def leave(code: int) -> None:
    """End the process at once if a worker thread is stuck in a library.

    Libraries wait for their own threads when the interpreter ends, and a thread that never returns
    would keep the process alive.
    """
    stuck = [thread for thread in threading.enumerate() if thread.name.startswith("placewright ")]
    if not stuck:
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


_IMPORTLIB = "<frozen importlib._bootstrap"
_SECONDS = 0.02
_waiting: set[int] = set()


def import_depth(frame: FrameType | None) -> int:
    """Number of frames of Python's import system among a frame and its callers."""
    depth = 0
    while frame is not None:
        depth += frame.f_code.co_filename.startswith(_IMPORTLIB)
        frame = frame.f_back
    return depth


def waits_for_import(number: int, frame: FrameType | None, depth: int) -> bool:
    """True if an import is running; the signal is then sent again a little later.

    Args:
        frame: the frame that the signal interrupted.
        depth: `import_depth` of the frame that set the handler; a program that another program
            imports does not wait for the end of that import.
    """
    if import_depth(frame) <= depth:
        return False
    send_again(number)
    return True


def send_again(number: int) -> None:
    """Send a signal to this process a little later."""
    if number not in _waiting:
        _waiting.add(number)
        # Not `threading.Thread`: the main thread may hold its locks when the signal arrives.
        _thread.start_new_thread(_send_later, (number,))


def _send_later(number: int) -> None:
    time.sleep(_SECONDS)
    _waiting.discard(number)
    os.kill(os.getpid(), number)
