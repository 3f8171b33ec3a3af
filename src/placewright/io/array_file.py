"""Reads ``.npz`` files of arrays, which hold the inputs of a run."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.errors import FileFormatError
from placewright.io.content import one_line
from placewright.io.opened import opened, require_bounded, shown_name


def read_arrays(path: Path | str) -> dict[str, NDArray[Any]]:
    """Read arrays by name; pickled objects are refused.

    Raises:
        InputError: the file is missing or cannot be opened.
        FileFormatError: it is not an ``.npz`` file, is damaged, inflates too much, holds another
            file than arrays, or a name twice.
    """
    stream, size = opened(path)
    with stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                require_bounded(archive, size)
                count = len(archive.namelist())
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            others = [name for name, value in found.items() if not isinstance(value, np.ndarray)]
            if others or len(found) < count:
                fault = f"'{others[0]}' in it is no array" if others else "a name stands twice"
                raise ValueError(fault)
            return found
        except Exception as error:  # zipfile, its decompressors and NumPy raise many types
            raise FileFormatError(
                f"file '{shown_name(path)}' holds no inputs: {one_line(error)}; write it with "
                "numpy.savez(FILE, name=array, ...)"
            ) from None
