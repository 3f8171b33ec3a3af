"""What a process keeps is found: memory, open files and threads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.endurance import Endurance, Look, run_endurance
from benchmarks.resident import Resident, resident_parts
from placewright.errors import InputError

ROOT = Path(__file__).parents[2]

NOWHERE = Resident(0, 0, 0, 0, 0, 0, 0, 0, 0)
STEADY = tuple(
    Look(float(at), at, at, 1000 + at % 2, 2000, 20 + at % 3, 8, NOWHERE) for at in range(40)
)
SMAPS = """\
55d0c0000000-55d0c0100000 r-xp 00000000 fe:00 12                         /usr/bin/python3.11
Rss:                 100 kB
AnonHugePages:         0 kB
55d0c1000000-55d0c2000000 rw-p 00000000 00:00 0                          [heap]
Rss:                4096 kB
AnonHugePages:      2048 kB
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Rss:                 200 kB
AnonHugePages:         0 kB
7f0000400000-7f0004000000 ---p 00000000 00:00 0 
Rss:                   0 kB
AnonHugePages:         0 kB
7f0004000000-7f0010000000 rw-p 00000000 00:00 0 
Rss:                 300 kB
AnonHugePages:         0 kB
7fff00000000-7fff00100000 rw-p 00000000 00:00 0                          [stack]
Rss:                  12 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me gd ac
""".splitlines()


def test_a_steady_process_holds() -> None:
    found = Endurance(STEADY)
    assert found.holds
    assert (found.growth, found.peak_growth) == (0.0, 0.0)
    assert (found.more_handles, found.more_threads) == (0, 0)


@pytest.mark.parametrize(
    ("field", "per_look"), [("resident_bytes", 2), ("handles", 1), ("threads", 1)]
)
def test_what_grows_is_found(field: str, per_look: int) -> None:
    looks = [
        replace(look, **{field: getattr(look, field) + per_look * at})
        for at, look in enumerate(STEADY)
    ]
    assert not Endurance(tuple(looks)).holds


@pytest.mark.parametrize("first", [20, 25, 37, 39])
def test_one_step_is_found_however_late(first: int) -> None:
    looks = [
        replace(look, resident_bytes=look.resident_bytes + (50 if at >= first else 0))
        for at, look in enumerate(STEADY)
    ]
    found = Endurance(tuple(looks))
    assert found.growth == pytest.approx(0.05, abs=0.002)
    assert not found.holds


def test_what_warms_up_in_the_first_quarter_is_no_growth() -> None:
    looks = [
        replace(look, resident_bytes=look.resident_bytes // (2 if at < 9 else 1))
        for at, look in enumerate(STEADY)
    ]
    assert Endurance(tuple(looks)).holds


def test_memory_is_told_by_the_place_where_it_lies() -> None:
    assert resident_parts(SMAPS) == {
        "file_bytes": 100 * 1024,
        "heap_bytes": 4096 * 1024,
        "arena_bytes": 200 * 1024,
        "arenas": 1,
        "other_bytes": 312 * 1024,
        "huge_bytes": 2048 * 1024,
    }


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process holds")
def test_a_large_array_is_seen_where_it_lies() -> None:
    """In a process of its own: another one may have freed so much that nothing new is needed."""
    code = (
        "import numpy as np\nfrom benchmarks.resident import resident\n"
        "before = resident()\nheld = np.ones(2**24)\nafter = resident()\n"
        "print(after.other_bytes - before.other_bytes, after.bytes - before.bytes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for grown in done.stdout.split():
        assert int(grown) == pytest.approx(8 * 2**24, rel=0.1)


def test_too_short_a_time() -> None:
    with pytest.raises(InputError, match="too short"):
        run_endurance("zoo:resnet50", 0.1)
