"""Worker processes that do not outlive the process that started them, however that one ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys


def end_with_parent(parent: int | None = None) -> None:
    """Let the system kill this process when its parent ends (Linux).

    A parent that is killed tells its workers nothing, and they would wait for work for ever.

    Args:
        parent: its number; None is the parent that `multiprocessing` knows.
    """
    if sys.platform != "linux":
        return
    from placewright.isolation.kernel_calls import PR_SET_PDEATHSIG, process_control

    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is None:
        known = multiprocessing.parent_process()
        parent = os.getppid() if known is None else known.pid
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)
