"""Plans that somebody else ran, as text."""

from __future__ import annotations

import math
from collections.abc import Iterator

from placewright.core.cluster import OCCUPIES
from placewright.report.replay_text import CopyLine, Replay, ReplayedPlan


class CountedPlans(tuple[ReplayedPlan, ...]):
    """Counts its passes."""

    passes = 0

    def __iter__(self) -> Iterator[ReplayedPlan]:
        CountedPlans.passes += 1
        return super().__iter__()


def test_decisions_of_many_cases_take_one_pass() -> None:
    predicted = dict.fromkeys(OCCUPIES, 1.0)
    plans = CountedPlans(
        ReplayedPlan(f"case {at}", {}, name, seconds, predicted, name == "split")
        for at in range(20)
        for name, seconds in (("split", 1.0 + at), ("alone", 2.0))
    )
    found = Replay("title", "source", "licence", (), plans).decisions(OCCUPIES[0])
    assert [one.case for one in found] == [f"case {at}" for at in range(20)]
    assert [one.measured for one in found] == [(1.0 + at) / 2.0 - 1.0 for at in range(20)]
    assert CountedPlans.passes == 1


def test_an_infeasible_plan_has_no_error() -> None:
    """The simulator says that it does not fit, though it ran."""
    predicted = dict.fromkeys(OCCUPIES, math.inf)
    plans = (ReplayedPlan("case", {"model": "net"}, "split", 1.0, predicted, True),)
    replay = Replay("title", "source", "licence", (CopyLine("a", "b", 1e-6, 0.0, 1),), plans)
    rows = [*replay.rule_rows(), *replay.group_rows(), *replay.plan_rows()]
    told = " ".join([*replay.lines(), *(cell for row in rows for cell in row)])
    assert "inf%" not in told
    assert "nan" not in told
    assert "from 1 measurement" in told
    assert replay.plan_rows() == [["case", "split", "1 s", "-", "-"]]
