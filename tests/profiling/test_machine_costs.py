"""Overheads of placements of two models, what is kept of a machine, and what costs by default."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.segment_rows import segments

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.profiling import machine_costs
from placewright.profiling.calibration import TrialPlan, with_default_costs
from placewright.profiling.evidence import (
    LEAST_TRIALS,
    NOTHING,
    PLACEMENTS,
    Evidence,
    Outcome,
    Trial,
    fitted,
)
from placewright.profiling.hardware import Deadline, Stopwatch
from placewright.profiling.machine_costs import (
    has_drifted,
    keep_machine_costs,
    known_machine_costs,
    machine_key,
)
from placewright.profiling.measure import Progress, Rounds
from placewright.profiling.segment_fit import SegmentRow, Wait
from placewright.profiling.store import CostStore
from placewright.session import devices
from placewright.session.devices import MachineCosts
from placewright.session.models import runtime_named
from placewright.simulation.model import Simulator

CLUSTER = Cluster(
    tuple(Device(name, memory_domain="cpu", fingerprint="core") for name in ("a", "b")),
    (Link("a", "b"), Link("b", "a")),
    host="a",
)


def pair() -> Problem:
    """Two ops of a millisecond side by side."""
    builder = GraphBuilder()
    given = builder.add_input(4)
    for name in ("left", "right"):
        builder.add_tensor(builder.add_op(name, "MatMul", inputs=[given]), 4, is_output=True)
    costs = CostTable(frozen_floats(np.full((2, 2), 1e-3)), "measured")
    return Problem.of_ops(builder.build(), CLUSTER, costs)


def rows_of(dispatch: float, seed: int, count: int = 40) -> tuple[SegmentRow, ...]:
    """Segments of one device at a time that cost nothing but dispatch beside their units."""
    rng = np.random.default_rng(seed)
    counts = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    own = 1e-3 * (0.5 + rng.random(count))
    return tuple(SegmentRow(at % 2, 1, x, counts, x + dispatch) for at, x in enumerate(own))


MACHINE = Evidence(rows_of(200e-6, 0), (), (Outcome(1.3e-3, 1.2e-3, 1.0e-3),), 2e-3)


def test_without_placements_of_its_own_a_model_has_the_costs_of_the_machine() -> None:
    """An outcome 100 us off a prediction that added 200 us to 1 ms: 0.1 / (0.2 + 0.05) = 0.4."""
    found, outcomes = fitted(pair(), NOTHING, (), MACHINE)
    assert found.cluster.devices[0].dispatch_seconds == pytest.approx(200e-6, rel=0.01)
    assert found.cluster.prediction_error == pytest.approx(0.4)
    assert outcomes == ()


def test_placements_of_the_model_count_more_the_more_there_are() -> None:
    """This model's segments cost 100 us, five to a placement as on the machine: five of eight
    outweigh the machine's three eighths, two do not."""
    for count, dispatch in ((2, 200e-6), (5, 100e-6), (PLACEMENTS, 100e-6)):
        own = Evidence(rows_of(100e-6, 1, 5 * count), model_seconds=2e-3)
        trials = [Trial((0, 1), 1.1e-3)] * count
        found, outcomes = fitted(pair(), own, trials, MACHINE)
        assert found.cluster.devices[0].dispatch_seconds == pytest.approx(dispatch, rel=0.02), count
        assert len(outcomes) == count


def test_its_own_outcomes_tell_how_far_predictions_are_off() -> None:
    """Four took 1.25 ms instead of the fit's 1.1: 0.15 / (0.1 + 0.05) is the error, whatever the
    machine's was."""
    own = Evidence(rows_of(100e-6, 1), model_seconds=2e-3)
    trials = [Trial((0, 1), 1.25e-3)] * 8
    found, outcomes = fitted(pair(), own, trials, MACHINE)
    value = Simulator(found).value(Placement.of(np.array([0, 1])))
    assert outcomes[0].predicted == value == pytest.approx(1.1e-3, rel=0.01)
    assert found.cluster.prediction_error == pytest.approx(1.0, rel=0.05)


def test_noise_of_few_rounds_is_no_error_of_a_prediction() -> None:
    """Eight trials are 5 us off a prediction of 1.1 ms, and each is known within 4 us: 3 us are the
    prediction's own. If they are known within 6 us, nothing is left but the least error."""
    assert Outcome(1.105e-3, 1.1e-3, 1.09e-3, 4e-6).error == pytest.approx(3e-6 / 64.5e-6)
    assert Outcome(1.105e-3, 1.1e-3, 1.09e-3, 6e-6).error == 0.0
    own = Evidence(rows_of(100e-6, 1), model_seconds=2e-3)
    errors = [
        fitted(pair(), own, [Trial((0, 1), 1.25e-3, noise)] * 8, None)[0].cluster.prediction_error
        for noise in (0.0, 9e-5, 2e-4)
    ]
    assert errors == pytest.approx([1.0, 0.8, 0.1], rel=0.06)


