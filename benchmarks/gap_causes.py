"""Causes of a proven gap: waits and order, or fractions in the relaxation.

    python -m benchmarks.gap_causes [--problems "gnmt 2gpu,nasnet_a 2gpu"] [--seconds 60] [-o FILE]

For each problem of the suite the best placement that `auto` finds is put into the linear relaxation
(assignment, precedence with transfers where an edge is cut, load of each device):

- `value / fixed`, with every unit fixed to its device, shows what the relaxation ignores: the
  order, waits of units and transfers, overheads;
- `fixed / relaxed`, the same program with fractions, shows what fractions hide: a unit that is half
  on each of two devices pays no transfer, and balances loads;
- `bound` is the best of all methods of `auto`.

A better search cannot close the second part. The value of a program is 0 if HiGHS does not solve it
in `--program-seconds`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.registry import make_placer
from placewright.simulation.behaviours import behaviour_of
from placewright.simulation.bounds.lower import quick_bounds
from placewright.simulation.evaluator import Evaluator
from placewright.suites.suite.runs import chosen_problems, suite_problems

PROBLEMS = "gnmt 2gpu,nasnet_a 2gpu,rnnlm 2gpu,inception_v3 4gpu,bert_base 4gpu"


def relaxed_value(problem: Problem, placement: Placement | None, seconds: float) -> float:
    """Value of the linear relaxation, with a placement or with fractions; 0 if not solved."""
    program = behaviour_of(problem).relaxation(problem)
    assert program is not None, "latency and throughput have one"
    if placement is not None:
        for unit, chosen in enumerate(placement.device_of.tolist()):
            for device in range(problem.n_devices):
                if device != chosen:
                    program.upper[program.x(unit, device)] = 0.0
    return program.solved(seconds)


def row(name: str, problem: Problem, seconds: float, program_seconds: float) -> dict[str, Any]:
    evaluator = Evaluator(problem, Budget(seconds=seconds))
    solution = make_placer("auto").place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    fixed = relaxed_value(problem, solution.placement, program_seconds)
    fractions = relaxed_value(problem, None, program_seconds)
    quick = {bound.method: bound.value for bound in quick_bounds(problem)}
    return {
        "problem": name,
        "units": problem.n_units,
        "value": solution.value,
        "bound": solution.lower_bound,
        "bound_method": evaluator.bound_method,
        "gap": solution.value / solution.lower_bound - 1,
        "fixed": fixed,
        "relaxed": fractions,
        **quick,
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="What a proven gap consists of.")
    parser.add_argument("--problems", default=PROBLEMS, help="of the suite, between commas")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--program-seconds", type=float, default=300.0)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    if chosen.output and chosen.output.exists():
        rows = json.loads(chosen.output.read_text())["rows"]
    for one in chosen_problems(suite_problems(), chosen.problems.split(",")):
        if any(row["problem"] == one.name for row in rows):
            continue
        rows.append(row(one.name, one.build(), chosen.seconds, chosen.program_seconds))
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
        if chosen.output:
            found = {"format": "placewright.gap-causes/1", "rows": rows}
            chosen.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
