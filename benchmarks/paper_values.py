"""Values of the page of papers, each computed from rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.claims import claim, listed, span
from benchmarks.stored_rows import origin, stored_rows
from placewright.report.learned_statistics import LearnedRun
from placewright.report.tables import markdown_table
from placewright.suites.learned import read_runs
from placewright.suites.papers.generalisation import FINE_TUNED, RETRAINED, SEARCH, TRANSFERRED
from placewright.suites.papers.report import (
    Cells,
    cells_of,
    figure_text,
    headline_rows,
    ratio,
    unseen_rows,
)
from placewright.suites.papers.suite import PAPERS, PaperSuite, paper_suite

_COMMAND = "placewright bench paper NAME --results docs/results/paper.json"
_RIVALS = {"local-search": "local search", "heft": "HEFT, one evaluation", "single": "one GPU",
           "single:device=gpu": "one GPU", "expert": "expert", "post": "`post`",
           "cooling": "`cooling`"}  # fmt: skip
_EQUAL = 1e-9
_NMT = ("NMT 2gpu", "NMT 4gpu")


def paper_values(folder: Path) -> dict[str, str]:
    """Value of each name in the template."""
    runs = read_runs(folder / "paper.json")
    cells = cells_of(runs)
    suites = {name: paper_suite(name) for name in PAPERS}
    stored = stored_rows(folder)["paper.json"]
    budgets = {f"budget_{name}": f"{_budget(suite):,}" for name, suite in suites.items()}
    return {
        "origin": "\n\n".join(origin(_COMMAND, "paper.json", stored, {})),
        **budgets,
        "rivals": _rivals(suites, cells),
        **_hsdag(suites["hsdag"], cells),
        **_experts(cells),
        **_post(suites["post"], cells),
        **_placeto(suites["placeto"], cells),
        "placeto_unseen": _unseen(unseen_rows(runs)),
        "missing": _missing(suites, cells),
    }


def _budget(suite: PaperSuite) -> int:
    return suite.headline.evaluations


def _value(cells: Cells, problem: str, placer: str, evaluations: int) -> float:
    """Median over the best single device, NaN without rows."""
    runs = cells.get((problem, placer, evaluations))
    return ratio(runs) if runs else math.nan


def _forms(suite: PaperSuite) -> list[str]:
    """The system under the paper's rules, its public code, and the form with our defaults."""
    named = [suite.headline.rules, suite.headline.mended]
    return [*named, "hsdag-released"] if suite.name == "hsdag" else named


def _best_form(suite: PaperSuite, cells: Cells, problem: str) -> float:
    values = [_value(cells, problem, form, _budget(suite)) for form in _forms(suite)]
    return min((value for value in values if math.isfinite(value)), default=math.nan)


def _rivals(suites: dict[str, PaperSuite], cells: Cells) -> str:
    """Each rival of the best form of each system, on the problems of both."""
    columns = ["system", "rival", "problems", "faster", "equal", "slower", "ratio"]
    table = []
    for name, suite in suites.items():
        for rival, title in _RIVALS.items():
            ratios = list(_ratios(suite, cells, rival))
            if rival in _forms(suite) or not ratios:
                continue
            faster = sum(value < 1.0 - _EQUAL for value in ratios)
            slower = sum(value > 1.0 + _EQUAL for value in ratios)
            counts = [len(ratios), faster, len(ratios) - faster - slower, slower]
            table.append([name, title, *map(str, counts), span(ratios)])
    return "\n".join(markdown_table(columns, table))


def _ratios(suite: PaperSuite, cells: Cells, rival: str) -> Iterator[float]:
    for case in suite.cases:
        theirs = _best_form(suite, cells, case.name)
        mine = _value(cells, case.name, rival, _budget(suite))
        if math.isfinite(mine) and math.isfinite(theirs):
            yield mine / theirs