def test_what_is_kept_of_a_machine_comes_back_until_it_has_drifted(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    evidence = Evidence(
        tuple(segments(rng, 20, 1e-3, 1.2)), (Wait(0, 1, 3e-5),), MACHINE.outcomes, 5e-3
    )
    store, now = CostStore(tmp_path / "costs.sqlite"), (1.1, 1.4, 8e-6)
    key = machine_key(CLUSTER, "runtime", "1")
    assert known_machine_costs(store, key, lambda: now) is None
    keep_machine_costs(store, key, evidence, now)
    found = known_machine_costs(store, key, lambda: (1.2, 1.3, 9e-6))
    assert found is not None
    assert found.text() == evidence.text()
    assert known_machine_costs(store, key, lambda: (2.0, 1.4, 8e-6)) is None, (
        "cores share what they did not"
    )
    assert known_machine_costs(store, machine_key(CLUSTER, "runtime", "2"), lambda: now) is None


def test_other_cores_are_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_key(CLUSTER, "runtime", "1")
    monkeypatch.setattr(machine_costs.os, "sched_getaffinity", lambda _: {5}, raising=False)
    assert machine_key(CLUSTER, "runtime", "1") != before


def test_cores_elsewhere_on_a_processor_have_costs_of_their_own() -> None:
    """Cores of one kind may share a cache or have one each; both pairs took the same costs."""

    def on_cores(*cores: str) -> Cluster:
        named = zip(CLUSTER.devices, cores, strict=True)
        devices = tuple(replace(device, options={"core": core}) for device, core in named)
        return replace(CLUSTER, devices=devices)

    near = machine_key(on_cores("0", "1"), "runtime", "1")
    assert machine_key(on_cores("0", "40"), "runtime", "1") != near
    assert machine_key(on_cores("0", "1"), "runtime", "1") == near


def test_a_probe_that_saw_nothing_tells_nothing() -> None:
    assert not has_drifted((0.0, 0.0, 0.0), lambda: (1.0, 2.0, 1e-5))
    assert has_drifted((1.0, 1.0, 1e-6), lambda: (1.0, 1.0, 1e-5))


def test_one_odd_probe_is_no_drift() -> None:
    """Another process ran beside the first of the two."""
    probes = iter([(2.0, 1.0, 1e-6), (1.0, 1.0, 1e-6)])
    assert not has_drifted((1.0, 1.0, 1e-6), lambda: next(probes))


def test_a_probe_needs_two_cores() -> None:
    cores = [Device(f"cpu:{at}", options={"core": str(at)}) for at in range(2)]
    computing, copying, message = machine_costs.probe(cores)
    assert computing > 0
    assert copying > 0
    assert message > 0
    assert machine_costs.probe(cores[:1]) == (0.0, 0.0, 0.0)
    mode = Device("half", processors=("cpu:0",), options={"core": "0"})
    assert machine_costs.probe([cores[0], mode]) == (0.0, 0.0, 0.0)


def test_where_nothing_is_known_a_cut_costs_more_than_it_should() -> None:
    """The pair on both devices: 1 ms slowed by contention, dispatch, a tensor from elsewhere."""
    problem = with_default_costs(pair())
    value = Simulator(problem).value(Placement.of(np.array([0, 1])))
    assert value >= 1.5e-3 + 3e-4
    error = problem.cluster.prediction_error
    assert error is not None
    assert error >= 1.0


def test_the_cost_of_cuts_never_becomes_part_of_the_plain_problem() -> None:
    problem = with_default_costs(replace(pair(), cluster=CLUSTER))
    bare = problem.cluster.without_overheads
    assert bare.devices == CLUSTER.devices
    assert bare.contention == {}
    assert bare.prediction_error is None


def test_what_was_just_measured_is_what_later_calls_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds are not kept; the first call must not use them either."""
    rounds = np.array([1.3e-3, 1.1e-3, 1.2e-3])
    rows = tuple(replace(row, rounds=rounds) for row in MACHINE.rows)
    measured = replace(MACHINE, rows=rows)
    monkeypatch.setattr("placewright.session.devices.measure_machine", lambda *_, **__: measured)
    runtime, store = runtime_named("openvino"), CostStore(tmp_path / "costs.sqlite")
    first = MachineCosts(CLUSTER, runtime, store).measured()
    later = MachineCosts(CLUSTER, runtime, store).measured()
    assert first is not None
    assert later is not None
    clusters = [fitted(pair(), NOTHING, (), one)[0].cluster for one in (first, later)]
    assert clusters[0].devices == clusters[1].devices
    assert clusters[0].contention == clusters[1].contention


def test_no_round_of_the_small_model_starts_after_a_deadline(tmp_path: Path) -> None:
    """Its units had ten rounds or more on each device, whatever was left of the total."""
    over, seen = Deadline(0.0, Stopwatch(lambda: 1.0)), list[Progress]()
    costs = MachineCosts(CLUSTER, runtime_named("openvino"), CostStore(tmp_path / "costs.sqlite"))
    assert math.isnan(costs.start(seen.append, over))
    assert costs.measured(seen.append, over) is None
    assert not [at for at in seen if at.fraction > 0]
    costs.close()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_small_model_is_measured_split_over_two_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fewest placements, of few rounds; other tests take the record of `support.machine`."""
    monkeypatch.setattr(devices, "known_machine_costs", known_machine_costs)
    few = partial(TrialPlan, LEAST_TRIALS, Rounds(3, 3))
    monkeypatch.setattr(machine_costs, "TrialPlan", few)
    cluster, runtime = pw.discover("cpu:0,cpu:1"), runtime_named("openvino")
    store = CostStore(tmp_path / "costs.sqlite")
    costs = MachineCosts(cluster, runtime, store)
    assert costs.known is None
    found = costs.measured()
    assert found is not None
    assert len(found.outcomes) == LEAST_TRIALS
    assert min(row.seconds for row in found.rows) > 0
    assert {row.device for row in found.rows} == {0, 1}
    known = MachineCosts(cluster, runtime, store).known
    assert known is not None
    assert known.text() == found.text()
