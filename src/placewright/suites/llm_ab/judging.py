"""Judges predictions of comparisons: winners, errors, and constants that have not seen a source.

For each engine, four factors of its rates are fitted to the logarithms of measured speeds, by least
squares with a penalty for factors that differ from 1. A source is predicted with factors of the
other sources of its engine; an engine with one source keeps the factors 1.

The best placement of a comparison's devices by its costs, with a proven limit, chooses for each
module among the columns of the options and each of their devices alone. Columns that share a device
are not held to one memory, so that the limit is proven and the placement may need a little more
than there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Sequential
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InfeasibleError, PlacewrightError
from placewright.execution.token_work import PHASES, Phase
from placewright.io.json_text import finite
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.suites.llm_ab.costs import (
    Column,
    Constants,
    NotExpressible,
    Option,
    bandwidth_of,
    message_seconds,
    module_seconds,
    options_of,
)
from placewright.suites.llm_ab.documents import PublishedComparison

SECONDS = 5.0  # of each search


def columns_beside(options: Sequence[Option]) -> tuple[Column, ...]:
    """Columns of options, and each of their devices alone."""
    found = {column for option in options for column in option.columns}
    return tuple(sorted(found | {((name, 1.0),) for column in found for name, _ in column}))


def problem_of(
    option: Option, columns: Sequence[Column], constants: Constants, *, limits: bool = True
) -> Problem:
    """The timed passes of a request as a problem under `sequential`, in seconds.

    Args:
        option: whose request, devices and ways count.
        columns: that modules may take.
        constants: of the engine.
        limits: memories count.
    """
    work, timed = option.work, option.timed()
    repeats = sum(of.repeats for _, of in timed)
    tokens = sum(of.repeats * of.tokens for _, of in timed)
    whole = sum(of.repeats * of.tokens for of in work.request.passes)
    graph = replace(
        work.graph, tensor_bytes=frozen_floats(work.graph.tensor_bytes * tokens / whole)
    )
    seconds = np.array([
        [
            module_seconds(option, constants, kind, [(own[n], of) for n, of in timed], column)
            for column in columns
        ]
        for kind, own in zip(graph.op_kinds, work.work, strict=True)
    ])  # fmt: skip
    return Problem(
        graph,
        _cluster(option, columns, constants, limits=limits),
        CostTable(seconds, source="data sheets"),
        Grouping.identity(graph.n_ops),
        execution_model=Sequential(max(1, repeats)),
    )


def _cluster(
    option: Option, columns: Sequence[Column], constants: Constants, *, limits: bool
) -> Cluster:
    names = [" ".join(f"{device}*{share:g}" for device, share in column) for column in columns]
    devices = [
        Device(name, memory_bytes=_limit(option, column, constants) if limits else math.inf)
        for name, column in zip(names, columns, strict=True)
    ]
    links = [
        _link(option, constants, (names[a], names[b]), (columns[a], columns[b]))
        for a in range(len(columns))
        for b in range(len(columns))
        if a != b
    ]
    outside = [Link("host", name) for name in names] + [Link(name, "host") for name in names]
    return Cluster(tuple(devices), (*links, *outside), host="host")


_NO_WAY = 1e6  # seconds


def _is_linked(option: Option, source: Column, target: Column) -> bool:
    """True if every device of a column is the source's, or has a way from one of them."""
    here = [name for name, _ in source]
    return all(
        name in here or any((other, name) in option.ways for other in here) for name, _ in target
    )


def _link(
    option: Option, constants: Constants, names: tuple[str, str], ends: tuple[Column, Column]
) -> Link:
    """Make a link with the seconds of a message, which are affine in its bytes.

    Columns without a way between them are as good as never left for each other.
    """
    if not _is_linked(option, *ends):
        return Link(*names, _NO_WAY)
    none, some = (message_seconds(option, constants, *ends, size) for size in (0.0, 1e9))
    return Link(*names, none, math.inf if some <= none else 1e9 / (some - none))


def _limit(option: Option, column: Column, constants: Constants) -> float:
    """Bytes of modules that a column holds until one of its devices is full."""
    return min(
        max(
            0.0,
            option.devices[name].memory_bytes
            - constants.rates(option.devices[name].kind).reserve_bytes,
        )
        / share
        for name, share in column
        if name in option.devices
    )


