"""The C library's allocator, told to keep freed memory for the next tensor.

By default it gives large blocks back to the system at once; every step then takes fresh pages,
which the system must clear: tens of times what an element-wise op itself takes, and different from
run to run. Accelerators' allocators keep freed blocks, too.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

# From <malloc.h> of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST, _NEVER = 2**31 - 1, -1


@cache
def share_one_arena() -> bool:
    """All threads allocate from one arena: others give blocks beyond 64 MiB back at once.

    Before the first thread, once per process: a thread that starts later takes over the arena of
    one that has ended, whatever the limit is by then.

    Returns:
        False where the C library is not glibc and stays as it is.
    """
    return platform.libc_ver()[0] == "glibc" and _set(_ARENA_MAX, 1)


@cache
def keep_freed_memory() -> bool:
    """Once per process; False where the C library is not glibc and stays as it is."""
    if not share_one_arena():
        return False
    return _set(_MMAP_THRESHOLD, _LARGEST) and _set(_TRIM_THRESHOLD, _NEVER)


def _set(name: int, value: int) -> bool:
    return bool(ctypes.CDLL(None).mallopt(name, value) == 1)
