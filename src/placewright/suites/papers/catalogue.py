"""The papers whose experiments can be reproduced, by name."""

from __future__ import annotations

from collections.abc import Callable

from placewright.errors import UnknownNameError
from placewright.suites.papers.hsdag import hsdag_suite
from placewright.suites.papers.liu2019 import liu2019_suite
from placewright.suites.papers.mirhoseini2017 import mirhoseini2017_suite
from placewright.suites.papers.mirhoseini2018 import mirhoseini2018_suite
from placewright.suites.papers.placeto import placeto_suite
from placewright.suites.papers.post import post_suite
from placewright.suites.papers.suite import PaperSuite

PAPERS: dict[str, Callable[[], PaperSuite]] = {
    "mirhoseini2017": mirhoseini2017_suite,
    "mirhoseini2018": mirhoseini2018_suite,
    "post": post_suite,
    "liu2019": liu2019_suite,
    "placeto": placeto_suite,
    "hsdag": hsdag_suite,
}


def paper_suite(name: str) -> PaperSuite:
    """The suite of a paper.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in PAPERS:
        raise UnknownNameError("paper", name, tuple(PAPERS))
    return PAPERS[name]()
