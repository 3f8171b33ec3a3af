"""Decoders with a cache under memory limits: units, tokens, and predicted seconds per token.

No core holds the whole decoder. Each placement is a split over two cores, contiguous pieces of
random lengths or what a placer finds. It decodes with the cache in its place; tokens are compared
with those of the unsplit model in PyTorch, whose cache grows. The machine drifts, so that each
token is also computed by the plan with all units on one core: those of a second by the split, 20 at
least, then the same ones by that plan, whose choice is compared, too. Costs are measured anew:
those of another day are of a machine at another speed. That plan is also measured right after its
costs, so that the speed of the machine then and later can be told from an error of the prediction.
Rows that the results file has are not repeated.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.command import Results, run
from benchmarks.memory import whole_model_bytes
from benchmarks.own_decoders import DECODERS, Decoding, Sizes, tokens_of
from benchmarks.result_tables import decoders as table_of_decoders
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_note, print_table
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InfeasibleError
from placewright.execution.placements import served_segments
from placewright.execution.processor import processor_text
from placewright.files.results import ResultsFile
from placewright.placers.registry import make_placer
from placewright.profiling.units import LARGE_WEIGHT_BYTES, largest_weight
from placewright.session.loaded.plans import LoadedPlan
from placewright.session.plans import plan_of
from placewright.session.problems import constrained
from placewright.session.request import Request
from placewright.session.session import Session
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.serving import served_seconds

FORMAT = "placewright.decoders/2"
SHARE = 0.7
WORDS = 1024
_HEAD_WIDTH, _MOST_PIECES, _DRAWS = 64, 8, 1_000
# Seconds of a plan before the other's turn, and tokens at least. The first part is not counted: a
# processor's cache holds weights of the other plan then, and those of a small decoder for long.
_TURN_SECONDS, _LEAST, _WARM = 1.0, 20, 0.2
_CALLS = 100  # of the unsplit plan before the first split


@dataclass(frozen=True)
class DecoderRow:
    """A decoder in a split.

    Attributes:
        model, layers, width: name and sizes of the decoder.
        runtime: its name.
        placement: name of the placer, or number of the random placement.
        products: operators with a weight of 1 MiB or more.
        units: of the problem.
        most_products: largest number of such operators in one unit.
        limit: memory of each core, in bytes.
        predicted_peak: of the fuller core, in bytes.
        segments: that serve the placement.
        tokens: that were decoded.
        equal: they are the unsplit model's in PyTorch.
        as_unsplit: the unsplit plan chooses each of them, too, after the same tokens; None if an
            earlier version measured the row.
        predicted: seconds of a call.
        measured: median seconds of a call of the loaded plan.
        predicted_unsplit: seconds of a call with all units on one core.
        unsplit: median seconds of a call of that plan, in turn with the split.
        unsplit_before: median seconds of a call of that plan, right after costs were measured; None
            if an earlier version measured the row.
        search_seconds: of the placer; 0 for random placements.
        machine: name of the processor.
    """

    model: str
    layers: int
    width: int
    runtime: str
    placement: str
    products: int
    units: int
    most_products: int
    limit: float
    predicted_peak: float
    segments: int
    tokens: int
    equal: bool
    predicted: float
    measured: float
    predicted_unsplit: float
    unsplit: float
    search_seconds: float
    machine: str
    as_unsplit: bool | None = None
    unsplit_before: float | None = None
    turn: int = 1

    @property
    def key(self) -> tuple[str, int, int, str, str, int, str]:
        """The row's identity."""
        of_model = self.model, self.layers, self.width
        return *of_model, self.runtime, self.placement, self.turn, self.machine

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1.0

    @property
    def steady_error(self) -> float:
        """Relative error if the machine had kept its speed since costs were measured."""
        drift = 1.0 if self.unsplit_before is None else self.unsplit / self.unsplit_before
        return self.predicted * drift / self.measured - 1.0

    @property
    def ratio_error(self) -> float:
        """Relative error of the predicted ratio to the unsplit plan."""
        predicted, measured = self.predicted / self.predicted_unsplit, self.measured / self.unsplit
        return predicted / measured - 1.0


@dataclass(frozen=True)
class Case:
    """A decoder that a runtime has measured.

    Attributes:
        name, sizes: of the decoder.
        decoding: the decoder.
        session: with its problem.
        limited: the problem with memory limits that the whole decoder breaks.
        unsplit_seconds: of a call of the unsplit plan, right after its costs were measured.
    """

    name: str
    sizes: Sizes
    decoding: Decoding
    session: Session
    limited: Problem
    unsplit_seconds: float

    @property
    def runtime(self) -> str:
        """Name of the runtime."""
        return str(self.session.request.runtime)


