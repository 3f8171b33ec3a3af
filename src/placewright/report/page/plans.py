"""The document of one plan, or of two side by side."""

from __future__ import annotations

import shlex
from typing import Any

from placewright.core.plan import Plan
from placewright.report.difference import DEVICE_COLUMNS, difference_of, has_same_units
from placewright.report.page.document import document_of, plan_part
from placewright.simulation.model import Simulator


def plans_document(
    first: tuple[str, Plan], other: tuple[str, Plan] | None = None, *, file: str = ""
) -> dict[str, Any]:
    """What a page shows of a plan, beside another where one is given.

    Args:
        first: title and plan.
        other: title and plan that it is compared with.
        file: of the first plan, which commands on the page name; empty leaves PLAN there.
    """
    document = document_of(first[1], first[0])
    if file:
        _name_file(document, shlex.quote(file))
    if other is None:
        return document
    title, plan = other
    difference = difference_of(first[1], plan)
    same_units = has_same_units(first[1].problem, plan.problem)
    document["other"] = {
        "title": title,
        "plan": plan_part(plan, Simulator(plan.problem)),
        "same_units": same_units,
        "lines": difference.lines(),
        "device_columns": list(DEVICE_COLUMNS),
        "device_rows": difference.device_rows(),
        "moved": difference.group_rows(),
        "moved_units": sorted(unit for group in difference.groups for unit in group.units),
    }
    return document


def _name_file(document: dict[str, Any], file: str) -> None:
    """Let the commands that the page advises name the plan's file."""
    verdict, what_if = document["plan"]["verdict"], document["what_if"]
    document["file"] = file
    verdict["next"] = verdict["next"].replace(" PLAN`", f" {file}`")
    if "why_not" in what_if:
        what_if["why_not"] = what_if["why_not"].replace(" PLAN ", f" {file} ")
