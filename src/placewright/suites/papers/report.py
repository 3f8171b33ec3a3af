"""The report of a paper's suite: its figures next to ours, as tables and pictures."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placewright.report.learned_statistics import LearnedRun, settings_section
from placewright.report.tables import markdown_table
from placewright.session.comparison import settings_by_placer
from placewright.suites.papers.generalisation import LABELS, TRANSFERRED
from placewright.suites.papers.suite import BOUND, CERTAINTIES, PaperSuite, Published, Stage
from placewright.suites.suite.pictures import write_picture

Cells = Mapping[tuple[str, str, int], Sequence[LearnedRun]]  # (problem, placer, budget) -> runs
PUBLISHED, MOST = "published", "bound"
_MOST_COLUMNS = 4  # of a figure: more are too small to read on a page
SINGLES = ("CPU-only", "GPU-only", "CPU only", "single GPU", "1 CPU", "1 GPU")


def cells_of(rows: Sequence[LearnedRun]) -> Cells:
    """Rows by problem, placer and evaluations."""
    cells: dict[tuple[str, str, int], list[LearnedRun]] = {}
    for row in rows:
        cells.setdefault((row.problem, row.placer, row.evaluations), []).append(row)
    return cells


def ratio(runs: Sequence[LearnedRun]) -> float:
    """Median over seeds of the best placement's value divided by that of the best single device.

    A run counts as inf if it found no feasible placement, or if no single device is feasible.
    """
    values = [run.value / run.single for run in runs]
    return statistics.median(value if math.isfinite(value) else math.inf for value in values)


def bound_of(cells: Cells, problem: str) -> float:
    """Lower bound divided by the value of the best single device; NaN if it was not computed."""
    rows = cells.get((problem, BOUND, 0))
    return math.nan if rows is None else rows[0].value / rows[0].single


def suite_report(suite: PaperSuite, rows: Sequence[LearnedRun], picture: str) -> str:
    """The report as Markdown; `picture` is the file of its figure."""
    cells = cells_of(rows)
    problems, missing = _with_rows(suite, rows)
    parts = [
        f"# {suite.name}: the paper's experiment",
        "",
        suite.stand_ins,
        "",
        f"{suite.title}. Written by `placewright bench paper {suite.name}`.",
        "",
        f"![best placements]({picture})",
        "",
        "## Its rules",
        "",
        *(f"- {rule}" for rule in suite.rules),
        "",
        "## What the paper reports",
        "",
        *_published(suite),
        *(f"- {claim}." for claim in suite.claims),
        "",
        "## Its headline, and ours",
        "",
        *_headline(suite, cells),
        "",
        "## What we ran",
        "",
        "Every value is over the best single device of the same problem (below 1 beats it), the "
        "median over seeds of the best placement of a run. In brackets: above the problem's proven "
        "lower bound, in per cent. An empty cell was not run. - means that no placement was found "
        "that fits the rules. Core-seconds are processor time, and other work ran on the machine.",
        *(["", f"Not run yet: {', '.join(missing)}."] if missing else []),
    ]
    for stage in suite.stages:
        names = [case.name for case in suite.cases_of(stage) if case.name in problems]
        parts += ["", f"### {stage.title}", "", *_stage(cells, stage, names)]
    parts += ["", "Seconds of the best single device, and the bound over it:", ""]
    parts += _singles(cells, problems)
    parts += ["", "## What cannot be had", "", *(f"- {text}" for text in suite.missing)]
    names = list(dict.fromkeys(name for stage in suite.stages for name in stage.placers))
    parts += settings_section(names, settings_by_placer(names))
    return "\n".join(parts) + "\n"


def paper_text(
    suite: PaperSuite, rows: Sequence[LearnedRun], picture: str, unseen_picture: str
) -> str:
    """The whole page of a paper from all rows of a results file.

    Args:
        picture: file of its figure.
        unseen_picture: file of the figure of unseen graphs, which only Placeto has.
    """
    problems = {case.name for case in suite.cases}
    text = suite_report(suite, [row for row in rows if row.problem in problems], picture)
    unseen = unseen_rows(rows) if suite.name == "placeto" else []
    return text + (transfer_report(unseen, unseen_picture) if unseen else "")


def unseen_rows(rows: Sequence[LearnedRun]) -> list[LearnedRun]:
    """Rows on the unseen graphs that every method of `LABELS` has placed; no others."""
    methods: dict[str, set[str]] = {}
    for row in rows:
        methods.setdefault(row.problem, set()).add(row.placer)
    return [row for row in rows if row.placer in LABELS and methods[row.problem] >= set(LABELS)]


def transfer_report(rows: Sequence[LearnedRun], picture: str) -> str:
    """The part of Placeto's page on graphs that the policy never saw, as Markdown.

    Args:
        picture: file of its figure.
    """
    cells: dict[tuple[str, str], list[LearnedRun]] = {}
    for row in rows:
        cells.setdefault((row.problem.split()[0], row.placer), []).append(row)
    families = list(dict.fromkeys(family for family, _ in cells))
    searched = {
        row.problem: row.value for row in rows if row.placer == LABELS[-1]
    }  # local search on the same graph

    def cell(family: str, label: str) -> str:
        ratios = [r.value / searched[r.problem] for r in cells.get((family, label), [])]
        if not ratios:
            return ""
        return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"

    def single(family: str) -> str:
        ratios = [r.single / searched[r.problem] for r in cells.get((family, LABELS[-1]), [])]
        return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"

    counts = {family: len(cells.get((family, TRANSFERRED), [])) for family in families}
    return "\n".join(
        [
            "",
            "## Graphs that the policy never saw",
            "",
            "For each family one policy learned on eight graphs and places eight others. Values "
            "are over those of local search with 1,000 evaluations on the same graph: median "
            "(smallest to largest), in Placeto's own simulator on `2gpu`.",
            "",
            f"![unseen graphs]({picture})",
            "",
            *markdown_table(
                ["", *(f"{family}, {counts[family]} graphs" for family in families)],
                [
                    *([label, *(cell(family, label) for family in families)] for label in LABELS),
                    ["best single device", *(single(family) for family in families)],
                ],
            ),
            "",
        ]
    )


def _with_rows(suite: PaperSuite, rows: Sequence[LearnedRun]) -> tuple[list[str], list[str]]:
    """Names of the suite's problems that have a row of one of its stages, and of the others."""
    asked = {(name, stage.evaluations) for stage in suite.stages for name in stage.placers}
    known = {row.problem for row in rows if (row.placer, row.evaluations) in asked}
    names = [case.name for case in suite.cases]
    return [n for n in names if n in known], [n for n in names if n not in known]


