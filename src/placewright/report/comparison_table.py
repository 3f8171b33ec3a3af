"""Results of a comparison of placers, and the table of a plan's measured contenders."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from placewright.core.plan import ALL_CORES, EVEN_SPLIT, LOWER_BOUND, PLAN, Plan, contender_of
from placewright.core.quantities import counted, format_duration
from placewright.report.machine_speed import drifted, speed_note
from placewright.report.stream_text import random_lines

FORMAT = "placewright.comparison/1"
NEAR = 1.02  # "within 2 % of the best known"
_TIE = 1e-9  # relative difference of values that are equal but for rounding


@dataclass(frozen=True)
class Run:
    """One run of a placer with a seed."""

    placer: str  # registry name, with the settings that differ from the defaults
    seed: int  # of its generator
    value: float  # of the incumbent; inf without one
    evaluations: int  # number of queries
    seconds: float  # processor seconds
    history: tuple[tuple[int, float], ...] = ()  # (evaluations, value) of each improvement
    message: str = ""  # the reason why there is no placement
    lower_bound: float = 0.0  # that the run proved; 0 without one

    def evaluations_to(self, target: float) -> float:
        """Evaluations until the incumbent was at most `target`; inf if it never was."""
        return next((float(n) for n, value in self.history if value <= target), math.inf)


@dataclass(frozen=True)
class Row:
    """One placer over all seeds; values are in `ComparisonTable.unit`."""

    placer: str  # registry name, with the settings that differ from the defaults
    # median, low, high: of the values of all seeds
    median: float
    low: float
    high: float
    gap_to_best: float  # median over the best value of any run, minus one
    # median number, over the runs that came within 2 % of that value, until they did; inf if none
    evaluations_to_near: float
    # runs_near, runs: number of runs that came so near, and of all runs
    runs_near: int
    runs: int
    seconds: float  # median of the processor seconds
    message: str = ""  # why there is no placement
    evaluations: float = math.nan  # median number
    gap: float = math.inf  # median over the lower bound, minus one; inf without a bound


@dataclass(frozen=True)
class ComparisonTable:
    """All runs on one problem and the rows of their table."""

    unit: str  # time unit of values
    runs: tuple[Run, ...]  # in the order of placers, then seeds
    best_known: float  # smallest value of any run, or a smaller value from elsewhere
    # all hyperparameters of each placer
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lower_bound: float = 0.0  # that no placement can beat; 0 without one
    bound_method: str = ""  # that proved it

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings; a single seed has a value and no statistics."""
        unit = f"({self._shown_unit[0]})"
        values: tuple[str, ...] = (f"value {unit}",)
        if self._has_seeds:
            values = (f"median {unit}", f"best {unit}", "spread")
        above = "above bound" if self.lower_bound > 0 else "above best"
        return ("placer", *values, above, "near best", "evaluations", "core s")

    @property
    def legend(self) -> tuple[str, ...]:
        """The lower bound, and sentences about the columns, to print below the table."""
        bound = "No lower bound is known."
        if self.lower_bound > 0:
            gap = self.best_known / self.lower_bound - 1.0
            best = f"; the best value is {_share(gap)} above it" if math.isfinite(gap) else ""
            bound = f"Lower bound: {self.text_of(self.lower_bound)} ({self.bound_method}){best}."
        near = (
            "near best: evaluations until a run was within 2 % of the best value, and how many "
            "runs came so near."
        )
        spread = "spread: from the best to the worst seed, as a share of the median."
        alone = "One seed says little about a placer that draws: argument `seeds` runs more."
        return (bound, near, spread if self._has_seeds else alone)

    @property
    def has_placement(self) -> bool:
        """True if a run found a placement that keeps every constraint."""
        return any(math.isfinite(run.value) for run in self.runs)

    @property
    def _has_seeds(self) -> bool:
        return len({run.seed for run in self.runs}) > 1

    @property
    def rows(self) -> tuple[Row, ...]:
        """One row per placer, smallest median first."""
        names = list(dict.fromkeys(run.placer for run in self.runs))
        rows = [self._row([run for run in self.runs if run.placer == name]) for name in names]
        return tuple(sorted(rows, key=lambda row: (row.median, row.placer)))

    def text_rows(self) -> list[list[str]]:
        """The rows as text, one column per entry of `columns`."""
        return [
            [
                row.placer,
                *self._values(row),
                _share(row.gap if self.lower_bound > 0 else row.gap_to_best),
                f"{row.evaluations_to_near:.0f}, {row.runs_near}/{row.runs}"
                if row.runs_near
                else f"-, 0/{row.runs}",
                f"{row.evaluations:.0f}",
                _seconds(row.seconds),
            ]
            for row in self.rows
        ]

    def _values(self, row: Row) -> list[str]:
        if not self._has_seeds:
            return [self._number(row.median)]
        spread = (row.high - row.low) / row.median if row.median > 0 else math.nan
        return [self._number(row.median), self._number(row.low), _share(spread)]

    def settings_lines(self) -> list[str]:
        """One line with names and values for each placer that has hyperparameters."""
        return [
            f"settings of {name}: {' '.join(f'{key}={value}' for key, value in values.items())}"
            for name, values in self.settings.items()
            if values
        ]

    @property
    def headline(self) -> str:
        """The placers with the smallest and the next median, as text.

        Each has its median, the median number of all its evaluations, and its core-seconds. Placers
        that share the smallest median are named with that value alone; without a finite median the
        line says so.
        """
        names = [row.placer for row in self.rows]
        if names and not math.isfinite(self.rows[0].median):
            if self.has_placement:
                return "no placer found a placement with most of its seeds"
            return "no placer found a placement that satisfies the constraints"
        texts = [
            f"{self.text_of(row.median)} ({counted(round(row.evaluations), 'evaluation')}, "
            f"{row.seconds:.3g} core-seconds)"
            for row in self.rows
        ]
        if len(names) < 2:
            return f"{names[0]}: {texts[0]}" if names else "no placer ran"
        value = "median" if self._has_seeds else "value"
        least = [row.placer for row in self.rows if row.median <= self.rows[0].median * (1 + _TIE)]
        if len(least) > 1:
            shared = f"{', '.join(least[:-1])} and {least[-1]} share the smallest {value}"
            return f"{shared}: {self.text_of(self.rows[0].median)}"
        has_next = math.isfinite(self.rows[1].median)
        others = f"next is {names[1]} with {texts[1]}" if has_next else f"no other has a {value}"
        return f"{names[0]} has the smallest {value}: {texts[0]}; {others}"

    def data(self) -> dict[str, Any]:
        """Rows and all runs as a JSON document."""
        return {
            "format": FORMAT,
            "unit": self.unit,
            "best_known": self.best_known,
            "lower_bound": self.lower_bound,
            "bound_method": self.bound_method,
            "settings": {name: dict(values) for name, values in self.settings.items()},
            "rows": [asdict(row) for row in self.rows],
            "runs": [asdict(run) for run in self.runs],
        }

    def text_of(self, value: float) -> str:
        """A value, given in `unit`, as text in the unit that all values of the table share."""
        return f"{self._number(value)} {self._shown_unit[0]}" if math.isfinite(value) else "-"

    def _number(self, value: float) -> str:
        if not math.isfinite(value):
            return "-"
        digits = 4 if self.unit == "s" else 5
        return f"{value / self._shown_unit[1]:.{digits}g}"

    @property
    def _shown_unit(self) -> tuple[str, float]:
        """Name of the unit in which the best value needs few digits, and one such unit in `unit`.

        For example ``("ms", 0.001)`` if `unit` is ``"s"``.
        """
        if self.unit != "s":
            return self.unit, 1.0
        sizes = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
        return next((size for size in sizes if self.best_known < 1e3 * size[1]), sizes[-1])

    def _row(self, runs: list[Run]) -> Row:
        values = [run.value for run in runs]
        reached = [run.evaluations_to(NEAR * self.best_known) for run in runs]
        near = [count for count in reached if math.isfinite(count)]
        median = statistics.median(values)
        gap = math.inf
        if median == self.best_known:
            gap = 0.0 if math.isfinite(median) else math.inf
        elif 0.0 < self.best_known < math.inf:
            gap = median / self.best_known - 1.0
        above = median / self.lower_bound - 1.0 if self.lower_bound > 0 else math.inf
        return Row(
            placer=runs[0].placer,
            median=median,
            low=min(values),
            high=max(values),
            gap_to_best=gap,
            evaluations_to_near=statistics.median(near) if near else math.inf,
            runs_near=len(near),
            runs=len(runs),
            seconds=statistics.median(run.seconds for run in runs),
            message=next((run.message for run in runs if run.message), ""),
            evaluations=statistics.median(run.evaluations for run in runs),
            gap=above,
        )


