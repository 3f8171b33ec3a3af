"""The small model is the same in every framework: what splitting costs is compared between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.core.arrays import FloatArray
from placewright.execution.framework import ModelInMemory, ReadOptions
from placewright.execution.small_model import DEPTH, ImageTower, SmallModel
from placewright.frameworks.registry import framework_named, framework_names


def expected(inputs: list[FloatArray]) -> list[FloatArray]:
    """By NumPy: convolutions as sums over nine shifts."""
    model, results = SmallModel(), []
    for tower, x, branches in zip(model.towers, inputs, model.weights(), strict=True):
        ends = []
        for weights in branches:
            value = x
            for weight in weights:
                if isinstance(tower, ImageTower):
                    padded = np.pad(value, ((0, 0), (0, 0), (1, 1), (1, 1)))
                    value = sum(
                        np.einsum("oi,nihw->nohw", weight[:, :, i, j], shifted(padded, i, j))
                        for i in range(3)
                        for j in range(3)
                    )
                    low = np.pad(value, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
                    value = np.max([shifted(low, i, j) for i in range(3) for j in range(3)], axis=0)
                else:
                    product = np.exp(value @ weight - (value @ weight).max(1, keepdims=True))
                    value = product / product.sum(1, keepdims=True)
            ends.append(value)
        results.append(ends[0] + ends[1])
    return results


def shifted(padded: FloatArray, i: int, j: int) -> FloatArray:
    height, width = padded.shape[2] - 2, padded.shape[3] - 2
    return padded[:, :, i : i + height, j : j + width]


@pytest.mark.parametrize("name", framework_names())
def test_a_framework_makes_the_small_model(name: str, tmp_path: Path) -> None:
    framework = framework_named(name)
    found = framework.small_model(tmp_path)
    called = found.name if isinstance(found, ModelInMemory) else str(found)
    graph, source = framework.read(called, lambda _: found, ReadOptions())
    runtime = framework.runtime(lambda _: found)
    loaded = runtime.load(framework.runnable(source, lambda _: found), graph)
    towers = SmallModel().towers
    assert graph.n_ops >= len(towers) * (4 * DEPTH + 1)
    given = loaded.random_inputs(np.random.default_rng(0))
    assert [one.shape for one in given] == [tower.shape for tower in towers]
    device = next(one for one in runtime.discover() if one.name == "cpu:0")
    got = loaded.plain(device)(given)
    for mine, theirs in zip(expected(given), got, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-3, atol=1e-4 * np.abs(mine).max())
