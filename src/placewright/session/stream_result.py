"""What a measured stream found, as a document and as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewright.core.contender_names import PLAN
from placewright.files.quantities import format_bytes, format_duration
from placewright.profiling.streams import StreamRound
from placewright.profiling.verdict import Verdict
from placewright.simulation.stream.play import Stream


@dataclass(frozen=True, eq=False)
class StreamResult:
    """What a measured stream found.

    Attributes:
        samples: of one stream.
        in_flight: of them under way at most.
        worst: number of the sample whose outputs are furthest from the unsplit model's.
        error, tolerance: relative error of that sample, and what is allowed.
        played: the same stream, simulated.
        rounds: name of each contender -> its streams.
        verdict: over seconds per sample.
        predicted: name -> seconds per sample by the simulator, where it can say.
        left_out: name -> why it is not comparable.
        latency_limit: seconds that 95 % of a contender's samples may take; inf is no limit.
        memory: device name -> peak bytes by the allocators; empty where they do not tell.
    """

    samples: int
    in_flight: int
    worst: int
    error: float
    tolerance: float
    played: Stream
    rounds: Mapping[str, Sequence[StreamRound]]
    verdict: Verdict
    predicted: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    latency_limit: float = math.inf
    memory: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """True when every sample's outputs equal the unsplit model's within the tolerance."""
        return self.error <= self.tolerance

    def period(self, name: str) -> float:
        """Median seconds per sample of a contender."""
        return statistics.median(one.period for one in self.rounds[name])

    def latencies(self, name: str) -> tuple[float, float]:
        """Median and 95th percentile of a sample's seconds from its entry to its end."""
        rows = np.concatenate([one.latencies for one in self.rounds[name]])
        return float(np.median(rows)), float(np.quantile(rows, 0.95))

    def data(self) -> dict[str, Any]:
        """As a JSON document."""
        contenders = {}
        for name in self.rounds:
            median, high = self.latencies(name)
            contenders[name] = {
                "samples_per_second": 1.0 / self.period(name),
                "iqr": self.verdict.contenders[name].iqr,
                "latency_median": median,
                "latency_95": high,
                "predicted_samples_per_second": self._predicted_rate(name),
            }
        return {
            "equal": self.equal,
            "relative_error": self.error,
            "tolerance": self.tolerance,
            "worst_sample": self.worst,
            "samples": self.samples,
            "in_flight": self.in_flight,
            "predicted_samples_per_second": self.played.rate,
            "predicted_memory": self.played.memory_peaks.tolist(),
            "prediction_error": self.played.steady.period / self.period(PLAN) - 1.0,
            "contenders": contenders,
            "not_comparable": dict(self.left_out),
            "memory": {
                name: {"predicted": row[0], "measured": row[1]} for name, row in self.memory.items()
            },
            "recommendation": self.verdict.recommendation,
            "verdict": self.verdict.text,
        }

    def _predicted_rate(self, name: str) -> float | None:
        seconds = self.predicted.get(name)
        return 1.0 / seconds if seconds else None

    def keeps_limit(self, name: str) -> bool:
        """True where 95 % of a contender's samples are done within the limit."""
        return self.latencies(name)[1] <= self.latency_limit

    def lines(self) -> list[str]:
        """What the table does not say."""
        word = "equal" if self.equal else "NOT EQUAL"
        error = self.played.steady.period / self.period(PLAN) - 1.0
        return [
            f"outputs of all {self.samples} samples {word} to the unsplit model's: relative error "
            f"{self.error:.2g} (tolerance {self.tolerance:.2g}, worst in sample {self.worst})",
            f"{1.0 / self.period(PLAN):.1f} samples/s measured, {self.played.rate:.1f} predicted "
            f"(period {error:+.1%}), {self.in_flight} in flight",
            *(
                f"'{name}' takes {format_duration(self.latencies(name)[1])} for 95 % of the "
                f"samples, more than {format_duration(self.latency_limit)}"
                for name in self.rounds
                if not self.keeps_limit(name)
            ),
            *(f"'{name}' is not comparable: {why}" for name, why in self.left_out.items()),
            *(
                f"peak memory of '{name}': measured {format_bytes(measured)}, predicted "
                f"{format_bytes(expected)} ({expected / measured - 1.0:+.1%})"
                for name, (expected, measured) in self.memory.items()
                if measured > 0
            ),
            self.verdict.text,
        ]

    def table(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """Columns and rows."""
        columns = ("contender", "predicted", "samples/s", "spread", "latency", "95th percentile")
        rows = []
        for name in self.rounds:
            median, high = self.latencies(name)
            short, predicted = self.verdict.contenders[name], self._predicted_rate(name)
            rows.append(
                [
                    name,
                    "-" if predicted is None else f"{predicted:.1f}",
                    f"{1.0 / short.median:.1f}",
                    f"{short.iqr / short.median:.1%}",
                    format_duration(median),
                    format_duration(high),
                ]
            )
        return columns, rows
