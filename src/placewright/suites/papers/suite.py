"""What a paper's table is made of: its problems, the runs we make, and the figures it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from placewright.suites.learned import Case

Certainty = Literal["stated", "recalled", "uncertain"]

CERTAINTIES: dict[Certainty, str] = {
    "stated": "read in the abstract, in a review or in a summary of the paper",
    "recalled": "recalled from the table and consistent with figures that were read",
    "uncertain": "recalled only; do not cite it",
}


@dataclass(frozen=True)
class Published:
    """One figure of a paper.

    Attributes:
        problem: name of our case that stands for the paper's.
        method: as the paper calls it.
        seconds: that the paper reports.
        certainty: how the figure came here, see `CERTAINTIES`.
    """

    problem: str
    method: str
    seconds: float
    certainty: Certainty


@dataclass(frozen=True)
class Stage:
    """Runs with one budget.

    Attributes:
        title: what these runs are, a heading.
        placers: ``NAME:key=value`` -> what it stands for in the paper.
        evaluations: of every run.
        seeds: runs of each at most; methods without chance need one.
    """

    title: str
    placers: dict[str, str]
    evaluations: int
    seeds: int = 5


@dataclass(frozen=True)
class PaperSuite:
    """A paper's experiment as far as it can be run here.

    Attributes:
        name: ``hsdag``, ``post`` or ``placeto``.
        title: of the paper.
        rules: what its experiment was, sentence by sentence.
        cases: its problems.
        baseline: method of `published` that other figures are divided by.
        stages: what we run on every case.
        published: its figures.
        claims: figures that belong to no cell, each with its source.
        missing: what cannot be had here, sentence by sentence.
    """

    name: str
    title: str
    rules: Sequence[str]
    cases: Sequence[Case]
    baseline: str
    stages: Sequence[Stage]
    published: Sequence[Published]
    claims: Sequence[str]
    missing: Sequence[str]
