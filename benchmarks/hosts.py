"""What an actor on a node of a Ray cluster measures, beside the same here.

Both measure one core afresh, in turn, so that a machine that changes its speed changes it for both.
The node stays on that core.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.command import run
from benchmarks.ray_of_cores import ray_nodes_on
from placewright.cli import options as opt
from placewright.cli.output import print_json, print_line, print_note
from placewright.cli.overwriting import Writes
from placewright.core.arrays import FloatArray
from placewright.errors import AnswerError, FieldError
from placewright.files.results import ResultsFile
from placewright.session.hosts import profile_on_hosts
from placewright.session.request import Request
from placewright.session.session import Session

FORMAT = "placewright.hosts-costs/1"


@dataclass(frozen=True)
class HostsCosts:
    """Sums of all units' seconds, each time, and how far single units are apart.

    Attributes:
        model: name.
        runtime: that measured; "" is the usual one.
        units: of the model.
        here: seconds of the whole model, measured by this process.
        there: by the actor.
        scatter: of a unit between two medians of this process's own measurements (every other one),
            as a share, median over units by their seconds.
        apart: of a unit between the medians of both, likewise.
    """

    model: str
    runtime: str
    units: int
    here: list[float]
    there: list[float]
    scatter: float
    apart: float

    @property
    def ratio(self) -> float:
        """Median seconds there over those here."""
        return statistics.median(self.there) / statistics.median(self.here)


def measure_hosts_costs(
    request: Request, rounds: int, told: Callable[[str], None] = lambda text: None
) -> HostsCosts:
    """Measure a model here and on a node, in turn.

    Args:
        request: of a model that is a file or of the zoo; its devices are left out.
        rounds: of each, at least 4.
        told: what was measured.

    Raises:
        FieldError: fewer rounds.
        AnswerError: units differ.
    """
    if rounds < 4:
        raise FieldError("rounds", f"expects at least 4, got {rounds}")
    core = min(os.sched_getaffinity(0))
    asked = replace(request, remeasure=True, calibrate=False)
    here: list[FloatArray] = []
    there: list[FloatArray] = []
    with ray_nodes_on([core]) as address:
        for number in range(rounds):
            for kind in ("here", "there") if number % 2 == 0 else ("there", "here"):
                if kind == "here":
                    problem = Session(replace(asked, devices=f"cpu:{core}")).profile()
                else:
                    name = f"{os.uname().nodename}:cpu:{core}"
                    problem = profile_on_hosts(replace(asked, devices=name, ray=address)).problem
                seconds = problem.costs.seconds[:, 0]
                (here if kind == "here" else there).append(seconds)
                told(f"{kind}: {1e3 * seconds.sum():.4f} ms")
    if {len(one) for one in there} != {len(one) for one in here}:
        raise AnswerError(f"{request.name}: the units differ")
    return HostsCosts(
        request.name,
        request.runtime or "",
        len(here[0]),
        [float(one.sum()) for one in here],
        [float(one.sum()) for one in there],
        _apart(np.median(here[::2], axis=0), np.median(here[1::2], axis=0)),
        _apart(np.median(here, axis=0), np.median(there, axis=0)),
    )


def keep_hosts_costs(path: Path, found: HostsCosts) -> None:
    """Put a row in a results file, in place of an earlier one of the same model and runtime."""
    ResultsFile(path, FORMAT, HostsCosts, lambda row: (row.model, row.runtime)).add([found])


def _apart(one: FloatArray, other: FloatArray) -> float:
    """Median over units, each as heavy as its seconds, of how far two measurements are apart."""
    share = np.abs(one - other) / np.maximum(np.minimum(one, other), 1e-12)
    order = np.argsort(share)
    weights = np.cumsum((one + other)[order])
    return float(share[order][np.searchsorted(weights, weights[-1] / 2)])


Results = Annotated[
    Path, typer.Option("--results", help="Results file; runs in it are kept."), Writes()
]
Plot = Annotated[Path | None, typer.Option(help="SVG file to draw the results into."), Writes()]


def hosts(
    models: Annotated[str, typer.Option(help="Comma-separated models.")] = "zoo:resnet50,zoo:rnnlm",
    runtime: Annotated[str, typer.Option(help="openvino, onnxruntime or torch.")] = "openvino",
    rounds: Annotated[int, typer.Option(help="Measurements here and there.")] = 6,
    results: Annotated[str, typer.Option(help="Results file to write; empty for none.")] = "",
    as_json: opt.Json = False,
) -> None:
    """Costs that an actor on a Ray node measures, beside those measured here, in turn."""

    from placewright.session.parsing import parse_names
    from placewright.session.request import request_of

    found = []
    for model in parse_names(models):
        row = measure_hosts_costs(request_of(model, {"runtime": runtime}), rounds, print_note)
        found.append(row)
        if results:
            keep_hosts_costs(Path(results), row)
        if not as_json:
            print_line(
                f"{model}: {row.ratio:.3f} x the seconds measured here; a unit is "
                f"{row.apart:.1%} apart (median), {row.scatter:.1%} between measurements here"
            )
    if as_json:
        print_json([asdict(row) for row in found])


if __name__ == "__main__":
    run(hosts)
