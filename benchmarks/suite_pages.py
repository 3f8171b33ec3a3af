"""Reports of suites as pages of results: each suite's own Markdown, with the origin of its rows.

A suite writes its report beside its results file, without an origin: `python -m
benchmarks.result_pages` knows when the file last changed, and adds it below the title.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.foreign.report import foreign_table
from benchmarks.foreign.runs import FORMAT as FOREIGN
from benchmarks.foreign.runs import ForeignRow
from benchmarks.foreign.verdict_report import verdict_table
from benchmarks.foreign.verdicts import FORMAT as VERDICTS
from benchmarks.foreign.verdicts import WheelRow
from benchmarks.stored_rows import origin, stored_rows
from benchmarks.streams import read_streams
from benchmarks.streams_report import streams_text
from placewright.files.results import read_rows
from placewright.report.learned_statistics import report_text
from placewright.session.comparison import settings_by_placer
from placewright.suites.learned import read_runs
from placewright.suites.papers.report import paper_text
from placewright.suites.papers.suite import PAPERS, paper_suite


@dataclass(frozen=True)
class SuitePage:
    """A page that the report of a suite makes.

    Attributes:
        file: results file, without its ending.
        command: that wrote the rows.
        text: Markdown of the report from the path of the results file.
    """

    file: str
    command: str
    text: Callable[[Path], str]


def _learned(path: Path, evaluations: int) -> str:
    runs = [run for run in read_runs(path) if run.evaluations == evaluations]
    return report_text(runs, evaluations, settings_by_placer(run.placer for run in runs))


def _paper(path: Path, name: str) -> str:
    pictures = (f"paper-{name}.svg", "paper-placeto-unseen.svg")
    return paper_text(paper_suite(name), read_runs(path), *pictures)


def _learned_page(file: str, evaluations: int) -> SuitePage:
    command = f"placewright bench learned --results docs/results/{file}.json"
    command += f" --evaluations {evaluations}" if evaluations != 500 else ""
    return SuitePage(file, command, partial(_learned, evaluations=evaluations))


SUITES: dict[str, SuitePage] = {
    "learned-500": _learned_page("learned", 500),
    "learned-5000": _learned_page("learned", 5000),
    "learned-bare-500": _learned_page("learned-bare", 500),
    "learned-bare-5000": _learned_page("learned-bare", 5000),
    "learned-more-500": _learned_page("learned-more", 500),
    "learned-more-5000": _learned_page("learned-more", 5000),
    **{
        f"paper-{name}": SuitePage(
            "paper",
            f"placewright bench paper {name} --results docs/results/paper.json",
            partial(_paper, name=name),
        )
        for name in PAPERS
    },
    "foreign": SuitePage(
        "foreign",
        "python -m benchmarks.foreign --results docs/results/foreign.json",
        lambda path: foreign_table(read_rows(path, FOREIGN, ForeignRow)),
    ),
    "foreign-wheels": SuitePage(
        "foreign-wheels",
        "python -m benchmarks.wheels --packages wheels --results docs/results/foreign-wheels.json",
        lambda path: verdict_table(read_rows(path, VERDICTS, WheelRow)),
    ),
    "streams": SuitePage(
        "streams",
        "python -m benchmarks.streams --results docs/results/streams.json",
        lambda path: streams_text(read_streams(path)),
    ),
}


def suite_pages(folder: Path) -> dict[str, str]:
    """Name and Markdown of each page that a suite's report makes from rows in `folder`."""
    stored = stored_rows(folder)
    pages = {}
    for name, suite in SUITES.items():
        path = folder / f"{suite.file}.json"
        title, _, rest = suite.text(path).partition("\n")
        lines = origin(suite.command, path.name, stored[path.name], {})
        if "\nMachine: " in rest:  # of rows that name it
            del lines[1:]
        pages[f"{name}.md"] = "\n\n".join([title, *lines]) + "\n" + rest
    return pages
