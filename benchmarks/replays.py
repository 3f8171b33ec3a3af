"""Replay files of measurements that others made, and store the errors.

    python -m benchmarks.replays FILE [FILE ...] --chosen-on 1 [--beside FILE ...]
        [--results docs/results/replays.json]

The first files, as many as `--chosen-on` says, choose the rule about copies: the smallest median
error over their plans on several devices. The other files played no part, and judge it. Files
`--beside` have other stored data of the same plans; they neither choose nor judge.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewright.core.cluster import OCCUPIES
from placewright.report.replay_text import Replay, ReplayedPlan
from placewright.suites.replay import replay


def main() -> None:
    """Replay, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--chosen-on", type=int, default=1)
    parser.add_argument("--beside", nargs="*", type=Path, default=[])
    parser.add_argument("--results", type=Path, default=Path("docs/results/replays.json"))
    wanted = parser.parse_args()
    found = [replay(path) for path in wanted.files]
    choosing, judging = found[: wanted.chosen_on], found[wanted.chosen_on :]
    rule = best_rule([plan for one in choosing for plan in one.judged])
    uses = {"chose the rule": choosing, "judges it": judging}
    uses["other data of the first"] = [replay(path) for path in wanted.beside]
    rows = [row_of(one, rule, use) for use, files in uses.items() for one in files]
    document = {"rule": rule, "rows": rows, "held_out": held_out(choosing)}
    wanted.results.write_text(json.dumps(document, indent=1) + "\n")


def row_of(one: Replay, rule: str, use: str) -> dict[str, Any]:
    """Errors of a file under each rule; no measured value, which may have no license."""
    data = replace(one, chosen=rule).data()
    return {
        "title": one.title,
        "source": one.source,
        "use": use,
        "plans": len(one.judged),
        "rules": data["rules"],
        "groups": data["groups"],
        "copies": data["copies"],
        "wrong": [each.case for each in one.decisions(rule) if each.verdict == "wrong"],
    }


def held_out(files: list[Replay]) -> list[dict[str, Any]]:
    """For each model, its errors under the rule that the plans of all other models choose."""
    plans = [plan for one in files for plan in one.judged if "model" in plan.groups]
    rows = []
    for model in dict.fromkeys(plan.groups["model"] for plan in plans):
        others = [plan for plan in plans if plan.groups["model"] != model]
        if not others:
            continue
        rule = best_rule(others)
        errors = [plan.error(rule) for plan in plans if plan.groups["model"] == model]
        rows.append({"model": model, "rule": rule, "errors": errors})
    return rows


def best_rule(plans: Sequence[ReplayedPlan]) -> str:
    """The rule about copies with the smallest median error; of equals the simplest."""
    return min(OCCUPIES, key=lambda rule: statistics.median(abs(p.error(rule)) for p in plans))


if __name__ == "__main__":
    main()