def case_of(name: str, sizes: Sizes, request: Request, folder: Path) -> Case:
    """Measure a decoder; a runtime other than PyTorch reads it from a file in the folder."""
    decoding = DECODERS[name](sizes)
    said: dict[str, Any] = {"state": decoding.state, "devices": "cpu:0,cpu:1"}
    if request.runtime == "torch":
        session = Session(
            request, model=decoding.module, example_inputs=decoding.example_inputs, **said
        )
    else:
        file = folder / f"{name}-{sizes.layers}-{sizes.width}.pt2"
        torch.export.save(torch.export.export(decoding.module, decoding.example_inputs), file)
        session = Session(request, model=str(file), **said)
    problem = session.problem
    before = unsplit_seconds(session)
    limits = dict.fromkeys(problem.cluster.device_names, SHARE * whole_model_bytes(problem))
    return Case(name, sizes, decoding, session, constrained(problem, limits, {}), before)


def unsplit_seconds(session: Session) -> float:
    """Median seconds of a call with all units on one core."""
    model, problem = session.loaded, session.problem
    ports, arrays = model.signature.inputs, model.random_inputs(np.random.default_rng(0))
    given = {port.name: array for port, array in zip(ports, arrays, strict=True)}
    given["position"] = np.zeros_like(given["position"])
    with _loaded(session, problem, Placement.on_one_device(problem.n_units, 0)) as loaded:
        return statistics.median(_timed(loaded, given)[1] for _ in range(_CALLS))


def random_split(problem: Problem, rng: np.random.Generator) -> Placement:
    """Contiguous pieces of random lengths, on the two devices in turn, within the limits.

    Raises:
        InfeasibleError: none was found.
    """
    simulator, classes = Simulator(problem), problem.colocation
    order = np.asarray(problem.unit_graph.topological_order)
    for _ in range(_DRAWS):
        pieces = int(rng.integers(2, _MOST_PIECES + 1))
        ends = np.sort(rng.choice(np.arange(1, len(order)), pieces - 1, replace=False))
        of_unit = np.empty(len(order), dtype=np.int64)
        of_unit[order] = np.searchsorted(ends, np.arange(len(order)), side="right") % 2
        of_class = np.empty(classes.n_groups, dtype=np.int64)
        of_class[classes.group_of[::-1]] = of_unit[::-1]  # its first unit decides
        placement = Placement.of(of_class[classes.group_of])
        if simulator.violation(placement) is None:
            return placement
    raise InfeasibleError(f"none of {_DRAWS} random splits keeps the limits")


def searched(case: Case) -> tuple[Placement, float]:
    """What the request's placer finds within the limits, and its seconds."""
    request, begin = case.session.request, time.perf_counter()
    evaluator = Evaluator(case.limited, request.limit)
    rng = np.random.default_rng(request.seed)
    found = make_placer(str(request.placer)).place(case.limited, evaluator, rng)
    if found.placement is None:
        raise InfeasibleError(f"{case.name}: no placement within the limits was found")
    return found.placement, time.perf_counter() - begin


