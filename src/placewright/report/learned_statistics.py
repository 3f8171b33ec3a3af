"""Statistics of learned placers: rank tests against four controls, and of single settings.

The controls have the same evaluations as the learner: (a) the same learner with its updates off;
(b) uniform draws over its groups; (c) `cooling`, which reads no value but the single devices';
(d) uniform draws over one space for all learners, the groups of `post`.

A learner *learns* on a problem if the medians of its samples' last tenths, over seeds, are below
those of (a) and (b), and the best placements of its runs are better than those of (c). It is *of
use* if the best placements of its runs are better than those of (a), (c) and (d).

A *change* is a learner with other settings, ``NAME:key=value:...``, or a form of it with a name of
its own, ``NAME-word``. Its runs are compared with
those of ``NAME`` on the same problem by both measures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np

from placewright.core.arrays import IntArray
from placewright.report.tables import markdown_table

LEVEL = 0.05  # of significance
STARTS = "homogeneous_starts"
UPDATES = "updates"
GROUPS = ("groups",)  # settings of a learner that change its groups
MEASURES = ("last", "best")
COOLING = "cooling"
COMMON = "random-grouped:learner=post"
_MOST_CHOICES = 20_000  # of runs that may be the better ones, up to which each is counted
_MOST_TIED = 13  # ratios, up to which SciPy's test with ties is exact
BESIDE = ("heft", "local-search")  # placers without a policy, for comparison in every table


@dataclass(frozen=True)
class LearnedRun:
    """One run of a placer with a seed; values in the unit of the problem, NaN if infinite."""

    problem: str  # its name
    key: str  # hash of the problem's content
    evaluations: int  # the budget; all queries count
    placer: str  # registry name with the settings that differ from the defaults
    seed: int  # of its generator
    value: float  # of the incumbent
    single: float  # of the fastest homogeneous placement
    seconds: float  # processor seconds of the run
    samples: int  # number of placements that the policy drew
    parts: list[float]  # medians of successive tenths of the samples; empty without a policy
    history: list[list[float]]  # (evaluations, value) of each improvement

    @property
    def identity(self) -> tuple[str, int, str, int]:
        """Problem, budget, placer and seed."""
        return self.key, self.evaluations, self.placer, self.seed


Groups = Mapping[tuple[str, str], Sequence[LearnedRun]]  # (problem, placer) -> runs


@dataclass(frozen=True)
class LearnedVerdict:
    """A learner on one problem beside its controls; values relative to the best single device."""

    problem: str  # its name
    seeds: int  # fewest runs of the learner and its controls
    last: float  # median over seeds of the last tenth's median
    last_off: float  # the same for the learner with updates off
    last_random: float  # the same for uniform draws over its groups
    # one-sided Mann-Whitney test of the last tenths against updates off, adjusted over problems
    p_off: float
    p_random: float  # the same test against the uniform draws
    best: float  # median over seeds of the best placement
    best_off: float  # the same for the learner with updates off
    best_cooling: float  # the same for `cooling`
    best_common: float  # the same for uniform draws over the common groups
    p_cooling: float  # the test of the best placements against those of `cooling`
    beside: tuple[float, ...]  # the same for each placer of `BESIDE`; NaN without runs
    # "better" than updates off, `cooling` and the common draws by the best placements, "worse" than
    # one of them, or "tie"; both sides are tested and adjusted in the same way
    use: str
    is_decidable: bool  # this number of runs can reach the level on this number of problems

    @property
    def is_better_by_samples(self) -> bool:
        """True if the policy's last samples are better than those of (a) and (b)."""
        return self.p_off <= LEVEL and self.p_random <= LEVEL

    @property
    def learns(self) -> bool:
        """True if its samples are better, and its best placements beat those of `cooling`."""
        return self.is_better_by_samples and self.p_cooling <= LEVEL