def _seconds(seconds: float) -> str:
    """Seconds as text: two significant digits below 1, so never a mere 0; tenths below 100."""
    if 0 < seconds < 1:
        return f"{seconds:.2g}"
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


def _share(share: float) -> str:
    if not math.isfinite(share):
        return "-"
    if abs(share) < _TIE:
        share = 0.0
    return f"{share:.1%}" if share < 0.9995 else f"{share:.0%}"


_COLUMNS = ("contender", "predicted", "measured", "spread", "prediction error")


@dataclass(frozen=True)
class ContenderTable:
    """A table of contenders with the verdict below it, one or more lines."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    verdict: str


def request_table(
    plan: Plan,
    measured: Mapping[str, tuple[float, float]],
    predicted: Mapping[str, float],
    searched: str,
    left_out: Mapping[str, str],
    outputs: tuple[float, float, int],
    lines: Sequence[str],
    random: Sequence[str] = (),
) -> ContenderTable:
    """The table of contenders that ran single requests.

    Args:
        measured: contender -> median and interquartile range, in seconds.
        predicted: contender -> seconds by the simulator.
        searched: the contender that the search returned.
        left_out: contender -> why it is not comparable.
        outputs: relative error of the plan's outputs, the tolerance, and the number of values that
            were not compared, because runs of the unsplit model, at several optimization levels,
            give different integers, NaN or infinities for them.
        lines: the verdict, and how to run what it recommends.
        random: names of outputs that differ between runs of the unsplit model itself.
    """
    rows = [[name, "-", "not comparable", "-", "-"] for name in left_out]
    for name in sorted(measured, key=_position):
        (median, iqr), expected = measured[name], predicted.get(name)
        if expected is not None and not math.isfinite(expected):
            expected = None  # it breaks a limit of the prediction
        rows.append(
            [
                _label(name, searched, plan.placer.name),
                "-" if expected is None else format_duration(expected),
                format_duration(median),
                format_duration(iqr),
                "-" if expected is None else f"{expected / median - 1:+.1%}",
            ]
        )
    least = format_duration(plan.lower_bound) if plan.lower_bound > 0 else "-"
    rows.append([LOWER_BOUND, least, "-", "-", "-"])
    devices = {contender_of(device.name): device for device in plan.problem.cluster.devices}
    alone = {name: median for name, (median, _) in measured.items() if name in devices}
    scatter = {name: device.speed_scatter for name, device in devices.items()}
    changed = drifted(predicted, alone, scatter)
    reached = "" if changed else _share_reached(plan, alone, measured[searched][0])
    left_open = f", other levels leave {counted(outputs[2], 'value')} open" if outputs[2] else ""
    text = [
        *(f"'{name}' is not comparable: {reason}" for name, reason in left_out.items()),
        f"{'other outputs' if random else 'outputs'} equal to the unsplit model (relative error "
        f"{outputs[0]:.1g}, tolerance {outputs[1]:.1g}{left_open}){reached}",
        *random_lines(random),
        *lines,
        *filter(None, [speed_note(changed)]),
    ]
    title = "Training step" if plan.problem.objective == "training" else "Latency"
    return ContenderTable(title, _COLUMNS, rows, "\n".join(text))


def _share_reached(plan: Plan, alone: Mapping[str, float], seconds: float) -> str:
    """Text: the share of the possible gain over the best single device that a split has reached.

    The possible gain ends at the lower bound. The text is "" without a bound, or if the plan is no
    split, is not faster than the best single device, or is faster than the bound, which is a
    prediction.

    Args:
        alone: name -> measured seconds of each single device.
        seconds: measured seconds of the searched contender.
    """
    best = min(alone.values(), default=0.0)
    is_split = len(np.unique(plan.placement.device_of)) > 1
    if not is_split or not 0 < plan.lower_bound < seconds < best:
        return ""
    share = (best - seconds) / (best - plan.lower_bound)
    return f"; {share:.0%} of what a perfect split could gain over the best single device"


def _position(name: str) -> int:
    """Sort key of a contender: single devices, the framework's default, even split, plan."""
    return {ALL_CORES: 1, EVEN_SPLIT: 2, PLAN: 3}.get(name, 0)


def _label(name: str, searched: str, placer: str) -> str:
    if name != searched:
        return name
    return f"searched ({placer})" if name == PLAN else f"{name}, searched ({placer})"
