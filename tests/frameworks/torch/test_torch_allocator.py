"""Freed memory stays with the process, whichever thread frees it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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

from placewright.frameworks.torch.running.allocator import keep_freed_memory
in_thread(lambda: np.empty(10_000).fill(1))
keep_freed_memory()
in_thread(allocate)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc's allocator")
def test_the_second_block_takes_no_new_pages() -> None:
    """As the command line does it: one arena before the first thread starts."""
    allocator = "placewright.frameworks.torch.running.allocator"
    first = f"from {allocator} import share_one_arena; share_one_arena()"
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(first=first)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert int(ran.stdout) < 100
