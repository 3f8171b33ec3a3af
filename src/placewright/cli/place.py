"""The command `place`: read, profile, search, check on the hardware, write the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options as opt
from placewright.cli.command import LANGUAGE_MODEL, command
from placewright.cli.output import (
    print_all,
    print_bars,
    print_json,
    print_line,
    print_lines,
    print_note,
    print_table,
    progress,
    tell_warning,
)
from placewright.cli.overwriting import Writes
from placewright.cli.report import ReportFile, plan_options, write_plan_report
from placewright.cli.signals import answer
from placewright.session.request import Request

if TYPE_CHECKING:
    from placewright.session.language.questions import Variant


def _beside(plan: Path) -> list[Path]:
    from placewright.files.plan_file import problem_path_of
    from placewright.io.written import is_written_through

    return [problem_path_of(plan)] if plan.name and not is_written_through(plan) else []


PlanOutput = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the plan to this file."),
    Writes(_beside),
]


@command(isolates=True, each_size=True)
def place(
    request: Request,
    output: PlanOutput = Path("plan.json"),
    report_file: ReportFile = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Find, prove, run and write the best placement of MODEL.

    With several sizes, as in --shape past=64|128 or past=64..512, each size gets a plan file of
    its own.
    """
    from placewright.errors import Interrupted
    from placewright.files.plan_file import write_plan
    from placewright.report.plan_text import plan_warning
    from placewright.session.session import Session

    target = output or Path("plan.json")
    with progress("place", hidden=quiet or as_json) as report:
        session = Session(request, report)
        try:
            plan = session.place()
        except Interrupted as error:
            if error.plan is None:
                raise
            answer()
            plan = error.plan
    write_plan(target, plan)
    write_plan_report(report_file, request.name, plan, target)
    tell_warning(plan_warning(plan))
    _tell(plan, request.name, target, session.table, as_json)


def _tell(plan: Any, model: str, target: Path, table: Any, as_json: bool) -> None:
    """Print the plan as JSON, or as text with the measured contenders."""
    from placewright.files.plan_file import plan_data, problem_path_of
    from placewright.files.problem_file import problem_text, text_sha256, written_in
    from placewright.session.export import formats_that_take
    from placewright.session.language.answer import token_answer

    if as_json:
        text = problem_text(written_in(plan.problem, problem_path_of(target)))
        paths = list(map(str, _beside(target)))  # none beside a device
        entry = dict(zip(["path"], paths, strict=False)) | {"sha256": text_sha256(text)}
        answer = token_answer(plan, orders=True)
        tokens = {} if answer is None else {"tokens": answer.data()}
        taken = {"exports": list(formats_that_take(plan))}
        print_json({**plan_data(plan, entry), **taken, **tokens})
        return
    print_plan(plan, model, target, is_searched=True)
    if table is not None:
        print_table(table.title, table.columns, table.rows)
        print_line(table.verdict)
    written = [str(path) for path in (target, *_beside(target))]
    print_note(f"wrote {' and '.join(written)}")


def print_plan(
    plan: Any,
    model: str,
    file: Path,
    *,
    is_searched: bool = False,
    searched: bool = False,
    is_changed: bool = False,
) -> None:
    """Print the verdict, the proof, the share of each device, and the timeline.

    Args:
        model: name of its model.
        file: of the plan, for the commands that the verdict advises.
        is_searched: a search has just ended with it.
        searched: the commands take the searched placement.
        is_changed: ops were moved after the search, so that no command runs the plan.
    """
    from placewright.report.plan_text import plan_lines
    from placewright.report.timeline_text import plan_bars
    from placewright.report.verdict import verdict_lines, with_plan_file
    from placewright.session.export import formats_that_take
    from placewright.session.language.answer import answer_lines, token_answer

    if (answer := token_answer(plan, orders=is_searched)) is not None:
        print_lines(answer_lines(plan, answer, model))
        return
    sentence, following = verdict_lines(plan)
    print_line(sentence)
    if not is_changed:
        print_line(with_plan_file(following, str(file), *plan_options(searched)))
    print_lines(plan_lines(plan, model, is_changed=is_changed))
    taken = ", ".join(formats_that_take(plan)) or "none"
    print_line(f"formats of `placewright export` that can express it: {taken}")
    print_bars(plan_bars, plan)


# Fields that mean something for a language model.
_OF_ADVICE = (
    *("devices", "cluster", "memory", "pins", "weights", "kv", "micro_batch", "sequences"),
    *("prompt", "generate", "context", "placer", "seed", "workers", "ray"),
    *("budget", "evaluations", "core_seconds", "total"),
)


@command(*_OF_ADVICE, model=LANGUAGE_MODEL, isolates=True)
def advise(
    request: Request,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", help="Plan each value, as in context=4k,32k,128k; repeatable."),
    ] = None,
    reach: Annotated[
        float | None,
        typer.Option(
            "--reach",
            help="Find the cheapest cards (the fewest, if one has no price) that decode N tokens "
            "per second.",
        ),
    ] = None,
    report_file: ReportFile = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show what each device brings to a language model.

    A line names the change of the devices that helps most. Every variant gets a plan of its own.
    --sweep and --reach answer their questions instead. If no variant has a plan, the exit code
    is 1, or 2 if the model refuses all values.
    """
    from placewright.cli.report import write_tables_report
    from placewright.session.language.questions import Questions
    from placewright.session.parsing import parse_sweep
    from placewright.session.session import Session

    swept: dict[str, list[int]] = {}
    for field, values in map(parse_sweep, sweep or ()):
        swept.setdefault(field, []).extend(values)
    with progress("advise", hidden=quiet or as_json) as report:
        asked = Questions(request, lambda changed: Session(changed, report).place())
        found, shown = _answered(asked, request.name, swept, reach)
    write_tables_report(report_file, f"advise {request.name}", shown)
    if as_json:
        print_json({
            title: [variant.data() for variant in (base, *rows) if variant is not None]
            for title, (base, rows) in found.items()
        })  # fmt: skip
    else:
        print_all(shown)
    _end_without_plan(found)


_Found = dict[str, tuple["Variant | None", "Sequence[Variant]"]]


def _answered(
    asked: Any, model: str, swept: Mapping[str, Sequence[int]], reach: float | None
) -> tuple[_Found, list[Any]]:
    """Variants by the question that they answer, and the tables and lines of the answers."""
    from placewright.session.language.questions import (
        advice_lines,
        reach_lines,
        refused_lines,
        variants_table,
    )

    asked.require(sweeps=swept, rate=reach)
    found: _Found = {f"by {name}": (None, asked.sweep(name, of)) for name, of in swept.items()}
    lines = []
    if reach is not None:
        reached = asked.cheapest(reach)
        found[f"devices for {reach:g} tokens/s"] = (None, reached)
        lines = reach_lines(reach, reached, is_priced=asked.is_priced)
    if not found:
        base, without, changed = asked.as_it_is(), asked.without_each(), asked.upgrades()
        found = {"without a device": (base, without), "with one change": (base, changed)}
        lines = advice_lines(base, without, changed)
    shown: list[Any] = []
    for title, (base, rows) in found.items():
        shown += [variants_table(f"{model}, {title}", base, rows), *refused_lines(rows)]
    return found, [*shown, *lines]


def _end_without_plan(found: _Found) -> None:
    """End the command with its exit code if no variant of a language model has a plan."""
    variants = [one for base, rows in found.values() for one in (base, *rows) if one is not None]
    if all(one.answer is None for one in variants):
        raise typer.Exit(1 if any(one.is_infeasible for one in variants) else 2)
