"""One run of a learned placer or of a control, as a results file keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LearnedRun:
    """One placer, one problem, one seed; values in the problem's unit, NaN where infinite.

    Attributes:
        problem: name, for people.
        key: hash of the problem's content.
        evaluations: the budget; all queries count.
        placer: registry name with the settings that differ from the defaults.
        seed: of its generator.
        value: of the incumbent.
        single: of the fastest homogeneous placement.
        seconds: processor seconds of the run.
        samples: placements that the policy drew.
        parts: medians of successive tenths of them, first to last; empty without a policy.
        history: (evaluations, value) of each improvement.
    """

    problem: str
    key: str
    evaluations: int
    placer: str
    seed: int
    value: float
    single: float
    seconds: float
    samples: int
    parts: list[float]
    history: list[list[float]]

    @property
    def identity(self) -> tuple[str, int, str, int]:
        """What the run is a run of."""
        return self.key, self.evaluations, self.placer, self.seed
