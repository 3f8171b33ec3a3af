"""The commands ``place`` and ``run`` on every format under every runtime, and the plan they write.

The reference is NumPy by hand (`own_order.models.by_hand`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runner import InProcess
from own_order.models import CASES, INPUTS, OUTPUTS, SHAPE, WRITERS, by_hand, values
from own_order.plans import own_order

import placewright as pw


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize(("file", "runtime"), CASES)
def test_place_run_and_the_plan(file: str, runtime: str, tmp_path: Path, cli: InProcess) -> None:
    path = tmp_path / file
    shape = SHAPE
    if runtime == "torch":
        shape = (64, 64)
        _write_products(path)
    else:
        WRITERS[file](path)
    words = ("--devices", "cpu:0,cpu:1", "--runtime", runtime, "--quick", "--no-check")
    placed = cli("place", path, *words, "--placer", "round-robin", cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    done = cli("run", "plan.json", "--searched", "--runs", 1, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["equal"] is True
    assert told["relative_error"] < 1e-5
    plan = pw.read_plan(tmp_path / "plan.json", searched=True)
    assert len(np.unique(plan.placement.device_of)) == 2, "the plan is split"
    given = values(shape=shape)
    right = by_hand(**given)
    inputs, outputs = own_order(path, runtime)
    in_a_row: list[Any] = pw.run(plan, [given[name] for name in inputs])
    for name, found in zip(outputs, in_a_row, strict=True):
        np.testing.assert_allclose(found, right[name], rtol=1e-5, atol=1e-4)
    named = pw.run(plan, {name: given[name] for name in reversed(INPUTS)})
    bare = {name.partition(":")[0]: found for name, found in named.items()}
    assert sorted(bare) == sorted(OUTPUTS)
    for name, found in bare.items():
        np.testing.assert_allclose(found, right[name], rtol=1e-5, atol=1e-4)


def _write_products(path: Path) -> None:
    """One unit of PyTorch's is at least one product, so that a smaller model cannot be split."""
    import torch
    from own_order.modules import InProducts

    a, b, c = (torch.from_numpy(value) for value in values(1, (64, 64)).values())
    torch.export.save(torch.export.export(InProducts(64), (a, b), {"c": c}), path)
