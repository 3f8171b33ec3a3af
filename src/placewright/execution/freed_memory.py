"""Memory that was freed, given back to the system."""

from __future__ import annotations

import ctypes
import platform


def give_back_freed_memory() -> None:
    """After work that took much: what the C library's allocator keeps free leaves the process.

    glibc gives back the end of its heap alone, and only beyond a threshold that grows to 64 MiB
    with the blocks that were freed; how much stays then depends on which small block lies last.
    Elsewhere nothing is done.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
