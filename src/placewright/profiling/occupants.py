"""Whom copies between devices occupy: the rule that predicts measured placements best.

Each rule is fitted to all placements but one and predicts that one, for each placement in turn.
Links keep today's rule, that copies occupy nobody, unless the predictions of another are clearly
closer: by a share of the error, by a share of the seconds, and by more than the scatter from
placement to placement. So the answer does not change with the noise of one measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.cluster import OCCUPIES, Cluster, Link
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.profiling.segment_fit import SegmentRow, Wait, fitted_cluster
from placewright.simulation.model import Simulator

LEAST_PLACEMENTS = 8  # with fewer, the scatter of errors is not known
_LESS_ERROR = 0.75  # a rule's mean error is at most this share of that of a rule it replaces
_LEAST_GAIN = 0.01  # of the seconds: smaller gains are within what medians of rounds differ
_DEVIATIONS = 2.0  # standard errors by which the mean gain exceeds 0


def with_rule(cluster: Cluster, rule: str | None) -> Cluster:
    """Give a rule to the links whose rule is open, as far as their devices can be occupied.

    Args:
        cluster: whose file may have given rules to links, which stay.
        rule: one of `OCCUPIES`; None leaves all open.
    """
    if rule is None:
        return cluster
    return replace(
        cluster,
        links=tuple(
            replace(link, occupies=rule) if _takes(cluster, link, rule) else link
            for link in cluster.links
        ),
    )


def _takes(cluster: Cluster, link: Link, rule: str) -> bool:
    """True if the rule of a link is open, and each end that it names computes nothing meanwhile."""
    if link.occupies is not None or cluster.host in (link.source, link.destination):
        return False
    if rule == "nobody":
        return True
    if link.channel is not None or not link.queues:
        return False
    ends = replace(link, occupies=rule).occupied_ends
    devices = [cluster.devices[cluster.device_index[end]] for end in ends]
    return not any(device.streams > 1 or device.overlaps_transfers for device in devices)


def found_rule(
    problem: Problem,
    rows: Sequence[SegmentRow],
    waits: Sequence[Wait],
    placements: Sequence[Placement],
    seconds: FloatArray,
) -> str | None:
    """The rule that the measurements show; None if they cannot tell the rules apart.

    Args:
        problem: without overheads.
        rows, waits: of its measured segments.
        placements: that were measured; rows name them by number.
        seconds: measured, shape (n_placements,).
    """
    is_open = any(with_rule(problem.cluster, rule) != problem.cluster for rule in OCCUPIES[1:])
    if len(placements) < LEAST_PLACEMENTS or not is_open:
        return None
    return clear_rule({
        rule: _errors(problem, rule, rows, waits, placements, seconds) for rule in OCCUPIES
    })  # fmt: skip


def clear_rule(errors: dict[str, FloatArray]) -> str | None:
    """The rule whose errors are clearly smaller than those of ``"nobody"``.

    Of several such rules the first counts that is not clearly worse than the best. ``"nobody"``
    itself is found if it is clearly better than every other.

    Args:
        errors: of the predictions of the same placements by each rule, as shares.
    """
    others = [rule for rule in OCCUPIES if rule != "nobody"]
    better = [rule for rule in others if _is_clearly_better(errors[rule], errors["nobody"])]
    if better:
        best = min(better, key=lambda rule: float(errors[rule].mean()))
        return next(r for r in better if not _is_clearly_better(errors[best], errors[r]))
    if all(_is_clearly_better(errors["nobody"], errors[rule]) for rule in others):
        return "nobody"
    return None


def _is_clearly_better(one: FloatArray, other: FloatArray) -> bool:
    gains = other - one
    gain, scatter = float(gains.mean()), float(gains.std(ddof=1)) / np.sqrt(len(gains))
    is_less = float(one.mean()) <= _LESS_ERROR * float(other.mean())
    return is_less and gain >= max(_LEAST_GAIN, _DEVIATIONS * scatter)


def _errors(
    problem: Problem,
    rule: str,
    rows: Sequence[SegmentRow],
    waits: Sequence[Wait],
    placements: Sequence[Placement],
    seconds: FloatArray,
) -> FloatArray:
    """Errors of a rule on each placement, fitted to the others, as logarithms of the ratio."""
    bare = with_rule(problem.cluster, rule)
    errors = []
    for number, placement in enumerate(placements):
        others = [row for row in rows if row.trial != number]
        cluster = fitted_cluster(bare, others, list(waits))
        predicted = Simulator(replace(problem, cluster=cluster)).value(placement)
        errors.append(abs(np.log(seconds[number] / predicted)))
    return np.array(errors)
