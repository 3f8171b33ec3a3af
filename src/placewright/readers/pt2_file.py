"""Loading a ``.pt2`` file without running what is in it.

``torch.export.load`` falls back to full unpickling and to an older format, loads compiled code, and
hands the texts of symbolic sizes to an evaluator: each runs what a file brings along. So only the
members that an exported program needs are admitted, each is checked, and PyTorch gets a new archive
of exactly the bytes that were checked. Raw weights, which are nothing but numbers, stay in the file
until PyTorch reads them: a model takes its own size in memory, not four times as much.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from placewright.errors import FileFormatError, InputError, MissingExtraError
from placewright.readers.content import one_line
from placewright.readers.spliced_file import SplicedFile

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/version|\.data/serialization_id"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(model_weights_config\.json|weight_\d+)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+)"
)
_RAW = re.compile(r"data/weights/weight_\d+|data/constants/tensor_\d+")
_BLOCK = 2**20  # bytes
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims)\.\w+\.\w+|_operator\.\w+|torch\.ops\.higher_order\."
    r"(cond|while_loop|scan|map_impl|wrap_with_set_grad_enabled|wrap_with_autocast)"
)
_SYMBOL = re.compile(r"-?\w{1,40}")


def load_program(path: Path) -> ExportedProgram:
    """Load what ``torch.export.save`` wrote.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no such file, is damaged, or holds pickled objects, custom operators
            or computed sizes.
        MissingExtraError: torch is not installed.
    """
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "torch", "reading a .pt2 file")
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"file '{path}' cannot be read: {error.strerror}") from None
    with file:
        return _loaded(file, path)


def _loaded(file: BinaryIO, path: Path) -> ExportedProgram:
    import torch

    try:
        admitted = _admitted(file)
    except FileFormatError as error:
        raise FileFormatError(f"'{path}' is not a valid .pt2 model: {error}") from None
    except Exception as error:  # zipfile answers damage with many types
        if not zipfile.is_zipfile(file):
            raise FileFormatError(f"'{path}' is not a valid .pt2 model: it is no archive") from None
        reason = one_line(error)
        raise FileFormatError(f"'{path}' is a damaged .pt2 archive: {reason}") from None
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)  # a failure is told in one line below, not in a traceback
    try:
        return torch.export.load(cast(BinaryIO, admitted))
    except Exception as error:  # the loader has no error type of its own
        raise FileFormatError(f"PyTorch cannot read '{path}': {one_line(error)}") from None
    finally:
        log.setLevel(level)


def _admitted(file: BinaryIO) -> SplicedFile:
    """A new archive of what an exported program needs, all of it checked."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        roots = list(dict.fromkeys(name.partition("/")[0] for name in names))
        if not any(re.search(r"(^|/)models/[^/]+\.json$", name) for name in names):
            raise FileFormatError("it holds no exported program")
        if len(roots) != 1 or len(dict.fromkeys(names)) < len(names):
            raise FileFormatError("it has more than one folder, or a member twice")
        full_name = {name.partition("/")[2]: name for name in names}
        for inner, name in full_name.items():
            if not _MEMBERS.fullmatch(inner):
                raise FileFormatError(f"it holds '{name}', which no exported program needs")
        members = {
            inner: archive.read(name)
            for inner, name in full_name.items()
            if not _RAW.fullmatch(inner)
        }
        pickled = _pickled_names(members)
        of_pickles = [inner for inner in pickled if inner in full_name and inner not in members]
        members |= {inner: archive.read(full_name[inner]) for inner in of_pickles}
        for inner in pickled:
            _check_plain(members, inner)
        _check_model(_json(members, "models/model.json"), "models/model.json")
        raw = {inner: name for inner, name in full_name.items() if inner not in members}
        return _archive_of(members, archive, raw, file)


def _archive_of(
    members: Mapping[str, bytes], original: zipfile.ZipFile, raw: Mapping[str, str], file: BinaryIO
) -> SplicedFile:
    """A new archive with these members, those raw ones of the original one, and nothing else."""
    spliced = SplicedFile()
    with zipfile.ZipFile(spliced, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(f"model/{name}", data)
        for inner, name in raw.items():
            info = original.getinfo(name)
            is_stored = info.compress_type == zipfile.ZIP_STORED
            at = _data_offset(file, info)
            is_large = info.file_size >= zipfile.ZIP64_LIMIT // 2
            with (
                original.open(name) as source,  # raises at its end where the checksum is wrong
                archive.open(f"model/{inner}", "w", force_zip64=is_large) as target,
            ):
                while block := source.read(_BLOCK):
                    if is_stored:
                        spliced.lies_at(file, at)
                    target.write(block)
                    at += len(block)
    spliced.seek(0)
    return spliced


def _data_offset(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin: behind its own header, a name and an extra field."""
    header = os.pread(file.fileno(), 30, info.header_offset)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    return info.header_offset + 30 + int(name_length) + int(extra_length)


def _pickled_names(members: Mapping[str, bytes]) -> list[str]:
    """Members that are pickles: the sample inputs, and weights and constants that a list names."""
    inputs = "data/sample_inputs/model.pt"
    found = [inputs] if inputs in members else []
    for name in members:
        if name.endswith("_config.json"):
            folder = name.rpartition("/")[0]
            found += [f"{folder}/{entry}" for entry in _pickled_entries(members, name)]
    return found


def _pickled_entries(members: Mapping[str, bytes], name: str) -> list[str]:
    """Weights or constants that are stored as pickles."""
    config = _json(members, name).get("config")
    entries = config.values() if isinstance(config, dict) else ()
    found = [entry for entry in entries if isinstance(entry, dict)]
    for entry in found:
        path = entry.get("path_name")
        if not (isinstance(path, str) and re.fullmatch(r"(weight|tensor)_\d+", path)):
            raise FileFormatError(f"'{name}' names {path!r}, which is no tensor")
    return [str(entry["path_name"]) for entry in found if entry.get("use_pickle")]


def _check_plain(members: Mapping[str, bytes], name: str) -> None:
    """Only tensors and containers: what PyTorch's restricted unpickler accepts."""
    import torch

    try:
        if members[name]:
            torch.load(io.BytesIO(members[name]), weights_only=True)
    except Exception:  # the unpickler raises many types; each means that this is not plain data
        raise FileFormatError(f"'{name}' is not made of tensors alone") from None


def _check_model(document: dict[str, Any], name: str) -> None:
    if document.get("guards_code"):
        raise FileFormatError(f"'{name}' brings code for its guards; export with static shapes")
    for item in _objects(document):
        target, size = item.get("target"), item.get("expr_str")
        is_call = "inputs" in item or str(target).startswith(("torch.", "_operator."))
        if target is not None and is_call and not _OPERATOR.fullmatch(str(target)):
            raise FileFormatError(
                f"'{name}' calls {target!r}, which is no ATen operator; export the model without "
                "operators that other packages register"
            )
        if size is not None and not (isinstance(size, str) and _SYMBOL.fullmatch(size)):
            raise FileFormatError(f"'{name}' computes sizes; export with static shapes")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in nested JSON, without recursion."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            yield current
            pending.extend(current.values())
        elif isinstance(current, list):
            pending.extend(current)


def _json(members: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        value = json.loads(members[name])
    except (ValueError, RecursionError, KeyError):
        raise FileFormatError(f"'{name}' is not valid JSON") from None
    if not isinstance(value, dict):
        raise FileFormatError(f"'{name}' is not a JSON object")
    return value
