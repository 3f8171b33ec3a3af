"""Settings of a learner on the two toys of its tests: what finds their optima, what prevents it.

    python scripts/toy_ablations.py grouper-placer grouper-placer:aligned=false --seeds 10

The separable toy has seven ops, each with a best device of its own; a run's figure is the share of
ops on their best device in its last 100 placements. The ladders are two clusters of eight ops with
heavy tensors inside; a run's figure is the number of evaluations until the best of 2^16 placements
was met. Rows go to --results one by one; what is in it is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "placers" / "learned"))

import toys

from placewright.core.placement import Placement
from placewright.files.text import write_text
from placewright.session.comparison import named_placer
from placewright.simulation.evaluator import Evaluator

LAST = 100  # placements of the separable toy that count
LEARNED = 0.95  # share of ops on their best device


class Found(Exception):
    """Ends a run on the ladders."""


def separable_share(placer: str, n_ops: int, evaluations: int, seed: int) -> float:
    """Share of ops on their best device at the end of a run on the separable toy."""
    problem = toys.separable_problem(n_ops)
    recorder = toys.Recorder(problem)
    toys.run(named_placer(placer, {}), problem, evaluations, seed, measure=recorder)
    return float(toys.optimal_share(recorder, toys.best_devices(n_ops), LAST))


def evaluations_to_optimum(placer: str, evaluations: int, seed: int) -> int | None:
    """Evaluations until the optimum of the two ladders was met; None where it was not."""
    problem = toys.two_cluster_problem()
    evaluator = Evaluator(problem)
    best = evaluator.evaluate(toys.two_cluster_optimum(problem))
    asked = 0

    def until_found(placement: Placement) -> float:
        nonlocal asked
        asked += 1
        value = evaluator.simulator.value(placement)
        if value <= best * (1.0 + 1e-9):
            raise Found
        return value

    try:
        toys.run(named_placer(placer, {}), problem, evaluations, seed, until_found)
    except Found:
        return asked
    return None


def table(rows: list[dict[str, object]], placers: list[str]) -> str:
    """Per placer: learned runs, their median share; optima found, their median evaluations."""
    lines = [
        "| settings | separable: learned | median share | ladders: found | median evaluations |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for placer in placers:
        own = [row for row in rows if row["placer"] == placer]
        shares = [float(str(row["share"])) for row in own]
        found = [int(str(row["found"])) for row in own if row["found"] is not None]
        cells = [
            f"{sum(share > LEARNED for share in shares)} of {len(own)}",
            f"{statistics.median(shares):.2f}",
            f"{len(found)} of {len(own)}",
            f"{statistics.median(found):,.0f}" if found else "",
        ]
        lines.append(f"| `{placer}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("placers", nargs="+", help="NAME or NAME:key=value:...")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--ops", type=int, default=7, help="of the separable toy")
    parser.add_argument("--evaluations", type=int, default=4_000, help="on the separable toy")
    parser.add_argument("--ladders", type=int, default=5_000, help="evaluations on the ladders")
    parser.add_argument("--results", type=Path, default=Path("docs/results/toy-ablations.json"))
    given = parser.parse_args()
    text = given.results.read_text() if given.results.is_file() else "[]"
    rows: list[dict[str, object]] = json.loads(text)
    budget = {"ops": given.ops, "evaluations": given.evaluations, "ladders": given.ladders}
    for placer in given.placers:
        for seed in range(given.seeds):
            key = {"placer": placer, "seed": seed, **budget}
            if any(key.items() <= row.items() for row in rows):
                continue
            start = time.process_time()
            share = separable_share(placer, given.ops, given.evaluations, seed)
            found = evaluations_to_optimum(placer, given.ladders, seed)
            seconds = round(time.process_time() - start, 1)
            rows.append({**key, "share": share, "found": found, "seconds": seconds})
            write_text(given.results, json.dumps(rows, indent=1) + "\n")
    asked = [row for row in rows if budget.items() <= row.items()]
    sys.stdout.write(table(asked, given.placers) + "\n")


if __name__ == "__main__":
    main()
