"""Settings of the C library's allocator: freed memory stays with the process, or leaves it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PINNED = """
import ctypes
from benchmarks.resident import resident
from placewright.execution.allocator import give_back_freed_memory

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
# A thread that has ended leaves its arena to the next one; blocks are larger than an arena's heap.
SCRIPT = """
import resource, threading
{first}
import numpy as np

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def allocate():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.empty(100_000_000, dtype=np.uint8).fill(1)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(faults)

from placewright.execution.allocator import keep_freed_memory
in_thread(lambda: np.empty(10_000).fill(1))
keep_freed_memory()
in_thread(allocate)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_what_lies_below_a_block_in_use_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PINNED], capture_output=True, text=True, check=True
    )
    kept, left = map(float, done.stdout.split())
    assert kept > 0.9
    assert left < 0.1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc's allocator")
def test_the_second_block_takes_no_new_pages() -> None:
    """As the command line does it: one arena before the first thread starts."""
    allocator = "placewright.execution.allocator"
    first = f"from {allocator} import share_one_arena; share_one_arena()"
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(first=first)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert int(ran.stdout) < 100
