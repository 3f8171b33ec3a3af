"""A learner beside itself with single settings changed: what each choice brings, over problems.

Every run of ``NAME:key=value:...`` is compared with those of ``NAME`` on the same problem, by the
median of the last tenth of the policy's samples and by the best placement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from placewright.report.learned.statistics import LEVEL, Groups, holm, p_less, values_of

MEASURES = ("last", "best")


@dataclass(frozen=True)
class Change:
    """A learner with other settings against its defaults, by one measure.

    Attributes:
        placer: with its settings.
        measure: "last" (tenth of samples) or "best" (placement of a run).
        problems: on which both were run.
        seeds: of the changed learner, the fewest on a problem.
        ratio: geometric mean over problems of its median over that of the defaults; above 1 the
            change is worse.
        better: problems on which its values are smaller, by a one-sided Mann-Whitney test over all
            seeds of both, adjusted over problems by Holm's method.
        worse: likewise, on which they are larger.
        p: two-sided, of the ratios of medians over problems (Wilcoxon's signed ranks), adjusted
            over the learner's changes.
    """

    placer: str
    measure: str
    problems: int
    seeds: int
    ratio: float
    better: int
    worse: int
    p: float


def changes(runs: Groups, learner: str) -> list[Change]:
    """Every setting of `learner` that was run beside its defaults, both measures of each.

    Args:
        runs: by problem and placer.
        learner: its registry name; runs with updates off are controls, not changes.
    """
    names = dict.fromkeys(
        placer
        for _, placer in runs
        if placer.startswith(f"{learner}:") and "updates=" not in placer
    )
    found = []
    for measure in MEASURES:
        made = [made for name in names if (made := _change(runs, learner, name, measure))]
        adjusted = holm([one.p for one in made])
        found += [replace(one, p=p) for one, p in zip(made, adjusted, strict=True)]
    return found


def _change(runs: Groups, learner: str, name: str, measure: str) -> Change | None:
    problems = [p for p, placer in runs if placer == name and (p, learner) in runs]
    if not problems:
        return None
    sides = [
        (values_of(runs[p, name], measure), values_of(runs[p, learner], measure)) for p in problems
    ]
    better = holm([p_less(mine, theirs) for mine, theirs in sides])
    worse = holm([p_less(theirs, mine) for mine, theirs in sides])
    logs = [_log_ratio(statistics.median(a), statistics.median(b)) for a, b in sides]
    return Change(
        placer=name,
        measure=measure,
        problems=len(problems),
        seeds=min(len(runs[p, name]) for p in problems),
        ratio=math.exp(statistics.fmean(logs)),
        better=sum(p <= LEVEL for p in better),
        worse=sum(p <= LEVEL for p in worse),
        p=_signed_ranks(logs),
    )


def _log_ratio(mine: float, theirs: float) -> float:
    """Of two medians, either of which may be infinite."""
    if mine == theirs:
        return 0.0
    return math.log(mine) - math.log(theirs)


def _signed_ranks(logs: Sequence[float]) -> float:
    """Two-sided Wilcoxon test that these are around 0; equal ones are left out."""
    from scipy.stats import wilcoxon

    apart = [value for value in logs if abs(value) > 1e-12]
    return float(wilcoxon(apart).pvalue) if apart else 1.0
