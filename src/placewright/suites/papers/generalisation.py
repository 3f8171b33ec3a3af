"""Placeto's transfer: one policy for a family, on graphs of it that it never saw.

For each family a policy is trained on its first graphs and places the next ones without a query:
the most likely device at every step, from the same first placement as in training. Beside it, on
each of those graphs: Placeto trained there, with and without that policy to start from, uniform
draws over its groups, local search, and the best single device. All in Placeto's own simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from placewright.core.execution_models import Placeto
from placewright.core.problem import Problem
from placewright.files.problem_file import content_sha256
from placewright.profiling.roofline import roofline_problem
from placewright.report.learned.runs import LearnedRun
from placewright.suites.learned_runs import one_run, read_runs, write_runs
from placewright.suites.papers.families import FAMILIES, family_graph

CLUSTER = "2gpu"
GROUPS = 32
SETTINGS = {"groups": str(GROUPS), "initial": "zero"}
TRANSFERRED = "placeto, trained on other graphs of the family, no query"
FINE_TUNED = "placeto, from that policy, 1,000 evaluations"
RETRAINED = "placeto, trained on this graph, 1,000 evaluations"
SAMPLED = "placeto, updates off, 1,000 evaluations"
SEARCH = "local search, 1,000 evaluations"
LABELS = (TRANSFERRED, FINE_TUNED, RETRAINED, SAMPLED, SEARCH)
BUDGET = 1_000

Report = Callable[[float, str], None]


@dataclass(frozen=True)
class TransferRuns:
    """How much is trained and tested.

    Attributes:
        families: of `families.FAMILIES`.
        training: graphs of each family that the policy learns on.
        test: graphs that it never saw, numbered after those.
        episodes: of training, over all graphs.
    """

    families: tuple[str, ...] = FAMILIES
    training: int = 8
    test: int = 8
    episodes: int = 400

    def label(self, family: str, index: int) -> str:
        """Name of a problem."""
        return f"{family} {index}"


def family_problem(family: str, index: int) -> Problem:
    """A graph of a family on `CLUSTER`, timed as Placeto's simulator does."""
    return roofline_problem(family_graph(family, index), CLUSTER, execution_model=Placeto())


def run_transfer(
    transfer: TransferRuns, results: Path, policies: Path, progress: Report | None = None
) -> list[LearnedRun]:
    """Train one policy per family and test it; rows that the file holds are not made again.

    Args:
        transfer: how much.
        results: the results file.
        policies: folder of the trained policies; a training that was interrupted goes on.
        progress: told the fraction done and what has ended.
    """
    rows: list[LearnedRun] = []
    numbers = range(transfer.training, transfer.training + transfer.test)
    kept = {run.identity: run for run in read_runs(results)}
    for at, family in enumerate(transfer.families):
        problems = {index: family_problem(family, index) for index in numbers}
        names = _names(str(policies / f"placeto-{family}-{transfer.episodes}.safetensors"))
        if any(identity not in kept for identity in _wanted(problems, names)):
            _train(transfer, family, policies)
        for index, problem in problems.items():
            for label, (placer, evaluations) in names.items():
                identity = (content_sha256(problem), evaluations, label, 0)
                if identity not in kept:
                    run = one_run(transfer.label(family, index), problem, evaluations, placer, 0)
                    kept[identity] = replace(run, placer=label)
                    write_runs(results, list(kept.values()))
                rows.append(kept[identity])
            if progress is not None:
                done = (at + (index - transfer.training + 1) / transfer.test) / len(FAMILIES)
                progress(done, transfer.label(family, index))
    return rows


def _names(policy: str) -> dict[str, tuple[str, int]]:
    """What is run: label -> (placer with settings, evaluations)."""
    settings = ":".join(f"{key}={value}" for key, value in SETTINGS.items())
    ours = f"placeto:{settings}:homogeneous_starts=false"
    return {
        TRANSFERRED: (f"{ours}:policy={policy}", 1),
        FINE_TUNED: (f"{ours}:policy={policy}", BUDGET),
        RETRAINED: (ours, BUDGET),
        SAMPLED: (f"{ours}:updates=false", BUDGET),
        SEARCH: ("local-search", BUDGET),
    }


def _wanted(
    problems: dict[int, Problem], names: dict[str, tuple[str, int]]
) -> Iterator[tuple[str, int, str, int]]:
    for problem in problems.values():
        key = content_sha256(problem)
        for label, (_, evaluations) in names.items():
            yield key, evaluations, label, 0


def _train(transfer: TransferRuns, family: str, policies: Path) -> Path:
    from placewright.placers.learned.training import train

    policies.mkdir(parents=True, exist_ok=True)
    return train(
        "placeto",
        [family_problem(family, index) for index in range(transfer.training)],
        policies / f"placeto-{family}-{transfer.episodes}.safetensors",
        episodes=transfer.episodes,
        settings=SETTINGS,
    )
