"""Values of the page of learned placers, each computed from rows."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims import claim, listed, span
from benchmarks.measured_tables import in_words
from benchmarks.result_tables import shares_of_zero_shot
from benchmarks.stored_rows import origin, stored_rows
from placewright.core.quantities import format_bytes
from placewright.placers.registry import make_placer, placers_that_learn
from placewright.report.learned_statistics import (
    BESIDE,
    COMMON,
    COOLING,
    LEVEL,
    Change,
    Groups,
    LearnedRun,
    LearnedVerdict,
    changes,
    controls_of,
    runs_by_problem,
    smallest_p,
    values_of,
    verdicts,
)
from placewright.report.tables import markdown_table
from placewright.suites.learned import read_runs

Verdicts = Mapping[str, Sequence[LearnedVerdict]]  # of each learner without changed settings
_POLICY = "placers/learned/zero_shot/policies/zero_shot.safetensors"
_COMMAND = "placewright bench learned"
_GRAPHS = "python -m benchmarks.hsdag_graphs --results docs/results/hsdag-graphs.json"
_TOYS = (
    "grouper-placer",
    "hierarchical:entropy_weight=0.03:shapes=log:hidden=64:learning_rate=0.005",
    "grouper-placer-mi",
    "hierarchical-mi",
)


def learned_values(folder: Path) -> dict[str, str]:
    """Value of each name in the template."""
    files = ("learned.json", "learned-bare.json", "learned-more.json")
    parts = {
        (name, evaluations): runs_by_problem(
            [run for run in read_runs(folder / name) if run.evaluations == evaluations]
        )
        for name in files
        for evaluations in (500, 5000)
    }
    groups, long = parts["learned.json", 500], parts["learned.json", 5000]
    bare, more = parts["learned-bare.json", 500], parts["learned-more.json", 500]
    bare_long = parts["learned-bare.json", 5000]
    judged = _judged(groups)
    stored = stored_rows(folder)
    lines = [text for name in files for text in origin(_COMMAND, name, stored[name], {})]
    return {
        "origin": "\n\n".join(lines),
        **_tables({"500": groups, "5000": long, "bare": bare, "more": more}),
        "bare_long": f"{len(_problems(bare_long))}: {listed(_asked(bare_long))}",
        "asked": _bullets(
            f"`{name}`, {evaluations:,} evaluations: {listed(_asked(part))}"
            for (name, evaluations), part in parts.items()
        ),
        "more_table": _more_table(more),
        "who_learns": _who_learns(judged),
        "too_few": _too_few(max(map(len, judged.values())), 5),
        "ends_at_one": _ends_at_one(judged),
        "placeto_mean": _placeto_mean(folder),
        **_networks(),
        "toys": _toys(_rows(folder, "toy-ablations")),
        **_graphs(folder),
        **_corrections(changes(groups, "hsdag-corrected")),
        "on_hardware": in_words(json.loads((folder / "measured-search.json").read_text())),
        "enlarged": _enlarged(_rows(folder, "enlarged")),
        **_policy(folder),
        "not_run": _not_run({**groups, **bare}, {**long, **bare_long}, more),
    }


def _rows(folder: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / f"{name}.json").read_text())["rows"]
    return rows


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _judged(groups: Groups) -> Verdicts:
    names = [name for name in placers_that_learn() if any(own == name for _, own in groups)]
    return {name: found for name in names if (found := verdicts(groups, name))}


def _learners(groups: Groups) -> list[str]:
    """Learners with rows, in the order of their names."""
    present = {name for _, name in groups}
    return [name for name in placers_that_learn() if name in present]


def _problems(groups: Groups) -> list[str]:
    """Problems that a learner ran on; others have rows of controls only."""
    learners = set(_learners(groups))
    return list(dict.fromkeys(problem for problem, name in groups if name in learners))


def _asked(groups: Groups) -> list[str]:
    """Learners that ran on all problems of a table, with their controls."""
    return [
        name
        for name in _learners(groups)
        if all((p, n) in groups for p in _problems(groups) for n in (name, *controls_of(name)))
    ]


def _tables(parts: Mapping[str, Groups]) -> dict[str, str]:
    """Numbers of problems, and of seeds of the learners, of each table."""
    values = {}
    for key, groups in parts.items():
        learners = set(_learners(groups))
        seeds = [len(runs) for (_, name), runs in groups.items() if name in learners]
        values[f"problems_{key}"] = str(len(_problems(groups)))
        values[f"seeds_{key}"] = span(seeds, "d")
    return values


def _median(runs: Sequence[LearnedRun] | None) -> float:
    return statistics.median(values_of(runs, "best")) if runs else math.nan


def _more_table(more: Groups) -> str:
    """Best single method of each kind on the problems of the third table."""
    problems = dict.fromkeys(problem for problem, _ in more)
    learners = _learners(more)
    table = []
    for problem in problems:
        ratios = {
            name: _median(more[problem, name]) for name in learners if (problem, name) in more
        }
        best = min(ratios, key=lambda name: ratios[name])
        beside = [f"{_median(more.get((problem, name))):.3f}" for name in BESIDE]
        table.append([problem, f"{ratios[best]:.3f} (`{best}`)", *beside])
    columns = ["problem", "best learner", *(f"`{name}`" for name in BESIDE)]
    return "\n".join(markdown_table(columns, table))


def _who_learns(judged: Verdicts) -> str:
    sentences = []
    for name, found in judged.items():
        if any(verdict.is_decidable for verdict in found):
            useful = sum(verdict.use == "better" for verdict in found)
            learns = sum(verdict.learns for verdict in found)
            sentences.append(
                f"`{name}` learns on {learns} of {len(found)} problems, and is of use on {useful}."
            )
        else:
            sentences.append(f"`{name}` has too few runs.")
    return _bullets(sentences)


def _too_few(problems: int, seeds: int) -> str:
    """Clause about the smallest p that few seeds can reach."""
    least = smallest_p(seeds, seeds)
    return claim(
        least * problems > LEVEL,
        f"with {seeds} seeds the smallest p is {least:.2g}, which Holm's method multiplies by "
        f"{problems} problems, so that no learner could pass",
    )


def _ends_at_one(judged: Verdicts) -> str:
    sentences = []
    for name in ("grouper-placer-mi", "hierarchical-mi"):
        on_two = [found for found in judged[name] if " 2gpu" in found.problem]
        ends = [found for found in on_two if abs(found.last - 1.0) < 5e-4]
        faster = sum(found.best < 1.0 - 1e-9 for found in ends)
        sentences.append(
            f"`{name}` ends there on {len(ends)} of {len(on_two)} problems on `2gpu`, and finds "
            f"something faster on the way on {faster} of them."
        )
    return _bullets(sentences)


def _placeto_mean(folder: Path) -> str:
    """Sentences that compare sums with means of messages."""
    rows = runs_by_problem([r for r in read_runs(folder / "paper.json") if r.evaluations == 5000])
    both = [p for p, name in rows if name == "placeto-mean" and (p, "placeto") in rows]
    values = [(_median(rows[p, "placeto-mean"]), _median(rows[p, "placeto"])) for p in both]
    slower = sum(mean > own for mean, own in values)
    return claim(
        len(both) > 0 and all(mean >= own for mean, own in values),
        f"`placeto-mean` is slower than `placeto` on {slower} and faster on none of "
        f"{len(both)} problems that both ran on, and we do not recommend it.",
    )


def _networks() -> dict[str, str]:
    """Settings of networks, from the placers themselves."""
    ours: Any = make_placer("hierarchical-mi")
    published: Any = make_placer("hierarchical")
    grouped: Any = make_placer("grouper-placer-mi")
    return {
        "grouper_scale": f"{grouped.grouper_scale:g}",
        "hidden_ours": str(ours.hidden),
        "hidden_published": str(published.hidden),
    }


def _toys(rows: Sequence[Mapping[str, Any]]) -> str:
    sentences = []
    for name in _TOYS:
        own = [row for row in rows if row["placer"] == name]
        learned = sum(row["share"] > 0.95 for row in own)
        found = sum(bool(row["found"]) for row in own)
        sentences.append(
            f"`{name}` learns the first toy in {learned} of {len(own)} runs, and finds the best "
            f"placement of the second in {found}."
        )
    return _bullets(sentences)


def _graphs(folder: Path) -> dict[str, str]:
    path = folder / "hsdag-graphs.json"
    document = json.loads(path.read_text())
    rows = document["rows"]
    added = ", ".join(
        f"{row['half_nodes'] - row['nodes']} nodes on {row['model']}"
        for row in rows
        if "normalised" not in row["model"]
    )
    more = sum(row["half_groups"] != row["groups"] for row in rows)
    plain, normalised = (
        next(row["nodes"] for row in rows if row["model"] == f"Inception-V3{ending}")
        for ending in ("", " with normalised input")
    )
    columns = ["model", "nodes", "edges", "groups", "of them with more than constants",
               "half precision: nodes/edges", "published", "difference"]  # fmt: skip
    return {
        "conversions": claim(more == 0, f"That adds {added}, and no group."),
        "normalisation": str(normalised - plain),
        "graphs_origin": "\n\n".join(
            origin(_GRAPHS, path.name, stored_rows(folder)[path.name], document)
        ),
        "graphs": "\n".join(markdown_table(columns, [_graph_cells(row) for row in rows])),
    }


def _graph_cells(row: Mapping[str, Any]) -> list[str]:
    half, published = [row["half_nodes"], row["half_edges"]], row["published"]
    counts = [str(row[key]) for key in ("nodes", "edges", "groups", "groups_with_ops")]
    apart = [here - there for here, there in zip(half, published, strict=False)]
    return [
        row["model"],
        *counts,
        "/".join(map(str, half)),
        "/".join(map(str, published)) or "-",
        ("/".join(f"{one:+d}" for one in apart) if any(apart) else "none") if published else "-",
    ]


def _corrections(found: Sequence[Change]) -> dict[str, str]:
    """Changes that make a difference by samples or by best placements, and the others."""
    names = list(dict.fromkeys(change.placer for change in found))
    by_name = {name: [c for c in found if c.placer == name] for name in names}
    worse = [n for n in names if any(c.p <= LEVEL and c.ratio > 1 for c in by_name[n])]
    better = [n for n in names if any(c.p <= LEVEL and c.ratio < 1 for c in by_name[n])]
    others = [name for name in names if name not in (*worse, *better)]
    lower = [n for n in others if all(c.ratio < 1.0 for c in by_name[n])]

    def settings(chosen: Sequence[str]) -> str:
        return listed(name.partition(":")[2] or name for name in chosen)

    sentences = [
        f"Worse, by the samples or by the best placements: {settings(worse)}.",
        f"Better: {settings(better)}.",
        f"No difference that these problems can show: {settings(others)}.",
        f"Of the last, those with lower values by both measures: {settings(lower)}.",
    ]
    return {
        "changed_problems": str(max(change.problems for change in found)),
        "corrections": _bullets(sentences),
    }


def _enlarged(rows: Sequence[Mapping[str, Any]]) -> str:
    fits = sum(row["fits"] for row in rows)
    equal = sum(row["fits"] and row["equal"] for row in rows)
    claim(0 < fits == len(rows) == equal, "all placements fit and give equal outputs")
    return (
        f"All {len(rows)} placers of the table find a placement that fits, and each of these "
        "placements gives the outputs of the unsplit model."
    )


def _policy(folder: Path) -> dict[str, str]:
    """The shipped policy: its size, its training, and how it compares with local search."""
    import safetensors

    import placewright

    path = Path(placewright.__file__).parent / _POLICY
    with safetensors.safe_open(path, framework="numpy") as file:
        told = json.loads(file.metadata()["metadata"])
    document = json.loads((folder / "zero-shot.json").read_text())
    columns, lines = shares_of_zero_shot(document)
    whole, alone = (dict(zip(columns, line, strict=True)) for line in lines)
    claim(
        int(whole["slower"]) > int(whole["faster"]) and float(whole["p"]) <= LEVEL,
        "The policy does not beat local search.",
    )
    return {
        "policy_bytes": format_bytes(path.stat().st_size),
        "policy_episodes": str(told["episodes"]),
        "zero_shot": (
            f"The policy does not beat that search. It is faster on {whole['faster']} of "
            f"{whole['problems']} graphs and slower on {whole['slower']}. The median of the ratios "
            f"is {whole['median ratio']}, with p = {whole['p']} in a Wilcoxon test. Its greedy "
            f"placement alone is faster than the schedule by earliest finish on "
            f"{alone['faster']} graphs, and slower on {alone['slower']}."
        ),
    }


def _not_run(groups: Groups, long: Groups, more: Groups) -> str:
    tables = (
        ("500 evaluations and that of bare names", groups),
        ("5,000 evaluations and that of bare names", long),
        ("more problems", more),
    )
    sentences = []
    for title, part in tables:
        missing = [name for name in placers_that_learn() if name not in _learners(part)]
        sentences.append(f"in the table of {title}: {listed(missing)};")
    for name in _learners(groups):
        ran = {problem for problem, own in groups if own == name}
        if absent := sorted({problem for problem, _ in groups} - ran):
            sentences.append(f"`{name}` with 500 evaluations on {', '.join(absent)};")
    problems = _problems(long)
    without = [p for p in problems if (p, COOLING) not in long or (p, COMMON) not in long]
    claim(not without, "Every problem of the table of 5,000 evaluations has both controls.")
    if controls := sorted({problem for problem, _ in long} - set(problems)):
        sentences.append(
            f"any learner with 5,000 evaluations on {', '.join(controls)}, where controls ran;"
        )
    seeds = max(len(long[problem, name]) for problem, name in long if name in _learners(long))
    sentences.append(f"more than {seeds} seeds of any learner with 5,000 evaluations.")
    return _bullets(sentences)
