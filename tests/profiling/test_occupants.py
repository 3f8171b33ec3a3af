"""Whom copies occupy, found from placements that the simulator plays under a known rule."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.core.arrays import FloatArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import OCCUPIES, Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.execution.placements import placement_segments
from placewright.profiling.evidence import (
    LEAST_PLACEMENTS,
    NOTHING,
    Evidence,
    Trial,
    clear_rule,
    drawn_placement,
    fitted,
    found_rule,
    with_rule,
)
from placewright.profiling.machine_costs import keep_calibration, known_calibration
from placewright.profiling.segment_fit import (
    SegmentRow,
    copies_of,
    occupied_seconds,
    segment_rows,
)
from placewright.profiling.store import CostStore
from placewright.simulation.model import Simulator

PLACEMENTS = 8


def net(bandwidth: float, latency: float = 20e-6) -> Problem:
    """Forty ops of about a millisecond, four side by side, on two devices."""
    builder, rng = GraphBuilder(), np.random.default_rng(5)
    before = [builder.add_input(1e6)] * 4
    for number in range(40):
        read = dict.fromkeys([before[number % 4], before[int(rng.integers(4))]])
        made = builder.add_op(f"op{number}", "Op", inputs=list(read))
        size = float(rng.integers(1, 9)) * 2.5e5
        before[number % 4] = builder.add_tensor(made, size, is_output=number > 35)
    names = ("a", "b", "host")
    links = [Link(x, y, latency, bandwidth) for x in names for y in names if x != y]
    devices = tuple(Device(name, dispatch_seconds=30e-6, fingerprint="core") for name in names[:2])
    seconds = rng.uniform(0.5e-3, 1.5e-3, 40)
    costs = CostTable(frozen_floats(np.stack([seconds, seconds], axis=1)), "measured")
    return Problem.of_ops(builder.build(), Cluster(devices, tuple(links)), costs)


def measured(
    problem: Problem, rule: str, noise: float, seed: int
) -> tuple[list[SegmentRow], dict[int, Placement], FloatArray]:
    """Rows, placements and seconds that a machine with this rule would give."""
    rng = np.random.default_rng(seed)
    real = Simulator(replace(problem, cluster=with_rule(problem.cluster, rule)))
    rows, placements, seconds = [], {}, []
    for number in range(PLACEMENTS):
        placement = Placement.of(drawn_placement(problem, rng, number))
        timeline = real.timeline(placement)
        segments = placement_segments(problem, Placement(placement.device_of, timeline.order))
        spans = np.array([
            [min(timeline.start[list(s.ops)]), max(timeline.end[list(s.ops)])] for s in segments
        ])  # fmt: skip
        rounds = spans * rng.normal(1.0, noise, (9, 1, 1))
        made = segment_rows(problem, segments, placement.device_of, rounds)
        rows += [replace(row, trial=number) for row in made]
        placements[number] = placement
        seconds.append(timeline.value * rng.normal(1.0, noise))
    return rows, placements, np.array(seconds)


@pytest.mark.parametrize("rule", OCCUPIES)
def test_the_rule_of_a_machine_is_found_in_its_noise(rule: str) -> None:
    """Rounds and whole requests scatter by 1 %."""
    problem = net(1.5e9)
    bare = replace(problem, cluster=problem.cluster.without_overheads)
    rows, placements, seconds = measured(problem, rule, 0.01, 1)
    assert found_rule(bare, rows, [], placements, seconds) == rule


def test_nothing_is_told_of_copies_that_take_no_time_or_of_few_placements() -> None:
    free = net(math.inf, 0.0)
    bare = replace(free, cluster=free.cluster.without_overheads)
    rows, placements, seconds = measured(free, "nobody", 0.02, 1)
    assert found_rule(bare, rows, [], placements, seconds) is None
    few = dict(list(placements.items())[: LEAST_PLACEMENTS - 1])
    assert found_rule(bare, rows, [], few, seconds[: len(few)]) is None


def test_another_rule_replaces_nobody_only_if_it_is_clearly_better() -> None:
    """By a quarter of the error, by a hundredth of the seconds, and beyond the scatter."""
    rng = np.random.default_rng(0)
    usual = 0.1 + 0.01 * rng.random(8)
    assert clear_rule({rule: usual for rule in OCCUPIES}) is None
    by_rule = {rule: usual for rule in OCCUPIES}
    assert clear_rule(by_rule | {"sender": 0.9 * usual}) is None
    assert clear_rule(by_rule | {"sender": 0.5 * usual}) == "sender"
    assert clear_rule({rule: 0.05 * each for rule, each in by_rule.items()}
                      | {"sender": 0.01 * usual}) is None  # fmt: skip
    scattered = np.array([0.0, 0.3, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0])
    assert clear_rule(by_rule | {"sender": scattered}) is None
    # Two rules that predict alike: the first of the list, whichever is a little closer.
    both = {"receiver": 0.5 * usual, "sender": 0.48 * usual}
    assert clear_rule(by_rule | both) == "receiver"
    assert clear_rule({rule: 2 * usual for rule in OCCUPIES} | {"nobody": usual}) == "nobody"


def test_a_copy_belongs_to_the_first_reader_and_to_its_maker() -> None:
    """A tensor that two segments of a device read arrives there once."""
    builder = GraphBuilder()
    given = builder.add_input(8)
    made = builder.add_tensor(builder.add_op("maker", "Op", inputs=[given]), 100)
    own = builder.add_tensor(builder.add_op("first", "Op", inputs=[made]), 10)
    back = builder.add_tensor(builder.add_op("back", "Op", inputs=[own]), 10)
    builder.add_tensor(builder.add_op("second", "Op", inputs=[made, back]), 4, is_output=True)
    costs = CostTable(frozen_floats(np.ones((4, 2))), "given")
    names = ("a", "b", "host")
    links = tuple(Link(x, y, 1.0, 100.0) for x in names for y in names if x != y)
    cluster = Cluster((Device("a"), Device("b")), links)
    problem = Problem.of_ops(builder.build(), cluster, costs)
    segments = placement_segments(problem, Placement.of(np.array([0, 1, 0, 1])))
    received, sent = copies_of(problem, segments)
    assert received[:, 0].tolist() == [[0, 0], [1, 100], [0, 0], [1, 10]]
    assert sent[:, 1].tolist() == [[1, 100], [0, 0], [1, 10], [0, 0]]
    row = SegmentRow(1, 1, 1.0, np.zeros(5), 1.0, received=received[1], sent=sent[1])
    assert occupied_seconds(with_rule(cluster, "receiver"), row) == 1.0 + 100 / 100
    assert occupied_seconds(with_rule(cluster, "sender"), row) == 1.0 + 10 / 100
    assert occupied_seconds(cluster, row) == 0.0


def test_a_rule_that_a_file_gives_stays_and_hosts_and_channels_have_none() -> None:
    devices = (Device("a"), Device("b"), Device("wide", streams=2))
    links = (
        Link("a", "b", occupies="nobody"),
        Link("b", "a"),
        Link("a", "wide"),
        Link("wide", "a", channel="bus"),
        Link("host", "a"),
    )
    found = with_rule(Cluster(devices, links), "receiver").links
    assert [link.occupies for link in found] == ["nobody", "receiver", None, None, None]
    found = with_rule(Cluster(devices, links), "sender").links
    assert [link.occupies for link in found] == ["nobody", "sender", "sender", None, None]


def test_the_machine_says_it_for_a_model_with_few_placements() -> None:
    """A model's own eight placements decide, and fewer leave it to the small model."""
    problem = net(1.5e9)
    rows, placements, seconds = measured(problem, "receiver", 0.0, 1)
    machine = Evidence(tuple(rows), model_seconds=0.04, occupies="receiver")
    machine = Evidence.of_text(machine.text())
    trials = [
        Trial(tuple(p.device_of.tolist()), float(s))
        for p, s in zip(placements.values(), seconds, strict=True)
    ]
    quick, _ = fitted(problem, NOTHING, [], machine)
    assert quick.cluster.occupied.any()
    whole, _ = fitted(problem, Evidence(tuple(rows), model_seconds=0.04), trials, machine)
    assert not whole.cluster.occupied.any()
    found, outcomes = fitted(problem, replace(machine, rows=tuple(rows)), trials, None)
    assert max(abs(o.predicted / o.seconds - 1) for o in outcomes) < 0.01
    assert found.cluster.devices[0].dispatch_seconds == pytest.approx(30e-6, rel=0.05)


def test_a_stored_rule_comes_back_and_an_earlier_fit_has_none(tmp_path: Path) -> None:
    problem = replace(net(1.5e9), source=ModelSource("m.onnx", "openvino", "0" * 64))
    store = CostStore(tmp_path / "costs.sqlite")
    ruled = replace(problem, cluster=with_rule(problem.cluster, "sender"))
    keep_calibration(ruled, store, "v")
    known = known_calibration(problem, store, "v")
    assert known is not None
    assert known.problem.cluster.links == ruled.cluster.links
    (key,) = [row for row in store._use(lambda c: c.execute("SELECT key FROM facts").fetchall())]
    earlier = json.loads(store.fact(key[0]) or "")
    del earlier["occupies"]
    store.put_fact(key[0], json.dumps(earlier))
    known = known_calibration(problem, store, "v")
    assert known is not None
    assert known.problem.cluster.links == problem.cluster.links