def decoded(
    case: Case, problem: Problem, placement: Placement, count: int
) -> tuple[list[int], bool, float, float]:
    """Tokens of a plan, whether the unsplit one chooses them, too, and median seconds of both."""
    whole = Placement.on_one_device(problem.n_units, 0)
    block = min(count, max(_LEAST, int(_TURN_SECONDS / case.unsplit_seconds)))
    seconds: tuple[list[float], list[float]] = ([], [])
    same = []
    with ExitStack() as stack:
        split, unsplit = (
            stack.enter_context(_loaded(case.session, of, at))
            for of, at in ((problem, placement), (case.session.problem, whole))
        )
        waiting: list[tuple[dict[str, Any], torch.Tensor]] = []

        def step(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            given = {"token": token.numpy(), "position": position.numpy()}
            scores, spent = _timed(split, given)
            seconds[0].append(spent)
            waiting.append((given, scores))
            if len(waiting) == block:
                again()
            return scores

        def again() -> None:
            for given, scores in waiting:
                own, spent = _timed(unsplit, given)
                seconds[1].append(spent)
                same.append(bool(own[0, -1].argmax() == scores[0, -1].argmax()))
            waiting.clear()

        tokens = tokens_of(step, count)
        again()
    measured, alone = (
        statistics.median(spent for at, spent in enumerate(each) if at % block >= _WARM * block)
        for each in seconds
    )
    return tokens, all(same), measured, alone


def _timed(loaded: LoadedPlan, given: dict[str, Any]) -> tuple[torch.Tensor, float]:
    begin = time.perf_counter()
    outputs = loaded.run(given)
    spent = time.perf_counter() - begin
    return torch.as_tensor(outputs[0]), spent


def _loaded(session: Session, problem: Problem, placement: Placement) -> LoadedPlan:
    found = Solution(placement, Simulator(problem).value(placement), "feasible", 0.0)
    record = PlacerRecord("benchmarks.decoders", "1", 0, 0, 0.0)
    plan = plan_of(problem, found, record, str(session.request.runtime))
    return LoadedPlan(plan, session.loaded)


def rows_of(case: Case, names: Iterable[str], count: int, turn: int = 1) -> Iterable[DecoderRow]:
    """Run placements of a decoder; an integer is the seed of a random one."""
    torch.set_num_threads(1)
    expected = tokens_of(case.decoding.plain(), count)
    problem, limited = case.session.problem, case.limited
    large = largest_weight(problem.graph) >= LARGE_WEIGHT_BYTES
    in_unit = np.bincount(problem.units.group_of, weights=large)
    whole = served_seconds(problem, Placement.on_one_device(problem.n_units, 0))
    for name in names:
        if name.isdecimal():
            split, spent = random_split(limited, np.random.default_rng(int(name))), 0.0
        else:
            split, spent = searched(case)
        timeline = Simulator(limited).timeline(split)
        tokens, as_unsplit, seconds, unsplit = decoded(case, limited, split, count)
        yield DecoderRow(
            case.name, case.sizes.layers, case.sizes.width, case.runtime, name,
            products=int(large.sum()),
            units=problem.n_units,
            most_products=int(in_unit.max()),
            limit=float(limited.cluster.memory_bytes[0]),
            predicted_peak=float(timeline.memory_peaks.max()),
            segments=len(served_segments(limited, split)),
            tokens=count,
            equal=tokens == expected,
            predicted=served_seconds(limited, split),
            measured=seconds,
            predicted_unsplit=whole,
            unsplit=unsplit,
            search_seconds=spent,
            machine=processor_text(),
            as_unsplit=as_unsplit,
            unsplit_before=case.unsplit_seconds,
            turn=turn,
        )  # fmt: skip


@command(
    "runtime", "placer", "budget", "seed", "quick",
    model=None, runtime="torch", budget="10s", remeasure=True,
)  # fmt: skip
def decoders(
    request: Request,
    names: Annotated[
        str, typer.Option(help=f"Comma-separated, of {', '.join(DECODERS)}.")
    ] = "own,llama",
    layers: Annotated[int, typer.Option(min=1)] = 32,
    width: Annotated[int, typer.Option(min=_HEAD_WIDTH, help="Of the hidden state.")] = 512,
    tokens: Annotated[int, typer.Option(min=1, help="To decode.")] = 200,
    placements: Annotated[int, typer.Option(min=1, help="One is the placer's.")] = 10,
    turn: Annotated[int, typer.Option(min=1, help="Number of this repetition.")] = 1,
    results: Results = Path("decoders.json"),
    as_json: opt.Json = False,
) -> None:
    """Decode in splits under memory limits; compare tokens, and predicted with measured time."""
    from placewright.session.parsing import parse_names

    sizes = Sizes(layers, width, WORDS, context=tokens + 8, heads=width // _HEAD_WIDTH)
    file = ResultsFile(results, FORMAT, DecoderRow, lambda row: row.key)
    here = processor_text()
    kinds = [str(request.placer), *map(str, range(1, placements))]
    wanted = [(name, layers, width, str(request.runtime)) for name in parse_names(names)]
    with tempfile.TemporaryDirectory() as folder:
        for key in wanted:
            missing = [kind for kind in kinds if (*key, kind, turn, here) not in file.rows]
            if not missing:
                continue
            print_note(f"{key[0]}: measuring")
            case = case_of(key[0], sizes, request, Path(folder))
            for row in rows_of(case, missing, tokens, turn):
                file.add([row])
                print_note(
                    f"{row.model}, placement {row.placement}: {1e3 * row.measured:.1f} ms, "
                    f"predicted {row.error:+.1%}, at a steady speed {row.steady_error:+.1%}, "
                    f"ratio to unsplit {row.ratio_error:+.1%}, "
                    f"tokens {'equal' if row.equal or row.as_unsplit else 'DIFFER'}"
                )
    rows = [file.rows[*key, kind, turn, here] for key in wanted for kind in kinds]
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        columns, cells = table_of_decoders({"rows": [asdict(row) for row in rows]})
        print_table("Decoders under memory limits", columns, cells)
    if not all(row.equal or row.as_unsplit for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run(decoders)