def best_rates(
    options: Sequence[Option], constants_of: dict[str, Constants]
) -> tuple[float, float]:
    """Tokens per second of the best placement, and their upper bound; NaN if unknown.

    Options with as many replicas are searched together; each replica has its own devices.
    """
    best, limit = math.nan, math.nan
    for replicas in sorted({option.replicas for option in options}):
        group = [option for option in options if option.replicas == replicas]
        first = group[0]
        found, bound = _searched(first, columns_beside(group), constants_of[first.engine])
        best, limit = np.fmax(best, found), np.fmax(limit, bound)
    return float(best), float(limit)


def _searched(
    option: Option, columns: Sequence[Column], constants: Constants
) -> tuple[float, float]:
    try:
        problem = problem_of(option, columns, constants)
        evaluator = Evaluator(problem, Budget(seconds=SECONDS))
        solution = make_placer("sequential-ip", {}).place(
            problem, evaluator, np.random.default_rng(0)
        )
    except (InfeasibleError, PlacewrightError):
        return math.nan, math.nan
    value, bound = solution.value, solution.lower_bound
    tokens = option.tokens
    return (
        tokens / value if math.isfinite(value) else math.nan,
        tokens / bound if bound > 0 else math.nan,
    )


FORMAT = "placewright.llm-ab/1"
DIFFERS = 1.05  # ratio of best to worst above which options differ
_LEAST_SOURCES = 4  # of an interval; without one of them there are three
SAME = 1.02  # ratio within which options share the win
_NOISE = 0.35  # of the logarithm of a measured speed around a good prediction
_FREE = 0.7  # of the logarithm of a factor around 1: a factor of two
_FACTORS = ("bandwidth", "launch", "message", "link")
_COVERED = 0.9  # of speeds within an interval
_NETWORK = 4e9  # bytes/s; slower links are no bus of a machine


@dataclass(frozen=True)
class Scored:
    """A comparison with its options and what was measured."""

    row: PublishedComparison  # of the file
    options: tuple[Option, ...]  # that are scored
    measured: Mapping[str, float]  # option -> tokens per second

    @property
    def differs(self) -> bool:
        """True if best and worst differ by more than 5 %."""
        return max(self.measured.values()) > DIFFERS * min(self.measured.values())

    def is_right(self, key: str) -> bool:
        """True if an option won, or came within 2 % of the winner."""
        return self.measured[key] * SAME >= max(self.measured.values())


@dataclass(frozen=True)
class JudgedRow:
    """A comparison as the results file has it: its name and our figures, none of the source's."""

    id: str  # of the comparison
    reason: str = ""  # why it is not scored; "" if it is
    engine: str = ""  # whose constants hold for its first option
    differs: bool = False  # options differ by more than 5 %
    surprising: bool = False  # the better-looking option lost
    # option -> tokens per second, by constants that have not seen its source
    predicted: Mapping[str, float] | None = None
    stated: Mapping[str, float] | None = None  # the same by the constants of the catalogue
    winner: str = ""  # predicted
    right: bool = False  # it won, or came within 2 %
    right_stated: bool = False  # the same by the constants of the catalogue
    # right_fewest, right_bandwidth: chance that the option with the fewest devices, or with the
    # most bandwidth, won; ties are drawn
    right_fewest: float = 0.0
    right_bandwidth: float = 0.0
    # median over pairs of options of the absolute error of the logarithm of their ratio
    ratio_error: float = math.nan
    # optimum, bound: tokens per second of the best placement found, and a proven limit
    optimum: float = math.nan
    bound: float = math.nan


def scored_rows(rows: Iterable[PublishedComparison]) -> tuple[list[Scored], dict[str, str]]:
    """Split comparisons into those that can be scored, and reasons why the others cannot."""
    found, reasons = [], {}
    for row in rows:
        try:
            options = options_of(row)
        except NotExpressible as fault:
            reasons[row.id] = str(fault)
            continue
        keys = {option.key for option in options}
        measured = {
            option.key: _rate(row, option.rate) for option in row.options if option.key in keys
        }
        found.append(Scored(row, tuple(options), measured))
    return found, reasons


