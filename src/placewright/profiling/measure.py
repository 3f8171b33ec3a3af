"""Measurement of each unit on each device, in its place in the model.

The whole model runs with the runtime's kernel timers. A unit compiled alone would be timed with
layouts and caches that it never meets in the model. Each round also times the plain model behind
runs of its own, as requests follow one another (see `warm_requests`), and kernel times are scaled
so that they add up to it. Rounds of all devices alternate, so that drift of the machine affects all
equally, and medians count. Devices with equal fingerprints are measured once, and units of a model
with equal labels share their samples. Each set of units has samples of its own: a column that mixed
those of two sets would hold seconds of two hours.

Rounds go on until the median is known, on a machine whose speed varies.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.cluster import Device
from placewright.core.grouping import Grouping
from placewright.execution.runtime import (
    ChangesCallers,
    LoadedModel,
    RunsAsynchronously,
    moved_from_host,
)
from placewright.profiling.hardware import LONG_SECONDS, NEVER, Deadline, last_of_turn
from placewright.profiling.roofline import typical_seconds
from placewright.profiling.store import CostStore

_PRECISION = 0.01
_LEAST, _LEAST_SECONDS = 5, 2.5
_MOST_SECONDS = 10.0
_MOST_TIMES = 4
_LEAST_SAMPLES = 3  # whose quartiles say something
_FEW = 1.8  # of n normal samples, the quartiles' distance is 1 / (1 + this / n) of that of many
_NOTCH = 1.7  # standard errors that a notch reaches to each side, if rounds are normal


@dataclass(frozen=True)
class Rounds:
    """Limits on the rounds of a measurement."""

    least: int  # number of rounds, even if all agree
    most: int  # number of rounds, even if they do not
    # measuring stops when the median is known within this share of it
    precision: float = _PRECISION

    @classmethod
    def of(cls, expected: float, usual: int, most_seconds: float = _MOST_SECONDS) -> Rounds:
        """Limits for rounds of two turns each, see `warm_requests`.

        Args:
            expected: seconds of a turn.
            usual: rounds on a quiet machine, down to 5 for long requests. A noisy machine gets up
                to four times as many, within `most_seconds`.
            most_seconds: of all rounds, if they are more than usual.
        """
        both = max(2.0 * expected, 1e-9)
        least = int(np.clip(_LEAST_SECONDS / both, min(_LEAST, usual), usual))
        return cls(least, int(np.clip(most_seconds / both, least, _MOST_TIMES * least)))

    def want_more(self, samples: Sequence[float]) -> bool:
        """True if the samples are too few, or their median is uncertain and rounds are left."""
        if len(samples) < self.least:
            return True
        return len(samples) < self.most and median_uncertainty(samples) > self.precision

    def expected(self, scatter: float) -> int:
        """The number that a scatter leads to, see `scatter_of`; the least if it is nan."""
        if math.isnan(scatter):
            return self.least
        return int(np.clip(np.ceil((scatter / self.precision) ** 2), self.least, self.most))


def scatter_of(samples: Sequence[float]) -> float:
    """Uncertainty of the median of a single round: that of n rounds is this over the root of n.

    Quartiles of few samples lie closer together than those of many: the scatter is that of many.
    It is nan for fewer than three samples.
    """
    n = len(samples)
    if n < _LEAST_SAMPLES:
        return math.nan
    return median_uncertainty(samples) * math.sqrt(n) * (1.0 + _FEW / n)


def median_uncertainty(samples: Sequence[float]) -> float:
    """Uncertainty of a median as a share of it: in nine cases of ten its error is no larger.

    The notch of McGill, Tukey and Larsen, Variations of Box Plots, 1978: 1.57 times the distance of
    the quartiles over the root of the number, 1.7 standard errors if rounds are normal.
    """
    q1, median, q3 = np.percentile(samples, [25, 50, 75])
    return float(1.57 * (q3 - q1) / np.sqrt(len(samples)) / max(median, 1e-30))


def median_error(samples: Sequence[float]) -> float:
    """Standard error of a median as a share of it, if rounds are normal."""
    return median_uncertainty(samples) / _NOTCH


_VERSION = "in-situ/11"  # part of the keys; change it with the way of measuring
_ROUNDS_BEFORE_AHEAD = 3  # of each device, from which the rest is predicted


@dataclass(frozen=True)
class Ahead:
    """Prediction of the rest of a measurement, from the first rounds of every device."""

    devices: tuple[str, ...]  # names of devices to measure; samples of the others are stored
    n_units: int  # number of units of the model
    seconds: float  # until the measurement ends
    request_seconds: float  # of a request on the slowest device
    compile_seconds: float  # of a compilation of the model
    scatter: float = math.nan  # of rounds, see `rounds.scatter_of`; nan if too few were measured


@dataclass(frozen=True)
class Progress:
    """Progress of a measurement."""

    what: str  # name of the part under way
    fraction: float  # done so far, 0 to 1
    seconds_left: float | None  # estimate, if there is one
    ahead: Ahead | None = None  # set once, after the first rounds


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True)
class Effort:
    """Limits on the measurement of a device."""

    rounds: int = 10  # least number of rounds
    max_rounds: int = 60  # largest number of rounds
    max_seconds: float = 8.0  # per device, after which no further round starts
    # stop when the median total is known within this share, see `median_uncertainty`
    precision: float = 0.005
    is_full: bool = True  # False leaves the samples open, so that a later call adds to them

    def want_more(self, totals: Sequence[float]) -> bool:
        """True if there are too few samples, given seconds of the whole model in each round."""
        return Rounds(self.rounds, self.max_rounds, self.precision).want_more(totals)

    def expected(self, scatter: float) -> int:
        """Predict the number of rounds from the scatter of the first, see `rounds.scatter_of`."""
        return Rounds(self.rounds, self.max_rounds, self.precision).expected(scatter)


@dataclass(frozen=True)
class Ends:
    """Deadlines that end a measurement, however few samples it has."""

    deadline: Deadline = NEVER  # no round starts after it
    # only the first round of each kind of device starts after it. A device that has not run by then
    # takes the seconds of a device of its kind
    limit: Deadline = NEVER
    # name of such a device -> name of that other device; `measure_costs` fills it
    estimated: dict[str, str] = field(default_factory=dict)
    # such devices whose stored samples are incomplete and got no more -> their number; likewise
    few: dict[str, int] = field(default_factory=dict)


QUICK = Effort(rounds=2, max_rounds=3, max_seconds=3.0, precision=0.05, is_full=False)


@dataclass
class _Session:
    """Measurement of one device: its worker thread, its runs and its samples so far."""

    device: Device
    keys: list[str]  # of each unit
    samples: dict[str, list[float]]
    run: Callable[[], FloatArray]  # a round: seconds of each unit
    plain: PlainRuns
    compile_seconds: float  # of one compilation of the model
    totals: list[float] = field(default_factory=list)  # seconds of all units in each round
    rounds: int = 0
    seconds: float = 0.0  # that these rounds took
    warm_seconds: float = 0.0  # that the warm-up round took, which is no sample

    @property
    def request_seconds(self) -> float:
        """Seconds of a plain request, as measured so far."""
        if self.totals:
            return statistics.median(self.totals)
        return self.plain.last_seconds

    def needs_more(self, effort: Effort) -> bool:
        if self.seconds >= effort.max_seconds and len(self.totals) >= effort.rounds:
            return False
        return effort.want_more(self.totals)

    def seconds_left(self, effort: Effort) -> float:
        """Predicted seconds until the device is done, from the rounds so far."""
        done = len(self.totals)
        of_round = self.seconds / self.rounds if self.rounds else self.warm_seconds
        least = max(0, effort.rounds - done) * of_round
        expected = effort.expected(scatter_of(self.totals)) * of_round - done * of_round
        return max(least, min(expected, effort.max_seconds - self.seconds))


def measure_costs(
    model: LoadedModel,
    units: Grouping,
    devices: Sequence[Device],
    store: CostStore,
    *,
    context: str,
    effort: Effort | None = None,
    progress: ProgressCallback | None = None,
    ends: Ends | None = None,
) -> FloatArray:
    """Measure seconds of each unit on each device, shape (n_units, n_devices); inf if unsupported.

    Args:
        units: groups of ops that move as one.
        devices: with fingerprints; equal fingerprints are measured once.
        store: holds known samples and takes new ones after every round.
        context: the model as it was read and the runtime's version. Samples of an equal unit of
            another model do not count: they were measured among other units, at another time.
        progress: called after every round.
        ends: deadlines; if one ends the measurement early, a later call adds samples.

    Raises:
        RuntimeFailure: a device cannot run the model.
        OutOfTime: the deadline passed before each device had run once.
    """
    effort, ends = effort or Effort(), ends or Ends()
    deadline, limit = ends.deadline, ends.limit
    labels = model.unit_labels(units)
    together = hashlib.sha256("|".join(sorted(labels)).encode()).hexdigest()[:16]
    prefix = f"{_VERSION}|{context}|{together}"
    keys = {
        device.fingerprint: [f"{prefix}|{device.fingerprint}|{label}" for label in labels]
        for device in devices
    }
    first_of: dict[str, Device] = {}
    for device in devices:
        first_of.setdefault(device.fingerprint, device)
    missing: list[_Session] = []
    like: dict[str, Device] = {}  # fingerprint -> a device of its kind whose seconds it takes
    measured: list[Device] = []
    with ExitStack() as opened:
        for fingerprint, device in first_of.items():
            known = store.samples(keys[fingerprint])
            if not all(key in known and known[key][1] for key in keys[fingerprint]):
                partial = {key: row for key, (row, complete) in known.items() if not complete}
                totals = _totals(keys[fingerprint], {key: row for key, (row, _) in known.items()})
                alike = next((other for other in measured if other.kind == device.kind), None)
                if limit.is_over and not totals and alike is not None and not deadline.is_over:
                    like[fingerprint] = alike
                    continue
                is_enough = not effort.is_full and not effort.want_more(totals)
                if is_enough or (totals and (deadline.is_over or limit.is_over)):
                    ends.few[device.name] = len(totals)
                else:
                    deadline.require(f"'{device.name}' had run the model once")
                    here = keys[fingerprint]
                    missing.append(_session(model, units, device, here, partial, opened))
            measured.append(device)
        _measure_in_turns(missing, store, effort, _Reporter(progress, units, effort), ends)
    # Another process may measure at once, and put its few rounds in place of those measured here.
    own = {one.device.fingerprint: one.samples for one in missing if one.totals}
    table = np.empty((units.n_groups, len(devices)))
    for column, asked in enumerate(devices):
        device = like.get(asked.fingerprint, asked)
        if device is not asked:
            ends.estimated[asked.name] = device.name
        here = keys[device.fingerprint]
        stored = {key: row for key, (row, _) in store.samples(here).items()}
        rows = own.get(device.fingerprint, stored)
        if not all(key in rows for key in here):
            deadline.require(f"'{device.name}' had run the model once")
        table[:, column] = [statistics.median(rows[key]) for key in here]
    return table


def _ahead(sessions: Sequence[_Session], units: Grouping, effort: Effort) -> Progress:
    seconds = sum(session.seconds_left(effort) for session in sessions)
    ahead = Ahead(
        tuple(session.device.name for session in sessions),
        units.n_groups,
        seconds,
        max(session.request_seconds for session in sessions),
        max(session.compile_seconds for session in sessions),
        max(scatter_of(session.totals) for session in sessions),
    )
    return Progress(f"kernels on {', '.join(ahead.devices)}", 0.0, seconds, ahead)


def _totals(keys: list[str], samples: Mapping[str, Sequence[float]]) -> list[float]:
    """Seconds of all units together in each round of which every unit has a sample."""
    done = min((len(samples.get(key, ())) for key in keys), default=0)
    return [_total(np.array([samples[key][i] for key in keys])) for i in range(done)]


def _session(
    model: LoadedModel,
    units: Grouping,
    device: Device,
    keys: list[str],
    partial: dict[str, list[float]],
    opened: ExitStack,
) -> _Session:
    began = time.perf_counter()
    profile = model.profiler(device)
    plain = PlainRuns(model, device)
    opened.callback(plain.close)  # also if the warm-up fails

    @cache
    def typical() -> FloatArray:
        seconds = typical_seconds(model.graph, device)
        return np.bincount(units.group_of, seconds, units.n_groups).astype(np.float64)

    def one_round() -> FloatArray:
        kernels = np.zeros(units.n_groups)
        np.add.at(kernels, units.group_of, profile())
        if not kernels.any():  # each took less than the timer's unit, or the library has no timer
            kernels[:] = typical()
        return np.asarray(kernels * _scale(plain, float(kernels.sum())))

    samples = {key: list(partial.get(key, ())) for key in keys}
    totals = _totals(keys, samples)
    compiled = time.perf_counter()
    session = _Session(device, keys, samples, one_round, plain, (compiled - began) / 2, totals)
    plain.pool.submit(one_round).result()  # warm-up: first runs allocate
    session.warm_seconds = time.perf_counter() - compiled
    return session


class PlainRuns:
    """Runs of the unsplit model without timers inside: seconds of its units add up to theirs.

    Attributes:
        pool: a thread with the settings of the device's workers.
        last_seconds: of the last run; 0 before the first.
    """

    def __init__(self, model: LoadedModel, device: Device) -> None:
        arrays = model.signature.ascending(model.random_inputs(np.random.default_rng(0)))
        self._instance = model.reference(device).instance()
        self._inputs = moved_from_host(model, arrays, device)
        self.pool = ThreadPoolExecutor(1, initializer=model.worker_setup(device))
        self._model, self.last_seconds = model, 0.0

    def close(self) -> None:
        """End the thread, and give callers back the settings that it has changed."""
        self.pool.shutdown()
        if isinstance(self._model, ChangesCallers):
            self._model.restore_caller()

    def seconds(self) -> float:
        """Seconds of a run."""
        return self.pool.submit(self.seconds_here).result()

    def seconds_here(self) -> float:
        """Seconds of a run in the calling thread, which is the pool's."""
        first = self._timed()
        self.last_seconds = first if first >= LONG_SECONDS else last_of_turn(self._timed, first)
        return self.last_seconds

    def _timed(self) -> float:
        start = time.perf_counter()
        self._instance.run(list(self._inputs))  # a runtime may empty its list of inputs
        returned = time.perf_counter()
        instance = self._instance
        span = instance.settled_span() if isinstance(instance, RunsAsynchronously) else None
        begin, end = span or (start, returned)
        return end - begin


