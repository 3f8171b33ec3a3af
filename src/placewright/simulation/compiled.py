"""Decorators that compile kernels with Numba: cached on disk, without the interpreter lock.

Numba looks at the file of a kernel to see whether its cache is stale, and not at the files of what
the kernel calls or at the records it reads. So the cache has a folder for each state of this room's
sources; another version of any of them compiles anew. Kernels of another room also depend on the
files of that room that hold kernels.

A kernel is compiled again for every combination of types that it is called with, and a read-only
array is of another type than a writable one. So what a kernel only reads is read-only, always.

Disk cache of compiled kernels: one process compiles a kernel, all read it, old versions go.

Numba's own cache has three faults: processes that start together compile the same kernel at the
same time, a folder without write access is not read, and a full disk ends a command.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import caching
from numba.core.compiler_lock import global_compiler_lock
from platformdirs import user_cache_path

from placewright.core.arrays import read_only_array
from placewright.io.scratch import tell_lost_cache

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
        if made is not function:  # NUMBA_DISABLE_JIT leaves it as it is
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


_KEPT_VERSIONS = 2
_IN_USE = "in-use"
_FOLDER = re.compile(r"(?:([a-z]+)-)?[0-9a-f]{16}")
_LONG = 2.0  # seconds of compiling in this process before a line says so
_LOG = logging.getLogger(__name__)
_spent = [0.0]  # seconds of compiling in this process; infinite once a line said so
_Locator = cast(Any, caching).UserProvidedCacheLocator
_Implementation = cast(Any, caching).CompileResultCacheImpl
_FunctionCache = cast(Any, caching).FunctionCache


class _ReadableLocator(_Locator):  # type: ignore[misc,valid-type]
    """Locates the cache in the configured folder, even without write access."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> _ReadableLocator:
        return cls(function, file)


class _ReadableImplementation(_Implementation):  # type: ignore[misc,valid-type]
    _locator_classes = (_ReadableLocator,)


class _SharedCache(_FunctionCache):  # type: ignore[misc,valid-type]
    """The cache of one kernel: a process without it takes a lock, looks again, then compiles."""

    _impl_class = _ReadableImplementation

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self.lock = _Lock(Path(self._cache_path) / f"{self._impl.filename_base}.lock")
        self.is_missing = False  # the kernel that was asked for last has to be compiled

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load compiled code; None, with the lock held, if the kernel has to be compiled."""
        kernel = self._loaded(signature, context)
        if kernel is None and self.lock.take():
            kernel = self._loaded(signature, context)  # another process may have compiled it
            if kernel is None:
                self._remove_left_over()
        self.is_missing = kernel is None
        return kernel

    def _loaded(self, signature: Any, context: Any) -> Any:
        try:
            return super().load_overload(signature, context)
        except (OSError, EOFError):  # not readable, or truncated on a full disk
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Save compiled code, or warn once if the folder cannot be written to."""
        try:
            super().save_overload(signature, result)
        except OSError as error:
            tell_lost_cache(Path(self._cache_path).parent, error.strerror or error)

    def _remove_left_over(self) -> None:
        """Remove temporary files of a process that was killed while it held the lock."""
        name = re.escape(self._impl.filename_base)
        ours = re.compile(rf"{name}\.(\d+\.nbc|nbi)\.tmp\.[0-9a-f]+")
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self._cache_path)):
                if ours.fullmatch(entry.name):
                    os.unlink(entry.path)


class _Lock:
    """A file lock of this process; without effect if the file cannot be created."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def take(self) -> bool:
        """Wait for the lock; True if this call acquired it."""
        if self._handle is not None:
            return False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # not every file system has locks
            os.close(handle)
            return False
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        return True

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def keep_kernels(dispatcher: Any) -> None:
    """Let a Numba function load and save its machine code in `numba.config.CACHE_DIR`.

    Args:
        dispatcher: Numba's object of the function, not yet compiled.
    """
    shared = _SharedCache(dispatcher.py_func)
    compile_one = dispatcher.compile

    def compile_once(signature: Any) -> Any:
        with global_compiler_lock:  # lock the threads of this process before the file
            began, shared.is_missing = time.perf_counter(), False
            try:
                return compile_one(signature)
            finally:
                shared.lock.release()
                if shared.is_missing:
                    _count(time.perf_counter() - began)

    dispatcher._cache = shared
    dispatcher.compile = compile_once


def tell_compiling(expected: float = math.nan) -> None:
    """Log one line that kernels are being compiled, and no second one in this process.

    Args:
        expected: seconds; nan if nobody knows.
    """
    known = "minutes on a slow machine" if math.isnan(expected) else f"about {expected:.0f} s"
    if not math.isinf(_spent[0]):
        _LOG.warning(
            "compiling kernels, once for this version: %s; later starts find them on the disk",
            known,
        )
    _spent[0] = math.inf


def _count(seconds: float) -> None:
    _spent[0] += seconds
    if _LONG < _spent[0] < math.inf:
        tell_compiling()


@cache
def use_folder(folder: Path) -> None:
    """Mark a folder of kernels as used by this process; if it is new, remove those of old versions.

    Args:
        folder: named ``ROOM-DIGEST``, beside the folders of other rooms and versions.
    """
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until this process ends
        os.utime(folder / _IN_USE)
    except OSError:
        return
    if is_new:
        remove_old_versions(folder.parent)


def remove_old_versions(kernels: Path) -> None:
    """Remove folders of kernels, except the two newest of each room and those in use."""
    by_room: dict[str, list[tuple[float, Path]]] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(kernels):
            named = _FOLDER.fullmatch(entry.name)
            if named is not None and entry.is_dir(follow_symlinks=False):
                used = (_last_use(Path(entry.path)), Path(entry.path))
                by_room.setdefault(named[1] or "", []).append(used)
    for folders in by_room.values():
        for _, folder in sorted(folders, reverse=True)[_KEPT_VERSIONS:]:
            with contextlib.suppress(OSError), _alone(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _last_use(folder: Path) -> float:
    mark = folder / _IN_USE
    return (mark if mark.exists() else folder).stat().st_mtime


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder for the block; raises OSError if a process uses it.

    Processes of earlier versions did not mark their folders.
    """
    handle = os.open(folder / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
