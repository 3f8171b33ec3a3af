"""When nothing fits: the smallest change with which something does.

Which memory limit, raised by how much; or which further device, alike to one that is there. Small
problems are enumerated, and the answer is exact for placements under rank dispatch. Larger ones are
searched with a fixed number of evaluations: what is found does fit, and what the proofs of
`simulation.feasibility` exclude bounds it from below.
"""

from __future__ import annotations

import itertools
import math
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
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.feasibility import prove_infeasible
from placewright.simulation.model import Simulator

MOST_ENUMERATED = 20_000  # placements
_EVALUATIONS = 200  # of each search
_STEPS = 12  # of bisecting a limit
_MOST_COPIES = 4  # of a device
_MOST_UNITS = 3_000  # above which searching takes minutes


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
        return f"--memory {self.device}={math.ceil(self.limit)}B, {more}"


@dataclass(frozen=True)
class DeviceChange:
    """Further devices alike to one that is there."""

    device: str
    count: int

    def text(self) -> str:
        """What to do, in words."""
        noun = "one more device" if self.count == 1 else f"{self.count} more devices"
        return f"{noun} like '{self.device}'"


Change = LimitChange | DeviceChange


def smallest_changes(
    problem: Problem, most_enumerated: int = MOST_ENUMERATED
) -> tuple[Change, ...]:
    """Changes that make a problem without a placement feasible, the smallest first.

    Limits come first, by the bytes that are missing, then devices, by their number. Empty where
    something fits already, where no single change of these kinds helps, or where the problem is
    too large to try.

    Args:
        problem: stays as it is.
        most_enumerated: placements up to which all are tried.
    """
    if problem.n_units > _MOST_UNITS or _found(problem, most_enumerated) is not None:
        return ()
    raised = (_limit(problem, device, most_enumerated) for device in range(problem.n_devices))
    limits = sorted((one for one in raised if one is not None), key=lambda one: one.more)
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
    found = _found(roomy, most)
    if found is None:
        return None
    high = float(Simulator(roomy).memory_peaks(found)[device])
    low = now
    for _ in range(_STEPS):
        middle = (low + high) / 2
        narrower = with_memory(problem, device, middle)
        found = _found(narrower, most)
        if found is None:
            low = middle
        else:
            high = float(Simulator(narrower).memory_peaks(found)[device])
    return LimitChange(name, high, high - now, _proven(problem, device, now, high))


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
    larger = problem
    for count in range(1, _MOST_COPIES + 1):
        larger = with_copy(larger, device)
        if _found(larger, most) is not None:
            return DeviceChange(problem.cluster.device_names[device], count)
    return None


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
    evaluator = Evaluator(problem, Budget(evaluations=_EVALUATIONS))
    placer = make_placer("local-search")
    return placer.place(problem, evaluator, np.random.default_rng(0)).placement


def _all_placements(problem: Problem, most: int) -> IntArray | None:
    """All placements that keep support, pins and colocation; None where they are too many."""
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
