"""The papers whose experiments can be reproduced, by name."""

from __future__ import annotations

from collections.abc import Callable

from placewright.errors import UnknownNameError
from placewright.suites.papers.hsdag import hsdag_suite
from placewright.suites.papers.placeto import placeto_suite
from placewright.suites.papers.post import post_suite
from placewright.suites.papers.suite import PaperSuite

PAPERS: dict[str, Callable[[], PaperSuite]] = {
    "hsdag": hsdag_suite,
    "post": post_suite,
    "placeto": placeto_suite,
}


def paper_suite(name: str) -> PaperSuite:
    """The suite of a paper.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in PAPERS:
        raise UnknownNameError("paper", name, tuple(PAPERS))
    return PAPERS[name]()
