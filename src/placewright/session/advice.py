"""The smallest change that makes an infeasible problem feasible.

It is a higher limit of one device or memory pool, more segments of one device, further devices
like one of the cluster, or a higher limit on latency, energy or price. Small
problems are enumerated, and the answer is exact for placements without an order. Larger ones are
packed and searched with a fixed number of evaluations, the largest are only packed: every change
was verified with a placement, and the proofs of `bounds.feasibility` bound it from below.

Packing fills all devices but one. One simulation without limits gives the peaks of a placement on
all devices, so that no search is needed to know which limits it fits, and the number of simulations
does not grow with the problem.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray, frozen_floats
from placewright.core.charges import CHARGED, amount_text
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Event, MaxLoad, Sequential
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.core.solution import Budget
from placewright.placers.registry import make_placer
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

_ROUNDS = 8  # of filling, simulating, and correcting what the tensors took


@dataclass(frozen=True)
class Packing:
    """A placement that keeps all limits but that of one device, and this device's peak in bytes."""

    placement: Placement
    peak: float


def tightest_packing(problem: Problem, device: int, enough: float = 0.0) -> Packing | None:
    """Find a packing with a small peak on one device, the best of at most 32 simulated ones.

    Units are taken in the topological order and in the model's own, from either end. Each other
    device takes a run of them that fills its limit; one device takes the rest. If a device's peak
    breaks its limit because of the tensors, it gets less in the next round.

    Args:
        problem: with limits; that of `device` does not count.
        device: takes the rest.
        enough: bytes; the first packing with a peak of at most as many is returned.
    """
    limits = np.array(problem.cluster.memory_bytes)
    limits[device] = math.inf
    simulator = Simulator(replace(problem, cluster=problem.cluster.without_memory_limits))
    others = [other for other in range(problem.n_devices) if other != device]
    others.sort(key=lambda other: -limits[other])
    best: Packing | None = None
    for items in _orders(problem):
        for packing in _rounds(items, simulator, limits, others, problem.cluster):
            if best is None or packing.peak < best.peak:
                best = packing
            if best.peak <= enough:
                return best
    return best


def _rounds(
    items: _Items, simulator: Simulator, limits: FloatArray, others: Sequence[int], cluster: Cluster
) -> Iterator[Packing]:
    """Yield packings within the limits; the peaks of a round correct the capacities of the next."""
    device = next(at for at in range(cluster.n_devices) if at not in others)
    capacities = np.where(np.isfinite(limits), limits, items.total)
    known: set[bytes] = set()
    for number in range(_ROUNDS):
        device_of = items.filled(capacities, others, device)
        if device_of.tobytes() in known:
            return
        known.add(device_of.tobytes())
        placement = Placement.of(device_of)
        value, peaks = simulator.value_and_peaks(placement)
        if not math.isfinite(value):  # no route, or no partition into subgraphs
            capacities[others] *= 0.5
            continue
        over = np.maximum(peaks - limits, 0.0)
        is_full = np.append(cluster.pooled(peaks) > cluster.pool_bytes, False)  # the last: no pool
        if is_full.any():
            shrinks = is_full[cluster.pool_of]
            shrinks[device] = False
            capacities[shrinks] *= 0.5
            continue
        if not over.any():
            yield Packing(placement, float(peaks[device]))
            spare = np.where(np.isfinite(limits), limits - peaks, 0.0)
            capacities += spare / 2
            continue
        is_late = number >= _ROUNDS // 2  # the memory of tensors does not shrink with the run
        capacities = np.maximum(capacities - over, 0.0)
        if is_late:
            capacities[over > 0] *= 0.5 if number < _ROUNDS - 2 else 0.0


def _orders(problem: Problem) -> Iterator[_Items]:
    own = np.arange(problem.n_units)
    topological = np.asarray(problem.unit_graph.topological_order, dtype=np.int64)
    orders = [topological]
    if not np.array_equal(own, topological):
        orders.append(own)
    for order in orders:
        yield _Items(problem, order)
        yield _Items(problem, order[::-1])