def _hsdag(suite: PaperSuite, cells: Cells) -> dict[str, str]:
    """The headline's rows on each problem, and sentences about them."""
    rows = dict(headline_rows(suite, cells))
    cases = suite.headline.cases
    columns = ["", *(case.partition(" ")[0] for case in cases)]
    table = [[part, *map(figure_text, figures)] for part, figures in rows.items()]
    budget = _budget(suite)
    is_faster = all(
        _value(cells, case, "local-search", budget) < _value(cells, case, form, budget)
        for case in cases
        for form in _forms(suite)
    )
    released = [_value(cells, case, "hsdag-released", budget) for case in cases]
    return {
        "hsdag_saved": "\n".join(markdown_table(columns, table)),
        "hsdag_words": claim(
            is_faster,
            f"Local search with equal evaluations saves more than every form of HSDAG on all "
            f"{len(cases)} models.",
        ),
        "hsdag_released": claim(
            max(released) <= 1.0,
            "The released code must not answer with one device. Its answers take "
            f"{span(released)} times as long as the best device alone.",
        ),
    }


def _experts(cells: Cells) -> dict[str, str]:
    """The expert on NMT, and the learners that beat it within 500 evaluations."""
    learners = ("seq2seq-entropy", "hierarchical-mi", "grouper-placer-mi", "post")
    expert = {problem: _value(cells, problem, "expert", 500) for problem in _NMT}
    sentences = []
    for problem in _NMT:
        values = {name: _value(cells, problem, name, 500) for name in learners}
        ran = {name: value for name, value in values.items() if math.isfinite(value)}
        faster = [name for name, value in ran.items() if value < expert[problem] * (1 - _EQUAL)]
        best = min(ran.values()) / expert[problem]
        sentences.append(
            f"On {problem}, {len(faster)} of {len(ran)} learners beat it within 500 evaluations"
            f"{': ' + listed(faster) if faster else ''}; the best learner takes {best:.3f} times "
            "as long."
        )
    return {"expert_nmt": span(list(expert.values())), "expert_words": " ".join(sentences)}


def _post(suite: PaperSuite, cells: Cells) -> dict[str, str]:
    """Its three forms, its start, and the method that its headline is about."""
    budget = _budget(suite)
    both, entropy, proximal = (
        {case.name: _value(cells, case.name, name, budget) for case in suite.cases}
        for name in (
            "post:homogeneous_starts=false",
            "post:ablation=ce_only:homogeneous_starts=false",
            "post:ablation=ppo_only:homogeneous_starts=false",
        )
    )
    ran = [
        case.name
        for case in suite.cases
        if all(math.isfinite(form[case.name]) for form in (both, entropy, proximal))
    ]
    worst = [case for case in ran if proximal[case] > max(both[case], entropy[case])]
    ratios = [entropy[case] / both[case] for case in ran]
    median = statistics.median(ratios)
    name = "ResNet-50"
    alone = {case.split()[-1]: both[case] for case in ran if case.startswith(name)}
    factors = ", ".join(f"{value:.2f} ({devices})" for devices, value in alone.items())
    gradient = [
        case.name
        for case in suite.cases
        if (case.name, "seq2seq:homogeneous_starts=false", budget) in cells
    ]
    return {
        "post_ppo": f"PPO alone is the worst of the three forms on {len(worst)} of {len(ran)} "
        "problems that all of them ran on.",
        "post_ce": claim(
            median < 1.01,
            f"Cross-entropy alone takes {span(ratios)} times as long as both steps together, in "
            f"the median {median:.3f} times: there the paper's gain from PPO does not show.",
        ),
        "post_starts": claim(
            min(alone.values(), default=0.0) > 1.0,
            "Without the evaluations of single devices, Post is slower than one GPU on "
            f"{name}: it takes {factors} times as long.",
        ),
        "post_gradient": ", ".join(gradient),
    }