def controls_of(placer: str) -> tuple[str, str, str, str]:
    """The four controls: updates off, uniform draws, `cooling`, the common uniform draws."""
    name, *settings = placer.split(":")
    starts = [text for text in settings if text.partition("=")[0] == STARTS]
    shared = [text for text in settings if text.partition("=")[0] in (STARTS, *GROUPS)]
    uniform = ":".join([f"random-grouped:learner={name}", *shared])
    off = ":".join([name, *settings, f"{UPDATES}=false"])
    return off, uniform, COOLING, ":".join([COMMON, *starts])


def sets(placer: str, setting: str) -> bool:
    """True if a placer, ``NAME:key=value:...``, is given a setting."""
    return any(text.partition("=")[0] == setting for text in placer.split(":")[1:])


def runs_by_problem(runs: Sequence[LearnedRun]) -> dict[tuple[str, str], list[LearnedRun]]:
    """Group runs by problem and placer."""
    groups: dict[tuple[str, str], list[LearnedRun]] = {}
    for run in runs:
        groups.setdefault((run.problem, run.placer), []).append(run)
    return groups


def verdicts(runs: Groups, placer: str) -> list[LearnedVerdict]:
    """A verdict for each problem with runs of the learner and of all controls."""
    controls = controls_of(placer)
    off, uniform, cooling, common = controls
    problems = [
        problem
        for problem in dict.fromkeys(problem for problem, _ in runs)
        if all((problem, name) in runs for name in (placer, *controls))
    ]

    def adjusted(control: str, of: str, *, less: bool = True) -> list[float]:
        sides = [
            (values_of(runs[problem, placer], of), values_of(runs[problem, control], of))
            for problem in problems
        ]
        return holm([p_less(*(side if less else side[::-1])) for side in sides])

    p_off, p_random = adjusted(off, "last"), adjusted(uniform, "last")
    rivals = (off, cooling, common)
    better = [adjusted(control, "best") for control in rivals]
    worse = [adjusted(control, "best", less=False) for control in rivals]
    rows = []
    for index, problem in enumerate(problems):
        counts = [len(runs[problem, name]) for name in (placer, *controls)]
        use = "better" if all(ps[index] <= LEVEL for ps in better) else "tie"
        last, last_off, last_random = _medians(runs, problem, (placer, off, uniform), "last")
        best, best_off, best_cooling, best_common = _medians(
            runs, problem, (placer, *rivals), "best"
        )
        rows.append(
            LearnedVerdict(
                problem=problem,
                seeds=min(counts),
                last=last,
                last_off=last_off,
                last_random=last_random,
                p_off=p_off[index],
                p_random=p_random[index],
                best=best,
                best_off=best_off,
                best_cooling=best_cooling,
                best_common=best_common,
                p_cooling=better[1][index],
                beside=_medians(runs, problem, BESIDE, "best"),
                use="worse" if any(ps[index] <= LEVEL for ps in worse) else use,
                is_decidable=smallest_p(counts[0], min(counts[1:])) * len(problems) <= LEVEL,
            )
        )
    return rows


def _medians(runs: Groups, problem: str, names: Sequence[str], of: str) -> tuple[float, ...]:
    """Medians over the seeds of each placer, NaN without runs."""
    many = [runs.get((problem, name)) for name in names]
    return tuple(statistics.median(values_of(runs, of)) if runs else math.nan for runs in many)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number by Holm's step-down method (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def smallest_p(first: int, second: int) -> float:
    """The smallest p of a one-sided Mann-Whitney test with these sample sizes."""
    return 1.0 / math.comb(first + second, first)


def values_of(runs: Sequence[LearnedRun], of: str) -> list[float]:
    """Last parts or best values, divided by the best single device; inf if not finite."""
    values = []
    for run in runs:
        value = (run.parts[-1] if run.parts else math.nan) if of == "last" else run.value
        values.append(value / run.single if math.isfinite(value) else math.inf)
    return values