def _scale(plain: PlainRuns, kernels: float) -> float:
    """Seconds of a plain run over the sum of kernel seconds; 1 if a kernel cannot run."""
    if not np.isfinite(kernels) or kernels <= 0:
        return 1.0
    return plain.seconds_here() / kernels


def _measure_in_turns(
    sessions: list[_Session],
    store: CostStore,
    effort: Effort,
    reporter: _Reporter,
    ends: Ends,
) -> None:
    deadline, limit = ends.deadline, ends.limit
    active = list(sessions)
    while active and not deadline.is_over:
        for session in active:
            if not deadline.is_over and (not limit.is_over or not session.totals):
                _one_round(session, store)
        if limit.is_over:
            break
        for session in [s for s in active if not s.needs_more(effort)]:
            store.put_samples(session.samples, complete=effort.is_full, is_final=True)
            active.remove(session)
        reporter.after_round(sessions, active)
    reporter.report_ahead(sessions)


class _Reporter:
    """Calls `progress` after every round, and once with the `Ahead` of the measurement."""

    def __init__(self, progress: ProgressCallback | None, units: Grouping, effort: Effort) -> None:
        self._progress, self._units, self._effort = progress, units, effort
        self._is_ahead_reported = progress is None

    def after_round(self, sessions: list[_Session], active: list[_Session]) -> None:
        """Report the progress, and the `Ahead` as soon as there are enough rounds."""
        enough = min(_ROUNDS_BEFORE_AHEAD, self._effort.rounds)
        if not active or min(len(session.totals) for session in sessions) >= enough:
            self.report_ahead(sessions)
        if self._progress is not None:
            self._progress(_progress(sessions, active, self._effort))

    def report_ahead(self, sessions: list[_Session]) -> None:
        """Report the `Ahead`, unless that was done before or nothing is measured."""
        if self._progress is not None and sessions and not self._is_ahead_reported:
            self._is_ahead_reported = True
            self._progress(_ahead(sessions, self._units, self._effort))


