"""Worker processes that do not outlive the process that started them, however that one ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys


def end_with_parent() -> None:
    """Let the system kill this process of `multiprocessing` when its parent ends (Linux).

    A parent that is killed tells its workers nothing, and they would wait for work for ever.
    """
    if sys.platform != "linux":
        return
    from placewright.isolation.kernel_calls import PR_SET_PDEATHSIG, process_control

    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it has ended meanwhile
        os._exit(1)