def saved(seconds: float, base: float) -> float:
    """Time saved in per cent of `base`: 100 (1 - seconds / base); NaN if one is not known."""
    return 100.0 * (1.0 - seconds / base) if base > 0 else math.nan


def headline_rows(suite: PaperSuite, cells: Cells) -> list[tuple[str, list[float]]]:
    """Rows of the headline's table: a label, and the time saved in per cent in each case.

    The first row is the paper's, then there is one for each of our placers, and the last is the
    lower bound's. Cases are the problems in `headline.cases`. NaN: not known.
    """
    headline, stated = suite.headline, {(f.problem, f.method): f.seconds for f in suite.published}

    def least(values: Sequence[float]) -> float:
        return min((value for value in values if math.isfinite(value)), default=math.nan)

    def value(case: str, placer: str) -> float:
        runs = cells.get((case, placer, headline.evaluations))
        return ratio(runs) if runs else math.nan

    def published(case: str) -> float:
        base = least([stated.get((case, name), math.nan) for name in headline.over.values()])
        return saved(stated.get((case, headline.method), math.nan), base)

    bases = {
        case: least([value(case, placer) for placer in headline.over]) for case in headline.cases
    }
    rows = [(PUBLISHED, [published(case) for case in headline.cases])]
    for placer, part in headline.placers.items():
        figures = [saved(value(case, placer), bases[case]) for case in headline.cases]
        rows.append((part, figures))
    bounds = [saved(bound_of(cells, case), bases[case]) for case in headline.cases]
    return [*rows, (MOST, bounds)]


def figure_text(figure: float) -> str:
    """Text of a per cent of time saved, with one decimal; "-" if it is not known."""
    return f"{figure:.1f}" if math.isfinite(figure) else "-"


