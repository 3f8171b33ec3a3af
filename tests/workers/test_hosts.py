"""Devices of the hosts of a Ray cluster, listed and measured where they are."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placewright as pw
from placewright.errors import (
    AnswerError,
    FieldError,
    InputError,
    PlacewrightError,
    UnknownNameError,
)
from placewright.report.time_left import no_report
from placewright.session.hosts import _Hosts, discover_on_hosts, profile_on_hosts
from placewright.session.request import request_of
from placewright.workers.ray_workers import (
    RayHost,
    RayNode,
    answers,
    hosts_of,
    measuring_actors,
    nodes_of,
)

MODEL = str(Path(__file__).parents[1] / "data" / "plans" / "branching.onnx")
QUICK = {"runtime": "onnxruntime", "quick": True, "calibrate": False}


def test_a_host_measures_what_a_local_profile_measures(ray_here: Any) -> None:
    """The same units, devices, constraints; the times are those of the same store."""
    (host,) = hosts_of(nodes_of(ray_here), "")
    cluster = discover_on_hosts(f"{host.name}:cpu:0", "auto", runtime="onnxruntime")
    assert cluster.device_names == (f"{host.name}:cpu:0",)
    here = pw.profile(MODEL, devices="cpu:0", **QUICK)
    name = f"{host.name}:cpu:0"
    there = pw.profile(MODEL, devices=name, ray="auto", memory={name: "1GiB"}, **QUICK)
    assert there.units.group_of.tolist() == here.units.group_of.tolist()
    assert there.costs.source == "measured on several hosts"
    assert np.isfinite(there.costs.seconds).all()
    assert there.cluster.devices[0].memory_bytes == 2**30
    plan = pw.place(there, placer="single", evaluations=2)
    assert plan.problem.cluster.device_names == (name,)
    with pytest.raises(InputError, match="measures on this machine, but the costs are"):
        pw.place(there, evaluator="measured", evaluations=2)
    with pytest.raises(InputError, match="its costs are 'measured on several hosts'"):
        pw.run(plan)


def test_what_a_host_cannot_do_is_one_line_that_names_it(ray_here: Any, tmp_path: Path) -> None:
    (host,) = hosts_of(nodes_of(ray_here), "")
    with pytest.raises(UnknownNameError, match=f"{host.name}:cpu:99.*{host.name}:cpu"):
        discover_on_hosts(f"{host.name}:cpu:99", "auto", runtime="onnxruntime")
    with pytest.raises(InputError, match=f"host '{host.name}': model '/.*' does not exist"):
        profile_on_hosts(request_of(str(tmp_path / "m.onnx"), {"ray": "auto", **QUICK}))
    with pytest.raises(PlacewrightError, match="a model that is a file"):
        pw.profile(pw.read(MODEL, runtime="onnxruntime"), ray="auto", **QUICK)


def test_calls_of_several_shapes_are_refused_before_hosts_are_sought() -> None:
    """Ways between hosts were as long as for one shape, and the calls were not checked."""
    request = request_of(MODEL, {"ray": "auto", "calls": [(1, {}), (2, {"x": (2, 4)})], **QUICK})
    with pytest.raises(FieldError, match="calls: have a mean on one machine only"):
        profile_on_hosts(request)


def test_nodes_of_one_machine_measure_one_after_the_other(ray_here: Any) -> None:
    def _span(seconds: float) -> tuple[float, float]:  # of no module: it travels whole
        began = time.time()
        time.sleep(seconds)
        return began, time.time()

    (node,) = nodes_of(ray_here)
    half = RayNode(node.identity, node.host, 1.0)
    hosts = hosts_of([half, half], node.identity)
    assert [host.name for host in hosts] == [node.host, f"{node.host}-2"]
    arguments = {host.name: (0.3,) for host in hosts}
    with measuring_actors(ray_here, hosts) as actors:
        found = answers(ray_here, actors, hosts, _span, arguments)
    (_, end), (begin, _) = (answer.value for answer in found.values())
    assert begin >= end


def test_a_lost_host_is_told_and_the_others_are_kept(ray_here: Any) -> None:
    def _ends(at_once: bool) -> str:
        if at_once:
            os._exit(1)
        return "done"

    (node,) = nodes_of(ray_here)
    half = RayNode(node.identity, node.host, 1.0)
    hosts = [RayHost("one", "one", half), RayHost("other", "other", half)]
    with measuring_actors(ray_here, hosts) as actors:
        arguments = {"one": (True,), "other": (False,)}
        found = answers(ray_here, actors, hosts, _ends, arguments)
    assert found["one"].is_lost
    assert found["other"].value == "done"


def test_a_host_that_is_lost_after_its_measurement_is_left_out(ray_here: Any) -> None:
    """Before the ways to it were measured; the exception of Ray ended the command."""
    (node,) = nodes_of(ray_here)
    half = RayNode(node.identity, node.host, 1.0)
    hosts = [RayHost("one", "one", half), RayHost("other", "other", half)]
    with measuring_actors(ray_here, hosts) as actors:
        opened = _Hosts(ray_here, hosts, actors)
        ray_here.kill(actors["other"])
        assert opened.ways(["one", "other"], no_report) == ({}, ["one"])
        ray_here.kill(actors["one"])
        with pytest.raises(AnswerError, match="all hosts of the cluster were lost"):
            opened.ways(["one", "other"], no_report)


def test_no_two_nodes_have_one_name() -> None:
    machines = ["a", "a", "a-2", "b", "a"]
    nodes = [RayNode(str(at), name, 1.0) for at, name in enumerate(machines)]
    hosts = hosts_of(nodes, "0")
    assert [host.machine for host in hosts] == ["a", "a", "a", "a-2", "b"]
    assert [host.name for host in hosts] == ["a", "a-3", "a-4", "a-2", "b"]
