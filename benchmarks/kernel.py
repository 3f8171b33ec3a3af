"""Ops per second that the event simulator evaluates on one core, beside plain Python.

rate = ops / median seconds of an evaluation

An evaluation of a random placement of a random layered graph contains ranks, transfers and peak
memory. Placements take turns, because the branch predictor of a processor would learn one that
repeats.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import typer

from benchmarks import tables
from benchmarks.command import Plot, run
from benchmarks.plain_simulator import PlainSimulator
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_note, print_shown
from placewright.cli.overwriting import Writes
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InputError, MismatchError
from placewright.files.results import read_rows, write_rows
from placewright.report.time_left import Counted
from placewright.session.request import Request
from placewright.simulation.model import Simulator
from placewright.suites.suite.runs import random_layered_problem

T = TypeVar("T")

FORMAT = "placewright.kernel-rates/1"
_PLAIN_UP_TO = 100_000  # ops above which plain Python is not timed
_PLACEMENTS = 16
_SECONDS_PER_ROW = 2.0


@dataclass(frozen=True)
class KernelRow:
    """One problem: the median of one evaluation.

    Attributes:
        ops, devices, edges: of the random problem; each edge is one input of one op.
        seconds: median wall-clock seconds of one evaluation by the kernel.
        ops_per_second: ops / seconds.
        plain_seconds: median of the plain-Python simulator; nan if it was not timed.
        times_plain_python: plain_seconds / seconds.
        process_bytes: peak memory of the process so far.
    """

    ops: int
    devices: int
    edges: int
    seconds: float
    ops_per_second: float
    plain_seconds: float
    times_plain_python: float
    process_bytes: int

    @property
    def inputs(self) -> int:
        """Inputs of an op; the first ops have fewer, as do ops with a repeated input."""
        return round(self.edges / self.ops)


def run_kernel_benchmark(
    sizes: Sequence[int],
    devices: Sequence[int] = (4,),
    *,
    inputs: Sequence[int] = (2,),
    seed: int = 0,
    seconds_per_row: float = _SECONDS_PER_ROW,
    on_row: Callable[[KernelRow], None] = lambda row: None,
) -> list[KernelRow]:
    """Time one evaluation of each size with each number of devices and of inputs per op.

    Raises:
        MismatchError: the two simulators give different makespans.
    """
    rows = []
    for n_ops in sizes:
        for n_devices in devices:
            for n_inputs in inputs:
                rng = np.random.default_rng(seed)
                problem = random_layered_problem(rng, n_ops, n_devices, n_inputs)
                rows.append(_row(problem, rng, seconds_per_row))
                on_row(rows[-1])
    return rows


def growth(rows: Sequence[KernelRow]) -> float:
    """Exponent e of the fit seconds ~ (ops x log ops)^e over rows of several sizes; nan for one.

    1 is growth like n log n; smaller is slower growth.
    """
    if len({row.ops for row in rows}) < 2:
        return math.nan
    work = np.log([row.ops * math.log2(row.ops) for row in rows])
    return float(np.polyfit(work, np.log([row.seconds for row in rows]), 1)[0])


def add_results(rows: Sequence[KernelRow], path: Path) -> list[KernelRow]:
    """Write rows to a results file in place of those of the same problems, and return all rows.

    Raises:
        FileFormatError: the file is not one of this benchmark.
    """
    merged = {(row.ops, row.devices, row.edges): row for row in [*read_results(path), *rows]}
    ordered = [merged[key] for key in sorted(merged)]
    write_rows(path, FORMAT, ordered)
    return ordered


def read_results(path: Path) -> list[KernelRow]:
    """Rows of a results file; none without a file.

    Raises:
        FileFormatError: the file is not one of this benchmark.
    """
    return read_rows(path, FORMAT, KernelRow)


def _row(problem: Problem, rng: np.random.Generator, seconds_per_row: float) -> KernelRow:
    simulator = Simulator(problem)
    placements = [
        Placement.of(rng.integers(0, problem.n_devices, problem.n_units))
        for _ in range(_PLACEMENTS if problem.n_units <= _PLAIN_UP_TO else 2)
    ]
    value, peaks = simulator.value_and_peaks(placements[0])  # compiles
    seconds = _median_seconds(simulator.value_and_peaks, placements, seconds_per_row)
    plain_seconds = math.nan
    if problem.n_units <= _PLAIN_UP_TO:
        plain = PlainSimulator(problem)
        lists = [placement.device_of.tolist() for placement in placements]
        expected, expected_peaks = plain.makespan(lists[0])
        if value != expected or peaks.tolist() != expected_peaks:
            raise MismatchError(
                f"kernel: {value} s, plain Python: {expected} s; value and memory must be equal"
            )
        plain_seconds = _median_seconds(plain.makespan, lists, seconds_per_row)
    return KernelRow(
        ops=problem.n_units,
        devices=problem.n_devices,
        edges=problem.unit_graph.n_edges,
        seconds=seconds,
        ops_per_second=problem.n_units / seconds,
        plain_seconds=plain_seconds,
        times_plain_python=plain_seconds / seconds,
        process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _median_seconds(
    call: Callable[[T], object], arguments: Sequence[T], total_seconds: float
) -> float:
    """Median over calls with the arguments in turn: at least three, then until the time is up."""
    samples: list[float] = []
    spent = 0.0  # and not their sum each time, which would put the samples into the caches
    while len(samples) < 3 or (spent < total_seconds and len(samples) < 100_000):
        argument = arguments[len(samples) % len(arguments)]
        began = time.perf_counter()
        call(argument)
        samples.append(time.perf_counter() - began)
        spent += samples[-1]
    return statistics.median(samples)


@command("seed", model=None)
def kernel(
    request: Request,
    sizes: Annotated[str, typer.Option(help="Comma-separated numbers of ops.")] = (
        "1000,10000,100000"
    ),
    devices: Annotated[str, typer.Option(help="Comma-separated numbers of devices.")] = "4",
    inputs: Annotated[str, typer.Option(help="Comma-separated numbers of inputs of an op.")] = "2",
    results: Annotated[
        Path | None, typer.Option(help="Results file; rows of other problems stay in it."), Writes()
    ] = None,
    plot: Plot = None,
    as_json: opt.Json = False,
) -> None:
    """Time the event kernel on one core, beside a plain-Python simulator of the same rules."""
    from benchmarks.pictures import draw_kernel_rates
    from placewright.suites.suite.pictures import pyplot

    if plot is not None:
        pyplot()  # before the long work
    numbers = [
        _numbers(*said)
        for said in (("--sizes", sizes), ("--devices", devices), ("--inputs", inputs))
    ]
    counted = Counted()
    counted.ahead(math.prod(map(len, numbers)))
    rows = run_kernel_benchmark(
        numbers[0],
        numbers[1],
        inputs=numbers[2],
        seed=request.seed,
        on_row=lambda row: print_note(
            counted.numbered(f"{row.ops} ops x {row.devices} devices: {row.seconds * 1e3:.3f} ms")
        ),
    )
    known = add_results(rows, results) if results is not None else rows
    if plot is not None:
        draw_kernel_rates(known, plot)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_shown(tables.kernel_table(rows))
    for kind in dict.fromkeys((row.devices, row.inputs) for row in rows):
        exponent = growth([row for row in rows if (row.devices, row.inputs) == kind])
        if not math.isnan(exponent):
            print_note(
                f"{kind[0]} devices, {kind[1]} inputs: seconds grow like (n log n)^{exponent:.2f}"
            )


def _numbers(option: str, text: str) -> list[int]:
    from placewright.session.parsing import parse_names

    try:
        numbers = [int(part) for part in parse_names(text)]
    except ValueError:
        numbers = [0]
    if min(numbers, default=0) < 1:
        raise InputError(f"{option} expects numbers such as 1000,10000, got '{text}'")
    return numbers


if __name__ == "__main__":
    run(kernel)
