"""The base of placers that take every problem of every objective."""

from __future__ import annotations

from typing import ClassVar

from placewright.core.problem import Problem


class ForEveryProblem:
    """A placer without conditions on the problem and without training."""

    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None
