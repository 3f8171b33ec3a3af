"""Archives of strangers: how much they hold is known before anything of it is inflated."""

from __future__ import annotations

import zipfile

from placewright.errors import FileFormatError

_MOST_TIMES = 20  # what the text of a program shrinks to when it is packed, and more
_ALWAYS_BYTES = 64 << 20


def require_bounded(archive: zipfile.ZipFile, size: int) -> None:
    """Check that an archive inflates to a size that its own size makes believable.

    `zipfile` inflates no more of a member than its header says, so that their sum is the limit.

    Args:
        archive: open for reading.
        size: of the archive's file, in bytes.

    Raises:
        FileFormatError: it would inflate to more.
    """
    inflated = sum(info.file_size for info in archive.infolist())
    if inflated > _MOST_TIMES * size + _ALWAYS_BYTES:
        raise FileFormatError(f"it has {size} bytes and would inflate to {inflated}")
