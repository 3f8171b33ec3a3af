"""A ``.pt2`` file handed to a framework that converts PyTorch programs to files of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from placewright.execution.exported_program import Interface, ProgramFile
from placewright.frameworks.torch.pt2.file import load_program
from placewright.frameworks.torch.reading.fx_program import FxInterface
from placewright.io.content import existing_path

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def program_file(path: Path | str) -> ProgramFile:
    """The program in a ``.pt2`` file, which is loaded when it is needed.

    Raises:
        InputError: there is no such file.
    """
    return ProgramFile(existing_path(path), _loaded)


def _loaded(path: Path) -> tuple[ExportedProgram, Interface]:
    program = load_program(path)
    told = FxInterface.of(program)
    return program, Interface(told.input_names, told.output_names, told.state)
