"""Atomic writing of files, so that an earlier file survives every failure.

A file is written under a temporary name beside its target, which it then replaces. A killed process
leaves its temporary file behind; the next write to the same target removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from placewright.errors import InputError
from placewright.io.opened import shown_name, usable_name
from placewright.io.scratch import takes_lock

_MARK = ".partial"
_LONGEST_NAME = 255  # bytes, of common file systems
_LONGEST_STEM = 200  # bytes of a name that stand in that of its temporary file
_DELAYED = (signal.SIGINT, signal.SIGTERM)
_final: dict[str, str] = {}  # folder -> the folder into which another process moves its files


def is_written_through(path: Path | str) -> bool:
    """True if a path exists and is no regular file: a device, pipe or folder; none is replaced."""
    return os.path.exists(path) and not os.path.isfile(path)


def tell_final_folders(folders: Mapping[str, str]) -> None:
    """Tell this module that another process will move the files that this one writes.

    Args:
        folders: folder in which this process writes -> folder in which the files will be.
    """
    _final.update({os.path.realpath(here): there for here, there in folders.items()})


def final_folder(path: Path | str) -> str:
    """The folder in which a file will be in the end, if this process writes it to `path`.

    Links in the folder's path are resolved, but not `path` itself if it is a link. See
    `tell_final_folders`.
    """
    folder = os.path.realpath(Path(path).parent)
    return _final.get(folder, folder)


def write_files(contents: Mapping[Path | str, bytes]) -> None:
    """Write files that belong together; none is replaced before all are on the disk.

    Links are followed. Devices and pipes are written to directly.

    Args:
        contents: path -> content; files are replaced in this order.

    Raises:
        InputError: a folder is missing or not writable, or the disk is full; the files that
            were to be replaced stay as they are.
    """
    written: list[tuple[Path, Path]] = []
    path: Path | str = ""
    with contextlib.ExitStack() as temporaries:
        try:
            for path, content in contents.items():
                if is_written_through(usable_name(path)):
                    _write_through(path, content)
                    continue
                target = written_place(path)
                handle, temporary = temporaries.enter_context(_temporary(target))
                _write_all(handle, content)
                os.fsync(handle)
                os.fchmod(handle, _mode_of(target))
                written.append((temporary, target))
            with _uninterrupted():
                for temporary, target in written:
                    path = target
                    os.replace(temporary, target)
        except OSError as error:
            raise InputError(
                f"file '{shown_name(path)}' cannot be written: {error.strerror}"
            ) from None


def write_text(path: Path | str, text: str) -> None:
    """Write one UTF-8 file; see `write_files`."""
    write_files({path: text.encode()})


@contextlib.contextmanager
def locked_folder_of(path: Path | str) -> Iterator[None]:
    """Lock a file's folder for the block, to read and replace the file; others wait for it.

    Nothing is locked in a folder that cannot be opened, or on a file system without locks.
    """
    handle = -1
    try:
        with contextlib.suppress(OSError):
            handle = os.open(written_place(path).parent, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def written_place(path: Path | str) -> Path:
    """The target of a path, with links resolved.

    Raises:
        InputError: links form a circle, or the name cannot be used.
    """
    with contextlib.suppress(OSError, RuntimeError):
        target = usable_name(path).resolve()
        if not os.path.islink(target):
            return target
    raise InputError(f"'{shown_name(path)}' is a link that leads nowhere; name another file")


def require_folder(path: Path) -> None:
    """Refuse an output file that cannot be written, before long work.

    Raises:
        InputError: its folder is missing or not writable, its name is too long, or `path` itself
            is a folder or ``-``, which is the standard output of other tools.
    """
    if str(path) == "-":  # many tools write to standard output then
        raise InputError("'-' names no file; name the file to write")
    if os.path.isdir(path):
        raise InputError(f"'{path}' is a folder; name the file to write")
    place = written_place(path)
    if not os.path.isdir(place.parent):
        folder = path.parent if place.name == path.name else place.parent
        raise InputError(f"folder '{folder}' of '{place.name}' does not exist; make it first")
    if not is_written_through(path) and not os.access(place.parent, os.W_OK | os.X_OK):
        raise InputError(f"'{path}' cannot be written: its folder lets you write no files")
    if len(os.fsencode(place.name)) > _LONGEST_NAME:
        raise InputError(f"'{shown_name(path)}' cannot be written: its name is too long")


def _write_through(path: Path | str, content: bytes) -> None:
    """Write to a device or a pipe.

    Raises:
        InputError: nobody reads the pipe, so that writing would wait forever.
        OSError: writing failed.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise InputError(
            f"'{shown_name(path)}' is a pipe that nobody reads; name another file"
        ) from None
    try:
        os.set_blocking(handle, True)
        _write_all(handle, content)
    finally:
        os.close(handle)


