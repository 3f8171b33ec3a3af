"""The command `export`: a plan in the format of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import plain_command
from placewright.cli.output import print_command, print_json, print_line, print_note, tell_warning
from placewright.cli.overwriting import Writes


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(export)


def _parts(target: Path) -> list[Path]:
    """Files that an export may write beside its target, or replace in its folder."""
    from placewright.io.onnx_saved import data_file_of
    from placewright.io.written import written_place
    from placewright.writers.onnx_segments import is_own_name

    if target.is_dir():
        return [file for file in target.iterdir() if is_own_name(file.name)]
    return [data_file_of(written_place(target))]


@plain_command
def export(
    plan_file: opt.PlanFile,
    form: Annotated[
        str,
        typer.Option(
            "--to",
            help="Write device-map, llama.cpp, onnx-layers, onnx-segments, openvino-affinity, "
            "sglang or vllm.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write to this file, or into this folder (onnx-segments); llama.cpp, sglang and "
            "vllm are printed without it.",
        ),
        Writes(_parts, may_be_folder=True),
    ] = None,
    searched: opt.Searched = False,
    model_file: opt.ModelOfPlan = None,
    as_json: opt.Json = False,
) -> None:
    """Write PLAN in the format of another tool."""
    from placewright.errors import UnknownNameError
    from placewright.io.written import require_folder
    from placewright.session import export as exporting
    from placewright.session.plans import read_plan, recommendation_lines

    if form not in exporting.formats():
        raise UnknownNameError("export format", form, exporting.formats())
    if output is None:
        plan = read_plan(plan_file, searched=searched, model=model_file)
        line = exporting.printed(plan, form)
        tell_warning(exporting.numbering(plan))
        if as_json:
            print_json({"format": form, "path": None, "use": line})
        else:
            print_command(line)
        return
    if form != "onnx-segments":
        require_folder(output)
    plan = read_plan(plan_file, searched=searched, model=model_file)
    use = exporting.export(plan, form, output)
    for line in recommendation_lines(plan):
        print_note(line)
    tell_warning(exporting.numbering(plan))
    if as_json:
        print_json({"format": form, "path": str(output), "use": use})
        return
    print_line(f"wrote {output}: {use}")
