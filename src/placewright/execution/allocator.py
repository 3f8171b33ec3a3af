"""Settings of the C library's allocator: keep freed memory for the next tensor, or give it back.

By default glibc gives large blocks back to the system at once. Every step then takes fresh pages,
which the system must clear: tens of times what an element-wise op itself takes, and different from
run to run. Accelerators' allocators keep freed blocks, too. Nothing is done for other C libraries.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

# From <malloc.h> of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST, _LARGEST_OF_OLD, _NEVER = 2**31 - 1, 32 * 2**20, -1


def give_back_freed_memory() -> None:
    """Return all free memory to the system, after work that took much.

    By itself glibc gives back only the end of its heap, and only beyond a threshold that grows to
    64 MiB with the blocks that were freed: how much stays depends on which small block lies last.
    """
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


@cache
def share_one_arena() -> bool:
    """Let all threads use the main arena: other arenas return blocks beyond 64 MiB at once.

    Call it before the first thread starts: a later thread takes over the arena of a thread that has
    ended, whatever the limit is by then.

    Returns:
        False if the C library is not glibc, or refuses the setting.
    """
    return _is_glibc() and _set(_ARENA_MAX, 1)


@cache
def keep_freed_memory() -> bool:
    """Keep freed blocks of less than 2 GiB in this process, or of 32 MiB with an old glibc.

    Returns:
        False if the C library is not glibc, or refuses a setting.
    """
    if not share_one_arena():
        return False
    sizes = (_LARGEST, _LARGEST_OF_OLD)
    is_kept = any(_set(_MMAP_THRESHOLD, size) for size in sizes)
    return _set(_TRIM_THRESHOLD, _NEVER) and is_kept


def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _set(name: int, value: int) -> bool:
    return bool(ctypes.CDLL(None).mallopt(name, value) == 1)
