"""A kept fit goes with its devices and its model, whatever else the cluster says."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
from profiling.synthetic import SOURCE, chain

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.profiling.machine_costs import (
    drop_calibration,
    keep_calibration,
    known_calibration,
)
from placewright.profiling.store import CostStore

DEVICES = tuple(
    Device(name, fingerprint="core", memory_domain="cpu", memory_bytes=1e9) for name in ("a", "b")
)
LINKS = (Link("a", "b", 1e-4, 1e9), Link("b", "a", 1e-4, 1e9))


def problem_on(cluster: Cluster, n_ops: int = 3) -> Problem:
    costs = CostTable(frozen_floats(np.ones((n_ops, 2))), "measured")
    return replace(Problem.of_ops(chain(n_ops), cluster, costs), source=SOURCE)


def calibrated_problem() -> Problem:
    devices = tuple(
        replace(d, dispatch_seconds=3e-5, layout_seconds=1e-5, speed_scatter=0.04) for d in DEVICES
    )
    links = tuple(replace(link, latency_seconds=2e-5) for link in LINKS)
    return problem_on(Cluster(devices, links, contention={"cpu": (1.0, 1.2)}))


def test_the_fit_comes_back(tmp_path: Path) -> None:
    before = calibrated_problem()
    keep_calibration(before, CostStore(tmp_path / "store"), "1")
    found = known_calibration(
        problem_on(Cluster(DEVICES, LINKS)), CostStore(tmp_path / "store"), "1"
    )
    assert found is not None
    assert found.problem.cluster.devices == before.cluster.devices
    assert found.problem.cluster.links == before.cluster.links
    assert found.problem.cluster.contention == before.cluster.contention


def test_a_fit_of_an_earlier_version_has_no_scatter(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "store")
    keep_calibration(calibrated_problem(), store, "1")
    kept = {}
    with sqlite3.connect(store.path) as connection:
        for key, value in connection.execute("SELECT key, value FROM facts").fetchall():
            kept = {k: v for k, v in json.loads(value).items() if k != "scatter"}
            connection.execute("UPDATE facts SET value = ? WHERE key = ?", (json.dumps(kept), key))
    assert set(kept) == {
        "devices",
        "latencies",
        "occupies",
        "contention",
        "prediction_error",
        "call_seconds",
        "probe",
        "left_out",
    }
    found = known_calibration(problem_on(Cluster(DEVICES, LINKS)), store, "1")
    assert found is not None
    assert [device.speed_scatter for device in found.problem.cluster.devices] == [None, None]
    assert found.problem.cluster.devices[0].dispatch_seconds == 3e-5


def test_what_a_file_says_of_memory_and_bandwidth_stays(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "store")
    keep_calibration(calibrated_problem(), store, "1")
    small = tuple(replace(device, memory_bytes=5.0) for device in DEVICES)
    narrow = tuple(replace(link, bandwidth=7.0, channel="bus") for link in LINKS)
    found = known_calibration(problem_on(Cluster(small, narrow)), store, "1")
    assert found is not None
    assert [device.memory_bytes for device in found.problem.cluster.devices] == [5.0, 5.0]
    assert [link.channel for link in found.problem.cluster.links] == ["bus", "bus"]
    assert [link.bandwidth for link in found.problem.cluster.links] == [7.0, 7.0]
    assert [link.latency_seconds for link in found.problem.cluster.links] == [2e-5, 2e-5]
    assert found.problem.cluster.devices[0].dispatch_seconds == 3e-5


def test_another_model_shape_or_version_has_none(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "store")
    keep_calibration(calibrated_problem(), store, "1")
    assert known_calibration(problem_on(Cluster(DEVICES, LINKS)), store, "2") is None
    assert known_calibration(problem_on(Cluster(DEVICES, LINKS), n_ops=4), store, "1") is None
    batch = replace(SOURCE, shapes={"x": (8, 4)})  # the same file, and as many units
    assert known_calibration(replace(calibrated_problem(), source=batch), store, "1") is None


def test_a_fit_of_other_cores_is_not_taken(tmp_path: Path) -> None:
    """They have one fingerprint, and may share no cache."""

    def on_cores(*cores: str) -> Problem:
        named = zip(DEVICES, cores, strict=True)
        devices = tuple(replace(device, options={"core": core}) for device, core in named)
        return problem_on(Cluster(devices, LINKS))

    store = CostStore(tmp_path / "store")
    keep_calibration(on_cores("0", "1"), store, "1")
    assert known_calibration(on_cores("0", "40"), store, "1") is None
    assert known_calibration(on_cores("0", "1"), store, "1") is not None


def test_a_fit_of_a_machine_that_has_drifted_is_measured_again(tmp_path: Path) -> None:
    store, before = CostStore(tmp_path / "store"), (1.0, 1.2, 1e-5)
    problem = problem_on(Cluster(DEVICES, LINKS))
    keep_calibration(calibrated_problem(), store, "1", before)
    assert known_calibration(problem, store, "1", lambda: (1.1, 1.2, 1e-5)) is not None
    assert known_calibration(problem, store, "1", lambda: (1.8, 1.2, 1e-5)) is None


def test_a_quick_fit_is_found_by_quick_requests_until_there_is_a_complete_one(
    tmp_path: Path,
) -> None:
    store, problem = CostStore(tmp_path / "store"), problem_on(Cluster(DEVICES, LINKS))
    quick = calibrated_problem()
    keep_calibration(quick, store, "1", left_out="calibration: 3 placements measured")
    assert known_calibration(problem, store, "1") is None
    found = known_calibration(problem, store, "1", is_quick=True)
    assert found is not None
    assert found.left_out == "calibration: 3 placements measured"
    assert found.problem.cluster.contention == quick.cluster.contention
    keep_calibration(
        replace(quick, cluster=replace(quick.cluster, contention={"cpu": (1.0, 1.5)})), store, "1"
    )
    found = known_calibration(problem, store, "1", is_quick=True)
    assert found is not None
    assert found.left_out == ""
    assert found.problem.cluster.contention == {"cpu": (1.0, 1.5)}


def test_a_complete_fit_that_has_drifted_hides_no_quick_one(tmp_path: Path) -> None:
    """Each quick request calibrated again, because the complete fit was the only one it read."""
    store, problem = CostStore(tmp_path / "store"), problem_on(Cluster(DEVICES, LINKS))
    quick, now = calibrated_problem(), (1.8, 1.2, 1e-5)
    keep_calibration(quick, store, "1", (1.0, 1.2, 1e-5))
    keep_calibration(quick, store, "1", now, left_out="quick")
    found = known_calibration(problem, store, "1", lambda: now, is_quick=True)
    assert found is not None
    assert found.left_out == "quick"
    assert known_calibration(problem, store, "1", lambda: now) is None
    other = (6.0, 1.2, 1e-5)  # neither holds
    assert known_calibration(problem, store, "1", lambda: other, is_quick=True) is None


def test_a_quick_fit_that_replaces_a_complete_one_is_taken(tmp_path: Path) -> None:
    store, problem = CostStore(tmp_path / "store"), problem_on(Cluster(DEVICES, LINKS))
    keep_calibration(calibrated_problem(), store, "1")
    fresh = CostStore(tmp_path / "store", is_fresh=True)
    drop_calibration(problem, fresh, "1")
    assert known_calibration(problem, store, "1", is_quick=True) is None
    keep_calibration(calibrated_problem(), fresh, "1", left_out="quick")
    found = known_calibration(problem, store, "1", is_quick=True)
    assert found is not None
    assert found.left_out == "quick"
    assert known_calibration(problem, store, "1") is None


def test_a_complete_fit_removes_the_quick_one(tmp_path: Path) -> None:
    """An earlier quick fit must not come back when the complete one no longer holds."""
    store, problem = CostStore(tmp_path / "store"), problem_on(Cluster(DEVICES, LINKS))
    keep_calibration(calibrated_problem(), store, "1", left_out="quick")
    keep_calibration(calibrated_problem(), store, "1", (1.0, 1.2, 1e-5))
    drifted = (1.8, 1.2, 1e-5)
    assert known_calibration(problem, store, "1", lambda: drifted, is_quick=True) is None


def test_a_rule_of_a_fit_is_left_out_where_a_link_cannot_have_it(tmp_path: Path) -> None:
    """Copies that wait for each other in a channel occupy no device."""
    before = calibrated_problem()
    links = tuple(replace(link, occupies="receiver") for link in before.cluster.links)
    known = replace(before, cluster=replace(before.cluster, links=links))
    keep_calibration(known, CostStore(tmp_path / "store"), "1")
    for channel, rule in ((None, "receiver"), ("bus", None)):
        own = tuple(replace(link, channel=channel) for link in LINKS)
        found = known_calibration(
            problem_on(Cluster(DEVICES, own)), CostStore(tmp_path / "store"), "1"
        )
        assert found is not None
        assert {link.occupies for link in found.problem.cluster.links} == {rule}
