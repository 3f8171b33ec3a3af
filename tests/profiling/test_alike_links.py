"""Links between cores of one kind: one latency, so that noise does not tell the cores apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices
from placewright.profiling import discover
from placewright.profiling.discover import same_between_alike

CORES = tuple(
    Device(f"cpu:{at}", memory_domain="cpu", fingerprint="a core", options={"core": str(at)})
    for at in range(3)
)
GPU = Device("gpu", "gpu", fingerprint="a gpu")


def link(source: str, destination: str, latency: float) -> Link:
    return Link(source, destination, latency, bandwidth=1e9)


def latencies(links: list[Link]) -> dict[tuple[str, str], float]:
    return {(one.source, one.destination): one.latency_seconds for one in links}


def test_cores_of_one_kind_get_the_median() -> None:
    measured = [
        link("cpu:0", "cpu:1", 5.0),
        link("cpu:1", "cpu:0", 4.0),
        link("cpu:0", "cpu:2", 9.0),
        link("gpu", "cpu:0", 20.0),
        link("gpu", "cpu:1", 30.0),
        link("gpu", "cpu:2", 70.0),
        link("cpu:0", "gpu", 11.0),
    ]
    found = latencies(same_between_alike(measured, (*CORES, GPU)))
    between = {found[pair] for pair in found if "gpu" not in pair}
    assert between == {5.0}
    assert {found["gpu", f"cpu:{at}"] for at in range(3)} == {30.0}
    assert found["cpu:0", "gpu"] == 11.0
    again = same_between_alike(measured, (*CORES, GPU))
    assert [one.bandwidth for one in again] == [1e9] * 7


def test_cores_of_two_kinds_and_what_has_no_fingerprint_keep_their_own() -> None:
    slow = replace(CORES[1], fingerprint="another core")
    bare = replace(CORES[2], fingerprint="")
    measured = [
        link("cpu:0", "cpu:1", 5.0),
        link("cpu:1", "cpu:0", 4.0),
        link("cpu:0", "cpu:2", 9.0),
        link("cpu:1", "cpu:2", 8.0),
    ]
    assert same_between_alike(measured, (CORES[0], slow, bare)) == measured


def test_cores_whose_measured_wake_ups_differ_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measurement has noise of its own; the cores may take turns all the same."""
    noise = iter(np.random.default_rng(0).uniform(1e-5, 2e-5, 100).tolist())
    monkeypatch.setattr(discover, "wake_seconds", lambda *_, **__: next(noise))
    monkeypatch.setattr(discover, "_copy", lambda *_: (0.0, float("inf")))
    links = discover.measure_links(CORES, None)  # type: ignore[arg-type]
    builder = GraphBuilder()
    builder.add_op("only", "Op")
    problem = Problem(
        builder.build(),
        Cluster(CORES, tuple(links)),
        CostTable(np.ones((1, 3))),
        Grouping.identity(1),
        objective="throughput",
        execution_model=MaxLoad(),
    )
    assert alike_devices(problem).n_groups == 1
