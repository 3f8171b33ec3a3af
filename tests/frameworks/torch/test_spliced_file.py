"""Archives of pieces that stay in another file: read like any, within their own memory."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_use import peak_bytes

torch = pytest.importorskip("torch")

from placewright.errors import FileFormatError  # noqa: E402
from placewright.frameworks.torch.pt2.file import SplicedFile, load_program  # noqa: E402


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_reads_what_was_written(pieces: list[bytes], data: st.DataObject) -> None:
    expected, spliced = b"".join(pieces), SplicedFile()
    assert spliced.read() == b""
    for piece in pieces:
        spliced.write(piece)
    for _ in range(4):
        at, size = data.draw(st.integers(0, 320)), data.draw(st.integers(0, 100))
        assert spliced.seek(at) == at
        assert spliced.read(size) == expected[at : at + size]
    assert spliced.seek(0, io.SEEK_END) == len(expected)


def test_pieces_of_another_file_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(100)))
    spliced = SplicedFile()
    with path.open("rb") as file:
        spliced.write(b"head")
        spliced.lies_at(file, 10)
        spliced.write(bytes(range(10, 30)))
        spliced.write(b"tail")
        spliced.seek(2)
        assert spliced.read() == b"ad" + bytes(range(10, 30)) + b"tail"
        spliced.seek(0)
        spliced.write(b"HEAD")
        spliced.seek(0)
        assert spliced.read(5) == b"HEAD" + bytes([10])
        spliced.seek(1)
        with pytest.raises(io.UnsupportedOperation):
            spliced.write(b"x")
        path.write_bytes(b"short")
        spliced.seek(4)
        with pytest.raises(OSError, match="has become shorter"):
            spliced.read()


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1024, 4096)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def wide_file(folder: Path) -> Path:
    torch.manual_seed(0)
    program = torch.export.export(Wide().eval(), (torch.ones(1, 1024),))
    torch.export.save(program, folder / "wide.pt2")
    return folder / "wide.pt2"


def test_weights_are_held_once(tmp_path: Path) -> None:
    """Python's own allocations: PyTorch reads a tensor's bytes into one object at a time."""
    path = wide_file(tmp_path)
    assert peak_bytes(lambda: load_program(path)) < 1.5 * path.stat().st_size


def test_a_compressed_archive_gives_the_same_weights(tmp_path: Path) -> None:
    path, packed = wide_file(tmp_path), tmp_path / "packed.pt2"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    mine, theirs = load_program(packed).state_dict, load_program(path).state_dict
    assert set(mine) == set(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_flipped_bit_in_a_weight_is_found(tmp_path: Path) -> None:
    path = wide_file(tmp_path)
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()
    content[len(content) // 2] ^= 1
    path.write_bytes(content.tobytes())
    with pytest.raises(FileFormatError, match=r"damaged \.pt2 archive: Bad CRC-32"):
        load_program(path)
