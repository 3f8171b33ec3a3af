"""The smallest change that makes an infeasible problem feasible.

It is a higher limit of one device or memory pool, more segments of one device, further devices
like one of the cluster, or a higher limit on latency, energy or price. Small problems are
enumerated, under `event` with all orders. Larger ones are searched as `auto` searches them, with a
fixed number of evaluations, and the largest are only packed. The proofs of `bounds.feasibility`
bound every limit from below.

Every limit that is named is one that the same search keeps from its own start, so that `auto`
keeps it, too.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import FloatArray, IntArray, frozen_floats
from placewright.core.charges import CHARGED, amount_text
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Event, MaxLoad, Sequential
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.core.solution import Budget
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.packing import tightest_packing
from placewright.placers.portfolio.enumeration import (
    MOST_PLACEMENTS,
    all_peaks,
    all_placements,
)
from placewright.placers.registry import make_placer
from placewright.placers.search.within_limits import distinct_devices, placement_within_limits
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.legality import bytes_over
from placewright.simulation.model import Simulator

_ROUNDS = 2  # of annealing, in each search
_EVALUATIONS = 600  # of each search for the least amount
_STEPS = 12  # of bisecting a limit
_CLOSE = 0.005  # relative difference of limits that is not bisected further
_WIDER = (1.0, 1.05, 1.25, 2.0)  # multiples of the peak of a roomy placement, until one is kept
_MOST_COPIES = 64  # of a device
_MOST_SEARCHED = 3_000  # units; larger problems are only packed, since many searches take minutes


class _Search:
    """Looks for placements of variants of a problem, until its time is over.

    Args:
        most: placements up to which all are tried.
        seconds: for all searches together.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self._ends = most, time.perf_counter() + seconds

    @property
    def is_over(self) -> bool:
        """True if nothing is found any more, because the time is over."""
        return time.perf_counter() >= self._ends

    @property
    def seconds_left(self) -> float:
        """Seconds until the time is over, below 0 after that."""
        return self._ends - time.perf_counter()

    def found(self, problem: Problem) -> Placement | None:
        """A placement that keeps all constraints; None if there is none or none was found."""
        if self.is_over or prove_infeasible(problem) is not None:
            return None
        rows = all_placements(problem, self.most)
        if rows is not None:
            values = Simulator(problem).values(rows) if len(rows) else np.full(1, math.inf)
            if np.isfinite(values).any():
                return Placement.of(rows[values.argmin()])
            if not isinstance(problem.execution_model, Event):
                return None
        left = self._ends - time.perf_counter()
        budget = Budget(seconds=max(left, 1e-3) if math.isfinite(left) else None)
        rounds = _ROUNDS if problem.n_units <= _MOST_SEARCHED else 0
        return placement_within_limits(problem, budget, rounds)


@dataclass(frozen=True)
class LimitChange:
    """A memory limit that is high enough."""

    device: str  # name of the device, or of the memory pool
    limit: float  # bytes; a placement with this limit was found
    more: float  # bytes above the present limit
    at_least: float  # no placement fits with a limit below, by enumeration or proof

    @property
    def is_exact(self) -> bool:
        """True if no smaller limit is enough."""
        return self.at_least >= self.limit

    def text(self) -> str:
        """The change as an instruction."""
        proof = f" (proven: none fits below {format_bytes(self.at_least)})"
        if self.is_exact or self.at_least <= self.limit - self.more:  # the limit of the problem
            proof = ""
        more = f"{format_bytes(self.more)} more{proof}"
        return f"argument `memory` {self.device}={math.ceil(self.limit)}B, {more}"


@dataclass(frozen=True)
class DeviceChange:
    """Further devices that equal one of the cluster."""

    device: str  # its name
    count: int  # of further devices; a placement with so many was found
    at_least: int = 1  # no placement fits with fewer, by enumeration or proof

    def text(self) -> str:
        """The change as an instruction."""
        noun = "one more device" if self.count == 1 else f"{self.count} more devices"
        proof = f" (proven: at least {self.at_least})"
        if self.at_least in (1, self.count):  # one is the least that is a change
            proof = ""
        return f"{noun} like '{self.device}'{proof}"


