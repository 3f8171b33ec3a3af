"""When nothing fits: the smallest change with which something does.

Which memory limit, raised by how much; or which further devices, alike to one that is there. Small
problems are enumerated, and the answer is exact for placements without an order. Larger ones are
packed and searched, the largest packed alone, with a fixed number of evaluations: what is found
does fit, and what the proofs of `simulation.feasibility` exclude bounds it from below.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import FloatArray, IntArray, frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.core.solution import Budget
from placewright.placers.registry import make_placer
from placewright.session.packing import tightest_packing
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.feasibility import prove_infeasible
from placewright.simulation.model import Simulator

MOST_ENUMERATED = 20_000  # placements
_EVALUATIONS = 200  # of each search
_STEPS = 12  # of bisecting a limit
_MOST_COPIES = 64  # of a device
_MOST_KINDS = 4  # of devices that take what is left
_MOST_SEARCHED = 3_000  # units; beyond, many searches take minutes, and what is packed stands


@dataclass(frozen=True)
class LimitChange:
    """A memory limit that is high enough.

    Attributes:
        device: its name.
        limit: bytes with which a placement was found.
        more: bytes above the present limit.
        at_least: no placement fits with a limit below, by enumeration or proof.
    """

    device: str
    limit: float
    more: float
    at_least: float

    @property
    def is_exact(self) -> bool:
        """No smaller limit does."""
        return self.at_least >= self.limit

    def text(self) -> str:
        """What to do, in words."""
        proof = "" if self.is_exact else f" (proven: none fits below {format_bytes(self.at_least)})"
        more = f"{format_bytes(self.more)} more{proof}"
        return f"argument `memory` {self.device}={math.ceil(self.limit)}B, {more}"


@dataclass(frozen=True)
class DeviceChange:
    """Further devices alike to one that is there.

    Attributes:
        device: its name.
        count: with so many more a placement was found.
        at_least: with fewer none fits, by enumeration or proof.
    """

    device: str
    count: int
    at_least: int = 1

    def text(self) -> str:
        """What to do, in words."""
        noun = "one more device" if self.count == 1 else f"{self.count} more devices"
        proof = "" if self.count == self.at_least else f" (proven: at least {self.at_least})"
        return f"{noun} like '{self.device}'{proof}"


Change = LimitChange | DeviceChange


def smallest_changes(
    problem: Problem, most_enumerated: int = MOST_ENUMERATED
) -> tuple[Change, ...]:
    """Changes that make a problem without a placement feasible, the smallest first.

    Limits come first, by the bytes that are missing, then devices, by their number. Empty where
    something fits already, or where no single change of these kinds was found to help.

    Args:
        problem: stays as it is.
        most_enumerated: placements up to which all are tried.
    """
    if _found(problem, most_enumerated) is not None:
        return ()
    is_large = problem.n_units > _MOST_SEARCHED  # alike devices have alike limits
    tried = _distinct_devices(problem) if is_large else range(problem.n_devices)
    raised = (_limit(problem, device, most_enumerated) for device in tried)
    limits = sorted((one for one in raised if one is not None), key=lambda one: one.more)
    if limits and limits[0].more <= 0:  # what was found with a higher limit does without
        return ()
    added = (_copies(problem, device, most_enumerated) for device in _distinct_devices(problem))
    devices = sorted((one for one in added if one is not None), key=lambda one: one.count)
    return (*limits, *devices)


def advice(problem: Problem) -> str:
    """The smallest limit and the fewest devices that help, as a clause; empty for none."""
    changes = smallest_changes(problem)
    limit = next((change for change in changes if isinstance(change, LimitChange)), None)
    device = next((change for change in changes if isinstance(change, DeviceChange)), None)
    texts = [change.text() for change in (limit, device) if change is not None]
    return f"the smallest change that fits: {', or '.join(texts)}" if texts else ""


def _limit(problem: Problem, device: int, most: int) -> LimitChange | None:
    """The least limit of one device, the others' as they are."""
    now = float(problem.cluster.memory_bytes[device])
    if math.isinf(now):
        return None
    roomy = with_memory(problem, device, math.inf)
    rows = _all_placements(roomy, most)
    name = problem.cluster.device_names[device]
    if rows is not None:
        peaks = _peaks(roomy, rows)
        if not len(peaks):
            return None
        least = float(peaks[:, device].min())
        return LimitChange(name, least, least - now, least)
    packing = tightest_packing(problem, device)
    high = math.inf if packing is None else packing.peak
    if problem.n_units <= _MOST_SEARCHED:
        high = _searched_limit(problem, device, high, most)
    if math.isinf(high):
        return None
    return LimitChange(name, high, high - now, _proven(problem, device, now, high))


