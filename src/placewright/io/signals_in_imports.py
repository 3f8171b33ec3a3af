"""Signals that come while a module is imported wait until it is whole.

An exception out of a module's beginning leaves half a module, and a compiled one that calls Python
meanwhile may end the process: PyTorch aborts when its first import is interrupted.
"""

from __future__ import annotations

import _thread
import os
import time
from types import FrameType

_IMPORTLIB = "<frozen importlib._bootstrap"
_SECONDS = 0.02
_waiting: set[int] = set()


def import_depth(frame: FrameType | None) -> int:
    """How many frames of Python's import system are among a frame and its callers."""
    depth = 0
    while frame is not None:
        depth += frame.f_code.co_filename.startswith(_IMPORTLIB)
        frame = frame.f_back
    return depth


def waits_for_import(number: int, frame: FrameType | None, depth: int) -> bool:
    """Whether a signal's handler must do nothing; the signal is then sent again a little later.

    Args:
        number: of the signal.
        frame: that it came in.
        depth: `import_depth` where the handler was set; a program that is itself imported by
            another does not wait for the end of that import.
    """
    if import_depth(frame) <= depth:
        return False
    send_again(number)
    return True


def send_again(number: int) -> None:
    """Send a signal to this process a little later."""
    if number not in _waiting:
        _waiting.add(number)
        # No `threading.Thread`: the signal may have come while the main thread holds its locks.
        _thread.start_new_thread(_send_later, (number,))


def _send_later(number: int) -> None:
    time.sleep(_SECONDS)
    _waiting.discard(number)
    os.kill(os.getpid(), number)
