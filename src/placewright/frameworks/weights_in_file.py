"""Weights that lie in a file, so that their memory can go back to the system.

Engines pack the weights of a segment into a layout of their own when they compile it. Most of the
given weights are never read again, but an engine keeps its references to them as long as the
segment. Pages that are mapped from a file can be dropped all the same: the system reads a page
again if somebody does need it.

A weight that no file maps yet is copied to a file without a name in the user's cache folder, which
ends with its last reference.

A weight that several operators read is packed once per segment with one of them. Option ``weights:
shared`` of a device gives it to its segments as an input instead. Then nobody packs it.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.errors import UnknownNameError
from placewright.execution.allocator import give_back_freed_memory
from placewright.io.content import one_line

LEAST_BYTES = 1 << 16  # smaller weights stay where they are
WEIGHTS_OPTION = "weights"
_PACKED, _SHARED = "packed", "shared"
_MAPS = Path("/proc/self/maps")  # of Linux
_LOG = logging.getLogger(__name__)


def in_file(arrays: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
    """Copy arrays to a file without a name, from which they are mapped.

    If the file cannot be written, or the system is not Linux, they are returned as they are.
    """
    if not arrays or not sys.platform.startswith("linux"):
        return arrays
    starts = np.cumsum([0, *(_whole_pages(array.nbytes) for array in arrays)]).tolist()
    try:
        with tempfile.TemporaryFile(dir=_folder()) as file:
            os.posix_fallocate(file.fileno(), 0, starts[-1])  # writes to the map then succeed
            for array, start in zip(arrays, starts, strict=False):
                file.seek(start)
                file.write(np.ascontiguousarray(array).data)
            file.flush()
            # Not for reading alone, because OpenVINO refuses arrays that cannot be written to.
            mapped = mmap.mmap(file.fileno(), starts[-1], access=mmap.ACCESS_WRITE)
    except OSError as error:
        _tell_kept(one_line(error))
        return arrays
    return [
        np.frombuffer(mapped, array.dtype, array.size, start).reshape(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]


def are_shared(options: Mapping[str, str]) -> bool:
    """True if weights that several operators read stay as read, by the options of a device.

    Raises:
        UnknownNameError: the option has a value that does not exist.
    """
    said = options.get(WEIGHTS_OPTION, _PACKED)
    if said not in (_PACKED, _SHARED):
        raise UnknownNameError(WEIGHTS_OPTION, said, [_PACKED, _SHARED])
    return said == _SHARED


def are_in_file(arrays: Sequence[NDArray[Any]]) -> list[bool]:
    """True for each array whose memory is mapped from a file that it shares."""
    return [place is not None for place in _mappings_of(arrays)]


def give_back_pages(arrays: Iterable[NDArray[Any]]) -> None:
    """Give the memory of mapped arrays, and freed memory, back to the system.

    The arrays stay valid: their pages are read again when they are needed.
    """
    give_back_freed_memory()
    for start, end in dict.fromkeys(place for place in _mappings_of(arrays) if place):
        place = ctypes.c_void_p(start), ctypes.c_size_t(end - start)
        ctypes.CDLL(None).madvise(*place, mmap.MADV_DONTNEED)


def _mappings_of(arrays: Iterable[NDArray[Any]]) -> list[tuple[int, int] | None]:
    """Addresses of the file mapping in which each array lies; None for other memory."""
    found = _shared_mappings()
    starts = [start for start, _ in found]
    places: list[tuple[int, int] | None] = []
    for array in arrays:
        address = array.ctypes.data
        at = bisect_right(starts, address) - 1
        is_inside = at >= 0 and address + array.nbytes <= found[at][1]
        places.append(found[at] if is_inside else None)
    return places


def _shared_mappings() -> list[tuple[int, int]]:
    """Addresses of all files that are mapped, ascending.

    Without private mappings: dropping their pages would lose what was written to them.
    """
    try:
        lines = _MAPS.read_text(errors="replace").splitlines()
    except OSError:  # another system
        return []
    found = []
    for line in lines:
        addresses, permissions, _, _, inode = line.split(maxsplit=5)[:5]
        if permissions.endswith("s") and inode != "0":
            start, end = addresses.split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _whole_pages(n_bytes: int) -> int:
    return -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _folder() -> Path:
    import platformdirs

    folder = Path(platformdirs.user_cache_dir("placewright"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _tell_kept(reason: str) -> None:
    _LOG.warning(
        "warning: weights stay in memory beside the copies that compiled segments make, because "
        "they cannot be written to the cache folder (%s)",
        reason,
    )