def _placeto(suite: PaperSuite, cells: Cells) -> dict[str, str]:
    """Its forms, its ablations, and methods beside them."""
    budget = _budget(suite)
    ours = "placeto:homogeneous_starts=false"
    ablations = [f"{ours}:{change}" for change in
                 ("reward=terminal", "embedding=partition", "embedding=sum")]  # fmt: skip
    shown = {
        "the code's weight of entropy": suite.headline.rules,
        "our weight of entropy": ours,
        "no intermediate rewards": ablations[0],
        "simple partitioner": ablations[1],
        "simple aggregator": ablations[2],
        "`cooling`": "cooling",
        "HEFT, one evaluation": "heft",
        "`post`": "post",
        "local search": "local-search",
        "expert": "expert",
    }
    problems = [case.name for case in suite.cases]
    table = [
        [title, *(_cell(_value(cells, problem, name, budget)) for problem in problems)]
        for title, name in shown.items()
    ]
    pairs = [
        (_value(cells, problem, name, budget), _value(cells, problem, ours, budget))
        for problem in problems
        for name in ablations
    ]
    both = [(mine, theirs) for mine, theirs in pairs if math.isfinite(mine + theirs)]
    slower = sum(mine > theirs for mine, theirs in both)
    off = [
        (_value(cells, problem, "placeto:updates=false", budget),
         _value(cells, problem, "placeto", budget))
        for problem in problems
    ]  # fmt: skip
    better = sum(mine < theirs for mine, theirs in off)
    ran = [cells[problem, name, budget] for problem in problems for name in (ours, *ablations)
           if (problem, name, budget) in cells]  # fmt: skip
    return {
        "placeto_forms": "\n".join(markdown_table(["", *problems], table)),
        "placeto_ablations": claim(
            2 * slower > len(both) and better > 0 and all(len(runs) == 1 for runs in ran),
            f"{slower} of {len(both)} ablations, one seed each, are slower than Placeto, as the "
            "paper states of its own. One seed is no proof: with updates off `placeto` is faster "
            f"than with them on {better} of {len(off)} problems.",
        ),
    }


def _cell(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"


def _unseen(rows: Sequence[LearnedRun]) -> str:
    """Sentences about graphs that a policy never saw, by medians of the graphs of a family."""
    searched = {row.problem: row.value for row in rows if row.placer == SEARCH}

    def medians(placer: str) -> list[float]:
        ratios: dict[str, list[float]] = {}
        for row in rows:
            if row.placer == placer:
                family = row.problem.partition(" ")[0]
                ratios.setdefault(family, []).append(row.value / searched[row.problem])
        return [statistics.median(of_family) for of_family in ratios.values()]

    alone = [row for row in rows if row.placer == TRANSFERRED]
    faster = sum(row.value < row.single * (1 - _EQUAL) for row in alone)
    fine, own = medians(FINE_TUNED), medians(RETRAINED)
    return " ".join([
        claim(
            min(medians(TRANSFERRED)) > 1.0,
            f"On {len(alone)} graphs that its policy never saw, Placeto without a query takes "
            f"{span(medians(TRANSFERRED), '.2f')} times as long as local search with 1,000 "
            f"evaluations (medians of families). It beats the best single device on {faster} of "
            "them.",
        ),
        claim(
            all(one < other for one, other in zip(fine, own, strict=True)),
            f"A policy trained on the graph itself, with 1,000 evaluations, takes "
            f"{span(own, '.2f')} times as long. One that also started from the other graphs takes "
            f"less, {span(fine, '.2f')} times as long.",
        ),
    ])  # fmt: skip


def _missing(suites: dict[str, PaperSuite], cells: Cells) -> str:
    """Cells with rows of each report, and problems that no form of its system ran on."""
    table = []
    for name, suite in suites.items():
        asked = [
            (case.name, placer, stage.evaluations)
            for stage in suite.stages
            for case in suite.cases_of(stage)
            for placer in stage.placers
        ]
        bare = [c.name for c in suite.cases if math.isnan(_best_form(suite, cells, c.name))]
        ran = sum(key in cells for key in asked)
        seeds = _seeds(suite, cells)
        table.append([name, str(ran), str(len(asked)), span(seeds, "d"), ", ".join(bare) or "-"])
    columns = ["report", "cells with rows", "cells", "seeds of its system", "problems without it"]
    return "\n".join(markdown_table(columns, table))


def _seeds(suite: PaperSuite, cells: Cells) -> Sequence[int]:
    keys = [(c.name, form, _budget(suite)) for c in suite.cases for form in _forms(suite)]
    return [len(cells[key]) for key in keys if key in cells] or [0]