class _Items:
    """Colocation classes in an order, with the bytes that a device keeps for them."""

    def __init__(self, problem: Problem, order: IntArray) -> None:
        classes, kept = problem.colocation, problem.kept
        rank = np.empty(problem.n_units, dtype=np.int64)
        rank[order] = np.arange(problem.n_units)
        first = np.full(classes.n_groups, problem.n_units)
        np.minimum.at(first, classes.group_of, rank)
        position = np.empty(classes.n_groups, dtype=np.int64)
        by_rank = np.argsort(first, kind="stable")
        position[by_rank] = np.arange(classes.n_groups)
        self.position_of_unit = position[classes.group_of]
        self.allowed: BoolArray = problem.allowed_by_class[by_rank]
        self.total = kept.total
        n_entries = max(1, len(kept.sizes))
        pairs = np.unique(
            self.position_of_unit[kept.of_units.row_of_each()] * n_entries + kept.of_units.indices
        )
        self.position, entry = pairs // n_entries, pairs % n_entries
        self.size = kept.sizes[entry]
        self.own = np.bincount(self.position, self.size, minlength=classes.n_groups)
        # Of each pair: the last earlier item that keeps the same entry, -1 for none.
        by_entry = np.lexsort((self.position, entry))
        self.before = np.full(len(pairs), -1)
        same = entry[by_entry[1:]] == entry[by_entry[:-1]]
        self.before[by_entry[1:][same]] = self.position[by_entry[:-1][same]]

    def filled(self, capacities: FloatArray, others: Sequence[int], rest: int) -> IntArray:
        """Fill devices in turn with runs of items up to their capacity; `rest` takes the others."""
        n_items, start = len(self.own), 0
        device_of = np.full(n_items, rest)
        for device in others:
            takes = self.allowed[:, device] & (self.own <= capacities[device])
            at = int(np.searchsorted(self.position, start))
            position = self.position[at:]
            more = self.size[at:] * ((self.before[at:] < start) & takes[position])
            end = int(np.searchsorted(np.cumsum(more), capacities[device], side="right"))
            stop = int(position[end]) if end < len(position) else n_items
            if capacities[device] > 0:
                device_of[start:stop][takes[start:stop]] = device
                start = stop
        may_stay = self.allowed[np.arange(n_items), device_of]
        device_of = np.where(may_stay, device_of, np.argmax(self.allowed, axis=1))
        return np.asarray(device_of[self.position_of_unit], dtype=np.int64)


MOST_ENUMERATED = 20_000  # placements
_EVALUATIONS = 200  # of each search
_STEPS = 12  # of bisecting a limit
_MOST_COPIES = 64  # of a device
_MOST_KINDS = 4  # of devices that take what is left
_MOST_SEARCHED = 3_000  # units; larger problems are only packed, since many searches take minutes


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
            f"argument `limits` {self.quantity}={raised:.4g}, "
            f"{amount_text(self.more, self.quantity)} more"
        )


Change = LimitChange | SegmentChange | DeviceChange | AmountChange


def smallest_changes(
    problem: Problem, most_enumerated: int = MOST_ENUMERATED
) -> tuple[Change, ...]:
    """Changes that make an infeasible problem feasible, the smallest first.

    Limits come first, by the missing bytes, then segments and devices, by their number. There is
    none if a placement fits already, or if no single change of these kinds was found to help.

    Args:
        problem: stays as it is.
        most_enumerated: placements up to which all are tried.
    """
    if _found(problem, most_enumerated) is not None:
        return ()
    is_large = problem.n_units > _MOST_SEARCHED  # equal devices have equal limits
    tried = _distinct_devices(problem) if is_large else range(problem.n_devices)
    names = [problem.cluster.device_names[device] for device in tried] + _used_pools(problem)
    raised = (_limit(problem, name, most_enumerated) for name in names)
    limits = sorted(
        (change for change in raised if change is not None), key=lambda change: change.more
    )
    if limits and limits[0].more <= 0:  # the placement found with a higher limit does not need it
        return ()
    longer = [
        one for d in range(problem.n_devices) if (one := _segments(problem, d, most_enumerated))
    ]
    longer.sort(key=lambda change: change.more)
    added = (_copies(problem, device, most_enumerated) for device in _distinct_devices(problem))
    devices = sorted(
        (change for change in added if change is not None), key=lambda change: change.count
    )
    return (*limits, *longer, *devices, *_amounts(problem, most_enumerated))


def _amounts(problem: Problem, most: int) -> Iterator[AmountChange]:
    """Limits of `core.charges` that are too low, each with the other limits as they are."""
    for quantity, limit in problem.limits.items():
        others = {name: size for name, size in problem.limits.items() if name != quantity}
        amount = _least_amount(replace(problem, limits=others), quantity, limit, most)
        if limit < amount < math.inf:
            yield AmountChange(quantity, amount, amount - limit)


