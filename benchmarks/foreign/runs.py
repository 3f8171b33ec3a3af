"""Runs each foreign model in each runtime that reads its format, and compares outputs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.foreign.architectures import ARCHITECTURES, export
from benchmarks.foreign.process import in_a_process
from placewright.core.placement import Placement
from placewright.errors import InputError, PlacewrightError, UnknownNameError, optional_library
from placewright.execution.comparing import compare_outputs
from placewright.execution.placements import placement_segments
from placewright.files.results import ResultsFile
from placewright.frameworks.registry import frameworks
from placewright.io.content import one_line
from placewright.profiling.evidence import wandering_placement
from placewright.session.session import Session

FORMAT = "placewright.foreign/1"
KINDS = ("onnx", "transformers")
_IN_FOLDER, _SAVED = "folder", "saved_model.pb"
_LEAST_NODES = 3
_STICKINESS = 0.8
_DRAWS = 50


@dataclass(frozen=True)
class ForeignRow:
    """One model in one runtime.

    Attributes:
        model: a file of the onnx package's test data, ``transformers:TYPE``, or ``folder:PATH``.
        format: suffix of its file; ``saved_model`` for a folder of TensorFlow.
        runtime: name; "" if the model could not be made.
        outcome: ``equal``, ``not equal``, ``refused`` (by us), ``not made`` (by the exporter) or
            ``failed`` (a foreign exception, a crash, or a timeout).
        ops, units, segments: of the graph and of the placement on two devices.
        error: relative to an output's largest magnitude.
        reason: of an outcome that is not ``equal``.
        seconds: of the whole row.
    """

    model: str
    format: str
    runtime: str
    outcome: str = "failed"
    ops: int = 0
    units: int = 0
    segments: int = 0
    error: float = 0.0
    reason: str = ""
    seconds: float = 0.0


def foreign_models(
    kinds: Iterable[str] = KINDS, folder: Path | None = None
) -> list[tuple[str, str]]:
    """Name and format of every model, in a fixed order.

    Args:
        kinds: of `KINDS`.
        folder: with further models, also in its subfolders.

    Raises:
        MissingExtraError: its test data is requested and onnx is not installed.
        UnknownNameError: there is no such kind.
        InputError: the folder has no model.
    """
    found = []
    chosen = list(kinds)
    for kind in chosen:
        if kind not in KINDS:
            raise UnknownNameError("kind", kind, KINDS)
    if "onnx" in chosen:
        found += [(name, "onnx") for name in _onnx_names()]
    if "transformers" in chosen:
        found += [
            (f"transformers:{kind}", format_)
            for kind in ARCHITECTURES
            for format_ in ("pt2", "onnx")
        ]
    if folder is not None:
        found += _models_in(folder)
    return found


def _models_in(folder: Path) -> list[tuple[str, str]]:
    suffixes = {suffix for framework in frameworks() for suffix in framework.suffixes}
    found = []
    for path in sorted(folder.rglob("*")):
        name = f"{_IN_FOLDER}:{path.relative_to(folder).as_posix()}"
        if (path / _SAVED).is_file():
            found.append((name, "saved_model"))
        elif any((above / _SAVED).is_file() for above in path.parents):
            continue  # a part of one
        elif path.suffix in suffixes and path.is_file():
            found.append((name, path.suffix[1:]))
    if not found:
        raise InputError(f"folder '{folder}' has no model of {', '.join(sorted(suffixes))}")
    return found


def _onnx_folder() -> Path:
    onnx = optional_library("onnx", "onnxruntime", "ONNX test data")
    return Path(onnx.__file__).parent / "backend" / "test" / "data"


def _onnx_names() -> list[str]:
    """Models of the package with three nodes or more."""
    import onnx

    root = _onnx_folder()
    names = []
    for path in sorted(root.rglob("*.onnx")):
        if len(onnx.load(str(path), load_external_data=False).graph.node) >= _LEAST_NODES:
            names.append(path.relative_to(root).as_posix())
    return names


def run_foreign(
    models: Sequence[tuple[str, str]],
    *,
    folder: Path | None = None,
    seconds: float = 300.0,
    results_path: Path | None = None,
    on_row: Callable[[ForeignRow], None] = lambda row: None,
) -> list[ForeignRow]:
    """Run every model in every runtime that reads its format; rows of the file are not repeated.

    Args:
        models: from `foreign_models`.
        folder: the folder of `foreign_models`.
        seconds: limit of a model in all runtimes.
        results_path: file of the rows.
        on_row: called with each new row.

    Raises:
        InputError: the file cannot be read or written.
    """
    kept = ResultsFile(
        results_path, FORMAT, ForeignRow, lambda row: (row.model, row.format, row.runtime)
    )
    found = []
    for name, format_ in models:
        rows = [row for row in kept.rows.values() if (row.model, row.format) == (name, format_)]
        if not rows:
            rows = _rows_of(name, format_, folder, seconds)
            kept.add(rows)
            for row in rows:
                on_row(row)
        found += rows
    return found


def _rows_of(name: str, format_: str, folder: Path | None, seconds: float) -> list[ForeignRow]:
    rows, reason = in_a_process(_scratch_rows, (name, format_, folder), seconds)
    if not reason:
        return rows
    return [*rows, ForeignRow(name, format_, "", reason=reason, seconds=seconds)]


def _scratch_rows(name: str, format_: str, folder: Path | None) -> Iterable[ForeignRow]:
    with tempfile.TemporaryDirectory() as scratch:
        yield from model_rows(name, format_, Path(scratch), folder)


def model_rows(
    name: str, format_: str, scratch: Path, folder: Path | None = None
) -> Iterable[ForeignRow]:
    """A row for each runtime that reads the format, in this process."""
    row = ForeignRow(name, format_, "")
    origin, has_origin, rest = name.partition(":")
    try:
        if not has_origin:
            path = _onnx_folder() / name
        elif origin == _IN_FOLDER and folder is not None:
            path = folder / rest
        else:
            path = export(rest, format_, scratch)
    except Exception as error:  # an exporter may raise anything
        cause = _first_cause(error)
        reason = f"{type(cause).__name__}: {_reason(cause)}"
        yield replace(row, outcome="not made", reason=reason)
        return
    suffix = ".pb" if path.is_dir() else path.suffix  # a SavedModel is a folder around one
    for framework in frameworks():
        if suffix in framework.suffixes:
            yield _row(replace(row, runtime=framework.name), path)


def _row(row: ForeignRow, path: Path) -> ForeignRow:
    began = time.monotonic()
    try:
        found = _compared(row, path)
    except PlacewrightError as error:
        found = replace(row, outcome="refused", reason=_reason(error, path))
    except Exception as error:  # what a benchmark of faults is there to find
        told = _reason(error, path)
        found = replace(row, outcome="failed", reason=f"{type(error).__name__}: {told}")
    return replace(found, seconds=round(time.monotonic() - began, 1))


def _first_cause(error: BaseException) -> BaseException:
    """The first cause of an exporter's error, which has many lines of advice."""
    seen = {id(error)}
    while True:
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if earlier is None or id(earlier) in seen:
            return error
        seen.add(id(earlier))
        error = earlier


def _reason(error: BaseException, path: Path | None = None) -> str:
    """A reason as one line, without folders of this machine."""
    line = one_line(error)
    for folder in (*([path.parent] if path else []), _onnx_folder(), Path(tempfile.gettempdir())):
        line = line.replace(f"{folder}/", "")
    return line


def _compared(row: ForeignRow, path: Path) -> ForeignRow:
    session = Session(
        str(path), runtime=row.runtime, devices="cpu:0,cpu:1", quick=True, calibrate=False
    )
    problem = session.problem
    row = replace(row, ops=problem.graph.n_ops, units=problem.n_units)
    rng = np.random.default_rng(0)
    for _ in range(_DRAWS):
        devices = wandering_placement(problem, rng, _STICKINESS)
        if len(np.unique(devices)) > 1 or problem.n_units == 1:
            break
    placement = Placement.of(devices)
    compared = compare_outputs(problem, placement, session.loaded)
    return replace(
        row,
        segments=len(placement_segments(problem, placement)),
        error=float(compared.error),
        outcome="equal" if compared.equal else "not equal",
        reason="" if compared.equal else f"differs at '{compared.worst}'",
    )
