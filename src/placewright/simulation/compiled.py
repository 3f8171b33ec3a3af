"""Decorators that compile kernels with Numba: cached on disk, without the interpreter lock.

Numba looks at the file of a kernel to see whether its cache is stale, and not at the files of what
the kernel calls or at the records it reads. So the cache has a folder for each state of this room's
sources; another version of any of them compiles anew. Kernels of another room also depend on the
files of that room that hold kernels.

A kernel is compiled again for every combination of types that it is called with, and a read-only
array is of another type than a writable one. So what a kernel only reads is read-only, always.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from platformdirs import user_cache_path

from placewright.core.arrays import read_only_array
from placewright.simulation.kernel_cache import keep_kernels, use_folder

F = TypeVar("F", bound=Callable[..., Any])
Fields = TypeVar("Fields", bound=tuple[Any, ...])
_SETTINGS = cast(Any, numba).config
_COMPILE = cast(Callable[..., Callable[[Any], Any]], numba.njit)


def compiled(function: F) -> F:
    """Compile a function that may allocate."""
    return _cached(function)


def uncounted(function: F) -> F:
    """Compile a function that allocates nothing: without reference counts, which cost most."""
    return _cached(function, _nrt=False)


def inlined(function: F) -> F:
    """Compile like `uncounted`, and let LLVM inline the function into its callers."""
    return _cached(function, _nrt=False, forceinline=True)


def substituted(function: F) -> F:
    """Let Numba substitute the body for each call before it compiles the caller.

    For functions that make arrays: only a function with reference counts may return an array.
    """
    return _cached(function, inline="always")


def machine_code(function: F, argument_types: tuple[object, ...]) -> F:
    """A compiled function for arguments of these types, to be called with no others.

    It does not look at its arguments, for which Numba takes five microseconds in every call where
    arrays are read-only.
    """
    dispatcher = cast(Any, function)
    dispatcher.compile(argument_types)
    return cast(F, dispatcher.get_overload(argument_types))


def read_only(fields: Fields) -> Fields:
    """Replace each array of a named tuple by its `read_only_array`."""
    values = (read_only_array(v) if isinstance(v, np.ndarray) else v for v in fields)
    return cast(Fields, cast(Any, type(fields))._make(values))


def _cached(function: F, **options: object) -> F:
    """Compile into our cache: Numba chooses the folder of the cache while it decorates."""
    before = _SETTINGS.CACHE_DIR
    folder = _cache_folder(_room_of(Path(function.__code__.co_filename)))
    use_folder(folder)
    _SETTINGS.CACHE_DIR = str(folder)
    try:
        made = _COMPILE(nogil=True, **options)(function)
        keep_kernels(made)
        return cast(F, made)
    finally:
        _SETTINGS.CACHE_DIR = before


def _room_of(file: Path) -> Path | None:
    """The folder of the room that a file belongs to; None for this room and other packages."""
    package = Path(__file__).parents[1]
    if not file.is_relative_to(package):
        return None
    room = package / file.relative_to(package).parts[0]
    return None if room == Path(__file__).parent else room


@cache
def _cache_folder(room: Path | None) -> Path:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    if room is not None:
        files += [file for file in sorted(room.rglob("*.py")) if _holds_kernels(file)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    name = f"{(room or Path(__file__).parent).name}-{digest.hexdigest()[:16]}"
    return user_cache_path("placewright") / "kernels" / name


def _holds_kernels(file: Path) -> bool:
    return b"simulation.compiled import" in file.read_bytes()
