"""Execution model `placeto` against answers that the authors' own simulator computed.

``released_placeto_simulator.npz`` was made by running
github.com/aravic/generalizable-device-placement at commit d9a81a9f6cb05bfc94773722a4e7ead793ca7fd1
(``tf_sim.py`` and ``tf_pl_simulator.py``) on 150 graphs and placements drawn at random, with ops
that take no time, empty tensors, several outputs and many events at one instant.
``make_released_placeto_simulator.py`` beside the file makes it again and lists its columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from simulation.published_oracles import PlacetoReference

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.execution_models import Placeto
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator

FILE = Path(__file__).parents[1] / "data" / "released_placeto_simulator.npz"
DEVICES = 3
Arrays = dict[str, NDArray[np.float64]]


@pytest.fixture(scope="module")
def theirs() -> Arrays:
    with np.load(FILE) as arrays:
        return {name: arrays[name] for name in arrays.files}


def graphs_of(arrays: Arrays) -> Iterator[tuple[Problem, Placement, int]]:
    """Each graph as a problem with its placement; the row of its first op."""
    first = 0
    for graph in range(int(arrays["ops"][-1, 0]) + 1):
        ops, outputs, reads = (
            rows[rows[:, 0] == graph, 1:].tolist()
            for rows in (arrays["ops"], arrays["outputs"], arrays["reads"])
        )
        builder = GraphBuilder()
        made: list[list[int]] = []  # tensors of each op
        for op in range(len(ops)):
            inputs = [made[maker][output] for reader, maker, output in reads if reader == op]
            builder.add_op(f"op{op}", "Op", inputs=inputs)
            sizes = [size for maker, size in outputs if maker == op]
            made.append([builder.add_tensor(op, float(size)) for size in sizes])
        micros, device_of = np.array(ops).T
        seconds = np.repeat(micros[:, None] / 1e6, DEVICES, axis=1)
        problem = Problem.of_ops(
            builder.build(),
            Cluster(tuple(Device(f"gpu:{device}") for device in range(DEVICES)), ()),
            CostTable(frozen_floats(seconds)),
        ).under(Placeto())
        yield problem, Placement.of(device_of), first
        first += len(ops)


def test_runtimes_start_times_and_peaks_are_theirs(theirs: Arrays) -> None:
    for graph, (problem, placement, first) in enumerate(graphs_of(theirs)):
        simulator = Simulator(problem)
        value, peaks = simulator.value_and_peaks(placement)
        starts = simulator.explain(placement).starts
        assert starts is not None
        expected = theirs["start"][first : first + problem.n_units]
        assert value == theirs["runtime"][graph] / 1e6
        assert starts.tolist() == (expected / 1e6).tolist()
        assert peaks.tolist() == theirs["peaks"][graph].tolist()


def test_the_plain_reference_is_theirs_too(theirs: Arrays) -> None:
    for graph, (problem, placement, _) in enumerate(graphs_of(theirs)):
        reference = PlacetoReference(problem, placement)
        assert reference.value() == pytest.approx(theirs["runtime"][graph] / 1e6, rel=1e-12)
        peaks = [reference.peak(device) for device in range(DEVICES)]
        assert peaks == theirs["peaks"][graph].tolist()
