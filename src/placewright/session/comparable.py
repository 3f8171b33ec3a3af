"""Ways to run a plan's model that may be compared with it: those that obey what the user asked.

Limits, pins and colocation are the problem's. A way that breaks one of them answers another
question, however fast it is: it is named with the reason, neither measured nor recommended.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from placewright.core.cluster import Device
from placewright.core.contender_names import ALL_CORES, EVEN_SPLIT, PLAN, contender_of
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.files.quantities import format_bytes
from placewright.frameworks.registry import framework_named
from placewright.placers.registry import make_placer
from placewright.session.runtimes import runtime_named
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator


@dataclass(frozen=True)
class Ways:
    """Ways to run a plan's model that are measured in turn.

    Attributes:
        placements: name, see `core.contender_names`, -> placement of the problem, simplest first,
            the searched one last.
        predicted: name -> seconds by the simulator.
        searched: which of `placements` the search found: ``"plan"``, unless it is a simpler one.
        whole: the processor as one device, the runtime's own default; None where it is no
            contender.
        left_out: name -> why it is not comparable.
    """

    placements: dict[str, Placement]
    predicted: dict[str, float]
    searched: str
    whole: Device | None
    left_out: dict[str, str] = field(default_factory=dict)

    def without(self, name: str, reason: str) -> Ways:
        """The others, where a placement turned out not to be comparable."""
        others = {key: one for key, one in self.placements.items() if key != name}
        return replace(self, placements=others, left_out={**self.left_out, name: reason})


def ways_to_run(plan: Plan) -> Ways:
    """Every single device, the runtime's default, an even split and the searched placement."""
    problem, simulator = plan.problem, Simulator(plan.problem)
    placements: dict[str, Placement] = {}
    left_out: dict[str, str] = {}
    for device, one in enumerate(problem.cluster.device_names):
        everything = Placement.on_one_device(problem.n_units, device)
        violation = simulator.violation(everything)
        if violation is None:
            placements[contender_of(one)] = everything
        else:
            left_out[contender_of(one)] = violation.message
    whole = whole_processor(plan)
    reason = None if whole is None else why_default_is_not_comparable(problem, simulator)
    if reason is not None:
        whole, left_out[ALL_CORES] = None, reason
    searched = _name_of(plan.placement, placements)
    even = _even_split(problem)
    if even is None:
        left_out[EVEN_SPLIT] = "no even split keeps the limits and pins"
    elif not (_name_of(even, placements) or is_same(even, plan.placement)):
        placements[EVEN_SPLIT] = even
    if not searched:
        searched = PLAN
        placements[PLAN] = plan.placement
    predicted = {name: simulator.value(placement) for name, placement in placements.items()}
    return Ways(placements, predicted, searched, whole, left_out)


def is_same(first: Placement, second: Placement) -> bool:
    """True where two placements run the same: on one device the runtime orders the ops."""
    if not np.array_equal(first.device_of, second.device_of):
        return False
    if len(np.unique(first.device_of)) == 1 or first.order is second.order:
        return True
    return (
        first.order is not None
        and second.order is not None
        and np.array_equal(first.order, second.order)
    )


def whole_processor(plan: Plan) -> Device | None:
    """The runtime's default: the CPU with all threads, in the precision of the first device."""
    names = plan.problem.cluster.device_names
    if "cpu" in names or not any(name.startswith("cpu:") for name in names):
        return None
    whole = next((one for one in runtime_named(plan.runtime).discover() if one.name == "cpu"), None)
    if whole is None:
        return None
    first = plan.problem.cluster.devices[0].options
    kept = [one for one in framework_named(plan.runtime).precision_options if one in first]
    return replace(whole, options={**whole.options, **{one: first[one] for one in kept}})


def why_default_is_not_comparable(problem: Problem, simulator: Simulator) -> str | None:
    """Why the runtime's default breaks what the user asked for; None where it does not.

    It runs every op on all cores and keeps the whole model in one memory, whatever the limits of
    single cores are.
    """
    names = problem.cluster.device_names
    for op, at in sorted(problem.pins.items()):
        return (
            f"op '{problem.graph.op_names[op]}' is pinned to '{names[at]}', and "
            f"'{ALL_CORES}' runs every op on all cores"
        )
    for index, device in enumerate(problem.cluster.devices):
        everything = Placement.on_one_device(problem.n_units, index)
        size = float(simulator.memory_peaks(everything)[index])
        if device.kind == "cpu" and size > device.memory_bytes:
            return (
                f"it keeps the whole model, {format_bytes(size)}, in one memory, and "
                f"'{device.name}' has {format_bytes(device.memory_bytes)}"
            )
    return None


def _name_of(placement: Placement, placements: dict[str, Placement]) -> str:
    return next((name for name, one in placements.items() if is_same(one, placement)), "")


def _even_split(problem: Problem) -> Placement | None:
    placer = make_placer("even-split")
    return placer.place(problem, Evaluator(problem), np.random.default_rng(0)).placement
