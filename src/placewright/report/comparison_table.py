"""Results of a comparison of placers: median and range over seeds, evaluations to near the best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = "placewright.comparison/1"
NEAR = 1.02  # "within 2 % of the best known"


@dataclass(frozen=True)
class Run:
    """One run of a placer with a seed.

    Attributes:
        placer: registry name, with the settings that differ from the defaults.
        seed: of its generator.
        value: of the incumbent; inf without one.
        evaluations: number of queries.
        seconds: processor seconds.
        history: (evaluations, value) of each improvement.
        message: the reason why there is no placement.
    """

    placer: str
    seed: int
    value: float
    evaluations: int
    seconds: float
    history: tuple[tuple[int, float], ...] = ()
    message: str = ""

    def evaluations_to(self, target: float) -> float:
        """Evaluations until the incumbent was at most `target`; inf if it never was."""
        return next((float(n) for n, value in self.history if value <= target), math.inf)


@dataclass(frozen=True)
class Row:
    """One placer over all seeds; values in the problem's time unit."""

    placer: str
    median: float
    low: float
    high: float
    gap_to_best: float
    evaluations_to_near: float
    runs_near: int
    runs: int
    seconds: float
    message: str = ""
    evaluations: float = math.nan


@dataclass(frozen=True)
class ComparisonTable:
    """All runs on one problem and the rows of their table.

    Attributes:
        unit: time unit of values.
        runs: in the order of placers, then seeds.
        best_known: smallest value of any run, or a smaller value from elsewhere.
        settings: all hyperparameters of each placer.
    """

    unit: str
    runs: tuple[Run, ...]
    best_known: float
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    columns: tuple[str, ...] = field(
        default=(
            "placer",
            "median",
            "range",
            "above best",
            "to 2 %",
            "evaluations",
            "core s",
        ),
        init=False,
    )

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
                self.text_of(row.median),
                f"{self._number(row.low)} .. {self.text_of(row.high)}",
                f"{row.gap_to_best:.1%}" if math.isfinite(row.gap_to_best) else "-",
                f"{row.evaluations_to_near:.0f} ({row.runs_near}/{row.runs})"
                if row.runs_near
                else f"- (0/{row.runs})",
                f"{row.evaluations:.0f}",
                f"{row.seconds:.1f}",
            ]
            for row in self.rows
        ]

    def settings_lines(self) -> list[str]:
        """One line for each placer that has hyperparameters."""
        return [
            f"{name}: {' '.join(f'{key}={value}' for key, value in values.items())}"
            for name, values in self.settings.items()
            if values
        ]

    @property
    def headline(self) -> str:
        """The placer with the smallest median and the next one, with their evaluations."""
        names = [row.placer for row in self.rows]
        texts = [
            f"{self.text_of(row.median)} ({row.evaluations:.0f} evaluations, {row.seconds:.3g} "
            "core-seconds)"
            for row in self.rows
        ]
        if len(names) < 2:
            return f"{names[0]}: {texts[0]}" if names else "no placer ran"
        return f"{names[0]} has the smallest median: {texts[0]}; next is {names[1]} with {texts[1]}"

    def data(self) -> dict[str, Any]:
        """Rows and all runs as a JSON document."""
        return {
            "format": FORMAT,
            "unit": self.unit,
            "best_known": self.best_known,
            "settings": {name: dict(values) for name, values in self.settings.items()},
            "rows": [asdict(row) for row in self.rows],
            "runs": [asdict(run) for run in self.runs],
        }

    def text_of(self, value: float) -> str:
        """A value in the unit that all values of the table share."""
        return f"{self._number(value)} {self._shown_unit[0]}" if math.isfinite(value) else "-"

    def _number(self, value: float) -> str:
        if not math.isfinite(value):
            return "-"
        digits = 4 if self.unit == "s" else 5
        return f"{value / self._shown_unit[1]:.{digits}g}"

    @property
    def _shown_unit(self) -> tuple[str, float]:
        """The unit in which the best value needs few digits, and its size in `unit`."""
        if self.unit != "s":
            return self.unit, 1.0
        sizes = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
        return next((size for size in sizes if self.best_known < 1e3 * size[1]), sizes[-1])

    def _row(self, runs: list[Run]) -> Row:
        values = [run.value for run in runs]
        reached = [run.evaluations_to(NEAR * self.best_known) for run in runs]
        near = [count for count in reached if math.isfinite(count)]
        median = statistics.median(values)
        gap = median / self.best_known - 1.0 if math.isfinite(self.best_known) else math.inf
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
        )
