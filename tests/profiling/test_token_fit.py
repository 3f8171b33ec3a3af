"""Rates from seconds of probes: those that made the seconds come back."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.core.data_sheet import TokenRates
from placewright.errors import ClusterError
from placewright.profiling.token_costs import (
    ROWS,
    ProbePair,
    dense_table,
    expert_table,
    launch_seconds,
    score_table,
)

LAUNCH, PER_PASS, SHARE = 2e-6, 3e-4, 0.25
DENSE, EXPERTS = (8e6, 3e6), (4e6, 9e6)  # operations of a layer: dense, of experts


def rate(rows: float, scale: float = 1.0) -> float:
    """Seconds per operation, on a straight line of logarithms."""
    return scale * 2e-10 * rows**-0.25


def seconds(layers: int, kernels: int, operations: tuple[float, float], scale: float) -> dict:
    found = {}
    for rows in ROWS:
        touched = 1 - (1 - SHARE) ** rows
        of_expert = max(1.0, rows * SHARE / touched)
        layer = kernels * LAUNCH + operations[0] * rows * rate(rows, scale)
        layer += operations[1] * rows * rate(of_expert, 3 * scale)
        found[rows] = PER_PASS + layers * layer
    return found


def pair(operations: tuple[float, float], kernels: int = 16, scale: float = 1.0) -> ProbePair:
    both = tuple(seconds(layers, kernels, operations, scale) for layers in (1, 3))
    return ProbePair((1, 3), (both[0], both[1]), operations, kernels, SHARE)


def test_rates_come_back() -> None:
    tiny = pair((1e-3, 0.0))
    launch = launch_seconds(tiny)
    assert launch == pytest.approx(LAUNCH)
    assert tiny.fixed(1) == pytest.approx(PER_PASS)
    dense = dense_table(pair((8e6, 0.0)), launch)
    assert dense == pytest.approx([rate(rows) for rows in ROWS])
    experts = expert_table(pair(EXPERTS, kernels=24), launch, dense)
    measured_to = ROWS[-1] * SHARE  # tokens of an expert; beyond, the last rate holds
    expected = [rate(min(rows, measured_to), 3.0) for rows in ROWS]
    assert experts == pytest.approx(expected, rel=0.02)  # lines between measured rows


def test_scores_are_the_difference_of_depths() -> None:
    depth, per_pair = 512, 4096.0
    shallow = pair((8e6, 0.0))
    extra = {1: 4e-10, 64: 1e-10}
    deep = ProbePair(
        (1, 3),
        tuple(  # type: ignore[arg-type]
            {r: shallow.seconds[at][r] + n * r * depth * per_pair * extra[r] for r in extra}
            for at, n in enumerate((1, 3))
        ),
        shallow.operations,
        16,
    )
    table = score_table(shallow, deep, depth, per_pair, [1e-10] * len(ROWS))
    assert table[0] == pytest.approx(4e-10)
    assert table[ROWS.index(64)] == table[-1] == pytest.approx(1e-10)
    assert table[ROWS.index(4)] == pytest.approx(4e-10 * 0.25 ** (1 / 3))


@pytest.mark.parametrize("seed", range(20))
def test_noise_leaves_positive_rates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    noisy = [{rows: float(rng.exponential(1e-3)) for rows in ROWS} for _ in range(2)]
    both = ProbePair((1, 3), (noisy[0], noisy[1]), EXPERTS, 24, SHARE)
    launch = launch_seconds(both)
    dense = dense_table(both, launch)
    assert min(dense) > 0
    assert min(expert_table(both, launch, dense)) > 0
    assert min(score_table(both, both, 512, 1.0, dense)) > 0


def test_tables_are_read_between_rows_and_checked() -> None:
    rates = TokenRates((1.0, 16.0), {"q8_0": (4e-10, 1e-10)}, (1e-9, 1e-9), 0.0, 0.0, "here")
    assert rates.product("q8_0", 4, is_expert=False) == pytest.approx(2e-10)
    assert rates.product("q8_0", 400, is_expert=True) == 1e-10
    assert rates.product("f16", 0.5, is_expert=False) == 4e-10
    for rows, products in (
        ((1.0,), {}),
        ((2.0, 1.0), {"f16": (1e-9, 1e-9)}),
        ((1.0, 2.0), {"f16": (1e-9, 0.0)}),
        ((1.0,), {"f16": (1e-9, 1e-9)}),
    ):
        with pytest.raises(ClusterError, match="tokens: "):
            TokenRates(rows, products, (1e-9,) * len(rows), 0.0, 0.0, "here")  # fmt: skip
