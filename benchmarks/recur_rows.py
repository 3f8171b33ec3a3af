"""Repeat seeded rows of results files: every value must be equal to the last digit.

``python -m benchmarks.recur_rows docs/results --workloads DIR`` repeats three fixed rows of each
file of simulated runs, and prints old and new values. It exits with 1 if a value differs. To check
files of an earlier commit, name their folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zero_shot import run_zero_shot_benchmark
from placewright.core.problem import Problem
from placewright.files.problem_file import content_sha256
from placewright.suites.learned import one_run, zoo_cases
from placewright.suites.papers.suite import PAPERS, paper_suite
from placewright.suites.tarnawski import find_workloads, run_one

Found = tuple[str, Any, Any]  # what ran, what it gave then and now
SETTLED = 5.0  # seconds: longer runs are left out, and those that their budget may have ended
BUDGET = 600.0  # seconds, which compiling kernels takes a part of


def main() -> None:
    """Check the files and print a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with learned.json, paper.json and others")
    parser.add_argument("--workloads", type=Path, help="workloads of Tarnawski et al.")
    parser.add_argument("--rows", type=int, default=3, help="of each file")
    asked = parser.parse_args()
    different = 0
    for name, again in CHECKS.items():
        path = asked.folder / name
        if not path.exists():
            continue
        for what, then, now in again(rows_of(path), asked.rows, asked.workloads):
            different += then != now
            word = "same" if then == now else "DIFFERS"
            sys.stdout.write(f"{name}: {what}: {word}: {then} {now}\n")
            sys.stdout.flush()
    sys.exit(1 if different else 0)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a results file."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def chosen(rows: Sequence[dict[str, Any]], number: int, kind: str) -> list[dict[str, Any]]:
    """Draw short runs with a fixed seed, of different kinds if possible."""
    short = [row for row in rows if row["seconds"] <= SETTLED]
    drawn = [short[at] for at in np.random.default_rng(0).permutation(len(short))]
    first = {row[kind]: row for row in reversed(drawn)}
    return [row for row in drawn if first[row[kind]] is row][:number]


def learned_again(
    rows: Sequence[dict[str, Any]], number: int, workloads: Path | None
) -> Iterator[Found]:
    """Repeat rows of `bench learned`."""
    builders: dict[str, Callable[[], Problem]] = {}
    for objective in ("latency", "training"):
        builders.update({case.name: case.build for case in zoo_cases(objective=objective)})
    yield from _runs_again(rows, number, builders)


def paper_again(
    rows: Sequence[dict[str, Any]], number: int, workloads: Path | None
) -> Iterator[Found]:
    """Repeat rows of `bench paper`."""
    builders = {case.name: case.build for name in PAPERS for case in paper_suite(name).cases}
    yield from _runs_again([r for r in rows if r["evaluations"] > 0], number, builders)


def _runs_again(
    rows: Sequence[dict[str, Any]], number: int, builders: dict[str, Callable[[], Problem]]
) -> Iterator[Found]:
    known = [row for row in rows if row["problem"] in builders]
    for row in chosen(known, number, "placer"):
        problem = builders[row["problem"]]()
        what = f"{row['placer']} on {row['problem']}, seed {row['seed']}"
        key = content_sha256(problem)
        if key != row["key"]:
            yield f"{what}: the problem", row["key"][:12], key[:12]
            continue
        run = one_run(row["problem"], problem, row["evaluations"], row["placer"], row["seed"])
        then = (row["value"], row["single"], row["parts"], row["history"])
        now = (run.value, run.single, run.parts, run.history)
        same = json.dumps(then) == json.dumps(now)
        yield what, (row["value"], "as it was"), (run.value, "as it was" if same else "other steps")


def tarnawski_again(
    rows: Sequence[dict[str, Any]], number: int, workloads: Path | None
) -> Iterator[Found]:
    """Repeat rows of `bench tarnawski` that ended before their budget."""
    if workloads is None:
        return
    files = find_workloads(workloads)
    known = [row for row in rows if row["workload"] in files and row["status"] != "error"]
    for row in chosen(known, number, "method"):
        path = str(files[row["workload"]])
        found = run_one(row["workload"], path, row["method"], BUDGET)
        now = None if found is None else (found.value, found.bound)
        yield f"{row['method']} on {row['workload']}", (row["value"], row["bound"]), now


def zero_shot_again(
    rows: Sequence[dict[str, Any]], number: int, workloads: Path | None
) -> Iterator[Found]:
    """Repeat rows of `python -m benchmarks.zero_shot`."""
    for row in chosen(rows, number, "problem"):
        model, _, cluster = row["problem"].rpartition(" ")
        for again in run_zero_shot_benchmark("", [model], [cluster], seeds=1):
            then = (row["value"], row["greedy"], row["earliest"])
            yield row["problem"], then, (again.value, again.greedy, again.earliest)


CHECKS: dict[str, Callable[[Sequence[dict[str, Any]], int, Path | None], Iterator[Found]]] = {
    "learned.json": learned_again,
    "paper.json": paper_again,
    "tarnawski.json": tarnawski_again,
    "zero-shot.json": zero_shot_again,
}

if __name__ == "__main__":
    main()
