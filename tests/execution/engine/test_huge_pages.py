"""Programs of an engine ask for huge pages."""

from __future__ import annotations

import subprocess
import sys

from placewright.execution.engine.programs import with_huge_pages


def test_servers_ask_the_c_library_for_huge_pages_unless_the_user_said_how() -> None:
    asked = "glibc.malloc.hugetlb=1"
    assert with_huge_pages({"A": "b"}) == {"A": "b", "GLIBC_TUNABLES": asked}
    other = {"GLIBC_TUNABLES": "glibc.malloc.check=0"}
    assert with_huge_pages(other) == {"GLIBC_TUNABLES": f"glibc.malloc.check=0:{asked}"}
    own = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert with_huge_pages(own) == own
    program = "import os; print(os.environ['GLIBC_TUNABLES'])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=with_huge_pages({}), capture_output=True, text=True
    )
    assert done.stdout.strip() == asked
