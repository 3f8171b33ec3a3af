"""Replay files of measurements that others made, and store the errors.

    python -m benchmarks.replays FILE [FILE ...] --chosen-on 1 [--results docs/results/replays.json]

The first files, as many as `--chosen-on` says, choose the rule about copies: the smallest median
error over their plans on several devices. The other files played no part, and judge it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from placewright.core.cluster import OCCUPIES
from placewright.report.replay_text import Replay
from placewright.session.replay import replay


def main() -> None:
    """Replay, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--chosen-on", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("docs/results/replays.json"))
    wanted = parser.parse_args()
    found = [replay(path) for path in wanted.files]
    choosing = found[: wanted.chosen_on]
    rule = min(OCCUPIES, key=lambda rule: _median(choosing, rule))
    rows = [row_of(one, rule, one in choosing) for one in found]
    wanted.results.write_text(json.dumps({"rule": rule, "rows": rows}, indent=1) + "\n")


def row_of(one: Replay, rule: str, chose: bool) -> dict[str, Any]:
    """Errors of a file under each rule; no measured value, which may have no license."""
    data = one.data()
    return {
        "title": one.title,
        "source": one.source,
        "chose": chose,
        "plans": len(one.judged),
        "rules": data["rules"],
        "copies": data["copies"],
        "wrong": [each.case for each in one.decisions(rule) if each.verdict == "wrong"],
    }


def _median(files: list[Replay], rule: str) -> float:
    return statistics.median(abs(plan.error(rule)) for one in files for plan in one.judged)


if __name__ == "__main__":
    main()