def _least_amount(problem: Problem, quantity: str, limit: float, most: int) -> float:
    """The least amount of all placements or, if they are many, of a short search; inf if none.

    Args:
        problem: without the limit on the quantity.
        limit: that is too low.
        most: placements up to which all are tried.
    """
    rows = _all_placements(problem, most)
    if rows is not None:
        return float(_amounts_of(problem, quantity, rows).min(initial=math.inf))
    if not isinstance(problem.execution_model, Event | Sequential):  # no such objectives
        return _bisected_amount(problem, quantity, limit, most)
    objective = quantity if quantity in CHARGED else problem.timed.objective
    lowest, budget = replace(problem, objective=objective), Budget(evaluations=_EVALUATIONS)
    rng = np.random.default_rng(0)
    return make_placer("local-search").place(lowest, Evaluator(lowest, budget), rng).value


def _amounts_of(problem: Problem, quantity: str, rows: IntArray) -> FloatArray:
    """Amounts of placements, rows (n, n_units); inf for those that break a constraint."""
    timed = replace(problem, objective=problem.timed.objective)
    return problem.charges_of(quantity).of(rows, Simulator(timed).values(rows))


def _bisected_amount(problem: Problem, quantity: str, low: float, most: int) -> float:
    """A sufficient limit, bisected by searches below that of the cheapest devices of all units."""
    own = np.where(problem.allowed, problem.charges_of(quantity).own, np.inf)
    alone = [np.full(problem.n_units, device) for device in range(problem.n_devices)]
    rows = np.array([own.argmin(axis=1), *alone])
    high = float(_amounts_of(problem, quantity, rows).min())
    if math.isinf(high) and (placement := _found(problem, most)) is not None:
        high = float(_amounts_of(problem, quantity, placement.device_of[None, :])[0])
    if math.isinf(high) or problem.n_units > _MOST_SEARCHED:
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        placement = _found(replace(problem, limits={**problem.limits, quantity: middle}), most)
        if placement is None:
            low = middle
        else:
            high = float(_amounts_of(problem, quantity, placement.device_of[None, :])[0])
    return high


def advice(problem: Problem) -> str:
    """One clause: the first change of each kind that helps; empty if none does."""
    changes = smallest_changes(problem)
    firsts = {type(change): change for change in reversed(changes)}
    kinds = (LimitChange, SegmentChange, DeviceChange, AmountChange)
    texts = [firsts[kind].text() for kind in kinds if kind in firsts]
    model = problem.execution_model
    if LimitChange in firsts and isinstance(model, MaxLoad) and model.samples_in_flight:
        texts.append("argument `samples_in_flight` 0, which counts weights only")
    return f"the smallest change that fits: {', or '.join(texts)}" if texts else ""


def _used_pools(problem: Problem) -> list[str]:
    """Memory pools that have a device."""
    used = [device.pool for device in problem.cluster.devices]
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
    mine = np.array([device.pool == name for device in cluster.devices])
    return float((peaks * cluster.replicas)[mine].sum())


def _limit(problem: Problem, name: str, most: int) -> LimitChange | None:
    """The smallest sufficient limit of a device or pool, with the other limits as they are."""
    now = _size(problem, name)
    if math.isinf(now):
        return None
    roomy = with_limit(problem, name, math.inf)
    rows = _all_placements(roomy, most)
    if rows is not None:
        peaks = _peaks(roomy, rows)
        if not len(peaks):
            return None
        least = min(_taken(problem, name, row) for row in peaks)
        return LimitChange(name, least, least - now, least)
    high = math.inf
    if name not in problem.cluster.pools:
        packing = tightest_packing(problem, problem.cluster.device(name))
        high = math.inf if packing is None else packing.peak
    elif problem.n_units > _MOST_SEARCHED and (placement := _packed(roomy)) is not None:
        high = _taken(problem, name, Simulator(roomy).memory_peaks(placement))
    if problem.n_units <= _MOST_SEARCHED:
        high = _searched_limit(problem, name, high, most)
    if math.isinf(high):
        return None
    return LimitChange(name, high, high - now, _proven(problem, name, now, high))


def _searched_limit(problem: Problem, name: str, high: float, most: int) -> float:
    """A sufficient limit, bisected by searches below a known one; inf if none was found."""
    low = _size(problem, name)
    if math.isinf(high):
        roomy = with_limit(problem, name, math.inf)
        placement = _found(roomy, most)
        if placement is None:
            return math.inf
        high = _taken(problem, name, Simulator(roomy).memory_peaks(placement))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        narrower = with_limit(problem, name, middle)
        placement = _found(narrower, most)
        if placement is None:
            low = middle
        else:
            high = _taken(problem, name, Simulator(narrower).memory_peaks(placement))
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


