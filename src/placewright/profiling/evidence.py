"""Measured placements of a model, to which overheads are fitted, and the errors of the fit.

A fit to placements of the model itself is best. If there are fewer than a calibration measures,
placements of another model on the same machine replace the missing ones.

Whom copies between devices occupy: the rule that predicts measured placements best.

Each rule is fitted to all placements but one and predicts that one, for each placement in turn.
Links keep today's rule, that copies occupy nobody, unless the predictions of another are clearly
closer: by a share of the error, by a share of the seconds, and by more than the scatter from
placement to placement. So the answer does not change with the noise of one measurement.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.cluster import OCCUPIES, UNIT_SHARE, Cluster, Link
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.processors import first_on_processors
from placewright.profiling.segment_fit import SegmentRow, Wait, fitted_cluster
from placewright.simulation.model import Simulator
from placewright.simulation.serving import one_thread_seconds

PLACEMENTS = 8  # of a complete calibration
_QUANTILE = 0.9  # share of the placements that were closer to their prediction
_LEAST_ERROR = 0.1  # share of the predicted overheads, below which medians are not known
LEAST_TRIALS = 4  # for a fit without other models, and for its error


@dataclass(frozen=True)
class Trial:
    """A measured placement."""

    device_of: tuple[int, ...]  # device of each unit
    seconds: float  # of the whole request
    noise: float = 0.0  # standard error of these seconds
    in_one_thread: bool = False


@dataclass(frozen=True)
class Outcome:
    """A trial beside its prediction."""

    seconds: float  # measured
    predicted: float  # with the fit
    bare: float  # predicted without overheads
    noise: float = 0.0  # standard error of the measured seconds

    @property
    def error(self) -> float:
        """Error of the prediction over its overheads plus `UNIT_SHARE` of its units.

        The distance from the measured seconds has the noise of few rounds in it, whose square is
        therefore subtracted: noise of measuring is no error of predicting.
        """
        added = max(0.0, self.predicted - self.bare) + UNIT_SHARE * self.bare
        squared = (self.seconds - self.predicted) ** 2 - self.noise**2
        return math.sqrt(max(0.0, squared)) / max(added, 1e-12)


@dataclass(frozen=True)
class Evidence:
    """Measurements of one model."""

    # rows, waits: of segments, see `profiling.segment_fit`
    rows: tuple[SegmentRow, ...] = ()
    waits: tuple[Wait, ...] = ()
    outcomes: tuple[Outcome, ...] = ()  # of trials, with a fit to these rows alone
    # of the whole model on one device, by which rows of models are weighed
    model_seconds: float = 1.0
    # whom copies occupy, one of `core.cluster.OCCUPIES`; None if the measurements cannot tell
    occupies: str | None = None
    call_seconds: float | None = None  # see `Cluster`; None if they were not measured

    def text(self) -> str:
        """The measurements as JSON, without the rounds of rows."""
        data = {
            "rows": [
                [
                    *(r.device, r.devices_in_use, r.unit_seconds, r.counts.tolist(), r.seconds),
                    *(
                        None if copies is None else copies.tolist()
                        for copies in (r.received, r.sent)
                    ),
                ]
                for r in self.rows
            ],
            "waits": [[w.source, w.destination, w.seconds] for w in self.waits],
            "outcomes": [[o.seconds, o.predicted, o.bare, o.noise] for o in self.outcomes],
            "model_seconds": self.model_seconds,
            "occupies": self.occupies,
            "call_seconds": self.call_seconds,
        }
        return json.dumps(data)

    @classmethod
    def of_text(cls, text: str) -> Evidence:
        """Read the result of `text`."""
        data: dict[str, Any] = json.loads(text)
        return cls(
            tuple(_row(*stored) for stored in data["rows"]),
            tuple(Wait(*wait) for wait in data["waits"]),
            tuple(Outcome(*outcome) for outcome in data["outcomes"]),
            data["model_seconds"],
            data.get("occupies"),  # earlier versions did not find it out
            data.get("call_seconds"),
        )


def _row(
    device: int,
    devices_in_use: int,
    unit_seconds: float,
    counts: list[float],
    seconds: float,
    *copies: list[list[float]] | None,
) -> SegmentRow:
    """A stored row; earlier versions stored no copies."""
    received, sent = [None if c is None else np.array(c) for c in copies or (None, None)]
    own = (device, devices_in_use, unit_seconds, np.array(counts), seconds)
    return SegmentRow(*own, received=received, sent=sent)


NOTHING = Evidence()


def fitted(
    problem: Problem, own: Evidence, trials: Sequence[Trial], machine: Evidence | None
) -> tuple[Problem, tuple[Outcome, ...]]:
    """Fit overheads to a model's own trials and, if these are few, to those of another model.

    Args:
        problem: with costs; overheads of its cluster are replaced.
        own: measurements of the model; their outcomes are not used. Whom copies occupy is theirs to
            say if there are enough of them.
        machine: measurements of another model on the same devices, if there are any.

    Returns:
        The problem, whose cluster has the error of predictions, and the outcome of each trial.
    """
    bare = problem.cluster.without_overheads
    share = max(0.0, 1.0 - len(trials) / PLACEMENTS)
    others = NOTHING if machine is None else machine
    rows, waits = list(own.rows), list(own.waits)
    if share > 0:
        weight = share * own.model_seconds / others.model_seconds if trials else 1.0
        rows += [_weighed(row, weight) for row in others.rows]
        waits += others.waits
    ruled = with_rule(bare, others.occupies if share > 0 else own.occupies)
    with_fit = replace(problem, cluster=fitted_cluster(ruled, rows, waits))
    outcomes = _outcomes(replace(problem, cluster=bare), with_fit, trials)
    errors = [outcome.error for outcome in outcomes]
    if len(errors) < LEAST_TRIALS:
        errors += [outcome.error for outcome in others.outcomes]
    error = max(_LEAST_ERROR, float(np.quantile(errors, _QUANTILE))) if errors else 1.0
    call = next((x.call_seconds for x in (own, others) if x.call_seconds is not None), 0.0)
    cluster = replace(with_fit.cluster, prediction_error=error, call_seconds=call)
    return replace(with_fit, cluster=cluster), outcomes


def _weighed(row: SegmentRow, weight: float) -> SegmentRow:
    """Scale a row so that its deviation from the fit counts `weight` times."""
    return replace(
        row,
        unit_seconds=weight * row.unit_seconds,
        counts=weight * row.counts,
        seconds=weight * row.seconds,
        rounds=None if row.rounds is None else weight * row.rounds,
        received=None if row.received is None else weight * row.received,
        sent=None if row.sent is None else weight * row.sent,
    )


def _outcomes(bare: Problem, with_fit: Problem, trials: Sequence[Trial]) -> tuple[Outcome, ...]:
    without, simulator = Simulator(bare), Simulator(with_fit)
    outcomes = []
    for trial in trials:
        placement = Placement.of(np.array(trial.device_of))
        predicted, least = simulator.value(placement), without.value(placement)
        if not np.isfinite(predicted):
            continue
        if trial.in_one_thread:
            predicted, least = (one_thread_seconds(x, placement) for x in (with_fit, bare))
        outcomes.append(Outcome(trial.seconds, predicted, least, trial.noise))
    return tuple(outcomes)


# Of successive placements: how rarely they change the device, or leave the earliest finish.
_STICKINESS = (0.97, 0.9, 0.8, 0.6)
_DEVIATIONS = (0.0, 0.1, 0.2, 0.4)


def drawn_placement(problem: Problem, rng: np.random.Generator, number: int) -> IntArray:
    """Draw the placement number `number` of a calibration, shape (n_units,)."""
    turn = number // 2
    if number % 2:
        deviation = _DEVIATIONS[turn % len(_DEVIATIONS)]
        return earliest_finish_placement(problem, rng, deviation)
    return wandering_placement(problem, rng, _STICKINESS[turn % len(_STICKINESS)])


def wandering_placement(problem: Problem, rng: np.random.Generator, stickiness: float) -> IntArray:
    """Draw a placement in which units tend to stay with their inputs, shape (n_units,).

    Args:
        problem: whose units go only to devices that are allowed.
        stickiness: probability to follow one of the predecessors, 0 to 1.
    """
    graph, allowed = problem.unit_graph, problem.allowed
    device_of = np.zeros(problem.n_units, dtype=np.int64)
    chosen = np.full(problem.colocation.n_groups, -1, dtype=np.int64)
    for unit in graph.topological_order.tolist():
        group = int(problem.colocation.group_of[unit])
        makers = graph.predecessors.row(unit)
        device = int(rng.choice(np.flatnonzero(problem.allowed_by_class[group])))
        if len(makers) and rng.random() < stickiness:
            followed = int(device_of[rng.choice(makers)])
            device = followed if allowed[unit, followed] else device
        if chosen[group] < 0:
            chosen[group] = device
        device_of[unit] = chosen[group]
    return device_of


def earliest_finish_placement(
    problem: Problem, rng: np.random.Generator, deviation: float
) -> IntArray:
    """Draw a placement that keeps all devices busy, shape (n_units,).

    Units in topological order go to the device that would finish them first, without transfers.

    Args:
        problem: whose units go only to devices that are allowed.
        deviation: probability of a random device instead, 0 to 1.
    """
    graph, seconds = problem.unit_graph, problem.costs.seconds
    device_of = np.zeros(problem.n_units, dtype=np.int64)
    chosen = np.full(problem.colocation.n_groups, -1, dtype=np.int64)
    end, free = np.zeros(problem.n_units), np.zeros(problem.n_devices)
    worker_of = np.array(first_on_processors(problem.cluster.devices))
    for unit in graph.topological_order.tolist():
        group = int(problem.colocation.group_of[unit])
        ready = float(end[graph.predecessors.row(unit)].max(initial=0.0))
        if chosen[group] < 0:
            allowed = np.flatnonzero(problem.allowed_by_class[group])
            finish = np.maximum(free[worker_of[allowed]], ready) + seconds[unit, allowed]
            chosen[group] = allowed[np.argmin(finish)]
            if rng.random() < deviation:
                chosen[group] = rng.choice(allowed)
        device = device_of[unit] = chosen[group]
        at = worker_of[device]
        end[unit] = free[at] = max(float(free[at]), ready) + seconds[unit, device]
    return device_of


LEAST_PLACEMENTS = 8  # with fewer, the scatter of errors is not known
_LESS_ERROR = 0.75  # a rule's mean error is at most this share of that of a rule it replaces
_LEAST_GAIN = 0.01  # of the seconds: smaller gains are within what medians of rounds differ
_LEAST_DEVIATIONS = 2.0  # standard errors by which the mean gain exceeds 0


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
            replace(link, occupies=rule) if takes_rule(cluster, link, rule) else link
            for link in cluster.links
        ),
    )


def takes_rule(cluster: Cluster, link: Link, rule: str) -> bool:
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
    placements: Mapping[int, Placement],
    seconds: FloatArray,
) -> str | None:
    """The rule that the measurements show; None if they cannot tell the rules apart.

    Args:
        problem: without overheads.
        rows, waits: of its measured segments.
        placements: that were measured, by the number that rows give them.
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
    return is_less and gain >= max(_LEAST_GAIN, _LEAST_DEVIATIONS * scatter)


def _errors(
    problem: Problem,
    rule: str,
    rows: Sequence[SegmentRow],
    waits: Sequence[Wait],
    placements: Mapping[int, Placement],
    seconds: FloatArray,
) -> FloatArray:
    """Errors of a rule on each placement, fitted to the others, as logarithms of the ratio."""
    bare = with_rule(problem.cluster, rule)
    errors = []
    for (number, placement), measured in zip(placements.items(), seconds, strict=True):
        others = [row for row in rows if row.trial != number]
        cluster = fitted_cluster(bare, others, list(waits))
        predicted = Simulator(replace(problem, cluster=cluster)).value(placement)
        errors.append(abs(np.log(measured / predicted)))
    return np.array(errors)