def _one_round(session: _Session, store: CostStore) -> None:
    start = time.perf_counter()
    seconds = session.plain.pool.submit(session.run).result()
    session.seconds += time.perf_counter() - start
    session.rounds += 1
    session.totals.append(_total(seconds))
    for key, value in zip(*_per_key(session.keys, seconds), strict=True):
        session.samples[key].append(value)
    store.put_samples(session.samples, complete=False)


def _total(seconds: FloatArray) -> float:
    """Seconds of all units that the device can run."""
    return float(seconds[np.isfinite(seconds)].sum())


def _per_key(keys: list[str], seconds: FloatArray) -> tuple[list[str], list[float]]:
    """Distinct keys, and a sample of each: the mean over the units that share the key."""
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    index: IntArray = np.array([number[key] for key in keys], dtype=np.int64)
    total = np.bincount(index, weights=seconds, minlength=len(number))
    return list(number), (total / np.bincount(index, minlength=len(number))).tolist()


def _progress(sessions: list[_Session], active: list[_Session], effort: Effort) -> Progress:
    done = sum(effort.max_rounds if s not in active else len(s.totals) for s in sessions)
    names = ", ".join(s.device.name for s in active) or "done"
    left = sum(session.seconds_left(effort) for session in active)
    fraction = done / max(1, effort.max_rounds * len(sessions))
    return Progress(f"kernels on {names}", fraction, left)
