"""The papers whose experiments can be reproduced, by name (data: ``papers.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import yaml

from placewright.errors import UnknownNameError
from placewright.suites.papers.models import inference_cases, scaled_cases, training_cases
from placewright.suites.papers.suite import Headline, PaperSuite, Published, Stage, equal_budgets

PAPERS = ("mirhoseini2017", "mirhoseini2018", "post", "liu2019", "placeto", "hsdag")


def paper_suite(name: str) -> PaperSuite:
    """The suite of a paper.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in PAPERS:
        raise UnknownNameError("paper", name, PAPERS)
    entry = _document()[name]
    figures: Mapping[str, Sequence[float | None]] = entry.get("published", {})
    uncertain = entry.get("uncertain", ())
    if "training" in entry:
        own = cases = training_cases(entry["training"])
    else:
        own = inference_cases(entry["inference"], entry["cluster"])
        pairs = zip(figures["CPU-only"], figures["GPU-only"], strict=True)
        cases = scaled_cases(own, [(cpu or 0.0) / (gpu or 1.0) for cpu, gpu in pairs])
    names = [case.name for case in own]
    published = [
        Published(case.name, method, seconds, "uncertain" if method in uncertain else "recalled")
        for method, row in figures.items()
        for case, seconds in zip(cases, row, strict=True)
        if seconds is not None
    ]
    evaluations, equal = entry["evaluations"], entry["equal_budgets"]
    others = dict.fromkeys(equal["others"], "")
    stages = [_stage(stage, evaluations, names) for stage in entry["stages"]]
    return PaperSuite(
        name=name,
        title=entry["title"],
        stand_ins=entry["stand_ins"],
        rules=entry["rules"],
        cases=own if cases is own else [*own, *cases],
        baseline=entry["baseline"],
        stages=[*stages, equal_budgets(equal["learner"], others, evaluations, equal["seeds"])],
        published=published,
        claims=entry["claims"],
        missing=entry["missing"],
        headline=Headline(
            **entry["headline"], evaluations=evaluations, cases=[case.name for case in cases]
        ),
    )


def _stage(entry: dict[str, Any], evaluations: int, own: Sequence[str]) -> Stage:
    return Stage(
        entry["title"],
        entry["placers"],
        entry.get("evaluations", evaluations),
        entry.get("seeds", 5),
        () if entry.get("scaled_too", True) else own,
    )


@cache
def _document() -> dict[str, Any]:
    text = resources.files("placewright.suites.papers").joinpath("papers.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document
