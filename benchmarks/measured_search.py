"""Learned placers whose evaluations run on the hardware, beside searches that learn nothing.

The devices are two unequal cores: the first one computes in bf16, the other one in f32. Each
evaluation compiles a placement and times it in turns with the unsplit model on the first core. The
machine drifts, so that a value is the ratio of the two. A value that beats all before it in a run
may be luck: it is measured again in more turns, and the second value counts.

When all runs of a model have ended, loops time their placements again, with the single cores, the
even split and the placement of HEFT. Only these ratios can be compared with each other.

The results file is written after each run, and runs that it has are not repeated.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.command import Models, Results, run
from benchmarks.measured_tables import summary
from placewright.cli import options as opt
from placewright.cli.output import print_json, print_note, print_table
from placewright.core.arrays import FloatArray
from placewright.core.cluster import Cluster, Device
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import UnknownNameError
from placewright.execution.placements import call_runner, taking_turns
from placewright.execution.processor import processor_text
from placewright.execution.runtime import HostArray, LoadedModel
from placewright.files.results import ResultsFile
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.learned.placeto.placer import OrderedMerger
from placewright.placers.learned.shared.grouping import merged_space
from placewright.profiling.hardware import measured_ratios, warm_time
from placewright.report.time_left import rough_duration
from placewright.session.comparison import named_placer
from placewright.session.contenders import is_same
from placewright.session.models import runtime_named
from placewright.session.session import Session
from placewright.simulation.evaluator import Evaluator
from placewright.zoo.model import ZooModel
from placewright.zoo.recurrent import gnmt
from placewright.zoo.transformer import bert_base, moe

FORMAT = "placewright.measured-search/1"
RUNTIME = "openvino"
PLACERS = ("post", "hsdag", "local-search", "cooling", "random-grouped")
WITHOUT_SEARCH = ("even-split", "heft")  # placed by the cost table
MODELS: Mapping[str, partial[ZooModel]] = {  # an evaluation takes a fraction of a second
    "bert": partial(bert_base, layers=2, hidden=384, sequence=64),
    "gnmt": partial(gnmt, layers=2, hidden=256, steps=6, vocabulary=1000),
    "moe": partial(moe, layers=1, hidden=384, vocabulary=1000),
}
UNITS = 16  # neighbours are merged to so many, since each segment is compiled
_PRECISION = "INFERENCE_PRECISION_HINT"  # one thread and no pinning are the options of a core
CORES = Cluster(
    (
        Device("cpu:0", "cpu", options={_PRECISION: "bf16"}),
        Device("cpu:1", "cpu", options={_PRECISION: "f32"}),
    )
)
_MODELS, _PLACERS = ",".join(MODELS), ",".join(PLACERS)
_TURNS, _TURNS_AGAIN = 3, 9  # with the reference: of an evaluation, and of one that is the best
_LOOPS = 5  # at the end, each with new runners
_PROBED = 3  # placements that tell how long an evaluation takes


@dataclass(frozen=True)
class MeasuredRun:
    """A placer on a model, or a placement that needs no search on the hardware.

    Attributes:
        model, placer: names; a device's name stands for the whole model on it.
        seed: of the placer.
        evaluations: on the hardware; 0 if nothing was searched.
        description: of the model.
        device_of: device of each unit in the best placement.
        order: of its units; empty if the problem's dispatch orders them.
        history: improvements: evaluations so far, time over that of the first core in one loop.
        seconds: that the run took.
        again: time over that of the best single core in each round of the loops at the end.
        took: median seconds in these loops.
        version: of the runtime's library.
        machine: name of the processor.
        date: of the run, year-month-day.
    """

    model: str
    placer: str
    seed: int
    evaluations: int
    description: str
    device_of: Sequence[int]
    order: Sequence[int] = ()
    history: Sequence[Sequence[float]] = ()
    seconds: float = 0.0
    again: Sequence[float] = ()
    took: float = 0.0
    version: str = ""
    machine: str = field(default_factory=processor_text)
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    @property
    def identity(self) -> tuple[str, str, int, int]:
        """Model, placer, seed and evaluations."""
        return self.model, self.placer, self.seed, self.evaluations

    @property
    def placement(self) -> Placement:
        """The best placement."""
        return Placement.of(list(self.device_of), list(self.order) or None)


@dataclass(frozen=True)
class Case:
    """A model on the two cores.

    Attributes:
        name: of `MODELS`.
        description: of the model, with its sizes.
        problem: with measured costs.
        loaded: the model, loaded by the runtime.
        inputs: of all timed runs.
        ratio: time of a placement over that of the first core, measured in one loop.
        ratio_again: the same in more turns.
        base: seconds of the first core.
    """

    name: str
    description: str
    problem: Problem
    loaded: LoadedModel
    inputs: Sequence[HostArray]
    ratio: Callable[[Placement], float]
    ratio_again: Callable[[Placement], float]
    base: float

    def row(self, placer: str, seed: int, evaluations: int, placement: Placement) -> MeasuredRun:
        """A row of a placement, without what was measured."""
        order = () if placement.order is None else placement.order.tolist()
        return MeasuredRun(
            self.name, placer, seed, evaluations, self.description,
            placement.device_of.tolist(), order, version=runtime_named(RUNTIME).version,
        )  # fmt: skip


@cache
def case_of(name: str, folder: Path, stack: ExitStack) -> Case:
    """Measure the costs of a model and load it; a process does this once.

    Args:
        name: of `MODELS`.
        folder: for a file of the model.
        stack: closes the runners of the references.
    """
    made, file = MODELS[name](), folder / f"{name}.pt2"
    description = f"{made.description}, width {MODELS[name].keywords['hidden']}"
    torch.export.save(torch.export.export(made.module.eval(), made.example_inputs), file)
    session = Session(str(file), cluster=CORES, runtime=RUNTIME, objective="latency", quick=True)
    whole, loaded = session.problem, session.loaded
    problem = whole.coarsened(merged_space(whole, UNITS, OrderedMerger).grouping)
    inputs = loaded.random_inputs(np.random.default_rng(0))
    ratio, _ = stack.enter_context(measured_ratios(problem, loaded, runs=_TURNS))
    again = stack.enter_context(measured_ratios(problem, loaded, runs=_TURNS_AGAIN))
    ratio_again, base = again
    return Case(name, description, problem, loaded, inputs, ratio, ratio_again, base)


def checked(case: Case) -> Callable[[Placement], float]:
    """Ratios of a run: one that beats all before it is measured again, and the second counts."""
    best = math.inf

    def ratio(placement: Placement) -> float:
        nonlocal best
        found = case.ratio(placement)
        if found < best:
            found = case.ratio_again(placement)
            best = min(best, found)
        return found

    return ratio


def searched(case: Case, placer: str, seed: int, evaluations: int) -> MeasuredRun:
    """Run a placer with so many evaluations on the hardware."""
    began = time.perf_counter()
    ratio = checked(case)
    evaluator = Evaluator(
        case.problem,
        Budget(evaluations=evaluations),
        measure=lambda placement: case.base * ratio(placement),
    )
    found = named_placer(placer, {}).place(case.problem, evaluator, np.random.default_rng(seed))
    solution = pass_interrupt_on(found)
    assert solution.placement is not None
    return replace(
        case.row(placer, seed, evaluations, solution.placement),
        history=[[at.evaluations, round(at.value / case.base, 5)] for at in solution.history],
        seconds=round(time.perf_counter() - began, 2),
    )


def without_search(case: Case) -> Iterator[MeasuredRun]:
    """The whole model on each core, and the placements that follow from the cost table."""
    problem = case.problem
    for device, name in enumerate(problem.cluster.device_names):
        yield case.row(name, 0, 0, Placement.on_one_device(problem.n_units, device))
    for name in WITHOUT_SEARCH:
        evaluator = Evaluator(problem)
        found = named_placer(name, {}).place(problem, evaluator, np.random.default_rng(0))
        assert found.placement is not None
        yield case.row(name, 0, 0, found.placement)


def measured_again(case: Case, rows: Sequence[MeasuredRun], rounds: int) -> list[MeasuredRun]:
    """Rows with their ratios in loops in which all their placements take turns.

    Rows with one placement share its times: two runners of it differed by some per cent.

    Args:
        rounds: of each loop; every loop has runners of its own.
    """
    distinct: list[Placement] = []
    which: list[int] = []
    for placement in (row.placement for row in rows):
        known = [at for at, other in enumerate(distinct) if is_same(placement, other)]
        if not known:
            distinct.append(placement)
        which.append(known[0] if known else len(distinct) - 1)
    rng = np.random.default_rng(0)
    loops = [in_turns(case, distinct, rounds, rng) for _ in range(_LOOPS)]
    seconds = np.concatenate(loops).T[which]
    return with_ratios(rows, seconds.tolist(), case.problem.cluster.device_names)


def in_turns(
    case: Case, placements: Sequence[Placement], rounds: int, rng: np.random.Generator
) -> FloatArray:
    """Seconds of each placement in each round, whose order is random; (rounds, placements)."""
    seconds = np.empty((rounds, len(placements)))
    with ExitStack() as stack:
        stack.enter_context(taking_turns(case.loaded))
        runners = [call_runner(case.problem, each, case.loaded) for each in placements]
        for runner in runners:
            stack.enter_context(runner)
        expected = [runner.run(case.inputs).seconds for runner in runners]
        for row in seconds:
            for at in rng.permutation(len(runners)):
                row[at] = warm_time(runners[at], expected[at])
    return seconds


def with_ratios(
    rows: Sequence[MeasuredRun], seconds: Sequence[Sequence[float]], devices: Sequence[str]
) -> list[MeasuredRun]:
    """Rows with their seconds of each round over those of the best single device.

    Args:
        rows: those of single devices among them.
        seconds: of each row and round, shape (rows, rounds).
        devices: their names.
    """
    alone = [list(took) for row, took in zip(rows, seconds, strict=True) if row.placer in devices]
    best = np.array(min(alone, key=statistics.median))
    return [
        replace(
            row,
            again=np.round(np.array(took) / best, 5).tolist(),
            took=round(statistics.median(took), 7),
        )
        for row, took in zip(rows, seconds, strict=True)
    ]


Wanted = tuple[str, str, int, int]  # model, placer, seed, evaluations


def runs_of(
    models: Sequence[str], placers: Sequence[str], seeds: int, evaluations: int
) -> list[Wanted]:
    """Identities of all runs, every model and placer with one seed before the next seed."""
    return [
        (model, placer, seed, evaluations)
        for seed in range(seeds)
        for model in models
        for placer in placers
    ]


def expected_seconds(
    missing: Sequence[Wanted], known: Sequence[MeasuredRun], probe: Callable[[str], float]
) -> float:
    """Predicted seconds of runs, by the median of stored runs of the same model.

    Args:
        missing: the runs.
        known: stored runs.
        probe: seconds of an evaluation of a model without any.
    """
    total = 0.0
    for model in dict.fromkeys(wanted[0] for wanted in missing):
        pace = [row.seconds / row.evaluations for row in known
                if row.model == model and row.evaluations]  # fmt: skip
        each = statistics.median(pace) if pace else probe(model)
        total += each * sum(wanted[3] for wanted in missing if wanted[0] == model)
    return total


def seconds_of_evaluation(case: Case) -> float:
    """Mean seconds of an evaluation of a random placement."""
    rng, began = np.random.default_rng(0), time.perf_counter()
    for _ in range(_PROBED):
        case.ratio(Placement.of(rng.integers(case.problem.n_devices, size=case.problem.n_units)))
    return (time.perf_counter() - began) / _PROBED


def run_measured_search(
    file: ResultsFile[MeasuredRun],
    wanted: Sequence[Wanted],
    case: Callable[[str], Case],
    *,
    rounds: int,
    seconds: float = math.inf,
    note: Callable[[str], None] = print_note,
) -> None:
    """Run what the file does not have, then measure the placements of each finished model again.

    Args:
        file: to which rows are added.
        wanted: from `runs_of`.
        case: makes the case of a model.
        rounds: of each loop at the end.
        seconds: after which nothing more is started.
        note: receives lines of progress.
    """
    end = time.monotonic() + seconds
    missing = [identity for identity in wanted if identity not in file.rows]

    def left() -> str:
        known = list(file.rows.values())
        expected = expected_seconds(missing, known, lambda name: seconds_of_evaluation(case(name)))
        return f"{len(missing)} of {len(wanted)} runs left, about {rough_duration(expected)}"

    if missing:
        note(left())
    while missing and time.monotonic() < end:
        model, placer, seed, evaluations = missing.pop(0)
        row = searched(case(model), placer, seed, evaluations)
        file.add([row])
        note(
            f"{model}, {placer}, seed {seed}: {row.history[-1][1]:.3f} of the first core; {left()}"
        )
    for model in dict.fromkeys(identity[0] for identity in wanted):
        rows = [file.rows[identity] for identity in wanted
                if identity[0] == model and identity in file.rows]  # fmt: skip
        is_done = not any(identity[0] == model for identity in missing)
        if is_done and not all(row.again for row in rows) and time.monotonic() < end:
            rows = measured_again(case(model), [*without_search(case(model)), *rows], rounds)
            file.add(rows)
            note(f"{model}: {len(rows)} placements measured again")


def stored(path: Path) -> ResultsFile[MeasuredRun]:
    """The results file."""
    return ResultsFile(path, FORMAT, MeasuredRun, lambda row: row.identity)


def measured_search(
    models: Models = _MODELS,
    placers: Annotated[str, typer.Option(help="Comma-separated placers.")] = _PLACERS,
    evaluations: Annotated[int, typer.Option(min=1, help="On the hardware, of each run.")] = 200,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each placer.")] = 3,
    rounds: Annotated[int, typer.Option(min=2, help="Of each loop at the end.")] = 21,
    seconds: Annotated[
        float | None, typer.Option(help="Start nothing more after so many seconds.")
    ] = None,
    results: Results = Path("measured-search.json"),
    as_json: opt.Json = False,
) -> None:
    """Search with evaluations on two unequal cores, and measure what was found in one loop."""
    from placewright.session.parsing import parse_names

    for name in (names := parse_names(models)):
        if name not in MODELS:
            raise UnknownNameError("model", name, tuple(MODELS))
    file = stored(results)
    wanted = runs_of(names, parse_names(placers), seeds, evaluations)
    limit = math.inf if seconds is None else seconds
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        case = partial(case_of, folder=Path(folder), stack=stack)
        run_measured_search(file, wanted, case, rounds=rounds, seconds=limit)
    rows = [asdict(row) for row in file.rows.values()]
    if as_json:
        print_json(rows)
        return
    print_table("Time over that of the best single core", *summary({"rows": rows}))


if __name__ == "__main__":
    run(measured_search)
