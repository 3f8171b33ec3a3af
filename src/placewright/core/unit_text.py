"""Words for a unit: its costliest op, how many others it has, and its weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.quantities import format_bytes

_MOST_NAMED = 4  # ops of a unit in a message


@dataclass(frozen=True)
class LargestUnit:
    """The unit with the most weights; among equals the one with the most ops, then the first."""

    op: str  # name of its costliest op
    n_ops: int  # number of its ops
    weight_bytes: float  # of its weights, each counted once

    @property
    def text(self) -> str:
        """The unit in one line."""
        more = "1 op" if self.n_ops == 1 else f"{self.n_ops} ops"
        return (
            f"largest unit: {more} around '{self.op}' with {format_bytes(self.weight_bytes)} of "
            "weights"
        )


def unit_text(graph: ComputationGraph, units: Grouping, unit: int) -> str:
    """``op 'x'``, or ``the unit of op 'x' with 'a', 'b' and 7 more ops``."""
    ops = units.members.row(unit).tolist()
    chief = _costliest(graph, ops)
    others = [f"'{graph.op_names[op]}'" for op in ops if op != chief]
    if not others:
        return f"op '{graph.op_names[chief]}'"
    shown, more = others[:_MOST_NAMED], len(others) - _MOST_NAMED
    listed = ", ".join(shown) if len(shown) == 1 or more > 0 else _and(shown)
    rest = f" and {more} more op{'s' if more > 1 else ''}" if more > 0 else ""
    return f"the unit of op '{graph.op_names[chief]}' with {listed}{rest}"


def largest_unit(graph: ComputationGraph, units: Grouping) -> LargestUnit:
    """The largest unit of a graph."""
    weights = unit_weight_bytes(graph, units)
    sizes = np.bincount(units.group_of, minlength=units.n_groups)
    unit = int(np.lexsort((np.arange(units.n_groups), -sizes, -weights))[0])
    chief = _costliest(graph, units.members.row(unit).tolist())
    return LargestUnit(graph.op_names[chief], int(sizes[unit]), float(weights[unit]))


def unit_weight_bytes(graph: ComputationGraph, units: Grouping) -> FloatArray:
    """Bytes of the weights of each unit, each weight counted once in it, shape (n_units,)."""
    n_weights = max(1, len(graph.weight_bytes))
    rows = graph.op_weights
    pairs = np.unique(units.group_of[rows.row_of_each()] * n_weights + rows.indices)
    sizes = graph.weight_bytes[pairs % n_weights]
    sums = np.bincount(pairs // n_weights, sizes, minlength=units.n_groups)
    return sums.astype(np.float64)


def _costliest(graph: ComputationGraph, ops: list[int]) -> int:
    return min(ops, key=lambda op: (-float(graph.op_flops[op]), op))


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
