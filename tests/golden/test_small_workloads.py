"""Own small workloads: values of given splits under every published evaluator, by hand.

`small_workload.json`: 10 feeds 11 and 13; 11 feeds 12; 13 feeds 14; 12 and 14 feed 15; 15 feeds
16. Seconds on an accelerator 3, 5, 4, 6, (14 is not supported), 2, 3; on the CPU 12, 20, 16, 24, 7,
8, 12; a node's output takes 1, 2, 0.5, 1, 0.5, 1.5 (16 has none); sizes 1, 2, 2, 2, 1, 1, 2.

- expert: 10 11 12 | 13 15 16 | 14 on the CPU.
- greedy: depth first, last pushed first, is 10 13 14 11 12 15 16, and 6 bytes fit: 10 13 11 | 12 15
  16 | 14 on the CPU.

`small_training.json`: forward 1 2 3 of 2, 3, 8 s; backward 4 5 6 of 6, 5, 3 s; ten times that on
the CPU. 1 and 6, 2 and 5, 3 and 4 sit together. Outputs of 1 to 5 take 1, 0.5, 0.25, 2, 1.5.

- expert: 1 2 (5 6) | 3 (4); its file names the forward nodes only.
- greedy: classes that need each other are one block, here all of them: 9 bytes, so the CPU.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.execution_models import MaxLoad
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.files.model_names import model_of
from placewright.files.tarnawski import read_workload
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

INFERENCE = Path(__file__).parent / "small_workload.json"
TRAINING = Path(__file__).parent / "small_training.json"
SPLITS = {
    INFERENCE: {"fpgas": [[10, 11, 12], [13, 15, 16]], "cpus": [[14]]},
    TRAINING: {"fpgas": [[1, 2], [3]], "cpus": [[]]},
}
OP = 5.7e-6  # for which an op keeps its device busy after its end


def max_load(path: Path) -> Problem:
    return read_workload(path)


def two_maxima(path: Path) -> Problem:
    return replace(read_workload(path), execution_model=MaxLoad(0, split_phases=True))


def latency(path: Path, model: str, q: int = 1) -> Problem:
    return read_workload(
        path, objective="latency", execution_model=model_of(model, per_accelerator=q)
    )


def solved(problem: Problem, name: str, folder: Path, path: Path) -> Solution:
    settings = {"single": {"device": "cpu:0"}, "greedy": {}}.get(name)
    if settings is None:
        file = folder / "split.json"
        shares = {kind: [{"nodes": nodes} for nodes in rows] for kind, rows in SPLITS[path].items()}
        file.write_text(json.dumps(shares))
        settings = {"file": str(file)}
    return make_placer(name, settings).place(problem, Evaluator(problem), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 12 + 20 + 16 + 24 + 7 + 8 + 12
        ("single", 99.0),
        # first: 3 + 5 + 4, sends 10 and 12: 1 + 0.5 = 13.5
        # second: 6 + 2 + 3, receives 10, 12 and 14: 1 + 0.5 + 0.5, sends 13: 1 = 14; CPU 7
        ("expert", 14.0),
        # first: 3 + 6 + 5, sends 13 and 11: 1 + 2 = 17; second: 4 + 2 + 3 + 2 + 0.5 = 11.5
        ("greedy", 17.0),
    ],
)
def test_max_load_of_inference(name: str, expected: float, tmp_path: Path) -> None:
    assert solved(max_load(INFERENCE), name, tmp_path, INFERENCE).value == expected


@pytest.mark.parametrize(
    ("name", "load", "maxima"),
    [
        # 20 + 30 + 80 forward, 60 + 50 + 30 backward
        ("single", 270.0, 270.0),
        # first: forward 2 + 3, sends 2: 0.5 = 5.5; backward 5 + 3, receives 4: 2 = 10
        # second: forward 8 + 0.5 = 8.5; backward 6, sends 4: 2 = 8
        # larger load: max(15.5, 16.5); both maxima: max(5.5, 8.5) + max(10, 8)
        ("expert", 16.5, 18.5),
        ("greedy", 270.0, 270.0),
    ],
)
def test_max_load_of_training(name: str, load: float, maxima: float, tmp_path: Path) -> None:
    """Forward plus backward of a device, and ``diffmaxima``: the largest of each."""
    assert solved(max_load(TRAINING), name, tmp_path, TRAINING).value == load
    assert solved(two_maxima(TRAINING), name, tmp_path, TRAINING).value == maxima


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # every op on its own CPU: 12 + max(20 + 16, 24 + 7) + 8 + 12
        ("single", 68.0),
        # first: 3 + 5 + 4 + 1 + 0.5 = 13.5
        # 13 alone, as 14 is between it and 15: 13.5 + 1 + 6 + 1 = 21.5; 14 on the CPU: 28.5
        # 15 and 16: 28.5 + 0.5 + 0.5 + 2 + 3
        ("expert", 34.5),
        # first: 3 + 6 + 5 + 2 + 1 = 17; 14: 24; second: 24 + 2 + 0.5 + 4 + 2 + 3
        ("greedy", 35.5),
    ],
)
def test_latency_of_subgraphs(name: str, expected: float, tmp_path: Path) -> None:
    """The expert's second accelerator has two pieces, which q = 1 of the program forbids."""
    value = solved(latency(INFERENCE, "subgraph"), name, tmp_path, INFERENCE).value
    assert value == expected
    one = solved(latency(INFERENCE, "subgraph-ip"), name, tmp_path, INFERENCE).value
    assert one == (math.inf if name == "expert" else expected)
    two = solved(latency(INFERENCE, "subgraph-ip", 2), name, tmp_path, INFERENCE).value
    assert two == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("single", 99 + 7 * OP),
        # 10 ends at 3, 13 at 9, 14 at 16, 15 at 18, each on another device than the one before;
        # 16 waits for the device of 15 and ends at 21 + OP, its device at 21 + 2 OP
        ("expert", 21 + 2 * OP),
        # 11 and 13 are ready at one instant, 11 goes first: 10 ends at 3, 11 at 8 + OP, 13 at
        # 14 + 2 OP, 14 on the CPU at 21 + 2 OP, 15 at 23 + 2 OP, 16 at 26 + 3 OP
        ("greedy", 26 + 4 * OP),
    ],
)
def test_placeto(name: str, expected: float, tmp_path: Path) -> None:
    """First in, first out on each device; empty tensors arrive at once."""
    problem = latency(INFERENCE, "placeto")
    assert problem.graph.tensor_bytes.tolist() == [0.0] * 6
    found = solved(problem, name, tmp_path, INFERENCE)
    assert found.value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("path", "n_bytes", "value"), [(INFERENCE, 11, 30.0), (TRAINING, 9, 27.0)])
def test_a_single_accelerator(path: Path, n_bytes: int, value: float) -> None:
    """All on one accelerator: too large; without a limit and with 14 supported, 3+5+4+6+7+2+3."""
    problem = max_load(path)
    on_first = np.zeros(problem.n_units, dtype=np.int64)
    evaluator = Evaluator(problem)
    assert evaluator.evaluate(on_first) == math.inf
    devices = tuple(replace(d, memory_bytes=n_bytes) for d in problem.cluster.devices)
    seconds = np.where(np.isfinite(problem.costs.seconds), problem.costs.seconds, 7.0)
    roomy = replace(
        problem,
        cluster=replace(problem.cluster, devices=devices),
        costs=replace(problem.costs, seconds=frozen_floats(seconds)),
    )
    assert Evaluator(roomy).evaluate(on_first) == value
    assert Simulator(roomy).loads(on_first)[0].max() == value
