"""Clusters and problems: derived matrices, constraints, and the faults they name."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from support.small_problems import PAIR, diamond, graph_of, problem

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, MaxLoad, Placeto, Subgraph
from placewright.core.grouping import Grouping
from placewright.core.op_patterns import op_named
from placewright.errors import (
    ClusterError,
    CostError,
    FieldError,
    GraphError,
    InputError,
    UnknownNameError,
)

GROUP = replace(PAIR, devices=(replace(PAIR.devices[0], replicas=2), PAIR.devices[1]))


def test_matrices_cover_devices_and_host() -> None:
    assert PAIR.endpoint_index == {"cpu:0": 0, "cpu:1": 1, "host": 2}
    assert PAIR.link_latency[0].tolist() == [0, 1e-4, np.inf]
    assert PAIR.link_seconds_per_byte[1, 0] == 1e-9
    assert PAIR.link_channel.tolist() == [[-1, 0, -1], [0, -1, -1], [1, -1, -1]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Link("a", "b", bandwidth=-1), "bandwidth must be > 0"),
        (lambda: Link("a", "b", latency_seconds=-1), "latency must be >= 0"),
        (lambda: Device("a", streams=1.5), "streams must be whole, >= 1, got 1.5"),  # type: ignore[arg-type]
        (lambda: Device("a", streams=math.nan), "streams must be whole, >= 1, got nan"),  # type: ignore[arg-type]
        (lambda: Device("a", streams=0), "streams must be whole, >= 1"),
        (lambda: Device("a", replicas=0), "replicas must be whole, >= 1"),
        (lambda: Device("a", replica_bandwidth=0.0), "replica_bandwidth must be > 0"),
        (lambda: Cluster((Device("a", replicas=2),), host="a"), "'a' is the host and has replicas"),
        (
            lambda: problem([[1, 1]] * 4, cluster=GROUP),
            r"'cpu:0' stands for 2 devices.*not execution model 'event'",
        ),
        (lambda: Device("a", memory_bytes=float("nan")), "memory_bytes"),
        (lambda: Device("a", dispatch_seconds=np.inf), "dispatch_seconds must be finite"),
        (lambda: Cluster((Device("a"), Device("a"))), "'a' is used twice"),
        (lambda: Cluster((Device("a"),), (Link("a", "b"),)), "names 'b'"),
        (lambda: Cluster((Device("a"),), contention={"ram": (0.5,)}), "factors >= 1"),
        (lambda: Cluster((Device("a"),), contention={"ram": (1e7,)}), r"<= 1e\+06, got"),
    ],
)
def test_a_wrong_cluster_says_what_is_wrong(make: object, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        make()  # type: ignore[operator]


def test_an_op_without_a_device_is_named() -> None:
    with pytest.raises(CostError, match=r"op 'right' \(MatMul\) has no device: cpu:0, cpu:1"):
        problem([[1, 1], [1, 1], [np.inf, np.inf], [1, 1]])


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_a_wrong_cost_is_named(wrong: float) -> None:
    with pytest.raises(CostError, match="unit 1 on device 0"):
        CostTable(frozen_floats([[1, 1], [wrong, 1]]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"link": Link("cpu:0", "cpu:1", bandwidth=1e-310)}, "link cpu:0 -> cpu:1: transfers over"),
        ({"link": Link("cpu:0", "cpu:1", 1e308)}, r"with 1e\+308 s each take longer than"),
        ({"device": Device("cpu:0", dispatch_seconds=1e308)}, "'cpu:0': dispatch and cuts take"),
        ({"device": Device("cpu:0", cut_seconds_per_byte=1e308)}, "'cpu:0': dispatch and cuts"),
        ({"transfer_seconds": np.full(diamond().n_tensors, 1e308)}, "bytes or seconds of tensors"),
    ],
)
def test_what_takes_longer_than_a_number_can_hold_is_refused(
    change: dict[str, object], message: str
) -> None:
    """The simulator would take a unit that waits for ever for one that never runs."""
    device, link = change.pop("device", PAIR.devices[0]), change.pop("link", PAIR.links[0])
    cluster = replace(PAIR, devices=(device, PAIR.devices[1]), links=(link, *PAIR.links[1:]))
    with pytest.raises(CostError, match=message):
        problem([[1, 1]] * 4, cluster=cluster, **change)


def test_pins_and_support_limit_where_units_may_run() -> None:
    pinned = problem([[1, 1], [1, np.inf], [1, 1], [1, 1]], pins={3: 1})
    assert pinned.allowed.tolist() == [[True, True], [True, False], [True, True], [False, True]]


def test_two_pins_in_one_unit_are_refused() -> None:
    merged = problem([[1, 1]] * 4, pins={1: 0, 2: 1}).coarsened(Grouping.from_labels([0, 1, 1, 2]))
    with pytest.raises(InputError, match="the unit of op 'right' with 'left' moves"):
        merged.allowed  # noqa: B018


def test_a_coarsened_problem_is_a_problem_again() -> None:
    coarse = problem([[1, 10], [2, 20], [3, 30], [4, 40]]).coarsened(
        Grouping.from_labels([0, 1, 1, 2])
    )
    assert coarse.costs.seconds.tolist() == [[1, 10], [5, 50], [4, 40]]
    assert coarse.device_of_ops(np.array([0, 1, 0])).tolist() == [0, 1, 1, 0]


def test_unknown_names_list_what_is_known() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown device 'gpu'; .*available: cpu:0, cpu:1"):
        PAIR.device("gpu")
    with pytest.raises(GraphError, match="no op 'RIGH'; did you mean right"):
        op_named(diamond(), "RIGH")
    with pytest.raises(UnknownNameError, match="unknown objective 'speed'"):
        problem([[1, 1]] * 4, objective="speed")


@pytest.mark.parametrize("model", [EVENT, Subgraph(), Placeto()])
def test_throughput_is_valued_by_max_load_alone(model: object) -> None:
    seconds = [[1.0, 1.0]] * 4
    with pytest.raises(FieldError, match="does not value objective throughput; give MaxLoad"):
        problem(seconds, objective="throughput", execution_model=model)
    loads = problem(seconds, objective="throughput", execution_model=MaxLoad())
    with pytest.raises(FieldError, match="latency is not valued by max-load; give throughput"):
        replace(loads, objective="latency")
    other = loads.under(model)  # type: ignore[arg-type]
    assert (other.objective, other.execution_model) == ("latency", model)
    assert other.under(MaxLoad()).objective == "throughput"


def test_a_training_step_may_be_valued_by_time_or_by_load() -> None:
    step = problem([[1.0, 1.0]] * 4, objective="training")
    assert step.under(MaxLoad()).objective == "training"
    assert step.under(MaxLoad()).under(EVENT).objective == "training"


def test_units_of_another_graph_are_refused() -> None:
    """Kernels would look for their tensors outside of arrays."""
    made = problem([[1, 1]] * 4)
    with pytest.raises(CostError, match="units are of 4 ops, the graph has 5"):
        replace(made, graph=graph_of(5, []))


def test_what_a_caller_changes_later_changes_no_problem() -> None:
    pins, limits, own = {3: 0}, {"latency": 1.0}, np.ones(diamond().n_tensors)
    made = problem([[1, 1]] * 4, pins=pins, limits=limits, transfer_seconds=own)
    pins[3], limits["latency"] = 1, 2.0
    own *= 10.0
    assert made.pins == {3: 0}
    assert made.limits == {"latency": 1.0}
    assert made.transfer_seconds is not None
    assert made.transfer_seconds.max() == 1.0


def test_what_a_caller_changes_later_changes_no_cluster() -> None:
    pools, contention = {"ram": 8.0}, {"bus": (1.0, 2.0)}
    device = Device("a", pool="ram", memory_domain="bus")
    cluster = Cluster((device,), contention=contention, pools=pools)
    pools["ram"], contention["bus"] = 4.0, (1.0, 3.0)
    assert cluster.pools == {"ram": 8.0}
    assert cluster.contention == {"bus": (1.0, 2.0)}


def test_streams_of_a_group_may_exceed_all_integers() -> None:
    cluster = Cluster((Device("a", streams=2**63 - 1, replicas=2),))
    assert cluster.concurrency.tolist() == [2.0**64]
