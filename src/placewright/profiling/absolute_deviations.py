"""Non-negative weights that explain measured seconds, by the sum of absolute deviations."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from placewright.core.arrays import FloatArray

_REWEIGHTINGS = 20
_SMALLEST_RESIDUAL = 2e-6  # seconds; timers resolve no less


def non_negative_fit(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """Non-negative least absolute deviations, by iteratively reweighted least squares.

    Absolute deviations, because a few segments that the system disturbed, or a few very large
    tensors, must not decide what an ordinary cut costs.
    """
    length = np.linalg.norm(matrix, axis=0)
    length[length == 0] = 1.0
    scaled = matrix / length
    weights = np.ones(len(target))
    found = np.zeros(matrix.shape[1])
    for _ in range(_REWEIGHTINGS):
        root = np.sqrt(weights)
        found, _ = nnls(scaled * root[:, None], target * root)
        weights = 1.0 / np.maximum(np.abs(scaled @ found - target), _SMALLEST_RESIDUAL)
    return np.asarray(found / length, dtype=np.float64)