def _rate(row: PublishedComparison, value: float) -> float:
    """Tokens per second, from a row that may state milliseconds of a token."""
    return value if row.higher_is_better else 1000.0 / value


def fitted_constants(rows: Sequence[Scored], engine: str) -> Constants:
    """Factors of an engine that fit all of these rows; sources count alike."""
    from scipy.optimize import least_squares

    samples = [
        (option, row.measured[option.key], row.row.source)
        for row in rows
        for option in row.options
        if option.engine == engine
    ]
    if not samples:
        return Constants(engine)
    number = {
        source: sum(s == source for _, _, s in samples) for source in {s for *_, s in samples}
    }

    def residuals(logarithms: FloatArray) -> FloatArray:
        constants = _with(engine, logarithms)
        errors = [
            (math.log(option.rate(constants) / measured)) / (_NOISE * math.sqrt(number[source]))
            for option, measured, source in samples
        ]
        return np.array([*errors, *(logarithms / _FREE)])

    found = least_squares(
        residuals, np.zeros(len(_FACTORS)), loss="soft_l1", diff_step=[1e-3] * len(_FACTORS)
    )
    return _with(engine, found.x)


def _with(engine: str, logarithms: FloatArray) -> Constants:
    factors = dict(zip(_FACTORS, np.exp(logarithms).tolist(), strict=True))
    return replace(Constants(engine), **factors)


Held = dict[tuple[str, str], Constants]  # engine and source -> constants without that source


def held_out(rows: Sequence[Scored]) -> Held:
    """Constants of each engine for each source, fitted to the other sources."""
    found: Held = {}
    for row in rows:
        for option in row.options:
            key = option.engine, row.row.source
            if key not in found:
                others = [other for other in rows if other.row.source != row.row.source]
                found[key] = fitted_constants(others, option.engine)
    return found


def judged(row: Scored, held: Held) -> JudgedRow:
    """The verdict on one comparison."""
    constants = {option.engine: held[option.engine, row.row.source] for option in row.options}
    predicted = {option.key: option.rate(constants[option.engine]) for option in row.options}
    stated = {option.key: option.rate(Constants(option.engine)) for option in row.options}
    winner = max(predicted, key=predicted.__getitem__)
    best, bound = best_rates(row.options, constants)
    return JudgedRow(
        row.row.id,
        "",
        row.options[0].engine,
        row.differs,
        row.row.better_looking_option_lost,
        predicted,
        stated,
        winner,
        row.is_right(winner),
        row.is_right(max(stated, key=stated.__getitem__)),
        _chance(row, {option.key: -len(option.used()) for option in row.options}),
        _chance(row, {option.key: _bandwidth(row.row, option) for option in row.options}),
        _ratio_error(predicted, row.measured),
        best,
        bound,
    )


def _chance(row: Scored, score: Mapping[str, float]) -> float:
    """Chance that an option with the highest score won."""
    most = max(score.values())
    chosen = [key for key, value in score.items() if value >= most]
    return sum(row.is_right(key) for key in chosen) / len(chosen)


def _bandwidth(row: PublishedComparison, option: Option) -> float:
    return sum(bandwidth_of(device) for device in row.devices if device.id in option.used())


def _ratio_error(predicted: Mapping[str, float], measured: Mapping[str, float]) -> float:
    return float(
        np.median([
            abs(math.log(predicted[a] / predicted[b]) - math.log(measured[a] / measured[b]))
            for a, b in combinations(predicted, 2)
        ])
    )  # fmt: skip


@dataclass(frozen=True)
class SpeedInterval:
    """Factors of a predicted speed between which nine of ten measured speeds lie."""

    # low, high: factors
    low: float
    high: float
    # options, sources: that it comes from
    options: int
    sources: int
    held_out: int  # options within the interval that the other sources give


