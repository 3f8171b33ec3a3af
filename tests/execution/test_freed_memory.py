"""Freed memory leaves the process, however the heap's last block lies."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PINNED = """
import ctypes
from benchmarks.resident import resident
from placewright.execution.freed_memory import give_back_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
size, count = 60_000, 1_500  # below the size from which blocks get mappings of their own
resident()
before = resident().bytes
blocks = [libc.malloc(size) for _ in range(count)]
for block in blocks:
    ctypes.memset(block, 1, size)
for block in blocks[:-1]:  # the last one lies at the heap's end
    libc.free(block)
kept = resident().bytes - before
give_back_freed_memory()
print(kept / (size * count), (resident().bytes - before) / (size * count))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_what_lies_below_a_block_in_use_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PINNED], capture_output=True, text=True, check=True
    )
    kept, left = map(float, done.stdout.split())
    assert kept > 0.9
    assert left < 0.1
