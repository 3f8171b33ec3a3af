"""Bases of placers by the problems that they take."""

from __future__ import annotations

from typing import ClassVar

from placewright.core.problem import Problem


class ForEveryProblem:
    """A placer without conditions on the problem and without training."""

    objectives: ClassVar[tuple[str, ...]] = (
        "latency", "training", "throughput", "energy", "price",
    )  # fmt: skip
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None


class ForLatency:
    """A placer without training that minimises the seconds of one sample or one step.

    What it proposes for them may also take little energy or cost little.
    """

    name: ClassVar[str]
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "energy", "price")
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """None unless the objective is throughput."""
        return f"{self.name} minimises latency" if problem.objective == "throughput" else None


def why_not_time_alone(problem: Problem) -> str | None:
    """None if the value is time without limits of `core.charges`, which is all a program knows."""
    if not problem.charges:
        return None
    return f"its program knows time alone, not {' or '.join(problem.charges)}; use auto"
