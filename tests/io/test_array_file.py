"""Files of arrays: damaged ones, and those that inflate to more than a machine has."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from placewright.errors import FileFormatError
from placewright.io.array_file import read_arrays


def broken_arrays() -> dict[str, bytes]:
    """Archives of arrays that NumPy, or a decompressor, gives up with errors of its own."""
    made = io.BytesIO()
    np.savez_compressed(made, x=np.arange(4096) % 7)
    packed = bytearray(made.getvalue())
    packed[60:80] = b"\xff" * 20
    made = io.BytesIO()
    np.savez(made, x=np.arange(3))
    locked = bytearray(made.getvalue())
    locked[locked.index(b"PK\x01\x02") + 8] |= 1  # encrypted
    huge = made.getvalue().replace(b"(3,), }" + b" " * 13, b"(99999999999999,), }")
    broken = made.getvalue().replace(b"{'descr'", b"((((((((")
    return {"damaged": bytes(packed), "locked": bytes(locked), "no header": broken, "huge": huge}


@pytest.mark.parametrize("name", broken_arrays())
def test_arrays_that_are_broken_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(broken_arrays()[name])
    with pytest.raises(FileFormatError, match="holds no inputs"):
        read_arrays(tmp_path / "x.npz")


@pytest.mark.parametrize(("name", "fault"), [("x.txt", "is no array"), ("x", "stands twice")])
def test_archives_that_hold_more_than_arrays_are_refused(
    name: str, fault: str, tmp_path: Path
) -> None:
    """NumPy gives other files as bytes, and of two with one name the last."""
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    assert read_arrays(tmp_path / "x.npz")["x"].tolist() == [0, 1, 2]
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        content = archive.read("x.npy") if name == "x" else b"text"
        archive.writestr(name, content)
    with pytest.raises(FileFormatError, match=fault):
        read_arrays(tmp_path / "x.npz")