def _headline(suite: PaperSuite, cells: Cells) -> list[str]:
    """Lines of the headline: the paper's claim, and a table of its figures, ours and the bound."""
    headline = suite.headline
    others = ", ".join(f"{name} (`{placer}`)" for placer, name in headline.over.items())
    named = {part: f"{part}: `{placer}`" for placer, part in headline.placers.items()}
    return [
        f"{headline.stated}. The table has {headline.figure} in per cent: from the paper's own "
        f"seconds in the first row, from our medians of {headline.evaluations:,} evaluations in "
        f"the others. The other side is the best of {others}. No placement saves more than the "
        "bound.",
        "",
        *markdown_table(
            ["", *headline.cases],
            [
                [named.get(part, part), *map(figure_text, figures)]
                for part, figures in headline_rows(suite, cells)
            ],
        ),
    ]


def _published(suite: PaperSuite) -> list[str]:
    """Lines of the table of the paper's figures: in seconds, and divided by those of its baseline.

    Each names the source that we have it from (`Published.certainty`). Empty without figures.
    """
    if not suite.published:
        return []
    problems = suite.headline.cases
    methods = list(dict.fromkeys(figure.method for figure in suite.published))
    figures = {(f.problem, f.method): f for f in suite.published}
    rows = [
        [method, *(_published_cell(suite, figures, problem, method) for problem in problems)]
        for method in methods
    ]
    used = dict.fromkeys(figure.certainty for figure in suite.published)
    notes = [f"*{certainty}*: {CERTAINTIES[certainty]}" for certainty in used]
    return [
        f"Seconds, with their ratio to *{suite.baseline}* and how certain the figure is.",
        "",
        *markdown_table(["", *problems], rows),
        "",
        "; ".join(notes) + ".",
        "",
    ]


def _published_cell(
    suite: PaperSuite, figures: Mapping[tuple[str, str], Published], problem: str, method: str
) -> str:
    figure = figures.get((problem, method))
    if figure is None:
        return "not known"
    base = figures.get((problem, suite.baseline))
    over = "" if base is None else f"{figure.seconds / base.seconds:.3f}, "
    return f"{figure.seconds:g} ({over}{figure.certainty})"


def _stage(cells: Cells, stage: Stage, problems: Sequence[str]) -> list[str]:
    asked = [(p, placer, stage.evaluations) for p in problems for placer in stage.placers]
    if not any(cell in cells for cell in asked):
        return ["Not run yet."]
    rows = []
    for placer, meaning in stage.placers.items():
        runs_of = [cells.get((problem, placer, stage.evaluations)) for problem in problems]
        seeds = [str(len(runs)) for runs in runs_of if runs]
        seconds = [run.seconds for runs in runs_of for run in runs or ()]
        rows.append(
            [
                f"{meaning + ': ' if meaning else ''}`{placer}`",
                "/".join(dict.fromkeys(seeds)) or "0",
                f"{statistics.median(seconds):.3g}" if seconds else "",
                *(
                    _value(cells, problem, runs)
                    for problem, runs in zip(problems, runs_of, strict=True)
                ),
            ]
        )
    heading = f"{stage.evaluations:,} evaluations, with core-seconds (median)"
    return markdown_table([heading, "seeds", "core s", *problems], rows)


def _value(cells: Cells, problem: str, runs: Sequence[LearnedRun] | None) -> str:
    if not runs:
        return ""
    value, bound = ratio(runs), bound_of(cells, problem)
    if not math.isfinite(value):
        return "-"
    above = "" if math.isnan(bound) else f" ({100.0 * (value / bound - 1.0):.0f})"
    return f"{value:.3f}{above}"


def _singles(cells: Cells, problems: Sequence[str]) -> list[str]:
    rows = []
    for problem in problems:
        bound = cells.get((problem, BOUND, 0))
        if bound is not None:
            rows.append([problem, f"{bound[0].single:.6g}", f"{bound_of(cells, problem):.3f}"])
    return markdown_table(["problem", "seconds", "lower bound"], rows)