@dataclass(frozen=True)
class SegmentChange:
    """A number of segments that is high enough."""

    device: str  # its name
    segments: int  # that it may run; a placement with this limit was found
    more: int  # segments above the present limit
    is_exact: bool  # with fewer there is none without an order; all were tried

    def text(self) -> str:
        """The change as an instruction."""
        return f"`segments: {self.segments}` for '{self.device}' in the cluster file"


_UNITS = {"latency": "s", "energy": "J"}  # a price has none


@dataclass(frozen=True)
class AmountChange:
    """A limit on latency, energy or price that is high enough."""

    quantity: str  # its name
    amount: float  # a placement with this limit was found
    more: float  # amount above the present limit

    def text(self) -> str:
        """The change as an instruction."""
        raised = self.amount * (1.0 + 5e-4)  # so that its four digits are enough
        return (
            f"argument `limits` {self.quantity}={raised:.4g}{_UNITS.get(self.quantity, '')}, "
            f"{amount_text(self.more, self.quantity)} more"
        )


Change = LimitChange | SegmentChange | DeviceChange | AmountChange


def smallest_changes(
    problem: Problem, most_enumerated: int = MOST_PLACEMENTS, seconds: float = math.inf
) -> tuple[Change, ...]:
    """Changes that make an infeasible problem feasible, the smallest first.

    Limits come first, by the missing bytes, then segments and devices, by their number. There is
    none if a placement fits already, or if no single change of these kinds was found to help.

    Args:
        problem: stays as it is.
        most_enumerated: placements up to which all are tried.
        seconds: after which no further placement is looked for. What is found until then may not
            be the smallest.
    """
    search = _Search(most_enumerated, seconds)
    return () if search.found(problem) is not None else _changes(problem, search)


def _changes(problem: Problem, search: _Search) -> tuple[Change, ...]:
    """Changes of a problem of which the search found no placement, as `smallest_changes`."""
    is_large = problem.n_units > _MOST_SEARCHED  # equal devices have equal limits
    tried = distinct_devices(problem) if is_large else range(problem.n_devices)
    names = [problem.cluster.device_names[device] for device in tried] + _used_pools(problem)
    every = all_peaks(problem, search.most, lambda: search.is_over)
    raised = (_limit(problem, name, every, search) for name in names)
    limits = sorted(
        (change for change in raised if change is not None), key=lambda change: change.more
    )
    if limits and limits[0].more <= 0:  # the placement found with a higher limit does not need it
        return ()
    longer = [one for d in range(problem.n_devices) if (one := _segments(problem, d, search))]
    longer.sort(key=lambda change: change.more)
    added = (_copies(problem, device, search) for device in distinct_devices(problem))
    devices = sorted(
        (change for change in added if change is not None), key=lambda change: change.count
    )
    return (*limits, *longer, *devices, *_amounts(problem, search))


def _amounts(problem: Problem, search: _Search) -> Iterator[AmountChange]:
    """Limits of `core.charges` that are too low, each with the other limits as they are."""
    for quantity, limit in problem.limits.items():
        others = {name: size for name, size in problem.limits.items() if name != quantity}
        amount = _least_amount(replace(problem, limits=others), quantity, limit, search)
        if limit < amount < math.inf:
            yield AmountChange(quantity, amount, amount - limit)


