"""Run a command once for each size that ``--shape`` gives."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from placewright.core.plan import Plan


def for_each_size(run: Callable[..., None], given: dict[str, Any]) -> None:
    """Run a command once for each size of `shapes`.

    The files of `output` and `report_file` get the size behind their names. A size without a plan
    does not end the others; Ctrl-C, after which a plan holds the incumbent, does.

    Args:
        given: its parameters, `shapes`, `output`, `report_file` and `as_json` among them.
    """
    from placewright.session.parsing import each_size, is_several

    texts = given["shapes"] or []
    if any(map(is_several, texts)):
        _run_each(run, given, each_size(texts))
    else:
        run(**given)


def _run_each(
    run: Callable[..., None], given: dict[str, Any], sizes: list[tuple[str, list[str]]]
) -> None:
    from placewright.cli.overwriting import files_behind
    from placewright.errors import AnswerError
    from placewright.files.overwriting import refuse_overwriting
    from placewright.files.plan_file import read_plan
    from placewright.session.parsing import labelled

    names = [name for name in ("output", "report_file") if given[name] is not None]
    files = [{name: labelled(Path(given[name]), label) for name in names} for label, _ in sizes]
    read = files_behind(Path(given["model"]))
    refuse_overwriting([path for row in files for path in row.values()], read)
    as_json: bool = given["as_json"]
    failure: AnswerError | None = None
    documents: dict[str, Any] = {}
    rows = []
    for (label, texts), written in zip(sizes, files, strict=True):
        shown = io.StringIO()
        if not as_json:
            print_line(f"{label}:")
        hidden = contextlib.redirect_stdout(shown) if as_json else contextlib.nullcontext()
        try:
            with hidden:
                run(**{**given, "shapes": texts, **written})
            documents[label] = json.loads(shown.getvalue()) if as_json else None
            plan = read_plan(written["output"])
            rows.append([label, *_row(plan, written["output"])])
            if plan.placer.is_interrupted:
                break
        except AnswerError as error:
            failure = error
            documents[label] = {"error": str(error)}
            rows.append([label, "-", str(error), "-"])
    if as_json:
        print_json({"plans": documents})
    else:
        print_table("One plan for each size", ["size", "takes", "verdict", "plan"], rows)
    if failure is not None:
        raise failure


def _row(plan: Plan, path: Path) -> list[str]:
    from placewright.report.values import value_text
    from placewright.report.verdict import verdict_lines

    return [value_text(plan.value, plan.problem.value_unit), verdict_lines(plan)[0], str(path)]
