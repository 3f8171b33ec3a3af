"""Compare the outputs of random placements with those of the unsplit model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

from benchmarks import tables
from benchmarks.command import run
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_note, print_shown
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.comparing import Comparison, compare_outputs
from placewright.execution.placements import placement_segments
from placewright.execution.runtime import LoadedModel
from placewright.profiling.evidence import wandering_placement
from placewright.session.request import Request

# From placements of a few long segments to those of a segment per unit.
_STICKINESS = (0.98, 0.95, 0.9, 0.8, 0.5)


@dataclass(frozen=True)
class EqualityResult:
    """Number of equal placements, and the largest error.

    Attributes:
        placements: number of runs.
        equal: number of runs within the tolerance.
        largest_error: of the placement that uses most of its tolerance.
        tolerance: of that placement.
        fewest_segments, most_segments: of one placement.
    """

    placements: int
    equal: int
    largest_error: float
    tolerance: float
    fewest_segments: int
    most_segments: int


def run_equality_benchmark(
    problem: Problem,
    model: LoadedModel,
    placements: int,
    *,
    seed: int = 0,
    on_done: Callable[[str], None] = lambda line: None,
) -> EqualityResult:
    """Run random placements of a problem, each with other random inputs, and compare outputs."""
    rng = np.random.default_rng(seed)
    found: list[Comparison] = []
    counts: list[int] = []
    for number in range(placements):
        stickiness = _STICKINESS[number % len(_STICKINESS)]
        placement = Placement.of(wandering_placement(problem, rng, stickiness))
        counts.append(len(placement_segments(problem, placement)))
        inputs = model.random_inputs(rng)
        found.append(compare_outputs(problem, placement, model, inputs=inputs))
        if (number + 1) % 10 == 0:
            worst = max(found, key=lambda one: one.excess)
            on_done(f"{number + 1} of {placements}: {worst.text}")
    worst = max(found, key=lambda one: one.excess)
    equal = sum(one.equal for one in found)
    return EqualityResult(placements, equal, worst.error, worst.tolerance, min(counts), max(counts))


@command("devices", "runtime", "objective", "optimizer", "seed", devices="cores")
def equality(
    request: Request,
    placements: Annotated[int, typer.Option(help="Random placements to run.")] = 200,
    as_json: opt.Json = False,
) -> None:
    """Run random placements of MODEL and compare all outputs with the unsplit model's.

    For a training step, also compare every updated tensor.
    """
    from placewright.session.session import Session

    session = Session(request, calibrate=False)
    found = run_equality_benchmark(
        session.problem, session.loaded, placements, seed=request.seed, on_done=print_note
    )
    if as_json:
        print_json(asdict(found))
    else:
        print_shown(tables.equality_table(request.name, found))
    if found.equal < found.placements:
        raise typer.Exit(1)


if __name__ == "__main__":
    run(equality)
