"""The Markdown report of `bench learned` over all runs with one budget."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from placewright.report.learned_statistics import (
    BESIDE,
    Change,
    Groups,
    LearnedRun,
    LearnedVerdict,
    changes,
    runs_by_problem,
    verdicts,
)
from placewright.report.tables import markdown_table

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
        f"# Learned placers, {evaluations:,} evaluations, {_core_seconds(groups, names)}",
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
        "Holm's method. *Too few runs*: with so many seeds no difference could reach 0.05 over so "
        "many problems.",
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
        verdict.use if verdict.is_decidable else TOO_FEW,
    ]


def _summary(name: str, rows: Sequence[LearnedVerdict]) -> list[str]:
    if not any(verdict.is_decidable for verdict in rows):
        return [f"`{name}`", str(len(rows)), TOO_FEW, "", "", "", ""]
    uses = [verdict.use for verdict in rows]
    counts = [sum(v.is_better_by_samples for v in rows), sum(v.learns for v in rows)]
    counts += [uses.count(use) for use in ("better", "tie", "worse")]
    return [f"`{name}`", str(len(rows)), *(str(count) for count in counts)]


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
    def cell(runs: Sequence[LearnedRun]) -> str:
        values = [run.value / run.single for run in runs]
        return _ratio(statistics.median(v if math.isfinite(v) else math.inf for v in values))

    return _table(groups, names, cell)


def _core_seconds(groups: Groups, names: Sequence[str]) -> str:
    """Smallest and largest median of core-seconds over the placers."""
    runs = {
        name: [run for (_, own), many in groups.items() if own == name for run in many]
        for name in names
    }
    medians = {
        name: statistics.median(run.seconds for run in many) for name, many in runs.items() if many
    }
    if not medians:
        return "no core-seconds"
    least, most = (
        min(medians, key=lambda name: medians[name]),
        max(medians, key=lambda name: medians[name]),
    )
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
