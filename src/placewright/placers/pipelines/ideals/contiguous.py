"""Shared by `ideal-dp`, `dpl`, `pipedream`: the check of a problem, splits to placements."""

from __future__ import annotations

from placewright.core.arrays import IntArray
from placewright.core.execution_models import MaxLoad, splits_phases
from placewright.core.problem import Problem
from placewright.placers.pipelines.ideals.enumeration import chain
from placewright.placers.pipelines.ideals.items import Items, has_backward_to_forward_edge
from placewright.placers.pipelines.ideals.link_levels import why_not_levelled
from placewright.placers.pipelines.ideals.load_model import LoadModel
from placewright.placers.pipelines.ideals.orders import depth_first_order
from placewright.placers.pipelines.ideals.program import ContiguousProgram, Pools
from placewright.placers.pipelines.ideals.transfers import why_not_separable
from placewright.simulation.evaluator import Evaluator


def why_not_contiguous(problem: Problem) -> str | None:
    """None when the best contiguous split is defined and computable, else the reason."""
    return _why_not_in_order(problem) or why_not_separable(problem)


def why_not_contiguous_in_groups(problem: Problem) -> str | None:
    """As `why_not_contiguous`, for programs that also take links of two levels."""
    return _why_not_in_order(problem) or why_not_levelled(problem)


def _why_not_in_order(problem: Problem) -> str | None:
    if not isinstance(problem.execution_model, MaxLoad):
        return (
            f"it minimises max-load, not '{problem.execution_model.name}'; use objective throughput"
        )
    if splits_phases(problem.execution_model):
        return "its value is one maximum, not max forward + max backward; use maxload-ip"
    if has_backward_to_forward_edge(problem):
        return "a forward op reads a backward op's output, so the forward graph has no ideals"
    return None


def linear_program(model: LoadModel, items: Items, pools: Pools | None = None) -> ContiguousProgram:
    """The best contiguous split of one linear order of the items, solved."""
    order = depth_first_order(items.successors)
    program = ContiguousProgram(model, chain(order), pools=pools)
    program.run()
    return program


def evaluate_split(program: ContiguousProgram, items: Items, evaluator: Evaluator) -> float:
    """Ask the evaluator for the value of the split that a program found."""
    return evaluator.evaluate(device_of_units(program.devices(), items))


def device_of_units(device_of_items: IntArray, items: Items) -> IntArray:
    """Devices of items -> devices of units."""
    return items.grouping.expand(device_of_items)
