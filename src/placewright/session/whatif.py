"""What a plan would do with some ops elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from placewright.core.op_patterns import by_op
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.solution import Solution
from placewright.errors import InfeasibleError
from placewright.session.search import plan_of
from placewright.simulation.model import Simulator
from placewright.simulation.stream.play import Stream
from placewright.simulation.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Simulated:
    """What a plan is predicted to do.

    Attributes:
        plan: after the changes.
        before: value of the plan without them, in the problem's time unit.
        simulator: of the problem, for further questions.
    """

    plan: Plan
    before: float
    simulator: Simulator

    @property
    def timeline(self) -> Timeline:
        """When everything runs under the event model.

        Raises:
            InputError: the problem has another execution model.
        """
        return self.simulator.timeline(self.plan.placement)

    def stream(self, samples: int, in_flight: int | None = None) -> Stream:
        """Samples that follow each other; None in flight are as many as pay.

        Raises:
            InputError: a number is below 1.
        """
        return self.simulator.stream(self.plan.placement, samples=samples, in_flight=in_flight)


def simulated(plan: Plan, changes: Mapping[str, str]) -> Simulated:
    """As `changed`, with the value before."""
    found, simulator = changed(plan, changes)
    return Simulated(found, plan.value, simulator)


def changed(plan: Plan, changes: Mapping[str, str]) -> tuple[Plan, Simulator]:
    """The plan after moving ops (with their units) to other devices, and what simulates it.

    Args:
        plan: stays as it is.
        changes: op name, or pattern of names -> device name; later patterns win, and names over
            all. Empty simulates the plan itself.

    Raises:
        GraphError, UnknownNameError: there is no such op or device.
        InfeasibleError: the changed placement breaks a constraint; the message says which one.
    """
    problem = plan.problem
    device_of = plan.placement.device_of.copy()
    for op, device in by_op(problem.graph, changes).items():
        device_of[problem.units.group_of[op]] = problem.cluster.device(device)
    placement = Placement.of(device_of, plan.placement.order)
    simulator = Simulator(problem)
    violation = simulator.violation(placement)
    if violation is not None:
        raise InfeasibleError(violation.message)
    if changes:
        value = simulator.value(placement)
        solution = Solution(placement, value, "feasible", plan.lower_bound)
        plan = replace(plan_of(problem, solution, plan.placer, plan.runtime), measured=None)
    return plan, simulator
