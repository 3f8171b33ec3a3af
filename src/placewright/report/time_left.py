"""Estimates of the time left of a task, from the share that is done."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

_LEAST_SECONDS, _LEAST_SHARE = 2.0, 0.02  # no estimate before both are reached


def rough_duration(seconds: float) -> str:
    """An estimate as text: ``"8 s"``, ``"17 s"``, ``"50 s"``, ``"3 min"``."""
    if seconds < 29.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 100.0:
        return f"{5 * round(seconds / 5)} s"
    if seconds < 100 * 60.0:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.0f} h"


class TimeLeft:
    """Adds the time left to the reports of a task, unless they contain it.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._start = clock, clock()

    def seconds(self, fraction: float) -> float:
        """Seconds left at an even pace; nan if it is too early to estimate."""
        elapsed = self._clock() - self._start
        if elapsed < _LEAST_SECONDS or not _LEAST_SHARE <= fraction < 1.0:
            return math.nan
        return elapsed * (1.0 - fraction) / fraction

    def with_time(self, fraction: float, what: str) -> str:
        """The current step with the time left."""
        left = self.seconds(fraction)
        if " left" in what or math.isnan(left):
            return what
        return f"{what}, about {rough_duration(left)} left"


class Counted:
    """Adds its number and the time left to each row of a long table.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = TimeLeft(clock)
        self._done = self._total = 0

    def ahead(self, number: int) -> None:
        """Announce further rows."""
        self._total += number

    def numbered(self, text: str) -> str:
        """Count a finished row: its number, its text, and the time left."""
        self._done += 1
        total = max(self._total, self._done)
        return f"{self._done} of {total}: {self._left.with_time(self._done / total, text)}"


MEASURING, CALIBRATING, SEARCHING = "measuring", "calibration", "search"
CHECKING = "check on the hardware"
PROBING = "probe of a split"  # next to single devices, if the search finds one
_AT_MOST = (SEARCHING, PROBING)  # steps that may end earlier, or be left out
MACHINE = "costs of this machine"
KERNELS = "compiling kernels"
_TRUSTED_SHARE = 0.1  # of a step, done under one name; then its pace predicts the rest
_log = logging.getLogger(__name__)
Report = Callable[[float, str], None]  # of progress: a fraction in [0, 1], and the current step


def no_report(fraction: float, what: str) -> None:
    """Report nothing."""


class Steps:
    """Reports the progress of a command, in seconds if they are known.

    Args:
        report: is called with the fraction that is done, and the step with the time left.
        search_seconds: largest number, of the search that comes after measuring; 0 without one,
            nan or inf if nobody knows.
        search: in a few words, if nobody knows its seconds.
        check: step that measures the placement beside other contenders after the search; None if
            none does.
        clock: seconds.
    """

    def __init__(
        self,
        report: Report = no_report,
        *,
        search_seconds: float = 0.0,
        search: str = SEARCHING,
        check: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.search_seconds = search_seconds if math.isfinite(search_seconds) else math.nan
        self.check = check
        self._search = search
        self._report, self._clock, self._start = report, clock, clock()
        self._seconds: dict[str, float] = {}
        self._shown = 0.0
        self._step, self._step_began = "", self._start
        self._part, self._part_began, self._first_part = "", self._start, 0.0

    def expect(self, seconds: Mapping[str, float], what: str) -> None:
        """Announce all steps, once.

        Args:
            seconds: step -> seconds that it should take, in their order; nan if nobody knows. Those
                of a search and of a probe are the largest number.
            what: is being measured.
        """
        self._seconds = {name: value for name, value in seconds.items() if not value <= 0}
        known = {name: value for name, value in self._seconds.items() if not math.isnan(value)}
        elapsed = self._clock() - self._start
        each = [
            f"{name} {'up to ' * (name in _AT_MOST)}{rough_duration(value)}"
            for name, value in known.items()
        ]
        if not self._seconds:
            return
        if elapsed >= 1.0:
            each.insert(0, f"so far {rough_duration(elapsed)}")
        whole = elapsed + sum(known.values())
        total = rough_duration(whole)
        least = rough_duration(whole - sum(known.get(name, 0.0) for name in _AT_MOST))
        if least != total:
            total = f"{least} to {total}"
        unknown = self._names(self._seconds, math.isnan)
        extent = f"without {unknown}" if unknown else "in all"
        steps = f" ({', '.join(each)})" if each else ""
        _log.info("%s: about %s %s%s", what, total, extent, steps)

    def _names(self, seconds: Mapping[str, float], wanted: Callable[[float], bool]) -> str:
        """The steps with such seconds, in words."""
        names = [name for name, value in seconds.items() if wanted(value)]
        return " and ".join(self._search if name == SEARCHING else name for name in names)

    def tell(self, step: str, what: str, left: float | None = None, part: float = 0.0) -> None:
        """Report a step.

        Args:
            step: of the announced ones; the later ones are still to come.
            what: the step in a few words.
            left: seconds left of this step; None estimates them by the pace since the first report
                with these words, or from the announced seconds.
            part: of this step that is done, 0 to 1.
        """
        names = list(self._seconds)
        if step not in self._seconds:
            self._report(self._shown, what)
            return
        now = self._clock()
        if step != self._step:
            self._step, self._step_began = step, now
        if what != self._part:
            self._part, self._part_began, self._first_part = what, now, part
        ahead = {name: self._seconds[name] for name in names[names.index(step) :]}
        ahead[step] = self._left(step, now, part) if left is None else left
        elapsed, unknown = now - self._start, self._names(ahead, math.isnan)
        seconds = sum(value for value in ahead.values() if not math.isnan(value))
        text = f"about {rough_duration(seconds)} left"
        if unknown:
            text = f"{text}, without {unknown}" if seconds > 0 else "time left unknown"
        else:
            self._shown = max(self._shown, elapsed / max(elapsed + seconds, 1e-9))
        self._report(self._shown, f"{what}, {text}")

    def _left(self, step: str, now: float, part: float) -> float:
        done = part - self._first_part
        if done >= _TRUSTED_SHARE:
            return (now - self._part_began) * (1.0 - part) / done
        left = self._seconds[step] - (now - self._step_began)
        return left if left > 0 else math.nan  # it takes longer than announced