def p_less(first: Sequence[float], second: Sequence[float]) -> float:
    """p of the one-sided Mann-Whitney test that `first` is smaller than `second`."""
    from scipy.stats import mannwhitneyu, rankdata

    every = [*first, *second]
    if len(set(every)) == 1:
        return 1.0
    is_tied = len(set(every)) < len(every)
    if is_tied and math.comb(len(every), len(first)) <= _MOST_CHOICES:
        # With ties SciPy takes the normal approximation, which is far off for so few values.
        ranks = rankdata(every)
        sums = ranks[_choices(len(every), len(first))].sum(axis=1)
        return float((sums <= ranks[: len(first)].sum()).mean())
    return float(mannwhitneyu(first, second, alternative="less").pvalue)


@cache
def _choices(n: int, size: int) -> IntArray:
    """Every choice of `size` of `n` numbers, one in a row."""
    return np.array(list(combinations(range(n), size)), dtype=np.int64)


@dataclass(frozen=True)
class Change:
    """A learner with other settings compared with its defaults, by one measure."""

    placer: str  # name with settings
    measure: str  # "last" (tenth of samples) or "best" (placement of a run)
    problems: int  # number of problems with runs of both
    seeds: int  # fewest runs of the changed learner on a problem
    # geometric mean over problems of the ratio of medians, changed to default; above 1 the change
    # is worse
    ratio: float
    # number of problems with smaller values, by a one-sided Mann-Whitney test over all seeds,
    # adjusted over problems by Holm's method
    better: int
    worse: int  # number of problems with larger values, by the same test
    # two-sided signed-rank test (Wilcoxon) of the ratios over problems, adjusted over the learner's
    # changes
    p: float


def changes(runs: Groups, learner: str) -> list[Change]:
    """Compare every changed setting of a learner with its defaults, by both measures.

    Args:
        learner: registry name; runs with updates off are controls, not changes.
    """
    names = dict.fromkeys(
        placer for _, placer in runs if not sets(placer, UPDATES) and _is_changed(placer, learner)
    )
    every: list[Change] = []
    for measure in MEASURES:
        compared = [c for name in names if (c := _change(runs, learner, name, measure))]
        adjusted = holm([change.p for change in compared])
        every += [replace(change, p=p) for change, p in zip(compared, adjusted, strict=True)]
    return every


def _is_changed(placer: str, learner: str) -> bool:
    """True for ``LEARNER:key=value`` and ``LEARNER-word``."""
    is_form = placer.startswith(f"{learner}-") and ":" not in placer
    return placer.startswith(f"{learner}:") or is_form


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
    """Logarithm of the ratio of two medians, each of which may be infinite."""
    if mine == theirs:
        return 0.0
    return math.log(mine) - math.log(theirs)


def _signed_ranks(logs: Sequence[float]) -> float:
    """p of the two-sided Wilcoxon test that the median is 0; zeros are left out."""
    from scipy.stats import permutation_test, rankdata, wilcoxon

    apart = [value for value in logs if abs(value) > 1e-12]
    if not apart:
        return 1.0
    ranks = rankdata([abs(value) for value in apart])
    if len(set(ranks.tolist())) == len(apart) or len(apart) > _MOST_TIED:
        return float(wilcoxon(apart).pvalue)
    # With ties `wilcoxon` flips all signs, too, but ranks the values again for each pattern.
    flipped = permutation_test(
        (apart,),
        lambda values, axis: ((values > 0) * ranks).sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
    )
    return float(flipped.pvalue)


TOO_FEW = "too few runs"  # for the smallest possible adjusted p to reach the level
COLUMNS = (
    "problem", "seeds", "last tenth", "updates off", "uniform", "p off", "p uniform",
    "best", "updates off", "cooling", "common", *BESIDE, "p cooling", "learns", "of use",
)  # fmt: skip
CHANGE_COLUMNS = (
    "changed", "problems", "seeds", "last tenth", "better", "worse", "p",
    "best", "better", "worse", "p",
)  # fmt: skip


