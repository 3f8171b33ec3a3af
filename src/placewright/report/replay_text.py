"""Predicted beside measured values of plans that somebody else ran."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from placewright.core.cluster import OCCUPIES
from placewright.core.quantities import counted, format_bytes, format_duration

CLOSE = 0.05  # measured values that differ by less decide nothing
RULE_COLUMNS = ("copies occupy", "median error", "lowest", "highest", "split or not")
PLAN_COLUMNS = ("case", "plan", "measured", "predicted", "error")
GROUP_COLUMNS = ("group", "plans", "median error", "lowest", "highest")


@dataclass(frozen=True)
class CopyLine:
    """Copies in one direction: seconds = latency + bytes × per_byte, from `samples` copies."""

    source: str
    destination: str
    latency: float
    per_byte: float
    samples: int


@dataclass(frozen=True)
class ReplayedPlan:
    """A plan that ran."""

    case: str  # of the alternatives that it belongs to
    groups: Mapping[str, str]  # label -> value, such as ``{"model": "inception-v3"}``
    name: str  # of the plan, unique in its case
    measured: float  # seconds, > 0
    predicted: Mapping[str, float]  # rule about copies -> seconds; inf if the plan is infeasible
    is_split: bool  # it uses several devices

    def error(self, rule: str) -> float:
        """Predicted over measured seconds, minus 1."""
        return self.predicted[rule] / self.measured - 1.0


@dataclass(frozen=True)
class Decision:
    """Split or not, in a case that has plans of both kinds."""

    case: str  # its name
    # measured, predicted: fastest split over fastest single device, minus 1
    measured: float
    predicted: float

    @property
    def verdict(self) -> str:
        """``"close"`` if the measured values differ by at most 5 %, else ``"right"`` or not."""
        if abs(self.measured) <= CLOSE:
            return "close"
        return "right" if (self.measured < 0) == (self.predicted < 0) else "wrong"


@dataclass(frozen=True)
class Replay:
    """All plans of a file of measurements."""

    # title, source, license: of the measurements
    title: str
    source: str
    license: str
    copies: tuple[CopyLine, ...]  # latency and bandwidth of each direction
    plans: tuple[ReplayedPlan, ...]  # in the order of the file
    chosen: str | None = None  # rule about copies that was asked for; None is `best_rule`

    @property
    def judged(self) -> tuple[ReplayedPlan, ...]:
        """Plans that errors are computed over: those on several devices, or else all."""
        return tuple(plan for plan in self.plans if plan.is_split) or self.plans

    @property
    def has_split(self) -> bool:
        """True if a plan uses several devices, and so has copies."""
        return any(plan.is_split for plan in self.plans)

    @cached_property
    def best_rule(self) -> str:
        """The rule with the smallest median error; of equals the simplest."""
        return min(OCCUPIES, key=lambda rule: _median(self.judged, rule))

    @property
    def rule(self) -> str:
        """The rule whose errors the tables of groups and plans show."""
        return self.chosen or self.best_rule

    def decisions(self, rule: str) -> tuple[Decision, ...]:
        """Split or not, in each case that has both kinds of plans."""
        cases: dict[str, list[ReplayedPlan]] = {}
        for plan in self.plans:
            cases.setdefault(plan.case, []).append(plan)
        found = []
        for name, own in cases.items():
            split = [plan for plan in own if plan.is_split]
            single = [plan for plan in own if not plan.is_split]
            best = min((plan.predicted[rule] for plan in single), default=math.inf)
            if split and single and 0 < best < math.inf:
                measured = min(p.measured for p in split) / min(p.measured for p in single)
                predicted = min(plan.predicted[rule] for plan in split) / best
                found.append(Decision(name, measured - 1.0, predicted - 1.0))
        return tuple(found)

    def lines(self) -> list[str]:
        """The result, and its conditions."""
        low, high, middle = _range(self.judged, self.rule)
        kind = "fits best" if self.chosen is None else "was asked for"
        copies = f"copies occupy {self.rule}, which {kind}"
        if not self.has_split:
            copies = "no plan uses several devices, so that rules about copies make no difference"
        lines = [
            f"{self.title}: median error {_amount(middle)} ({_signed(low)} to {_signed(high)}) of "
            f"{counted(len(self.judged), 'plan')}; {copies}",
            f"source: {self.source}; license: {self.license}",
        ]
        for copy in self.copies:
            speed = "no limit" if copy.per_byte == 0 else f"{format_bytes(1 / copy.per_byte)}/s"
            lines.append(
                f"copies {copy.source} -> {copy.destination}: {format_duration(copy.latency)} and "
                f"{speed}, from {counted(copy.samples, 'measurement')}"
            )
        wrong = [
            decision.case for decision in self.decisions(self.rule) if decision.verdict == "wrong"
        ]
        if wrong:
            lines.append(f"split or not is wrong for: {', '.join(wrong)}")
        return lines

    def rule_rows(self) -> list[list[str]]:
        """Errors and decisions of each rule."""
        rows = []
        for rule in OCCUPIES:
            low, high, middle = _range(self.judged, rule)
            right = _counts(self.decisions(rule))
            told = f"{right['right']} right, {right['wrong']} wrong, {right['close']} close"
            rows.append([rule, _amount(middle), _signed(low), _signed(high), told])
        return rows

    def group_rows(self) -> list[list[str]]:
        """Errors of each group, by label."""
        return [
            [f"{label} {value}", str(entry["plans"]), _amount(entry["median"]),
             _signed(entry["low"]), _signed(entry["high"])]
            for label, groups in self._groups().items()
            for value, entry in groups.items()
        ]  # fmt: skip

    def plan_rows(self) -> list[list[str]]:
        """Every plan."""
        return [
            [plan.case, plan.name, format_duration(plan.measured),
             format_duration(plan.predicted[self.rule]), _signed(plan.error(self.rule))]
            for plan in self.plans
        ]  # fmt: skip

    def data(self) -> dict[str, Any]:
        """All of it as JSON data."""
        rules = {}
        for rule in OCCUPIES:
            low, high, middle = _range(self.judged, rule)
            decisions = _counts(self.decisions(rule))
            rules[rule] = {"median": middle, "low": low, "high": high, "decisions": decisions}
        return {
            "title": self.title,
            "source": self.source,
            "license": self.license,
            "copies": [vars(copy) for copy in self.copies],
            "best_rule": self.best_rule,
            "rule": self.rule,
            "rules": rules,
            "groups": self._groups(),
            "decisions": [
                {**vars(decision), "verdict": decision.verdict}
                for decision in self.decisions(self.rule)
            ],
            "plans": [
                {**vars(plan), "groups": dict(plan.groups), "error": plan.error(self.rule)}
                for plan in self.plans
            ],
        }

    def _groups(self) -> dict[str, dict[str, dict[str, float]]]:
        """Label -> value -> errors of the judged plans."""
        members: dict[str, dict[str, list[ReplayedPlan]]] = {}
        for plan in self.judged:
            for label, value in {**plan.groups, "plan": plan.name}.items():
                members.setdefault(label, {}).setdefault(value, []).append(plan)
        found: dict[str, dict[str, dict[str, float]]] = {}
        for label, groups in members.items():
            for value, plans in groups.items():
                low, high, middle = _range(plans, self.rule)
                entry = {"plans": len(plans), "median": middle, "low": low, "high": high}
                found.setdefault(label, {})[value] = entry
        return found


def _amount(error: float) -> str:
    """The amount of an error; "-" if the plan is infeasible."""
    return f"{error:.1%}" if math.isfinite(error) else "-"


def _signed(error: float) -> str:
    """An error with its sign; "-" if the plan is infeasible."""
    return f"{error:+.1%}" if math.isfinite(error) else "-"


def _median(plans: Iterable[ReplayedPlan], rule: str) -> float:
    return statistics.median(abs(plan.error(rule)) for plan in plans)


def _range(plans: Sequence[ReplayedPlan], rule: str) -> tuple[float, float, float]:
    """Lowest and highest error, and the median of their amounts."""
    errors = [plan.error(rule) for plan in plans]
    return min(errors), max(errors), _median(plans, rule)


def _counts(decisions: Iterable[Decision]) -> dict[str, int]:
    counts = {"right": 0, "wrong": 0, "close": 0}
    for decision in decisions:
        counts[decision.verdict] += 1
    return counts
