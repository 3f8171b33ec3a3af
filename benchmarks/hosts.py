"""Costs that an actor on a node of a Ray cluster measures, beside costs measured here.

Both measure the same core in turn, without stored samples, so that drift of the machine affects
both. The node is bound to that core.
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

from benchmarks.command import Models, ResultsIfAny, run
from benchmarks.ray_of_cores import ray_nodes_on
from placewright.cli import options as opt
from placewright.cli.output import print_json, print_line, print_note
from placewright.core.arrays import FloatArray
from placewright.errors import AnswerError, FieldError
from placewright.files.results import ResultsFile
from placewright.session.hosts import profile_on_hosts
from placewright.session.request import Request
from placewright.session.session import Session

FORMAT = "placewright.hosts-costs/1"
FIRST = "cpu:0"  # of the cores that this process may use, and the only one of the node


@dataclass(frozen=True)
class HostsCosts:
    """Sums of all units' seconds in each round, and differences of single units.

    Attributes:
        model: name.
        runtime: name; "" is the default.
        units: number of units.
        here: seconds of the whole model, measured by this process.
        there: the same, measured by the actor.
        scatter: relative difference of a unit between odd and even rounds of this process; median
            over units, weighted by seconds.
        apart: the same between this process and the actor.
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
        request: of a file or zoo model; its devices are ignored.
        rounds: of each, at least 4.
        told: called with a line for each measurement.

    Raises:
        FieldError: there are fewer rounds.
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
                    problem = Session(replace(asked, devices=FIRST)).profile()
                else:
                    name = f"{os.uname().nodename}:{FIRST}"
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
    """Write a row to a results file; it replaces the row of the same model and runtime."""
    ResultsFile(path, FORMAT, HostsCosts, lambda row: (row.model, row.runtime)).add([found])


def _apart(one: FloatArray, other: FloatArray) -> float:
    """Relative difference of two measurements, median over units weighted by seconds."""
    share = np.abs(one - other) / np.maximum(np.minimum(one, other), 1e-12)
    order = np.argsort(share)
    weights = np.cumsum((one + other)[order])
    return float(share[order][np.searchsorted(weights, weights[-1] / 2)])


def hosts(
    models: Models = "zoo:resnet50,zoo:rnnlm",
    runtime: Annotated[str, typer.Option(help="openvino, onnxruntime or torch.")] = "openvino",
    rounds: Annotated[int, typer.Option(help="Measurements here and there.")] = 6,
    results: ResultsIfAny = None,
    as_json: opt.Json = False,
) -> None:
    """Compare costs that an actor on a Ray node measures with costs measured here, in turn."""
    from placewright.session.parsing import parse_names
    from placewright.session.request import request_of

    found = []
    for model in parse_names(models):
        row = measure_hosts_costs(request_of(model, {"runtime": runtime}), rounds, print_note)
        found.append(row)
        if results is not None:
            keep_hosts_costs(results, row)
        if not as_json:
            print_line(
                f"{model}: {row.ratio:.3f} x the seconds measured here; a unit is "
                f"{row.apart:.1%} apart (median), {row.scatter:.1%} between measurements here"
            )
    if as_json:
        print_json([asdict(row) for row in found])


if __name__ == "__main__":
    run(hosts)
