"""Opens foreign files: only regular files, of known size, within a limit.

A name may lead to a pipe, which never ends, to a device such as ``/dev/zero``, or to a sparse file
of a hundred gigabytes that uses no disk space. So type and size are checked on the opened file,
before anything is read, and at most that size is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO

from placewright.errors import FileFormatError, InputError

MAX_TEXT_BYTES = 512 << 20  # a graph of a million operators takes about 300 MB of JSON
_SPARSE_FROM = 64 << 20  # bytes; smaller sparse files do no harm
_SPARSE_SHARE = 16  # a file is refused if its blocks hold less than this part of its size
_BLOCK_BYTES = 512  # unit of `st_blocks` on every file system
_SHOWN = 120  # characters of a name
_MOST_TIMES = 20  # inflated size over size; program texts stay below
_ALWAYS_BYTES = 64 << 20  # inflated size that every archive may have
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def is_missing(path: Path) -> bool:
    """True if a path names no file or folder; False if the system refuses to tell."""
    try:
        return "\0" not in str(path) and not path.exists()
    except OSError:  # a name that is too long, or a folder without permission
        return False


def has_entry(path: Path) -> bool:
    """True if a path names a file or folder; False if its name is too long for one."""
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def shown_name(path: object) -> str:
    """A name for messages: one printable line of limited length."""
    text = printable(str(path))
    return text if len(text) <= _SHOWN else f"{text[:40]}...{text[-(_SHOWN - 43) :]}"


def printable(text: str, kept: str = "") -> str:
    """Replace control characters of a terminal by their numbers.

    Args:
        kept: characters that stay, such as ends of lines.
    """
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in kept
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def usable_name(path: Path | str) -> Path:
    """The path, if its name can be stored and printed.

    Raises:
        InputError: it holds a NUL character or is not UTF-8.
    """
    text = str(path)
    if "\0" in text:
        raise InputError(f"file name '{shown_name(text)}' holds a NUL character; name another file")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"file name '{shown_name(text)}' is not UTF-8; rename the file") from None
    return Path(path)


def opened(
    path: Path | str, *, limit: int | None = None, may_be_sparse: bool = False
) -> tuple[BinaryIO, int]:
    """Open a file for reading; also returns its size in bytes.

    Args:
        path: of a regular file; links are followed.
        limit: largest size in bytes; None accepts every file that is not sparse.
        may_be_sparse: for a caller that reads a bounded part of the file.

    Raises:
        InputError: the file is missing, not regular, or cannot be opened.
        FileFormatError: it is larger than `limit`, or almost nothing of it is on the disk.
    """
    file = usable_name(path)
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        raise InputError(f"file '{shown_name(path)}' does not exist") from None
    except OSError as error:
        raise InputError(f"file '{shown_name(path)}' cannot be read: {error.strerror}") from None
    try:
        size = _checked_size(os.fstat(handle), file, limit, may_be_sparse=may_be_sparse)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb"), size


def require_regular(path: Path | str) -> int:
    """Check a file that a library will open, and return its size in bytes.

    Raises:
        InputError, FileFormatError: see `opened`.
    """
    stream, size = opened(path)
    stream.close()
    return size


def read_bytes(path: Path | str, *, limit: int = MAX_TEXT_BYTES) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises:
        InputError: the file is missing, not regular, or cannot be read.
        FileFormatError: it is larger.
    """
    stream, size = opened(path, limit=limit)
    with stream:
        try:
            return stream.read(size)  # not the bytes that are added meanwhile
        except OSError as error:
            raise InputError(
                f"file '{shown_name(path)}' cannot be read: {error.strerror}"
            ) from None


def inside(folder: Path, name: str) -> Path:
    """The path of a regular file in a folder, after a check with resolved links.

    Raises:
        FileFormatError: it is missing, not regular, or outside the folder.
    """
    if "\0" in name or not name:
        raise FileFormatError(f"it refers to '{shown_name(name)}', which is no file name")
    try:
        root = folder.resolve()
        file = (root / name).resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a name that is too long
        raise FileFormatError(f"it refers to '{shown_name(name)}', which leads nowhere") from None
    if Path(name).is_absolute() or not file.is_relative_to(root) or file == root:
        raise FileFormatError(f"it refers to '{shown_name(name)}', which is outside its own folder")
    try:
        status = file.stat()
    except (OSError, ValueError):
        raise FileFormatError(f"its data file '{shown_name(name)}' is missing") from None
    try:
        _checked_size(status, Path(name), None)
    except InputError as error:
        raise FileFormatError(f"its data {error}") from None
    return folder / name


def beside(model: Path, name: str) -> Path:
    """The path of a regular file to which a model refers: in its folder.

    Caches of downloads hold files under other names, and a link with the own name of each. If the
    model is a link, the file may thus be a link that leads into the same folder.

    Raises:
        FileFormatError: it is missing, not regular, or elsewhere.
    """
    parts = Path(name).parts
    if model.is_symlink() and "\0" not in name and not {"..", "/"} & {*parts}:
        with contextlib.suppress(OSError, RuntimeError):  # a circle of links, a name too long
            target = (model.parent / name).resolve()
            if target.parent == model.resolve().parent and target.is_file():
                require_regular(target)
                return model.parent / name
    return inside(model.parent, name)


def _checked_size(
    status: os.stat_result, path: Path, limit: int | None, *, may_be_sparse: bool = False
) -> int:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "no regular file")
        raise InputError(f"file '{shown_name(path)}' is {kind}; give a regular file")
    size = status.st_size
    if limit is not None and size > limit:
        raise FileFormatError(
            f"file '{shown_name(path)}' has {size} bytes, more than the {limit} that its kind "
            "may have"
        )
    held = status.st_blocks * _BLOCK_BYTES
    if not may_be_sparse and size > _SPARSE_FROM and held < size // _SPARSE_SHARE:
        raise FileFormatError(
            f"file '{shown_name(path)}' is sparse: of {size} bytes {held} are on the disk; "
            "copy it again"
        )
    return size


def require_bounded(archive: zipfile.ZipFile, size: int) -> None:
    """Check before inflating that the inflated size of an archive is plausible.

    `zipfile` inflates no more of a member than its header states, so the sum is a limit.

    Args:
        size: of the archive's file, in bytes.

    Raises:
        FileFormatError: it would inflate to more.
    """
    inflated = sum(info.file_size for info in archive.infolist())
    if inflated > _MOST_TIMES * size + _ALWAYS_BYTES:
        raise FileFormatError(f"it has {size} bytes and would inflate to {inflated}")