def _least_amount(problem: Problem, quantity: str, limit: float, search: _Search) -> float:
    """The least amount of all placements or, if they are many, of a short search; inf if none.

    Args:
        problem: without the limit on the quantity.
        limit: that is too low.
        search: looks for placements.
    """
    rows = all_placements(problem, search.most)
    if rows is not None:
        return float(_amounts_of(problem, quantity, rows).min(initial=math.inf))
    if not isinstance(problem.execution_model, Event | Sequential):  # no such objectives
        return _bisected_amount(problem, quantity, limit, search)
    objective = quantity if quantity in CHARGED else problem.timed.objective
    lowest = replace(problem, objective=objective)
    left = search.seconds_left
    if left <= 0:
        return math.inf
    budget = Budget(evaluations=_EVALUATIONS, seconds=None if math.isinf(left) else left)
    rng, placer = np.random.default_rng(0), make_placer("local-search")
    return pass_interrupt_on(placer.place(lowest, Evaluator(lowest, budget), rng)).value


def _amounts_of(problem: Problem, quantity: str, rows: IntArray) -> FloatArray:
    """Amounts of placements, rows (n, n_units); inf for those that break a constraint."""
    timed = replace(problem, objective=problem.timed.objective)
    return problem.charges_of(quantity).of(rows, Simulator(timed).values(rows))


def _bisected_amount(problem: Problem, quantity: str, low: float, search: _Search) -> float:
    """A sufficient limit, bisected by searches below that of the cheapest devices of all units."""
    own = np.where(problem.allowed, problem.charges_of(quantity).own, np.inf)
    alone = [np.full(problem.n_units, device) for device in range(problem.n_devices)]
    rows = np.array([own.argmin(axis=1), *alone])
    high = float(_amounts_of(problem, quantity, rows).min())
    if math.isinf(high) and (placement := search.found(problem)) is not None:
        high = float(_amounts_of(problem, quantity, placement.device_of[None, :])[0])
    if math.isinf(high) or problem.n_units > _MOST_SEARCHED:
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        placement = search.found(replace(problem, limits={**problem.limits, quantity: middle}))
        if placement is None:
            low = middle
        else:
            high = float(_amounts_of(problem, quantity, placement.device_of[None, :])[0])
    return high


def advice(problem: Problem, seconds: float = math.inf) -> str:
    """One clause: the first change of each kind that helps; empty if none does.

    If a placement fits already, the clause says that a longer search finds one.

    Args:
        problem: of which a search found no placement.
        seconds: after which no further placement is looked for.
    """
    search = _Search(MOST_PLACEMENTS, seconds)
    if search.found(problem) is not None:
        return "there is a placement that keeps all limits: raise the budget of the search"
    changes = _changes(problem, search)
    firsts = {type(change): change for change in reversed(changes)}
    kinds = (LimitChange, SegmentChange, DeviceChange, AmountChange)
    texts = [firsts[kind].text() for kind in kinds if kind in firsts]
    if LimitChange in firsts and _helps_to_count_weights(problem, search):
        texts.append("argument `samples_in_flight` 0, which counts weights only")
    which = "a change that fits" if search.is_over else "the smallest change found"
    return f"{which}: {', or '.join(texts)}" if texts else ""


def _helps_to_count_weights(problem: Problem, search: _Search) -> bool:
    """True if a placement fits without the tensors of samples, and streams if it can."""
    lighter = weights_only(problem)
    if lighter is None:
        return False
    if problem.objective == "training":
        return search.found(lighter) is not None
    return streaming_placement(lighter, search.found) is not None


def weights_only(problem: Problem) -> Problem | None:
    """The problem with 0 samples in flight; None if it counts none."""
    model = problem.execution_model
    if not isinstance(model, MaxLoad) or model.samples_in_flight == 0:
        return None
    return problem.with_samples_in_flight(0)


