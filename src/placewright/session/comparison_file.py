"""Runs of a comparison on disk: written after each one, read again to resume or to report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import FileFormatError, InputError
from placewright.files.problem_file import content_sha256
from placewright.files.text import read_json_object, write_text
from placewright.report.comparison_table import FORMAT, ComparisonTable, Run


class ComparisonFile:
    """The runs on one problem with one budget.

    Args:
        path: JSON file, read now where it exists; None keeps the runs in memory only.
        problem: what is placed.
        budget: of every run.

    Attributes:
        runs: (placer, seed) -> run.

    Raises:
        FileFormatError: the file is damaged or of another format.
        InputError: it belongs to another problem or budget.
    """

    def __init__(self, path: str | Path | None, problem: Problem, budget: Budget) -> None:
        self.runs: dict[tuple[str, int], Run] = {}
        self._path = None if path is None else Path(path)
        self._unit = problem.time_unit
        self._key = {
            "problem": content_sha256(problem),
            "evaluations": budget.evaluations,
            "budget_seconds": budget.seconds,
            "budget_core_seconds": budget.core_seconds,
        }
        if self._path is not None and self._path.exists():
            document = _read(self._path)
            if {name: document.get(name) for name in self._key} != self._key:
                raise InputError(
                    f"'{path}' holds results of another problem or budget; give another file"
                )
            self.runs = {(run.placer, run.seed): run for run in _runs(self._path, document)}

    def add(self, run: Run) -> None:
        """Keep one run and write all."""
        self.runs[run.placer, run.seed] = run
        if self._path is not None:
            table = table_of_runs(self._unit, list(self.runs.values()))
            write_text(self._path, _text({**self._key, **table.data()}))


def table_of_runs(unit: str, runs: Sequence[Run]) -> ComparisonTable:
    """The table of some runs on one problem."""
    return ComparisonTable(unit, tuple(runs), min(run.value for run in runs))


def _read(path: Path) -> dict[str, Any]:
    document = read_json_object(path)
    if document.get("format") != FORMAT:
        raise FileFormatError(
            f"results '{path}' have format {document.get('format')!r}, expected '{FORMAT}'"
        )
    return document


def _runs(path: Path, document: Mapping[str, Any]) -> list[Run]:
    try:
        return [_run_from(entry) for entry in document["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"results '{path}' are damaged: {error}") from error


def _run_from(entry: Mapping[str, Any]) -> Run:
    value = math.inf if entry["value"] is None else float(entry["value"])
    history = tuple((int(n), float(v)) for n, v in entry["history"])
    return Run(**{**entry, "value": value, "history": history})


def _text(document: Mapping[str, Any]) -> str:
    """JSON with one row and one run per line."""
    lines = []
    for name, value in document.items():
        if isinstance(value, list) and value:
            entries = ",\n  ".join(json.dumps(_without_inf(entry)) for entry in value)
            lines.append(f" {json.dumps(name)}: [\n  {entries}\n ]")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(_without_inf(value))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _without_inf(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_inf(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_inf(item) for item in value]
    return value
