"""The commands `report`, `explain`, `diff` and `export`, which read a plan.

Also the option `--report` of other commands, which writes an HTML page of their answer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options as opt
from placewright.cli.command import plain_command
from placewright.cli.options import document_with_options, with_options
from placewright.cli.output import (
    print_command,
    print_json,
    print_line,
    print_lines,
    print_note,
    print_table,
    tell_warning,
    write_noted,
)
from placewright.cli.overwriting import Writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.core.plan import Plan
    from placewright.report.tables import ShownTable


ReportFile = Annotated[
    Path | None,
    typer.Option("--report", help="Write a self-contained page, too, such as plan.html."),
    Writes(),
]


def plan_options(searched: bool) -> tuple[str, ...]:
    """Options for the commands that we suggest: ``--searched``, or none.

    Args:
        searched: we show the placement that the search found, not the one that the plan recommends.
    """
    return ("--searched",) if searched else ()


def write_plan_report(
    path: Path | None,
    title: str,
    plan: Plan,
    file: Path,
    *,
    searched: bool = False,
    is_changed: bool = False,
) -> None:
    """Write the HTML page of a plan; do nothing if `path` is None.

    Args:
        title: heading of the page: name of the model or of the plan's file.
        file: of the plan, for the commands on the page.
        searched: add ``--searched`` to these commands, as `plan_options` does.
        is_changed: ops were moved after the search, so that the page suggests no command.
    """
    if path is None:
        return
    from placewright.report.page import page_text
    from placewright.report.page_document import plans_document

    def text() -> str:
        document = plans_document(
            (title, plan), file=str(file), options=plan_options(searched), is_changed=is_changed
        )
        return page_text(_shown(document))

    write_noted(path, text)


def _shown(document: dict[str, Any]) -> dict[str, Any]:
    """Replace arguments in the sentences of a page by options: argument `x` becomes ``--x``."""
    named = ("plan", "other")  # the parts with sentences
    return {**document, **{part: document_with_options(document[part]) for part in named}}


def write_tables_report(path: Path | None, title: str, shown: Sequence[str | ShownTable]) -> None:
    """Write an HTML page with the printed lines and tables, in order; do nothing without a path.

    Args:
        title: heading of the page.
    """
    if path is None:
        return
    from placewright.report.page import tables_page

    write_noted(path, lambda: tables_page(title, [_named(item) for item in shown]))


def _named(item: str | ShownTable) -> str | ShownTable:
    """Replace arguments in a line or a table by options: argument `x` becomes ``--x``."""
    if isinstance(item, str):
        return with_options(item)
    return replace(item, rows=tuple(tuple(map(with_options, row)) for row in item.rows))


@plain_command
def report(
    plan_file: opt.PlanFile,
    other_file: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A plan to compare it with.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Write the page to this file."), Writes()
    ] = Path("report.html"),
    searched: opt.Searched = False,
    model_file: opt.ModelOfPlan = None,
    as_json: opt.Json = False,
) -> None:
    """Write one self-contained page about PLAN, or about two plans.

    The page shows the device of every op, why the plan takes its time, and the value after moves.
    """
    from placewright.io.written import write_text
    from placewright.report.page import page_text
    from placewright.report.page_document import plans_document
    from placewright.session.plans import read_plan

    files = [path for path in (plan_file, other_file) if path is not None]
    plans = [(path.name, read_plan(path, searched=searched, model=model_file)) for path in files]
    document = _shown(plans_document(*plans, file=str(plan_file), options=plan_options(searched)))
    write_text(output, page_text(document))
    if as_json:
        print_json(document)
        return
    print_line(document["plan"]["verdict"]["sentence"])
    print_line(f"Next: {document['plan']['verdict']['next']}")
    print_note(f"wrote {output}")


@plain_command
def explain(
    plan_file: opt.PlanFile,
    op: Annotated[str, typer.Argument(metavar="OP", help="Name of an op, or path of a module.")],
    searched: opt.Searched = False,
    model_file: opt.ModelOfPlan = None,
    as_json: opt.Json = False,
) -> None:
    """Explain why OP is on its device in PLAN.

    For every other device: the value of the plan with OP there, and the reason for the difference.
    """
    from placewright.report.explain import explain as explained
    from placewright.session.language.run_search import columns_of_other_modes
    from placewright.session.plans import read_plan

    plan = read_plan(plan_file, searched=searched, model=model_file)
    explanation = explained(plan, op, without=columns_of_other_modes(plan))
    if as_json:
        print_json(explanation.data())
        return
    print_lines(explanation.lines())
    columns = ["device", "own time", "transfers", "plan then takes", "what decides"]
    print_table("Devices", columns, explanation.rows())


@plain_command
def diff(
    plan_file: opt.PlanFile,
    other_file: Annotated[Path, typer.Argument(metavar="OTHER", help="Another plan.json.")],
    model_file: opt.ModelOfPlan = None,
    as_json: opt.Json = False,
) -> None:
    """Show what moved from PLAN to OTHER, and what that gained."""
    from placewright.report.difference import DEVICE_COLUMNS, GROUP_COLUMNS, difference_of
    from placewright.session.plans import read_plan

    plans = [read_plan(path, model=model_file) for path in (plan_file, other_file)]
    difference = difference_of(*plans)
    if as_json:
        print_json(difference.data())
        return
    print_lines(difference.lines())
    print_table("Devices", DEVICE_COLUMNS, difference.device_rows())
    if difference.groups:
        rows = difference.group_rows()
        print_table("Moved", GROUP_COLUMNS, rows[:_MOST_MOVED])
        if len(rows) > _MOST_MOVED:
            print_note(f"{len(rows) - _MOST_MOVED} more groups that moved: see --json")


_MOST_MOVED = 30  # rows of a table


def _parts(target: Path) -> list[Path]:
    """Files that an export may write besides `target`; they must not be files that it reads.

    For a file: its data file next to it. For a folder: the files in it with names of an export.
    """
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
        tell_warning(exporting.numbering(plan, form))
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
    tell_warning(exporting.numbering(plan, form))
    if as_json:
        print_json({"format": form, "path": str(output), "use": use})
        return
    print_line(f"wrote {output}: {use}")
