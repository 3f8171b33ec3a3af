"""Estimates of the time left of a task, from the share that is done."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

_LEAST_SECONDS, _LEAST_SHARE = 2.0, 0.02  # no estimate before both are reached


def rough_duration(seconds: float) -> str:
    """An estimate as text: ``"8 s"``, ``"50 s"``, ``"3 min"``."""
    if seconds < 9.5:
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
        if what.endswith(" left") or math.isnan(left):
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
MACHINE = "costs of this machine"
KERNELS = "compiling kernels"
_TRUSTED_SHARE = 0.1  # of a step; then its pace predicts the rest
_log = logging.getLogger(__name__)
Report = Callable[[float, str], None]


def no_report(fraction: float, what: str) -> None:
    """Report nothing."""


class Steps:
    """Reports the progress of a command, in seconds if they are known.

    Args:
        report: is called with the fraction that is done, and the step with the time left.
        search_seconds: of the search that comes after measuring; 0 without one.
        uncounted: a step whose seconds nobody knows, in a few words; "" without one.
        is_checked: the placement is measured beside other contenders after it.
        clock: seconds.
    """

    def __init__(
        self,
        report: Report = no_report,
        *,
        search_seconds: float = 0.0,
        uncounted: str = "",
        is_checked: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.search_seconds, self.is_checked = search_seconds, is_checked
        self.uncounted = uncounted
        self._report, self._clock, self._start = report, clock, clock()
        self._seconds: dict[str, float] = {}
        self._shown = 0.0
        self._step, self._step_began = "", self._start

    def expect(self, seconds: Mapping[str, float], what: str) -> None:
        """Announce all steps, once.

        Args:
            seconds: step -> seconds that it should take, in their order.
            what: is being measured.
        """
        self._seconds = {name: value for name, value in seconds.items() if value > 0}
        elapsed = self._clock() - self._start
        each = [f"{name} {rough_duration(value)}" for name, value in self._seconds.items()]
        if each:
            if elapsed >= 1.0:
                each.insert(0, f"until here {rough_duration(elapsed)}")
            total = rough_duration(elapsed + sum(self._seconds.values()))
            extent = f"without {self.uncounted}" if self.uncounted else "in all"
            _log.info("%s: about %s %s (%s)", what, total, extent, ", ".join(each))

    def tell(self, step: str, what: str, left: float | None = None, part: float = 0.0) -> None:
        """Report a step.

        Args:
            step: of the announced ones; the later ones are still to come.
            what: the step in a few words.
            left: seconds left of this step; None estimates them from the part that is done, or
                from the announced seconds.
            part: of this step that is done, 0 to 1.
        """
        names = list(self._seconds)
        if step not in self._seconds:
            self._report(self._shown, what)
            return
        now = self._clock()
        if step != self._step:
            self._step, self._step_began = step, now
        later = sum(self._seconds[name] for name in names[names.index(step) + 1 :])
        if left is None:
            left = self._left(step, now - self._step_began, part)
        elapsed, seconds = now - self._start, later + left
        self._shown = max(self._shown, elapsed / max(elapsed + seconds, 1e-9))
        self._report(self._shown, f"{what}, about {rough_duration(seconds)} left")

    def _left(self, step: str, elapsed: float, part: float) -> float:
        if part >= _TRUSTED_SHARE:
            return elapsed * (1.0 - part) / part
        return max(0.0, self._seconds[step] - elapsed)
