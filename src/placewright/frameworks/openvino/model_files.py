"""Checks of model files before a front-end of OpenVINO opens them.

They check the container (protocol buffer, flat buffer, XML), that it is complete, and that every
file to which it refers lies in its own folder. A model file is data: nothing in it is executed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.parsers import expat

from placewright.errors import FileFormatError
from placewright.io.model_parts import (
    MAX_MESSAGE_BYTES,
    check_onnx,
    checked,
    fields,
    place_in_file,
    require_size,
)
from placewright.io.opened import beside, inside, shown_name, usable_name

SUFFIXES = (".xml", ".onnx", ".pb", ".tflite")
_FILES_PER_MODEL = 10_000
_MAX_XML_BYTES = 512 << 20


def checked_files(path: Path) -> tuple[Path, ...]:
    """List all files of the model at `path`, a file or a SavedModel folder.

    Raises:
        InputError: a file is missing or cannot be read, or its name is not UTF-8.
        FileFormatError: the format is unknown or not that of the suffix, the model is incomplete,
            or it refers outside its folder.
    """
    if path.is_dir():
        return _saved_model(path)
    check = _CHECKS.get(path.suffix.lower())
    if check is None:
        kinds = ", ".join(SUFFIXES)
        raise FileFormatError(f"'{shown_name(path)}' is none of {kinds} and no SavedModel folder")
    limit = _MAX_XML_BYTES if check is _check_xml else MAX_MESSAGE_BYTES
    return (path, *checked(path, check, limit=limit))


def _check_xml(path: Path, content: memoryview) -> list[Path]:
    """Require well-formed XML with root <net> and no document type, so without entities.

    Returns:
        The file of weights beside it, if there is one.
    """
    roots: list[str] = []
    ends = [0]  # of constants in the file of weights
    parser = expat.ParserCreate()

    def refuse_document_type(*_: object) -> None:
        raise FileFormatError("it declares a document type, which no IR needs")

    def note(name: str, attributes: Mapping[str, str]) -> None:
        if not roots:
            roots.append(name)
        place = [attributes.get(key, "") for key in ("offset", "size")]
        if name == "data" and "element_type" in attributes and all(map(str.isdecimal, place)):
            ends.append(sum(map(place_in_file, place)))

    parser.StartDoctypeDeclHandler = refuse_document_type
    parser.StartElementHandler = note
    try:
        parser.Parse(bytes(content), True)
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two: its encoding
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"not well-formed XML ({error})") from None
    if roots != ["net"]:
        root = shown_name(roots[0])
        raise FileFormatError(f"its root is <{root}>, an OpenVINO IR starts with <net>")
    weights = path.with_suffix(".bin")
    if os.path.lexists(weights):
        beside(path, weights.name)
        require_size(weights.name, weights.stat().st_size, max(ends))
        return [weights]
    if max(ends) > 0:
        raise FileFormatError(f"its weights '{weights.name}' are missing; put them beside it")
    return []


def _check_graph_def(path: Path, content: memoryview) -> list[Path]:
    # The first field of a GraphDef is a node, and that of a SavedModel a number.
    is_message = {field.number: field.is_bytes for field in fields(content)}
    if not is_message.get(1) or not set(is_message) <= {1, 2, 3, 4, 5}:
        if path.name == "saved_model.pb":
            raise FileFormatError("give its folder, which holds the variables too")
        raise FileFormatError("it holds no TensorFlow GraphDef")
    return []


def _check_saved_model(path: Path, content: memoryview) -> list[Path]:
    numbers = {field.number for field in fields(content)}
    if not {2} <= numbers <= {1, 2}:
        raise FileFormatError("it holds no SavedModel")
    return []


def _check_tflite(path: Path, content: memoryview) -> list[Path]:
    if len(content) < 16 or bytes(content[4:8]) != b"TFL3":
        raise FileFormatError("the mark TFL3 is missing at byte 4")
    (root,) = struct.unpack_from("<I", content, 0)
    if root + 4 > len(content):
        raise FileFormatError("it ends before its own root table")
    return []


def _saved_model(folder: Path) -> tuple[Path, ...]:
    definition = folder / "saved_model.pb"
    if not definition.is_file():
        raise FileFormatError(
            f"folder '{folder}' is no model: it has no saved_model.pb of TensorFlow; give a file"
        )
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        if linked:
            raise FileFormatError(
                f"'{shown_name(Path(parent, linked[0]))}' is a link to a folder; copy the "
                "SavedModel with what its links lead to"
            )
        files += [usable_name(Path(parent, name)) for name in names]
        if len(files) > _FILES_PER_MODEL:
            raise FileFormatError(f"'{shown_name(folder)}' has more than {_FILES_PER_MODEL} files")
    for file in files:
        try:
            inside(folder, file.relative_to(folder).as_posix())
        except FileFormatError as error:
            raise FileFormatError(f"SavedModel '{shown_name(folder)}': {error}") from None
    checked(definition, _check_saved_model)
    return tuple(sorted(files))


_CHECKS: Mapping[str, Callable[[Path, memoryview], list[Path]]] = {
    ".xml": _check_xml,
    ".onnx": check_onnx,
    ".pb": _check_graph_def,
    ".tflite": _check_tflite,
}