def report_text(
    runs: Sequence[LearnedRun],
    evaluations: int,
    settings: Mapping[str, Mapping[str, object]] | None = None,
) -> str:
    """The report: learning, usefulness, changed settings, best placements, core-seconds.

    Args:
        settings: all hyperparameters of each placer, which the last table shows.
    """
    groups = runs_by_problem(runs)
    names = list(dict.fromkeys(run.placer for run in runs))
    learners = {name: rows for name in names if (rows := verdicts(groups, name))}
    parts = [
        f"# Learned placers, {evaluations:,} evaluations, {_core_seconds(groups)}",
        "",
        "Equal evaluations are not equal work: the last table has the core-seconds (processor "
        "seconds of all threads) of each placer on each problem.",
        "",
        "Written by `placewright bench learned`. Values are over the best single device: a value "
        "below 1 is faster. Every query counts. By default every run first evaluates the "
        "homogeneous placements. It learns nothing from them, and they are no samples.",
        "",
        "## Who learned",
        "",
        "Each learner has four controls with the same evaluations:",
        "",
        "- *updates off*: the learner's first policy, sampled as often",
        "- *uniform*: uniform draws over the learner's groups (`random-grouped`)",
        "- *cooling*: operators move away from the best single device at random, less and less",
        "- *common*: uniform draws over the groups of `post`, for all learners",
        "",
        "The samples of a run are the last tenth of its policy's own draws. A learner is better "
        "*by samples alone* on a problem if their median is below those of the first two "
        "controls. It *learns* if the best placements of its runs are also better than those of "
        "`cooling`, which reads no value but those of single devices.",
        "",
        "It is *of use* if the best placements of its runs are *better* than those with updates "
        "off, of `cooling` and of the common draws. *Worse* says that one of the three is better. "
        "HEFT stands in the tables with its one evaluation, and local search with as many as the "
        "learner.",
        "",
        "All use a one-sided Mann-Whitney test at 0.05 over seeds, adjusted over problems by "
        "Holm's method. *Too few runs*: against the control of fewest seeds no difference could "
        "reach 0.05 over so many problems. Another control may still decide that it is worse.",
        "",
        *markdown_table(
            ["learner", "problems", "by samples alone", "learns", "better", "tie", "worse"],
            [_summary(name, rows) for name, rows in learners.items()],
        ),
    ]
    for name, rows in learners.items():
        parts += ["", f"### `{name}`", "", *markdown_table(COLUMNS, [_cells(v) for v in rows])]
    parts += _changes_section(groups, names)
    parts += ["", "## Best placements, median of seeds", "", *_best_table(groups, names)]
    parts += ["", "## Core-seconds of a run, median", "", *_seconds_table(groups, names)]
    parts += settings_section(names, settings or {})
    return "\n".join(parts) + "\n"


def settings_section(
    names: Sequence[str], settings: Mapping[str, Mapping[str, object]]
) -> list[str]:
    """The section with all hyperparameters of each placer; empty if they are not known."""
    table = [[f"`{name}`", f"`{_words(settings[name])}`"] for name in names if settings.get(name)]
    if not table:
        return []
    return [
        "",
        "## All settings of each placer",
        "",
        *markdown_table(["placer", "settings"], table),
    ]


