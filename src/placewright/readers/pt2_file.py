"""Loading a ``.pt2`` file without running what is in it.

``torch.export.load`` falls back to full unpickling, and hands the texts of symbolic sizes to an
evaluator. Either runs code that a file brings along. So everything in the archive that would get
there is checked first, and a file that is more than data is refused.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import FileFormatError, InputError, MissingExtraError
from placewright.readers.content import one_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_OPERATORS = ("torch.ops.aten.", "torch.ops.prims.", "torch.ops.higher_order.", "_operator.")
_SYMBOL = re.compile(r"-?\w{1,40}")


def load_program(path: Path) -> ExportedProgram:
    """Load what ``torch.export.save`` wrote.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no such file, is damaged, or holds pickled objects, custom operators
            or computed sizes.
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "reading a .pt2 file") from None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"file '{path}' cannot be read: {error.strerror}") from None
    try:
        _check(content)
    except zipfile.BadZipFile:
        raise FileFormatError(f"'{path}' is not a valid .pt2 model: it is no archive") from None
    except FileFormatError as error:
        raise FileFormatError(f"'{path}' is not a valid .pt2 model: {error}") from None
    try:
        # The checked bytes, not the path: the file may have changed in between.
        return torch.export.load(io.BytesIO(content))
    except Exception as error:  # the loader has no error type of its own
        raise FileFormatError(f"PyTorch cannot read '{path}': {one_line(error)}") from None


def _check(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        models = [name for name in names if re.search(r"(^|/)models/[^/]+\.json$", name)]
        if not models:
            raise FileFormatError("it holds no exported program")
        pickled = [name for name in names if re.search(r"/sample_inputs/[^/]+\.pt$", name)]
        for name in names:
            if name.endswith("_config.json"):
                folder = name.rpartition("/")[0]
                pickled += [f"{folder}/{entry}" for entry in _pickled_entries(archive, name)]
        for name in pickled:
            _check_plain(archive, name)
        for name in models:
            _check_model(_json(archive, name), name)


def _pickled_entries(archive: zipfile.ZipFile, name: str) -> list[str]:
    """Weights or constants that are stored as pickles."""
    config = _json(archive, name).get("config")
    entries = config.values() if isinstance(config, dict) else ()
    found = [entry for entry in entries if isinstance(entry, dict)]
    if any("custom_obj" in str(entry.get("path_name")) for entry in found):
        raise FileFormatError(f"'{name}' names objects that only full unpickling restores")
    return [str(entry.get("path_name")) for entry in found if entry.get("use_pickle")]


def _check_plain(archive: zipfile.ZipFile, name: str) -> None:
    """Only tensors and containers: what PyTorch's restricted unpickler accepts."""
    import torch

    try:
        data = archive.read(name)
        if data:
            torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # the unpickler raises many types; each means that this is not plain data
        raise FileFormatError(f"'{name}' is not made of tensors alone") from None


def _check_model(document: dict[str, Any], name: str) -> None:
    if document.get("guards_code"):
        raise FileFormatError(f"'{name}' brings code for its guards; export with static shapes")
    for key, value in _entries(document):
        if key == "target" and isinstance(value, str) and value.startswith(("torch", "_operator")):
            if not value.startswith(_OPERATORS):
                raise FileFormatError(f"'{name}' calls '{value}', which is no ATen operator")
        elif key == "expr_str" and not (isinstance(value, str) and _SYMBOL.fullmatch(value)):
            raise FileFormatError(f"'{name}' computes sizes; export with static shapes")


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Every (key, value) of nested JSON, without recursion."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            yield from current.items()
            pending.extend(current.values())
        elif isinstance(current, list):
            pending.extend(current)


def _json(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    try:
        value = json.loads(archive.read(name))
    except (ValueError, RecursionError, KeyError):
        raise FileFormatError(f"'{name}' is not valid JSON") from None
    if not isinstance(value, dict):
        raise FileFormatError(f"'{name}' is not a JSON object")
    return value