def interval_of(rows: Sequence[Scored], engine: str, phase: Phase) -> SpeedInterval | None:
    """The interval of a phase, from options within a machine; None with too few sources.

    Options of a source resemble each other, so that each source counts once, by its mean. Means of
    logarithms are taken as normal, and the interval is that of a further source (Hahn and Meeker,
    Statistical Intervals, 1991, section 4.7). A phase that too few sources measured takes the
    options of all phases.
    """
    samples = [
        (row.row.source, math.log(row.measured[option.key] / option.rate(Constants(engine))), own)
        for row in rows
        for option in row.options
        if option.engine == engine and _is_of_a_machine(option)
        for own in ["prefill" if row.row.is_prefill else "decode"]
    ]
    own = [(source, value) for source, value, of in samples if of == phase]
    if len({source for source, _ in own}) < _LEAST_SOURCES:
        own = [(source, value) for source, value, _ in samples]
    sources = sorted({source for source, _ in own})
    if len(sources) < _LEAST_SOURCES:
        return None
    low, high = _of_a_further_source(own)
    held_out = 0
    for source in sources:
        a, b = _of_a_further_source([sample for sample in own if sample[0] != source])
        held_out += sum(a <= value <= b for other, value in own if other == source)
    return SpeedInterval(math.exp(low), math.exp(high), len(own), len(sources), held_out)


def _of_a_further_source(samples: Sequence[tuple[str, float]]) -> tuple[float, float]:
    from scipy.stats import t

    means = [
        float(np.mean([value for other, value in samples if other == source]))
        for source in sorted({source for source, _ in samples})
    ]
    number, middle = len(means), float(np.mean(means))
    half = t.ppf((1 + _COVERED) / 2, number - 1) * np.std(means, ddof=1)
    half *= math.sqrt(1 + 1 / number)
    return middle - float(half), middle + float(half)


def _is_of_a_machine(option: Option) -> bool:
    """True if all devices of an option are joined by buses."""
    names = sorted({name for column in option.columns for name, _ in column})
    return all(option.ways[a, b].per_byte * _NETWORK <= 1.0 for a in names for b in names)


@dataclass(frozen=True)
class EngineErrors:
    """Errors of an engine's speeds, with constants that have not seen their source."""

    engine: str  # of the catalogue
    # options, sources: how many
    options: int
    sources: int
    error: float  # median of the absolute error of the logarithm of a speed
    factors: Mapping[str, float]  # of the catalogue's rates, fitted to all sources
    # phase -> interval of speeds without a network, by the catalogue
    intervals: Mapping[str, SpeedInterval]


def engine_errors(rows: Sequence[Scored], held: Held) -> list[EngineErrors]:
    """Errors of each engine."""
    found = []
    for engine in sorted({option.engine for row in rows for option in row.options}):
        samples = [
            (row.row.source, option.rate(held[engine, row.row.source]) / row.measured[option.key])
            for row in rows
            for option in row.options
            if option.engine == engine
        ]
        logarithms = np.log([ratio for _, ratio in samples])
        fit = fitted_constants(rows, engine)
        found.append(
            EngineErrors(
                engine,
                len(samples),
                len({source for source, _ in samples}),
                float(np.median(np.abs(logarithms))),
                {name: getattr(fit, name) for name in _FACTORS},
                {phase: own for phase in PHASES if (own := interval_of(rows, engine, phase))},
            )
        )
    return found


@dataclass(frozen=True)
class Judgement:
    """Findings of `bench llm-ab`."""

    rows: tuple[JudgedRow, ...]  # scored ones first, in the order of the file
    engines: tuple[EngineErrors, ...]  # errors of each
    # comparison -> option -> tokens per second, which no results file keeps
    measured: Mapping[str, Mapping[str, float]]

    def data(self) -> dict[str, Any]:
        """Our figures as JSON, without those of the sources."""
        return {
            "format": FORMAT,
            "rows": [finite(asdict(row)) for row in self.rows],
            "engines": [finite(asdict(errors)) for errors in self.engines],
        }


def judge_comparisons(
    rows: Sequence[PublishedComparison], on_row: Callable[[str], None] = lambda name: None
) -> Judgement:
    """Predict and judge comparisons; `on_row` is called with the name of each that is scored."""
    scored, reasons = scored_rows(rows)
    held = held_out(scored)
    verdicts = []
    for row in scored:
        verdicts.append(judged(row, held))
        on_row(row.row.id)
    others = [JudgedRow(name, reason) for name, reason in reasons.items()]
    measured = {row.row.id: row.measured for row in scored}
    return Judgement((*verdicts, *others), tuple(engine_errors(scored, held)), measured)
