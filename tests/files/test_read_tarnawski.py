"""Reading published workloads and splits of them."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.core.execution_models import EVENT, MaxLoad, Subgraph
from placewright.core.graph import BACKWARD
from placewright.errors import FileFormatError, GraphError, InputError, PlacewrightError
from placewright.files.tarnawski import read_workload
from placewright.placers.baselines.expert.placer import from_file

WORKLOADS = Path(
    os.environ.get("PLACEWRIGHT_WORKLOADS", Path(__file__).parents[3] / "shared" / "workloads")
)
THROUGHPUT = WORKLOADS / "tarnawski" / "throughput"

# Two forward nodes, one loss, one backward node that shares a colour with the first.
SMALL: dict[str, Any] = {
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "maxSizePerFPGA": 100,
    "nodes": [
        {"id": 7, "name": "conv1", "cpuLatency": 10, "fpgaLatency": 1, "size": 30, "colorClass": 5,
         "supportedOnFpga": 1, "isBackwardNode": 0},
        {"id": 3, "name": "g/fc_2", "cpuLatency": 20, "fpgaLatency": 2, "size": 40,
         "supportedOnFpga": False, "isBackwardNode": False},
        {"id": 9, "name": "conv1grad", "cpuLatency": 30, "fpgaLatency": 3, "size": 5,
         "colorClass": 5, "supportedOnFpga": True, "isBackwardNode": True},
    ],
    "edges": [
        {"sourceId": 7, "destId": 3, "cost": 0.5, "size": 64},
        {"sourceId": 7, "destId": 9, "cost": 0.5, "size": 64},
        {"sourceId": 3, "destId": 9, "cost": 0.25, "size": 32},
    ],
}  # fmt: skip


def written(folder: Path, document: object) -> Path:
    path = folder / "workload.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_small_workload_becomes_the_problem_that_its_file_says(tmp_path: Path) -> None:
    problem = read_workload(written(tmp_path, SMALL))
    graph, cluster = problem.graph, problem.cluster
    assert graph.op_names == ("7", "3", "9")
    assert graph.op_kinds == ("conv", "fc", "convgrad")
    assert graph.op_phases.tolist() == [0, 0, BACKWARD]
    assert graph.op_colocation.tolist() == [0, -1, 0]
    assert graph.op_weight_bytes.tolist() == [30, 40, 5]
    assert graph.tensor_bytes.tolist() == [64, 32]
    assert graph.tensor_consumers.row(0).tolist() == [1, 2]
    assert problem.transfer_seconds is not None
    assert problem.transfer_seconds.tolist() == [0.5, 0.25]
    assert cluster.device_names == ("acc:0", "acc:1", "cpu:0")
    assert cluster.memory_bytes.tolist() == [100, 100, np.inf]
    assert [device.pays_transfers for device in cluster.devices] == [True, True, False]
    assert problem.costs.seconds.tolist() == [[1, 1, 10], [np.inf, np.inf, 20], [3, 3, 30]]
    assert (problem.objective, problem.execution_model) == ("throughput", MaxLoad(0))
    assert problem.time_unit == "ms"


def test_latency_means_the_published_evaluator(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    assert read_workload(path, objective="latency").execution_model == Subgraph()
    chosen = read_workload(path, objective="latency", execution_model=EVENT)
    assert chosen.execution_model == EVENT


def test_an_objective_that_a_workload_lacks_is_refused(tmp_path: Path) -> None:
    for objective in ("energy", "price", "latncy"):
        with pytest.raises(InputError, match=r"objective|joules|price"):
            read_workload(written(tmp_path, SMALL), objective=objective)  # type: ignore[arg-type]


def test_an_accelerator_reaches_another_only_through_the_host(tmp_path: Path) -> None:
    cluster = read_workload(written(tmp_path, SMALL)).cluster
    rate = cluster.link_seconds_per_byte
    assert cluster.host == "cpu:0"
    assert np.isinf(rate[0, 1])
    assert rate[0, 2] == rate[2, 1] == 0


def test_edges_of_one_source_that_disagree_count_with_the_largest(tmp_path: Path) -> None:
    document = copy.deepcopy(SMALL)
    document["edges"][1]["cost"] = 0.75
    problem = read_workload(written(tmp_path, document))
    assert problem.transfer_seconds is not None
    assert problem.transfer_seconds.tolist() == [0.75, 0.25]


def _without(key: str) -> dict[str, Any]:
    return {name: value for name, value in SMALL.items() if name != key}


def _with(part: str, index: int, **values: Any) -> dict[str, Any]:
    document = copy.deepcopy(SMALL)
    document[part][index].update(values)
    return document


@pytest.mark.parametrize(
    ("document", "error", "names"),
    [
        ("{", FileFormatError, "not valid JSON"),
        ("[1]", FileFormatError, "JSON object"),
        (_without("maxFPGAs"), FileFormatError, "maxFPGAs"),
        (_without("edges"), FileFormatError, "edges"),
        (_with("nodes", 0, cpuLatency="fast"), FileFormatError, "node 7"),
        (_with("nodes", 0, fpgaLatency=-1), FileFormatError, "node 7"),
        (_with("nodes", 1, id=7), GraphError, "id 7"),
        (_with("nodes", 0, supportedOnFpga="false"), FileFormatError, "node 7 must be true or"),
        (_with("nodes", 2, isBackwardNode="no"), FileFormatError, "node 9 must be true or"),
        (_with("nodes", 1, id=[7]), FileFormatError, "'id'"),
        (_with("nodes", 1, colorClass=[7]), FileFormatError, "colorClass"),
        (_with("edges", 0, destId=[3]), GraphError, "names no node"),
        (_with("edges", 0, destId=77), GraphError, "7 -> 77"),
        (_with("edges", 0, cost=float("nan")), FileFormatError, "7 -> 3"),
        (_with("edges", 2, sourceId=9, destId=7), GraphError, "cycle: '7'"),
        (_with("edges", 2, sourceId=9, destId=9), GraphError, "cycle: '9'"),
        ({**SMALL, "nodes": []}, GraphError, "7 -> 3"),
        ({**SMALL, "nodes": [], "edges": []}, GraphError, "no ops"),
        ({**SMALL, "nodes": {}}, FileFormatError, "nodes"),
        ({**SMALL, "maxFPGAs": 1.5}, FileFormatError, "whole number"),
        ({**SMALL, "maxCPUs": 10**12}, FileFormatError, "up to 1000"),
        ({**SMALL, "maxFPGAs": 600, "maxCPUs": 600}, FileFormatError, "more than 1000 devices"),
        ({**SMALL, "maxFPGAs": 0, "maxCPUs": 0}, FileFormatError, "neither"),
    ],
)
def test_bad_workloads_are_refused_in_one_line(
    tmp_path: Path, document: object, error: type[PlacewrightError], names: str
) -> None:
    with pytest.raises(error, match=names) as caught:
        read_workload(written(tmp_path, document))
    assert "\n" not in str(caught.value)


def test_a_missing_workload_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json"):
        read_workload(tmp_path / "nowhere.json")


def test_a_split_gives_unnamed_nodes_the_device_of_their_colour(tmp_path: Path) -> None:
    problem = read_workload(written(tmp_path, SMALL))
    split = tmp_path / "split.json"
    split.write_text(
        json.dumps({"fpgas": [{"nodes": []}, {"nodes": [7]}], "cpus": [{"nodes": [3]}]})
    )
    assert from_file(str(split), problem).tolist() == [1, 2, 1]


@pytest.mark.skipif(not THROUGHPUT.is_dir(), reason=f"published workloads are not at {WORKLOADS}")
@pytest.mark.parametrize(
    ("name", "n_ops", "n_edges", "n_devices", "on_one_accelerator"),
    [  # nodes and sums as papers.md and the files themselves count them
        ("LayerGraphs/bert24_inference", 32, 55, 7, 92.41),
        ("LayerGraphs/inceptionv3_training", 652, 726, 7, 710.74),
        ("LayerGraphs/gnmt_training", 192, 244, 7, 520.45),
        ("OperatorGraphs/bert_l-3_training", 600, 817, 4, 122.99),
        ("OperatorGraphs/bert_L-12_training", 2012, 2751, 7, 1891.74),
    ],
)
def test_published_workloads(
    name: str, n_ops: int, n_edges: int, n_devices: int, on_one_accelerator: float
) -> None:
    problem = read_workload(THROUGHPUT / f"{name}.json")
    assert problem.graph.n_ops == n_ops
    assert problem.graph.n_edges == n_edges
    assert problem.cluster.n_devices == n_devices
    seconds = problem.costs.seconds
    supported = np.isfinite(seconds[:, 0])
    assert seconds[supported, 0].sum() == pytest.approx(on_one_accelerator, abs=0.005)


@pytest.mark.skipif(not THROUGHPUT.is_dir(), reason=f"published workloads are not at {WORKLOADS}")
def test_published_expert_split_is_complete() -> None:
    problem = read_workload(THROUGHPUT / "LayerGraphs" / "gnmt_training.json")
    split = WORKLOADS / "tarnawski" / "experts" / "gnmt_training_expert.json"
    device_of = from_file(str(split), problem)
    classes = problem.graph.op_colocation
    for colour in np.unique(classes[classes >= 0]):
        assert len(np.unique(device_of[classes == colour])) == 1
