"""Whether a policy learned, and whether that was of use: rank tests against its two controls.

*Learning* is seen in the policy's own samples: the median of their last tenth, over seeds, is
tested against the same learner with its updates off, and against uniform draws over its groups.
*Usefulness* is seen in the best placement of a run, against those uniform draws.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewright.report.learned.runs import LearnedRun

LEVEL = 0.05
STARTS = "homogeneous_starts"
GROUPS = "groups"
Groups = Mapping[tuple[str, str], Sequence[LearnedRun]]  # (problem, placer) -> runs


@dataclass(frozen=True)
class LearnedVerdict:
    """One learner on one problem, beside its controls; values over the best single device.

    Attributes:
        problem: name.
        seeds: runs of the learner and of each control, at least.
        last: median over seeds of the last tenth's median.
        last_off: of the learner with updates off.
        last_random: of uniform draws over its groups.
        p_off: one-sided Mann-Whitney, adjusted over problems.
        p_random: likewise, against the uniform draws.
        best: median over seeds of the best placement.
        best_random: of the uniform draws.
        use: "better", "tie" or "worse" than the uniform draws by the best placements, each side
            tested and adjusted like the above.
        is_decidable: so many runs can come below the level on so many problems at all.
    """

    problem: str
    seeds: int
    last: float
    last_off: float
    last_random: float
    p_off: float
    p_random: float
    best: float
    best_random: float
    use: str
    is_decidable: bool

    @property
    def learns(self) -> bool:
        """True when the policy's samples became better than both controls'."""
        return self.p_off <= LEVEL and self.p_random <= LEVEL


def controls_of(placer: str) -> tuple[str, str]:
    """The same learner with its updates off, and uniform draws over as many groups."""
    name, *settings = placer.split(":")
    shared = [text for text in settings if text.partition("=")[0] in (STARTS, GROUPS)]
    uniform = ":".join([f"random-grouped:learner={name}", *shared])
    return ":".join([name, *settings, "updates=false"]), uniform


def runs_by_problem(runs: Sequence[LearnedRun]) -> dict[tuple[str, str], list[LearnedRun]]:
    """Runs by problem and placer."""
    groups: dict[tuple[str, str], list[LearnedRun]] = {}
    for run in runs:
        groups.setdefault((run.problem, run.placer), []).append(run)
    return groups


def verdicts(runs: Groups, placer: str) -> list[LearnedVerdict]:
    """One per problem on which the learner and both controls were run."""
    off, uniform = controls_of(placer)
    problems = [
        problem
        for problem in dict.fromkeys(problem for problem, _ in runs)
        if all((problem, name) in runs for name in (placer, off, uniform))
    ]

    def adjusted(control: str, of: str, *, less: bool = True) -> list[float]:
        sides = [
            (values_of(runs[problem, placer], of), values_of(runs[problem, control], of))
            for problem in problems
        ]
        return holm([p_less(*(side if less else side[::-1])) for side in sides])

    p_off, p_random = adjusted(off, "last"), adjusted(uniform, "last")
    better, worse = adjusted(uniform, "best"), adjusted(uniform, "best", less=False)
    found = []
    for index, problem in enumerate(problems):
        counts = [len(runs[problem, name]) for name in (placer, off, uniform)]
        use = "better" if better[index] <= LEVEL else "worse" if worse[index] <= LEVEL else "tie"
        mine, random = runs[problem, placer], runs[problem, uniform]
        found.append(
            LearnedVerdict(
                problem=problem,
                seeds=min(counts),
                last=statistics.median(values_of(mine, "last")),
                last_off=statistics.median(values_of(runs[problem, off], "last")),
                last_random=statistics.median(values_of(random, "last")),
                p_off=p_off[index],
                p_random=p_random[index],
                best=statistics.median(values_of(mine, "best")),
                best_random=statistics.median(values_of(random, "best")),
                use=use,
                is_decidable=smallest_p(counts[0], min(counts[1:])) * len(problems) <= LEVEL,
            )
        )
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number by Holm's step-down method (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def smallest_p(first: int, second: int) -> float:
    """Of a one-sided Mann-Whitney test of so many values against so many: all of them smaller."""
    return 1.0 / math.comb(first + second, first)


def values_of(runs: Sequence[LearnedRun], of: str) -> list[float]:
    """Last parts or best values over the best single device; what is not finite is inf."""
    values = []
    for run in runs:
        value = (run.parts[-1] if run.parts else math.nan) if of == "last" else run.value
        values.append(value / run.single if math.isfinite(value) else math.inf)
    return values


def p_less(first: Sequence[float], second: Sequence[float]) -> float:
    """One-sided Mann-Whitney: how likely `first` would be so much smaller by chance."""
    from scipy.stats import mannwhitneyu

    if len(set(first) | set(second)) == 1:
        return 1.0
    return float(mannwhitneyu(first, second, alternative="less").pvalue)
