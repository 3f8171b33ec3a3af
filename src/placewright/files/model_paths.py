"""Paths of models in files: relative to the file's folder, so that both can move together."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from placewright.core.problem import Problem
from placewright.io.written import is_written_through


def written_in(problem: Problem, file: Path | str) -> Problem:
    """A problem whose model's path starts at the folder of `file`, as that file holds it.

    Names of models that are no files stay, and so do all paths where `file` is a device.
    """
    source = problem.source
    if source is None or is_written_through(file) or not Path(source.path).exists():
        return problem
    folder = os.path.realpath(Path(file).parent)
    try:
        path = os.path.relpath(os.path.realpath(source.path), folder)
    except ValueError:  # another drive
        return problem
    return replace(problem, source=replace(source, path=Path(path).as_posix()))


def found_from(path: str, file: Path | str) -> str:
    """The path of a model that `file` names: from its folder, or as it is where nothing is there.

    Files of earlier versions hold paths that start at the folder of the process.
    """
    beside = Path(file).parent / path
    return os.path.normpath(beside) if path and beside.exists() else path
