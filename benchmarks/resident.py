"""Resident memory of a process by location: files, heaps of the allocator, others.

`glibc` has one heap that grows at its end (`[heap]`) and, for concurrent threads, *arenas*: heaps
with 64 MiB of address space at multiples of 64 MiB. Large blocks have mappings of their own. Two
facts explain a step of resident memory: the location that grew, and whether callers of the
allocator use more (`used_bytes`) or the allocator keeps more freed memory (`free_bytes`).
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ARENA_BYTES = 64 * 2**20
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ *(.*)")
_SMAPS = Path("/proc/self/smaps")


@dataclass(frozen=True)
class Resident:
    """Bytes of resident memory by location.

    Attributes:
        file_bytes: mapped from files: programs, libraries, weights.
        heap_bytes: the heap that grows at its end.
        arena_bytes: the allocator's arenas for threads.
        arenas: heaps of 64 MiB among these (one arena may have several).
        other_bytes: large blocks, stacks, small objects of Python, arrays of NumPy.
        huge_bytes: in pages of 2 MiB, in any location.
        used_bytes: in use by callers of the allocator, in heaps and large blocks; 0 if unknown.
        free_bytes: freed and kept by the allocator; 0 if unknown.
        python_blocks: number of small blocks of Python objects.
    """

    file_bytes: int
    heap_bytes: int
    arena_bytes: int
    arenas: int
    other_bytes: int
    huge_bytes: int
    used_bytes: int
    free_bytes: int
    python_blocks: int

    @property
    def bytes(self) -> int:
        """All resident bytes."""
        return self.file_bytes + self.heap_bytes + self.arena_bytes + self.other_bytes


def resident() -> Resident:
    """Resident memory of this process (Linux)."""
    used, free = _allocator_bytes()
    parts = resident_parts(_SMAPS.read_text().splitlines())
    return Resident(
        **parts, used_bytes=used, free_bytes=free, python_blocks=sys.getallocatedblocks()
    )


def resident_parts(smaps: Iterable[str]) -> dict[str, int]:
    """Bytes by location, from the lines of ``/proc/PID/smaps``."""
    parts = dict.fromkeys(
        ("file_bytes", "heap_bytes", "arena_bytes", "arenas", "other_bytes", "huge_bytes"), 0
    )
    mappings = list[_Mapping]()
    for line in smaps:
        if match := _MAPPING.fullmatch(line.rstrip()):
            mappings.append(_Mapping(int(match[1], 16), int(match[2], 16), match[3], match[4]))
        elif line.startswith("Rss:"):
            mappings[-1].resident_bytes = int(line.split()[1]) * 1024
        elif line.startswith("AnonHugePages:"):
            parts["huge_bytes"] += int(line.split()[1]) * 1024
    for mapping, following in zip(mappings, [*mappings[1:], None], strict=True):
        place = mapping.place(following)
        parts[place] += mapping.resident_bytes
        parts["arenas"] += place == "arena_bytes"
    return parts


@dataclass
class _Mapping:
    """A range of addresses."""

    start: int
    end: int
    rights: str
    name: str
    resident_bytes: int = 0

    def place(self, following: _Mapping | None) -> str:
        """The location of the mapping."""
        if self.name.startswith("/"):
            return "file_bytes"
        if self.name == "[heap]":
            return "heap_bytes"
        if self.name or self.rights != "rw-p" or self.start % _ARENA_BYTES:
            return "other_bytes"
        end = self.end  # what an arena does not use yet is closed off
        if following is not None and (following.start, following.rights) == (end, "---p"):
            end = following.end
        return "arena_bytes" if end - self.start == _ARENA_BYTES else "other_bytes"


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


def _allocator_bytes() -> tuple[int, int]:
    """Used and free bytes of the allocator."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):  # another allocator
        return 0, 0
    mallinfo.restype = _Mallinfo
    said = mallinfo()
    return int(said.uordblks) + int(said.hblkhd), int(said.fordblks)