def draw_suite(suite: PaperSuite, rows: Sequence[LearnedRun], path: Path) -> None:
    """Draw, for each problem, each method's value divided by that of the best single device.

    Marks show our medians over seeds, the paper's figures and the lower bound.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    cells = cells_of(rows)
    problems = _with_rows(suite, rows)[0] or [suite.cases[0].name]
    lines = _lines(suite)

    def draw(module: Any) -> Any:
        columns = min(_MOST_COLUMNS, len(problems))
        n_rows = math.ceil(len(problems) / columns)
        size = (1.6 + 1.7 * columns, 0.6 + n_rows * (0.8 + 0.24 * len(lines)))
        figure, grid = module.subplots(
            n_rows, columns, figsize=size, sharey=True, squeeze=False, layout="constrained"
        )
        for axes in list(grid.flat)[len(problems) :]:
            axes.set_axis_off()
        for axes, problem in zip(grid.flat, problems, strict=False):
            for at, (placer, evaluations, _) in enumerate(lines):
                runs = cells.get((problem, placer, evaluations))
                if runs and math.isfinite(ratio(runs)):
                    axes.plot(min(ratio(runs), 3.0), at, marker="o", color="C0", markersize=4)
            for over, at in published_marks(suite, problem):
                axes.plot(min(over, 3.0), at, marker="x", color="C3", markersize=5)
            axes.axvline(1.0, color="gray", linewidth=1)
            if not math.isnan(bound := bound_of(cells, problem)):
                axes.axvline(bound, color="C2", linewidth=1, linestyle="--")
            axes.set_title(textwrap.fill(problem, 20), fontsize="small")
        grid.flat[0].set_yticks(range(len(lines)), [label.strip("`") for _, _, label in lines])
        grid.flat[0].invert_yaxis()
        figure.supxlabel(
            "over the best single device; dots: ours, at most 3;\n"
            "crosses: the paper over its own; dashed: lower bound",
            fontsize="small",
        )
        return figure

    write_picture(draw, path)


def _lines(suite: PaperSuite) -> list[tuple[str, int, str]]:
    """(placer, evaluations, label) of each line of the picture, from the top."""
    return [
        (placer, stage.evaluations, stage.placers[placer] or placer)
        for stage in suite.stages
        for placer in stage.placers
    ]


def published_marks(suite: PaperSuite, problem: str) -> list[tuple[float, int]]:
    """The paper's figures on a problem, as (ratio to its best single device, line of the picture).

    The figure of the paper's own method is on the line of `headline.rules`. Figures of methods
    without a line are left out; the list is empty if the paper has no figure of a single device.
    """
    figures = {f.method: f.seconds for f in suite.published if f.problem == problem}
    singles = [figures[name] for name in SINGLES if name in figures]
    if not singles:
        return []
    line_of = {label: at for at, (_, _, label) in reversed(list(enumerate(_lines(suite))))}
    for at, (placer, _, _) in enumerate(_lines(suite)):
        if placer == suite.headline.rules:
            line_of[suite.headline.method] = at
    return [
        (seconds / min(singles), line_of[method])
        for method, seconds in figures.items()
        if method in line_of
    ]


def draw_transfer(rows: Sequence[LearnedRun], path: Path) -> None:
    """Draw the distribution over unseen graphs of each method's value divided by local search's.

    Each family has a part of the picture.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    families = list(dict.fromkeys(row.problem.split()[0] for row in rows))
    searched = {row.problem: row.value for row in rows if row.placer == LABELS[-1]}

    def draw(module: Any) -> Any:
        figure, grid = module.subplots(
            1, len(families), figsize=(3.2 * len(families), 3.6), sharey=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for axes, family in zip(grid.flat, families, strict=True):
            for label in LABELS[:-1]:
                values = sorted(
                    row.value / searched[row.problem]
                    for row in rows
                    if row.placer == label and row.problem.split()[0] == family
                )
                shares = [(at + 1) / len(values) for at in range(len(values))]
                axes.step(values, shares, where="post", marker="o", markersize=3, label=label)
            axes.axvline(1.0, color="gray", linewidth=1)
            axes.set_title(family)
        grid.flat[0].set_ylabel("share of unseen graphs")
        figure.supxlabel("over local search with 1,000 evaluations", fontsize="small")
        figure.legend(
            *grid.flat[0].get_legend_handles_labels(), loc="outside lower center", frameon=False,
            fontsize="small",
        )  # fmt: skip
        return figure

    write_picture(draw, path)
