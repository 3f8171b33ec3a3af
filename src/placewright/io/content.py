"""Shared pieces of model readers: existence, hash, short messages, unique names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from placewright.errors import InputError
from placewright.io.opened import has_entry, opened, shown_name, usable_name


def existing_path(path: Path | str) -> Path:
    """The path of an existing file or folder.

    Raises:
        InputError: there is no such file or folder, or its name is not UTF-8.
    """
    existing = usable_name(path)
    if not has_entry(existing):
        raise InputError(f"model '{shown_name(path)}' does not exist")
    return existing


def content_hash(root: Path, files: Iterable[Path]) -> str:
    """SHA-256 over the paths relative to `root` and the bytes of files, in path order.

    The hash stays the same when the root folder moves.

    Raises:
        InputError: a file cannot be read or is not a regular file.
    """
    digest = hashlib.sha256()
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in set(files)):
        stream, left = opened(usable_name(file))
        digest.update(f"{name}\0{left}\0".encode())
        with stream:
            try:
                while left > 0 and (block := stream.read(min(left, 1 << 20))):
                    digest.update(block)
                    left -= len(block)
            except OSError as error:
                raise InputError(
                    f"file '{shown_name(file)}' cannot be read: {error.strerror}"
                ) from None
    return digest.hexdigest()


def one_line(text: object, limit: int = 200) -> str:
    """The last non-empty line of a message, cut between words to `limit` characters.

    Libraries print the location of their own check first and the reason last.
    """
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    reason = lines[-1] if lines else "no reason given"
    return reason if len(reason) <= limit else f"{whole_words(reason, limit - 4)} ..."


def whole_words(text: str, limit: int) -> str:
    """Cut a text to `limit` characters between words, or within a single long word."""
    shown = text[: limit + 1].rpartition(" ")[0] if " " in text[: limit + 1] else text[:limit]
    return shown if len(text) > limit else text


class UniqueNames:
    """Makes names unique: a name that is taken or empty gets a number."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def __call__(self, wish: str, fallback: str = "op") -> str:
        name = base = wish or fallback
        while name in self._taken:
            self._taken[base] = self._taken.get(base, 0) + 1
            name = f"{base}_{self._taken[base]}"
        self._taken.setdefault(name, 0)
        return name
