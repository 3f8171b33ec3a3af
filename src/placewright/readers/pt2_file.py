"""Loading a ``.pt2`` file without running what is in it.

``torch.export.load`` falls back to full unpickling and to an older format, loads compiled code, and
hands the texts of symbolic sizes to an evaluator: each runs what a file brings along. So only the
members that an exported program needs are admitted, each is checked, and PyTorch gets a new archive
of exactly the bytes that were checked.
"""

from __future__ import annotations

import io
import json
import logging
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import FileFormatError, InputError, MissingExtraError
from placewright.readers.content import one_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/version|\.data/serialization_id"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(model_weights_config\.json|weight_\d+)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+)"
)
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
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "reading a .pt2 file") from None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"file '{path}' cannot be read: {error.strerror}") from None
    try:
        admitted = _admitted(content)
    except FileFormatError as error:
        raise FileFormatError(f"'{path}' is not a valid .pt2 model: {error}") from None
    except zipfile.BadZipFile:
        raise FileFormatError(f"'{path}' is not a valid .pt2 model: it is no archive") from None
    except Exception as error:  # zipfile answers damage with many types
        reason = one_line(error)
        raise FileFormatError(f"'{path}' is a damaged .pt2 archive: {reason}") from None
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)  # a failure is told in one line below, not in a traceback
    try:
        return torch.export.load(_archive_of(admitted))
    except Exception as error:  # the loader has no error type of its own
        raise FileFormatError(f"PyTorch cannot read '{path}': {one_line(error)}") from None
    finally:
        log.setLevel(level)


def _admitted(content: bytes) -> dict[str, bytes]:
    """Members below the archive's one folder, by name; all of them checked."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        roots = list(dict.fromkeys(name.partition("/")[0] for name in names))
        if not any(re.search(r"(^|/)models/[^/]+\.json$", name) for name in names):
            raise FileFormatError("it holds no exported program")
        if len(roots) != 1 or len(dict.fromkeys(names)) < len(names):
            raise FileFormatError("it has more than one folder, or a member twice")
        members: dict[str, bytes] = {}
        for name in names:
            inner = name.partition("/")[2]
            if not _MEMBERS.fullmatch(inner):
                raise FileFormatError(f"it holds '{name}', which no exported program needs")
            members[inner] = archive.read(name)
    pickled = ["data/sample_inputs/model.pt"] if "data/sample_inputs/model.pt" in members else []
    for name in members:
        if name.endswith("_config.json"):
            folder = name.rpartition("/")[0]
            pickled += [f"{folder}/{entry}" for entry in _pickled_entries(members, name)]
    for name in pickled:
        _check_plain(members, name)
    _check_model(_json(members, "models/model.json"), "models/model.json")
    return members


def _archive_of(members: Mapping[str, bytes]) -> io.BytesIO:
    """A new archive with these members and nothing else."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(f"model/{name}", data)
    stream.seek(0)
    return stream


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
