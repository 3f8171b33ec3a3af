"""Where a process's resident memory lies: files, heaps of the allocator, all else.

`glibc` keeps one heap that grows at its end (`[heap]`) and, for threads that meet, *arenas*: heaps
of 64 MiB of address space each, at multiples of 64 MiB. Blocks that are large get mappings of
their own. A step of resident memory is explained by the part that made it, and by whether the
allocator's callers hold more (`used_bytes`) or the allocator keeps more of what they gave back
(`free_bytes`).
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
    """Bytes of resident memory, by where they lie.

    Attributes:
        file_bytes: mapped from files: programs, libraries, weights.
        heap_bytes: the heap that grows at its end.
        arena_bytes: the allocator's arenas for threads.
        arenas: heaps of 64 MiB among these (one arena may have several).
        other_bytes: all else: large blocks, stacks, Python's small objects, NumPy's arrays.
        huge_bytes: in pages of 2 MiB, whatever they hold.
        used_bytes: that the allocator's callers hold in heaps and large blocks; 0 if unknown.
        free_bytes: given back to the allocator and kept by it, touched or not; 0 if unknown.
        python_blocks: small blocks that Python's objects hold.
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
        """All of it."""
        return self.file_bytes + self.heap_bytes + self.arena_bytes + self.other_bytes


def resident() -> Resident:
    """What this process holds now (Linux)."""
    used, free = _allocator_bytes()
    parts = resident_parts(_SMAPS.read_text().splitlines())
    return Resident(
        **parts, used_bytes=used, free_bytes=free, python_blocks=sys.getallocatedblocks()
    )


def resident_parts(smaps: Iterable[str]) -> dict[str, int]:
    """Bytes by place, from the lines of ``/proc/PID/smaps``."""
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
    """One range of addresses."""

    start: int
    end: int
    rights: str
    name: str
    resident_bytes: int = 0

    def place(self, following: _Mapping | None) -> str:
        """The part that its resident bytes count to."""
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
    """Bytes that the allocator's callers hold, and bytes that it keeps free."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):  # another allocator
        return 0, 0
    mallinfo.restype = _Mallinfo
    said = mallinfo()
    return int(said.uordblks) + int(said.hblkhd), int(said.fordblks)