def streaming_placement(
    problem: Problem, found: Callable[[Problem], Placement | None]
) -> Placement | None:
    """A placement of which a stream of one sample at a time keeps the memory limits, or None.

    If the stream of the first one takes more than a device or a shared pool has, the next one is of
    devices and pools that are smaller by what the tensors of the stream took.

    Args:
        problem: that counts weights only.
        found: a placement of a problem; None if there is none or none was found.
    """
    placement, simulator, cluster = found(problem), Simulator(problem), problem.cluster
    if placement is None:
        return None
    peaks = simulator.sample_peaks(placement)
    if peaks is None or not bytes_over(cluster, peaks).any():
        return None if peaks is None else placement
    tensors = np.maximum(peaks - simulator.memory_peaks(placement), 0.0)
    left = cluster.memory_limits - np.concatenate([tensors, cluster.pooled(tensors)])
    names = (*cluster.device_names, *cluster.shared_pools)
    for name, size in zip(names, left.tolist(), strict=True):
        cluster = cluster.with_limit(name, max(0.0, size))
    placement = found(replace(problem, cluster=cluster))
    peaks = None if placement is None else simulator.sample_peaks(placement)
    return None if peaks is None or bytes_over(problem.cluster, peaks).any() else placement


def _used_pools(problem: Problem) -> list[str]:
    """Memory pools that have a device."""
    used = {name for device in problem.cluster.devices for name in device.pool_shares}
    return [name for name in problem.cluster.pools if name in used]


def _size(problem: Problem, name: str) -> float:
    """Memory limit of a device or pool, in bytes."""
    cluster = problem.cluster
    if name in cluster.pools:
        return cluster.pools[name]
    return cluster.devices[cluster.device(name)].memory_bytes


def _taken(problem: Problem, name: str, peaks: FloatArray) -> float:
    """Peak bytes of a device, or of the devices of a pool together.

    Args:
        problem: with the device or pool.
        peaks: of each device, shape (n_devices,).
    """
    cluster = problem.cluster
    if name not in cluster.pools:
        return float(peaks[cluster.device(name)])
    shares = np.array([device.pool_shares.get(name, 0.0) for device in cluster.devices])
    return float((peaks * cluster.replicas * shares)[shares > 0].sum())


def _limit(
    problem: Problem, name: str, every: FloatArray | None, search: _Search
) -> LimitChange | None:
    """The smallest sufficient limit of a device or pool, with the other limits as they are.

    Args:
        problem: with the device or pool.
        name: of it.
        every: peaks of all placements in all orders, if they were tried.
        search: looks for placements.
    """
    now = _size(problem, name)
    if math.isinf(now):
        return None
    roomy = with_limit(problem, name, math.inf)
    if every is not None:
        taken = (
            _taken(problem, name, row) for row in every if not bytes_over(roomy.cluster, row).any()
        )
        least = min(taken, default=math.inf)
        return None if math.isinf(least) else LimitChange(name, least, least - now, least)
    high = _sufficient_limit(problem, roomy, name, search)
    if math.isinf(high):
        return None
    least = _proven(problem, name, now, high)
    if problem.n_units <= _MOST_SEARCHED:
        high = _bisected_limit(problem, name, least, high, search)
    return LimitChange(name, high, high - now, min(least, high))


def _sufficient_limit(problem: Problem, roomy: Problem, name: str, search: _Search) -> float:
    """A limit of a device or pool, in whole bytes, that a search keeps; inf if none was found.

    Args:
        problem: with the limit.
        roomy: the same without it.
        name: of the device or pool.
        search: looks for placements.
    """
    peaks: list[float] = []
    if name not in problem.cluster.pools:
        packing = tightest_packing(problem, problem.cluster.device(name))
        peaks += [] if packing is None else [packing.peak]
    if (placement := search.found(roomy)) is not None:
        peaks.append(_taken(problem, name, Simulator(roomy).memory_peaks(placement)))
    for size in sorted(math.ceil(factor * peak) for peak in peaks for factor in _WIDER):
        if search.found(with_limit(problem, name, float(size))) is not None:
            return float(size)
    return math.inf


def _bisected_limit(problem: Problem, name: str, low: float, high: float, search: _Search) -> float:
    """The least limit in whole bytes that a search keeps, between two limits."""
    for _ in range(_STEPS):
        middle = float(math.ceil((low + high) / 2))
        if middle >= high or high - low <= _CLOSE * high:
            return high
        if search.found(with_limit(problem, name, middle)) is None:
            low = middle
        else:
            high = middle
    return high