def _words(settings: Mapping[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def _cells(verdict: LearnedVerdict) -> list[str]:
    bests = (verdict.best, verdict.best_off, verdict.best_cooling, verdict.best_common)
    return [
        verdict.problem,
        str(verdict.seeds),
        *(_ratio(v) for v in (verdict.last, verdict.last_off, verdict.last_random)),
        f"{verdict.p_off:.2g}",
        f"{verdict.p_random:.2g}",
        *(_ratio(value) for value in (*bests, *verdict.beside)),
        f"{verdict.p_cooling:.2g}",
        "yes" if verdict.learns else "no" if verdict.is_decidable else TOO_FEW,
        _use(verdict),
    ]


def _use(verdict: LearnedVerdict) -> str:
    """The use of a learner on a problem; a tie of too few runs is no result."""
    return TOO_FEW if verdict.use == "tie" and not verdict.is_decidable else verdict.use


def _summary(name: str, rows: Sequence[LearnedVerdict]) -> list[str]:
    uses = [_use(verdict) for verdict in rows]
    learned = [TOO_FEW, ""]
    if any(verdict.is_decidable for verdict in rows):
        learned = [str(sum(v.is_better_by_samples for v in rows)), str(sum(v.learns for v in rows))]
    counts = ["", "", ""]
    if set(uses) != {TOO_FEW}:
        counts = [str(uses.count(use)) for use in ("better", "tie", "worse")]
    return [f"`{name}`", str(len(rows)), *learned, *counts]


def _changes_section(groups: Groups, names: Sequence[str]) -> list[str]:
    """The section about learners with changed settings; empty if there are none."""
    rows: list[list[str]] = []
    for learner in dict.fromkeys(name.partition(":")[0] for name in names):
        compared = changes(groups, learner)
        best = {change.placer: change for change in compared if change.measure == "best"}
        last = [change for change in compared if change.measure == "last"]
        last.sort(key=lambda change: change.ratio, reverse=True)
        rows += [_change_cells(change, best[change.placer]) for change in last]
    if not rows:
        return []
    return [
        "",
        "## Settings, one change at a time",
        "",
        "Each learner with other settings, over the same learner with its defaults. Values are "
        "geometric means over problems of the ratios of medians; above 1 the change is worse. "
        "*Better* and *worse* count problems by a one-sided Mann-Whitney test at 0.05 over seeds, "
        "adjusted over problems by Holm's method. *p* is that of the ratios of all problems "
        "(two-sided signed ranks of Wilcoxon), adjusted over the learner's changes.",
        "",
        *markdown_table(CHANGE_COLUMNS, rows),
    ]


def _change_cells(last: Change, best: Change) -> list[str]:
    cells = [f"`{last.placer}`", str(last.problems), str(last.seeds)]
    for change in (last, best):
        cells += [_ratio(change.ratio), str(change.better), str(change.worse), f"{change.p:.2g}"]
    return cells


def _best_table(groups: Groups, names: Sequence[str]) -> list[str]:
    return _table(groups, names, lambda runs: _ratio(statistics.median(values_of(runs, "best"))))


def _core_seconds(groups: Groups) -> str:
    """Smallest and largest median of core-seconds over the placers."""
    seconds: dict[str, list[float]] = {}
    for (_, name), runs in groups.items():
        seconds.setdefault(name, []).extend(run.seconds for run in runs)
    medians = {name: statistics.median(many) for name, many in seconds.items()}
    if not medians:
        return "no core-seconds"
    least, most = (end(medians, key=lambda name: medians[name]) for end in (min, max))
    return f"{medians[least]:.3g} ({least}) to {medians[most]:.3g} ({most}) core-seconds a run"


def _seconds_table(groups: Groups, names: Sequence[str]) -> list[str]:
    return _table(
        groups, names, lambda runs: f"{statistics.median(run.seconds for run in runs):.1f}"
    )


def _table(
    groups: Groups, names: Sequence[str], cell: Callable[[Sequence[LearnedRun]], str]
) -> list[str]:
    """A table of placers by problems; a cell without runs is empty."""
    problems = list(dict.fromkeys(problem for problem, _ in groups))
    rows = [
        [
            f"`{name}`",
            *(cell(groups[p, name]) if (p, name) in groups else "" for p in problems),
        ]
        for name in names
    ]
    return markdown_table(["placer", *problems], rows)


def _ratio(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"