def move_files(places: Mapping[Path, Path]) -> None:
    """Move finished files to their targets on the same file system.

    Args:
        places: file -> target; files are moved in this order.

    Raises:
        OSError: a file cannot be moved, or its content cannot be written to the disk.
    """
    for file in places:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    with _uninterrupted():
        for file, target in places.items():
            os.replace(file, target)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay SIGINT and SIGTERM, so that files that belong together are replaced together.

    The calling thread blocks them. Another thread may still take one, and Python then runs its
    handler in the main thread. So if this is the main thread, we replace the handlers for the time
    of the context: ours note the signal and send it again at the end.
    """
    noted: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        noted.append(number)

    def send_again() -> None:
        for number in noted:  # blocked until the mask is restored, so that none is lost
            signal.raise_signal(number)

    with contextlib.ExitStack() as at_end:  # the last call comes first
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _DELAYED)
        at_end.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        at_end.callback(send_again)
        if threading.current_thread() is threading.main_thread():  # others may set no handlers
            for number in _DELAYED:
                handler = signal.getsignal(number)
                if handler not in (None, signal.SIG_IGN):  # None cannot be restored
                    at_end.callback(signal.signal, number, handler)
                    signal.signal(number, note)
        yield


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[tuple[int, Path]]:
    """A locked temporary file in the folder of `target`: its open descriptor and its path.

    It is removed at the end unless it was moved.
    """
    _remove_left_over(target)
    handle, name = _locked_file(target)
    try:
        yield handle, Path(name)
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(name)


def _locked_file(target: Path) -> tuple[int, str]:
    """Create a temporary file, and lock it; return its open descriptor and its path.

    Before it is locked, another writer of `target` may remove it as left over; then try again.
    """
    prefix = f".{_stem(target)}."
    while True:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=prefix, suffix=_MARK)
        try:
            if takes_lock(handle) and os.path.samestat(os.fstat(handle), os.stat(name)):
                return handle, name
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            os.unlink(name)
            raise
        os.close(handle)


def _stem(target: Path) -> str:
    """The name of a target, or a hash if a temporary file's name has no room for it."""
    name = os.fsencode(target.name)
    return target.name if len(name) <= _LONGEST_STEM else hashlib.sha256(name).hexdigest()[:16]


def _write_all(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def _remove_left_over(target: Path) -> None:
    """Remove temporary files of killed processes, which nobody locks."""
    ours = re.compile(rf"\.{re.escape(_stem(target))}\.[a-z0-9_]{{8}}{re.escape(_MARK)}")
    try:
        names = [entry.name for entry in os.scandir(target.parent) if ours.fullmatch(entry.name)]
    except OSError:
        return
    for name in names:
        left_over = target.parent / name
        with contextlib.suppress(OSError), left_over.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(left_over)


def _mode_of(target: Path) -> int:
    """Permissions of a new file: those of the file that it replaces, else the user's default."""
    if target.exists():
        return target.stat().st_mode & 0o777
    return 0o666 & ~_file_mask()


def _file_mask() -> int:
    """Permissions that new files of this process lack."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)  # where it is not told; files of other threads are private meanwhile
    os.umask(mask)
    return mask
