"""Predicted and measured peak memory of models that fit no single device.

The limit of every device is a share of the whole model's peak on one device. A placer finds a
placement that fits, and the runtime executes it. Its outputs and updated state are compared with
the unsplit model's, and the allocators measure the peaks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import tables
from benchmarks.command import Models, Results, run
from benchmarks.memory_streams import (
    measured_stream,
    placed_stream,
    streamed_problem,
    whole_stream_bytes,
)
from benchmarks.own_nets import PREFIX, own_net
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_note, print_shown
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import FieldError, InfeasibleError
from placewright.execution.comparing import compare_outputs
from placewright.execution.placements import placement_segments
from placewright.execution.runtime import LoadedModel, MeasuresMemory
from placewright.files.problem_file import content_sha256
from placewright.files.results import ResultsFile, read_rows
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.registry import make_placer
from placewright.session.problems import constrained
from placewright.session.request import Request
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

FORMAT = "placewright.memory/1"


@dataclass(frozen=True)
class MemoryRow:
    """One model under one limit.

    Attributes:
        model: its name.
        whole: predicted peak bytes of the whole model on one device.
        limit: of every device, in bytes.
        predicted, measured: device name -> peak bytes of the placement.
        segments: of the placement.
        error: largest relative error of outputs and updates against the unsplit model.
        equal: the error is within the tolerance of the precision.
        key: hash of the model's content; "" in files of earlier versions.
        in_flight: most samples in flight of a stream; 0 for single runs.
    """

    model: str
    whole: float
    limit: float
    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    segments: int
    error: float
    equal: bool
    key: str = ""
    in_flight: int = 0

    @property
    def used(self) -> tuple[str, ...]:
        """Number of devices that the placement uses."""
        return tuple(name for name, size in self.measured.items() if size > 0)


def run_memory_benchmark(
    name: str,
    problem: Problem,
    model: LoadedModel,
    *,
    share: float = 0.6,
    placer: str = "auto",
    budget: Budget | None = None,
    seed: int = 0,
    runtime: str = "",
) -> MemoryRow:
    """Place a model under a limit, run it and read the allocators.

    Args:
        name: of the model.
        problem: its limits are replaced.
        model: loaded by the runtime.
        share: limit of each device relative to the whole model's peak on the first device; below 1,
            no single device can hold the model.
        placer: name of the placer.
        budget: of the search; None is 20 s.
        seed: of its random choices.
        runtime: name of the runtime.

    Raises:
        InputError: the runtime's allocators measure nothing, or the share is not within (0, 1).
        InfeasibleError: no placement within the limits was found.
    """
    if not isinstance(model, MeasuresMemory):
        raise FieldError("runtime", "has allocators that do not tell peaks; take torch")
    if not 0.0 < share < 1.0:
        raise FieldError("share", f"must be between 0 and 1, got {share:g}")
    is_stream = problem.objective == "throughput"
    if is_stream:
        problem = streamed_problem(problem)
    whole = whole_stream_bytes(problem) if is_stream else whole_model_bytes(problem)
    limited = constrained(problem, dict.fromkeys(problem.cluster.device_names, share * whole), {})

    def find(asked: Problem) -> Placement:
        evaluator = Evaluator(asked, budget or Budget(seconds=20.0))
        rng = np.random.default_rng(seed)
        found = pass_interrupt_on(make_placer(placer).place(asked, evaluator, rng))
        if found.placement is None:
            raise InfeasibleError(
                f"{name}: no placement with {share * whole:.0f} bytes on each device was found; "
                "allow more (argument `share`) or search longer (argument `budget`)"
            )
        return found.placement

    placement = placed_stream(limited, find) if is_stream else find(limited)
    key = problem.source.sha256 if problem.source else content_sha256(limited)
    if is_stream:
        stream = measured_stream(limited, placement, model, runtime)
        return MemoryRow(model=name, whole=whole, limit=share * whole, key=key, **asdict(stream))
    comparison = compare_outputs(limited, placement, model)
    segments = placement_segments(limited, placement)
    names, devices = limited.cluster.device_names, limited.cluster.devices
    predicted = Simulator(limited).memory_peaks(placement).tolist()
    measured = model.memory_peaks(segments, devices).tolist()
    return MemoryRow(
        name,
        whole,
        share * whole,
        dict(zip(names, predicted, strict=True)),
        dict(zip(names, measured, strict=True)),
        len(segments),
        comparison.error,
        comparison.equal,
        key,
    )


def read_memory(path: Path) -> list[MemoryRow]:
    """Rows of a results file, as `files.results.read_rows`."""
    return read_rows(path, FORMAT, MemoryRow)


def add_row(path: Path, row: MemoryRow) -> None:
    """Write a row to a results file; it replaces the row of the same model."""
    ResultsFile(path, FORMAT, MemoryRow, lambda each: each.key or each.model).add([row])


def whole_model_bytes(problem: Problem) -> float:
    """Predicted peak bytes of the whole model on the first device with unlimited memory."""
    unlimited = constrained(problem, {problem.cluster.device_names[0]: math.inf}, {})
    everything = Placement.of(np.zeros(problem.n_units, dtype=np.int64))
    return float(Simulator(unlimited).memory_peaks(everything)[0])


@command(
    "devices", "runtime", "objective", "optimizer", "placer", "budget", "seed",
    model=None, devices="cpu:0,cpu:1", runtime="torch", objective="training", budget="20s",
)  # fmt: skip
def memory(
    request: Request,
    models: Models = ("zoo:gnmt,zoo:rnnlm,zoo:bert_base,zoo:resnet50"),
    share: Annotated[
        float, typer.Option(help="Limit of each device: this part of what the model takes on one.")
    ] = 0.6,
    results: Results = Path("memory.json"),
    as_json: opt.Json = False,
) -> None:
    """Compare predicted and measured peak memory of models that fit no single device."""
    from placewright.session.parsing import parse_names
    from placewright.session.session import Session

    read_memory(results)  # a file of another kind is refused before the long work
    rows, names = [], parse_names(models)
    for name in names:
        print_note(f"{name}: reading, measuring, placing, running")
        net: dict[str, Any] = {"model": name}
        if name.startswith(PREFIX):
            module, inputs = own_net(name.removeprefix(PREFIX))
            net = {"model": module, "example_inputs": inputs}
        session = Session(request, **net, calibrate=False)
        try:
            row = run_memory_benchmark(
                name,
                session.problem,
                session.loaded,
                share=share,
                placer=str(request.placer),
                budget=request.limit,
                seed=request.seed,
                runtime=str(request.runtime),
            )
        except InfeasibleError as refusal:
            print_note(f"{name}: {refusal}")
            continue
        add_row(results, row)
        rows.append(row)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_shown(tables.memory_table(rows))
    if len(rows) < len(names) or not all(row.equal for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run(memory)
