"""Copies of one weight that several segments of a device pack, against the limits of a plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats, frozen_ints
from placewright.core.cluster import Cluster
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.frameworks.registry import make_runtime
from placewright.profiling.discover import discover
from placewright.session.plans import limits_that_copies_exceed, plan_of
from placewright.session.problems import constrained

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

WIDTH = 128
SIZE = 4.0 * WIDTH * WIDTH  # bytes of the weight; x and all results have a 128th of that each


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> ComputationGraph:
    """Three products with one weight, one after the other."""
    from placewright.frameworks.onnxruntime.reader import read_onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weight = onnx.numpy_helper.from_array(np.ones((WIDTH, WIDTH), np.float32), "w")
    nodes = [helper.make_node("MatMul", [f"v{at}", "w"], [f"v{at + 1}"]) for at in range(3)]
    ends = [[helper.make_tensor_value_info(name, kind, [1, WIDTH])] for name in ("v0", "v3")]
    graph = helper.make_graph(nodes, "g", *ends, [weight])
    path: Path = tmp_path_factory.mktemp("model") / "products.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return read_onnx(path)[0]


def cores(weights: str) -> Cluster:
    """Two cores of this machine."""
    return discover("cpu:0,cpu:1", make_runtime("onnxruntime"), options={"weights": weights})


def plan_with(graph: ComputationGraph, cluster: Cluster, limits: dict[str, float]) -> Plan:
    """Core 0 computes the first and the third product, core 1 the second."""
    costs = CostTable(frozen_floats(np.ones((graph.n_ops, 2))))
    problem = constrained(Problem.of_ops(graph, cluster, costs), limits, {})
    solution = Solution(Placement(frozen_ints([0, 1, 0])), 3.0, "feasible", 0.0)
    return plan_of(problem, solution, PlacerRecord("single", "1", 0, 1, 0.0), "onnxruntime")


@pytest.mark.parametrize(
    ("limits", "exceeded"),
    [
        ({}, []),
        ({"cpu:0": 2.5 * SIZE}, []),
        ({"cpu:0": 1.5 * SIZE}, ["cpu:0"]),
        ({"cpu:1": 1.5 * SIZE}, []),
        ({"ram": 2.5 * SIZE}, ["ram"]),
        ({"ram": 3.5 * SIZE}, []),
        ({"ram": 2.5 * SIZE, "cpu:0": 1.5 * SIZE}, ["cpu:0", "ram"]),
    ],
)
def test_limits_that_hold_for_one_copy_per_device_only(
    products: ComputationGraph, limits: dict[str, float], exceeded: list[str]
) -> None:
    """Core 0 packs the weight twice and core 1 once; memory counts one for each."""
    plan = plan_with(products, cores("packed"), limits)
    assert sum(plan.memory.values()) < 2.5 * SIZE
    told = limits_that_copies_exceed(plan)
    assert [text.split("'")[1] for text in told] == exceeded


def test_nobody_packs_shared_weights(products: ComputationGraph) -> None:
    """There is one copy, which counts once for both cores."""
    plan = plan_with(products, cores("shared"), {"ram": 1.5 * SIZE})
    assert sum(plan.memory.values()) < 1.5 * SIZE
    assert limits_that_copies_exceed(plan) == []
