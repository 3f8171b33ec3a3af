"""Splits that the benchmark of decoders draws."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.decoders import random_split
from benchmarks.memory import whole_model_bytes
from placewright.errors import InfeasibleError
from placewright.session.problems import constrained
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem


def test_a_random_split_is_contiguous_and_fits_where_the_whole_does_not() -> None:
    whole = random_problem(np.random.default_rng(3), n_ops=30, n_devices=2, constrained=False)
    names = whole.cluster.device_names
    size = whole_model_bytes(whole)
    limited = constrained(whole, dict.fromkeys(names, 0.8 * size), {})
    order = limited.unit_graph.topological_order
    found = [random_split(limited, np.random.default_rng(seed)) for seed in range(5)]
    for split in found:
        assert Simulator(limited).violation(split) is None
        assert 1 <= np.count_nonzero(np.diff(split.device_of[order])) < 8
    assert len({tuple(split.device_of.tolist()) for split in found}) > 1
    tight = constrained(whole, dict.fromkeys(names, 0.01 * size), {})
    with pytest.raises(InfeasibleError, match="random splits keeps the limits"):
        random_split(tight, np.random.default_rng(0))