def _proven(problem: Problem, name: str, low: float, high: float) -> float:
    """The largest limit below which a proof excludes every placement."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if prove_infeasible(with_limit(problem, name, middle)) is None:
            high = middle
        else:
            low = middle
    return low


def _segments(problem: Problem, device: int, search: _Search) -> SegmentChange | None:
    """The fewest segments of a device with which a placement was found: doubled, then bisected."""
    spec = problem.cluster.devices[device]
    if spec.max_segments is None:
        return None

    def fits(count: int) -> bool:
        devices = list(problem.cluster.devices)
        devices[device] = replace(spec, max_segments=count)
        raised = replace(problem.cluster, devices=tuple(devices))
        return search.found(replace(problem, cluster=raised)) is not None

    now = spec.max_segments
    fewest = _fewest(fits, now, now, problem.n_units, search)
    if fewest is None:
        return None
    is_exact = not search.is_over and all_placements(problem, search.most) is not None
    return SegmentChange(spec.name, fewest, fewest - now, is_exact)


def _copies(problem: Problem, device: int, search: _Search) -> DeviceChange | None:
    """The fewest further devices with which a placement was found: doubled, then bisected."""
    larger = [problem]

    def fits(count: int) -> bool:
        while len(larger) <= count:
            larger.append(with_copy(larger[-1], device))
        return search.found(larger[count]) is not None

    fewest = _fewest(fits, 0, 1, _MOST_COPIES, search)
    if fewest is None:
        return None
    has_orders = isinstance(problem.execution_model, Event)
    is_exact = fewest == 1 or (
        not (has_orders or search.is_over)
        and all_placements(larger[fewest - 1], search.most) is not None
    )
    least = fewest
    if not is_exact:
        least = _bisected(lambda n: prove_infeasible(larger[n]) is None, 0, len(larger) - 1)
    return DeviceChange(problem.cluster.device_names[device], fewest, least)


def _fewest(
    fits: Callable[[int], bool], low: int, high: int, most: int, search: _Search
) -> int | None:
    """The fewest that fit, by doubling `high` up to `most` and bisecting; None if none was found.

    Args:
        low: as many do not fit.
        search: whose end ends the doubling.
    """
    while not fits(high):
        if high >= most or search.is_over:
            return None
        low, high = high, min(2 * high, most)
    return _bisected(fits, low, high)


def _bisected(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The fewest that fit, where `low` do not and `high` do."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def with_limit(problem: Problem, name: str, limit: float) -> Problem:
    """The problem with another memory limit of one device or pool, in bytes."""
    return replace(problem, cluster=problem.cluster.with_limit(name, limit))


def with_copy(problem: Problem, device: int) -> Problem:
    """Add a copy of one device to a problem, with the same links and processors of its own.

    The two are linked with each other as the first is linked with some other device, if it is.
    """
    cluster, model = problem.cluster, problem.cluster.devices[device]
    numbers = itertools.count(2)
    name = next(n for i in numbers if (n := f"{model.name}#{i}") not in cluster.endpoint_index)
    copy: Device = replace(model, name=name, processors=())
    links: list[Link] = []
    for link in cluster.links:
        if link.source == model.name:
            links.append(replace(link, source=name))
        if link.destination == model.name:
            links.append(replace(link, destination=name))
    devices = list(cluster.device_names)
    for link in cluster.links:
        if link.source == model.name and link.destination in devices:
            links += [
                replace(link, destination=name),
                replace(link, source=name, destination=model.name),
            ]
            break
    wider: Cluster = replace(
        cluster, devices=(*cluster.devices, copy), links=(*cluster.links, *links)
    )
    columns = [*range(problem.n_devices), device]
    seconds, joules = problem.costs.seconds[:, columns], problem.op_joules
    return replace(
        problem,
        cluster=wider,
        costs=CostTable(frozen_floats(seconds), problem.costs.source),
        op_joules=None if joules is None else frozen_floats(joules[:, columns]),
    )
