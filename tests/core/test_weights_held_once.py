"""Weights of devices that are threads of one process: where they count, and when they do not."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats, frozen_ints
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.files.cluster_file import read_cluster, write_cluster
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator


def _towers(pool: float, *, once: bool) -> Problem:
    """Ops a and b read a weight of 30 bytes, c one of 5 and what both make, 1 byte each."""
    builder = GraphBuilder()
    shared = builder.add_weight(30.0)
    ends = [
        builder.add_tensor(builder.add_op(name, "Op", weights=[shared]), 1.0) for name in ("a", "b")
    ]
    builder.add_op("c", "Op", inputs=ends, weights=[builder.add_weight(5.0)])
    devices = (Device("core0", pool="ram"), Device("core1", pool="ram"))
    links = tuple(Link(x, y) for x, y in itertools.permutations(("core0", "core1"), 2))
    cluster = Cluster(devices, links, "core0", pools={"ram": pool}, shares_weights=once)
    costs = CostTable(frozen_floats(np.ones((3, 2))))
    return Problem(builder.build(), cluster, costs, Grouping.identity(3))


def test_a_weight_counts_once_on_the_device_of_its_first_op() -> None:
    """a, c on core0, b on core1: 30 + 5 + both inputs of c; core1 has only the output of b."""
    placement = Placement.of([0, 1, 0])
    once = Simulator(_towers(40.0, once=True))
    assert once.value(placement) == 2.0
    assert once.memory_peaks(placement).tolist() == [37.0, 1.0]
    assert Simulator(_towers(40.0, once=False)).memory_peaks(placement).tolist() == [37.0, 31.0]
    violation = Simulator(_towers(40.0, once=False)).violation(placement)
    assert violation is not None
    assert (violation.constraint, violation.where, violation.excess) == ("memory", "ram", 28.0)


@pytest.mark.parametrize("labels", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_number_of_a_unit_does_not_matter(labels: tuple[int, ...]) -> None:
    """The op decides, so that a coarser or renumbered problem has the same peaks."""
    problem = _towers(40.0, once=True).coarsened(Grouping(frozen_ints(labels)))
    device_of = np.empty(3, dtype=np.int64)
    device_of[list(labels)] = [0, 1, 0]
    assert Simulator(problem).memory_peaks(Placement.of(device_of)).tolist() == [37.0, 1.0]


def test_a_search_uses_both_devices_if_the_weight_is_held_once() -> None:
    """2 s on both; 3 s on one, since copies of 30 bytes do not fit into 40."""
    for once, value in ((True, 2.0), (False, 3.0)):
        evaluator = Evaluator(_towers(40.0, once=once), Budget(evaluations=50))
        placer = make_placer("local-search")
        assert placer.place(evaluator.problem, evaluator, np.random.default_rng(0)).value == value


def test_training_and_replicas_have_copies_of_their_own() -> None:
    once = _towers(40.0, once=True)
    training = replace(once, objective="training")
    assert math.isinf(Simulator(training).value(Placement.of([0, 1, 0])))
    core0, core1 = once.cluster.devices
    twice = replace(once.cluster, devices=(core0, replace(core1, replicas=2)))
    under = once.under(MaxLoad(samples_in_flight=0))
    assert under.kept.of_units.row(1).tolist() == []
    assert replace(under, cluster=twice).kept.of_units.row(1).tolist() == [0]


def test_a_cluster_file_keeps_it(tmp_path: Path) -> None:
    for once in (True, False):
        write_cluster(tmp_path / "c.yaml", _towers(40.0, once=once).cluster)
        assert read_cluster(tmp_path / "c.yaml").shares_weights == once
        assert ("shares_weights" in (tmp_path / "c.yaml").read_text()) == once
