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
_LARGEST = 2**31 - 1


def give_back_freed_memory() -> None:
    """Between plans: what one left free in small pieces would not fit the tensors of the next."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@cache
def keep_freed_memory() -> bool:
    """Once per process; False where the C library is not glibc and stays as it is."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # One arena for all threads: those of further threads cannot hold blocks beyond 64 MiB.
    settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _LARGEST))
    return all(mallopt(name, value) == 1 for name, value in settings)