def _segments(problem: Problem, device: int, most: int) -> SegmentChange | None:
    """The fewest segments of a device with which a placement was found: doubled, then bisected."""
    spec = problem.cluster.devices[device]
    if spec.max_segments is None:
        return None

    def fits(count: int) -> bool:
        devices = list(problem.cluster.devices)
        devices[device] = replace(spec, max_segments=count)
        raised = replace(problem.cluster, devices=tuple(devices))
        return _found(replace(problem, cluster=raised), most) is not None

    low = high = spec.max_segments
    while not fits(high):
        if high >= problem.n_units:
            return None
        low, high = high, min(2 * high, problem.n_units)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    is_exact = _all_placements(problem, most) is not None
    return SegmentChange(spec.name, high, high - spec.max_segments, is_exact)


def _copies(problem: Problem, device: int, most: int) -> DeviceChange | None:
    """The fewest further devices with which a placement was found: doubled, then bisected."""
    larger = [problem]

    def fits(count: int) -> bool:
        while len(larger) <= count:
            larger.append(with_copy(larger[-1], device))
        return _found(larger[count], most) is not None

    low, high = 0, 1
    while not fits(high):
        if high == _MOST_COPIES:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    fewer = larger[high - 1]
    is_exact = high == 1 or _all_placements(fewer, most) is not None
    return DeviceChange(
        problem.cluster.device_names[device], high, high if is_exact else _proven_copies(larger)
    )


def _proven_copies(larger: Sequence[Problem]) -> int:
    """Index of the first problem without a proof of infeasibility; devices grow by one each."""
    low, high = 0, len(larger) - 1
    while high - low > 1:
        middle = (low + high) // 2
        is_proven = prove_infeasible(larger[middle]) is not None
        low, high = (middle, high) if is_proven else (low, middle)
    return high


def _distinct_devices(problem: Problem) -> list[int]:
    """The first of each set of devices with the same memory, pool and costs."""
    known: dict[tuple[float, str, bytes], int] = {}
    for device in range(problem.n_devices):
        costs = np.ascontiguousarray(problem.costs.seconds[:, device]).tobytes()
        pool = problem.cluster.devices[device].pool or ""
        known.setdefault((float(problem.cluster.memory_bytes[device]), pool, costs), device)
    return list(known.values())


def _found(problem: Problem, most: int) -> Placement | None:
    """Search a placement that keeps all constraints; None if there is none or none was found."""
    if prove_infeasible(problem) is not None:
        return None
    rows = _all_placements(problem, most)
    if rows is not None:
        if not len(rows):
            return None
        values = Simulator(problem).values(rows)
        return Placement.of(rows[values.argmin()]) if np.isfinite(values).any() else None
    packed = _packed(problem)
    if packed is not None or problem.n_units > _MOST_SEARCHED:
        return packed
    evaluator = Evaluator(problem, Budget(evaluations=_EVALUATIONS))
    placer = make_placer("local-search")
    return placer.place(problem, evaluator, np.random.default_rng(0)).placement


def _packed(problem: Problem) -> Placement | None:
    """A packing within all limits; a device of each kind takes the rest, the roomiest first.

    Only the four roomiest kinds are tried.
    """
    memory = problem.cluster.memory_bytes
    kinds = sorted(_distinct_devices(problem), key=lambda device: -float(memory[device]))
    for device in kinds[:_MOST_KINDS]:
        limit = float(memory[device])
        packing = tightest_packing(problem, device, enough=limit)
        if packing is not None and packing.peak <= limit:
            return packing.placement
    return None


def _all_placements(problem: Problem, most: int) -> IntArray | None:
    """All placements that keep support, pins and colocation; None if they are too many."""
    counts = problem.allowed_by_class.sum(axis=1)
    if counts.all() and np.log(counts).sum() > math.log(max(most, 1)) + 1.0:
        return None  # no number of many thousand digits
    choices = [np.flatnonzero(row).tolist() for row in problem.allowed_by_class]
    if math.prod(len(choice) for choice in choices) > most:
        return None
    rows = [problem.colocation.expand(chosen) for chosen in itertools.product(*choices)]
    return np.array(rows, dtype=np.int64).reshape(len(rows), problem.n_units)


def _peaks(problem: Problem, rows: IntArray) -> FloatArray:
    """Peak bytes of the feasible placements among some, shape (n, n_devices)."""
    simulator = Simulator(problem)
    rated = [simulator.value_and_peaks(Placement.of(row)) for row in rows]
    feasible = [peaks for value, peaks in rated if math.isfinite(value)]
    return np.array(feasible).reshape(len(feasible), problem.n_devices)


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
