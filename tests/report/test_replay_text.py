"""Plans that somebody else ran, as text."""

from __future__ import annotations

import math

from placewright.core.cluster import OCCUPIES
from placewright.report.replay_text import CopyLine, Replay, ReplayedPlan


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
