"""The steps of a long command: what is ahead, how long it should take, how much of it is left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from placewright.report.time_left import rough_duration

MEASURING, CALIBRATING, SEARCHING = "measuring", "calibration", "search"
CHECKING = "check on the hardware"
MACHINE = "costs of this machine"
KERNELS = "compiling kernels"
_TRUSTED_SHARE = 0.1  # of a step, after which its own pace tells the rest
_log = logging.getLogger(__name__)
Report = Callable[[float, str], None]


def no_report(fraction: float, what: str) -> None:
    """Tell nobody."""


class Steps:
    """Tells a report how far a command is, in seconds where they are known.

    Args:
        report: is told the fraction that is done and what is being done, with the time left.
        search_seconds: of the search that comes after measuring; 0 without one.
        is_checked: the placement is measured beside others after it.
        clock: seconds.
    """

    def __init__(
        self,
        report: Report = no_report,
        *,
        search_seconds: float = 0.0,
        is_checked: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.search_seconds, self.is_checked = search_seconds, is_checked
        self._report, self._clock, self._start = report, clock, clock()
        self._seconds: dict[str, float] = {}
        self._shown = 0.0
        self._step, self._step_began = "", self._start

    def expect(self, seconds: Mapping[str, float], what: str) -> None:
        """Say what is ahead, once.

        Args:
            seconds: step -> seconds that it should take, in their order.
            what: is measured.
        """
        self._seconds = {name: value for name, value in seconds.items() if value > 0}
        elapsed = self._clock() - self._start
        each = [f"{name} {rough_duration(value)}" for name, value in self._seconds.items()]
        if each:
            if elapsed >= 1.0:
                each.insert(0, f"until here {rough_duration(elapsed)}")
            total = rough_duration(elapsed + sum(self._seconds.values()))
            _log.info("%s: about %s in all (%s)", what, total, ", ".join(each))

    def tell(self, step: str, what: str, left: float | None = None, part: float = 0.0) -> None:
        """Say what is being done.

        Args:
            step: one that was expected; what is expected after it is left, too.
            what: in a few words.
            left: seconds of this step; None is what its part that is done tells, or else what was
                expected.
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
