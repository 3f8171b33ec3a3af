"""From evaluated times to rewards and returns.

Times are divided by the problem's own reference time, so that the published learning rates mean the
same for a model of one millisecond and for one of ten seconds. The papers measured in seconds, at a
scale of about one.
"""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem

# An infeasible placement counts as this many reference times ("a large failing time").
FAILING_TIMES = 10.0


def reference_value(problem: Problem) -> float:
    """The sum of all units' costs, each on its fastest device (inf-free and > 0)."""
    fastest = problem.costs.seconds.min(axis=1)
    return float(max(fastest.sum(), np.finfo(np.float64).tiny))


def relative_times(values: FloatArray, reference: float) -> FloatArray:
    """Values / reference, infeasible ones at the failing time; never above it, shape unchanged."""
    times: FloatArray = np.minimum(np.asarray(values) / reference, FAILING_TIMES)
    return times


def negative_root(times: FloatArray) -> FloatArray:
    """-sqrt(time): the reward of Mirhoseini et al. 2017 and 2018."""
    reward: FloatArray = -np.sqrt(times)
    return reward


def discounted(rewards: FloatArray, discount: float) -> FloatArray:
    """Return at each step: r_t + discount * r_{t+1} + ..., shape (n_steps, ...) unchanged."""
    returns = np.array(rewards, dtype=np.float64)
    for step in range(len(returns) - 2, -1, -1):
        returns[step] += discount * returns[step + 1]
    return returns


def released_hsdag_return(rewards: FloatArray, discount: float) -> float:
    """The one number by which HSDAG's code scales every step: sum of r_{T-1-i} * discount^i."""
    return float(np.sum(rewards[::-1] * discount ** np.arange(len(rewards))))