def _searched_limit(problem: Problem, device: int, high: float, most: int) -> float:
    """A limit that does, bisected by searches below one that is known; inf for none."""
    low = float(problem.cluster.memory_bytes[device])
    if math.isinf(high):
        roomy = with_memory(problem, device, math.inf)
        found = _found(roomy, most)
        if found is None:
            return math.inf
        high = float(Simulator(roomy).memory_peaks(found)[device])
    for _ in range(_STEPS):
        middle = (low + high) / 2
        narrower = with_memory(problem, device, middle)
        found = _found(narrower, most)
        if found is None:
            low = middle
        else:
            high = float(Simulator(narrower).memory_peaks(found)[device])
    return high


def _proven(problem: Problem, device: int, low: float, high: float) -> float:
    """The largest limit below which a proof says that nothing fits."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if prove_infeasible(with_memory(problem, device, middle)) is None:
            high = middle
        else:
            low = middle
    return low


def _copies(problem: Problem, device: int, most: int) -> DeviceChange | None:
    """The fewest further devices with which something is found: doubled, then halved."""
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
    """The first of problems with ever more devices for which no proof says that nothing fits."""
    low, high = 0, len(larger) - 1
    while high - low > 1:
        middle = (low + high) // 2
        is_proven = prove_infeasible(larger[middle]) is not None
        low, high = (middle, high) if is_proven else (low, middle)
    return high


def _distinct_devices(problem: Problem) -> list[int]:
    """The first of each set of devices with the same memory and costs."""
    known: dict[tuple[float, bytes], int] = {}
    for device in range(problem.n_devices):
        costs = np.ascontiguousarray(problem.costs.seconds[:, device]).tobytes()
        known.setdefault((float(problem.cluster.memory_bytes[device]), costs), device)
    return list(known.values())


def _found(problem: Problem, most: int) -> Placement | None:
    """A placement that keeps all constraints; None where there is none or none was found."""
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
    """A packing within all limits; what is left goes to a device of each kind, the roomiest first.

    Of many kinds the first four are tried.
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
    """All placements that keep support, pins and colocation; None where they are too many."""
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
    found = [simulator.value_and_peaks(Placement.of(row)) for row in rows]
    kept = [peaks for value, peaks in found if math.isfinite(value)]
    return np.array(kept).reshape(len(kept), problem.n_devices)


def with_memory(problem: Problem, device: int, limit: float) -> Problem:
    """The problem with another memory limit of one device."""
    devices = list(problem.cluster.devices)
    devices[device] = replace(devices[device], memory_bytes=limit)
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


def with_copy(problem: Problem, device: int) -> Problem:
    """The problem with one more device alike to one, linked as that one is.

    The two are linked with each other as the first is with some other device, where it is.
    """
    cluster, model = problem.cluster, problem.cluster.devices[device]
    numbers = itertools.count(2)
    name = next(n for i in numbers if (n := f"{model.name}#{i}") not in cluster.endpoint_index)
    copy: Device = replace(model, name=name)
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
    costs = np.concatenate(
        [problem.costs.seconds, problem.costs.seconds[:, device : device + 1]], axis=1
    )
    wider: Cluster = replace(
        cluster, devices=(*cluster.devices, copy), links=(*cluster.links, *links)
    )
    return replace(
        problem, cluster=wider, costs=CostTable(frozen_floats(costs), problem.costs.source)
    )
