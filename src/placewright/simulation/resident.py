"""Bytes that stay in a device's memory, whatever runs: weights, a shared one once."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem


def resident_bytes(problem: Problem, label: IntArray) -> FloatArray:
    """Bytes of the distinct weights of each label's units, shape (n_labels,).

    Args:
        problem: whose units carry weights.
        label: of each unit, 0, 1, ..., shape (n_units,).
    """
    weights, sizes = problem.unit_graph.op_weights, problem.unit_graph.weight_bytes
    n_weights = max(1, len(sizes))
    keys = np.unique(label[weights.row_of_each()] * n_weights + weights.indices)
    total = np.bincount(keys // n_weights, sizes[keys % n_weights], int(label.max()) + 1)
    return np.asarray(total, dtype=np.float64)
