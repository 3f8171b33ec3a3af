"""Settings of a learner on the two toy problems of its tests: which settings find the optima.

    python -m benchmarks.toy_ablations grouper-placer grouper-placer:aligned=false --seeds 10

The separable toy has seven ops with different best devices; its figure is the share of ops on their
best device in the last 100 placements. The ladders are two clusters of eight ops with heavy tensors
inside; their figure is the number of evaluations until the best of 2^16 placements. Rows go to
--results one by one, and are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import toys

from placewright.files.results import ResultsFile
from placewright.report.tables import markdown_table
from placewright.session.comparison import named_placer

FORMAT = "placewright.toy-ablations/1"
LEARNED = 0.95  # share of ops on their best device
COLUMNS = (
    "settings", "separable: learned", "median share", "ladders: found", "median evaluations",
)  # fmt: skip


@dataclass(frozen=True)
class ToyRun:
    """A run with one seed on both toys.

    Attributes:
        placer: ``NAME`` or ``NAME:key=value:...``.
        seed: of both runs.
        ops: number of ops of the separable toy.
        evaluations: on the separable toy.
        ladders: most evaluations on the ladders.
        share: of ops on their best device at the end.
        found: evaluations until the optimum of the ladders; None if it was not found.
        seconds: processor seconds of both.
    """

    placer: str
    seed: int
    ops: int
    evaluations: int
    ladders: int
    share: float
    found: int | None
    seconds: float

    @property
    def identity(self) -> tuple[str, int, int, int, int]:
        """Placer, seed and evaluations."""
        return self.placer, self.seed, self.ops, self.evaluations, self.ladders


def run_of(name: str, seed: int, ops: int, evaluations: int, ladders: int) -> ToyRun:
    """Run both toys with one seed."""
    placer, start = named_placer(name, {}), time.process_time()
    share = toys.separable_share(placer, ops, evaluations, seed)
    found = toys.evaluations_to_optimum(placer, ladders, seed)
    seconds = round(time.process_time() - start, 1)
    return ToyRun(name, seed, ops, evaluations, ladders, share, found, seconds)


def cells(name: str, runs: Sequence[ToyRun]) -> list[str]:
    """Runs that learned with their median share; runs that found the optimum with evaluations."""
    shares = [run.share for run in runs]
    found = [run.found for run in runs if run.found is not None]
    return [
        f"`{name}`",
        f"{sum(share > LEARNED for share in shares)} of {len(runs)}",
        f"{statistics.median(shares):.2f}",
        f"{len(found)} of {len(runs)}",
        f"{statistics.median(found):,.0f}" if found else "",
    ]


def main() -> None:
    """Run the missing rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("placers", nargs="+", help="NAME or NAME:key=value:...")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--ops", type=int, default=7, help="of the separable toy")
    parser.add_argument("--evaluations", type=int, default=4_000, help="on the separable toy")
    parser.add_argument("--ladders", type=int, default=5_000, help="evaluations on the ladders")
    parser.add_argument("--results", type=Path, default=Path("docs/results/toy-ablations.json"))
    given = parser.parse_args()
    file = ResultsFile(given.results, FORMAT, ToyRun, lambda run: run.identity, missing=None)
    budget = (given.ops, given.evaluations, given.ladders)
    rows = []
    for name in given.placers:
        asked = [(name, seed, *budget) for seed in range(given.seeds)]
        for one in asked:
            if one not in file.rows:
                file.add([run_of(*one)])
        rows.append(cells(name, [file.rows[one] for one in asked]))
    sys.stdout.write("\n".join(markdown_table(COLUMNS, rows)) + "\n")


if __name__ == "__main__":
    main()
