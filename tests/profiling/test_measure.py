"""Measuring: the store answers a second call, an interrupted one resumes, equal devices are one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiling.synthetic import SOURCE, SyntheticModel, SyntheticRuntime, chain

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.errors import OutOfTime
from placewright.profiling import measure
from placewright.profiling.hardware import Deadline, Stopwatch
from placewright.profiling.measure import Effort, Ends, Progress
from placewright.profiling.profile import Measuring, last_measured, model_identity, profile
from placewright.profiling.store import CostStore

SECONDS = {"fast": [0.001, 0.002, 0.003], "slow": [0.010, math.inf, 0.030]}
FAST, SLOW = Device("a", fingerprint="fast"), Device("c", fingerprint="slow")
CLUSTER = Cluster((FAST, replace(FAST, name="b"), SLOW))
EFFORT = Effort(rounds=4, max_rounds=6)


_SCALE = measure._scale


@pytest.fixture(autouse=True)
def _unscaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel seconds are kept as they are: an idle model has no seconds to scale them to."""
    monkeypatch.setattr(measure, "_scale", lambda plain, kernels: 1.0)


def profiled(model: SyntheticModel, path: Path, **more: Any) -> Any:
    runtime = SyntheticRuntime(CLUSTER.devices)
    store = CostStore(path)
    measuring = Measuring(store, EFFORT, **more)
    return profile(model.graph, SOURCE, CLUSTER, runtime, model=model, measuring=measuring)  # type: ignore[arg-type]


def test_costs_of_every_unit_on_every_device(tmp_path: Path) -> None:
    model = SyntheticModel(chain(3), SECONDS)
    seen: list[Progress] = []
    problem = profiled(model, tmp_path / "store", progress=seen.append)
    expected = np.array([SECONDS["fast"], SECONDS["fast"], SECONDS["slow"]]).T
    np.testing.assert_array_equal(problem.costs.seconds, expected)
    assert "b" not in model.profiled  # equal devices are measured once
    assert seen[-1].fraction == 1.0
    assert {"a", "c"} == set(model.profiled)


def test_light_ops_are_not_joined_where_units_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OpByOp(SyntheticRuntime):
        def keeps_inner_tensors(self, devices: Sequence[Device]) -> bool:
            return False

    def refused(graph: ComputationGraph) -> Grouping:
        raise AssertionError("the units are given")

    monkeypatch.setattr("placewright.profiling.profile.light_ops_joined", refused)
    model, runtime = SyntheticModel(chain(3), SECONDS), OpByOp(CLUSTER.devices)
    measuring = Measuring(CostStore(tmp_path / "store"), EFFORT)
    units = Grouping.from_labels([0, 0, 1])
    problem = profile(
        model.graph, SOURCE, CLUSTER, runtime, model=model, measuring=measuring, units=units
    )  # type: ignore[arg-type]  # fmt: skip
    assert problem.n_units == 2


def test_devices_take_turns(tmp_path: Path) -> None:
    model = SyntheticModel(chain(3), SECONDS)
    profiled(model, tmp_path / "store")
    rounds = model.profiled[2:]  # after one warm-up each
    assert rounds[:6] == ["a", "c"] * 3


def test_a_second_call_measures_nothing(tmp_path: Path) -> None:
    first = SyntheticModel(chain(3), SECONDS)
    before = profiled(first, tmp_path / "store")
    second = SyntheticModel(chain(3), SECONDS)
    after = profiled(second, tmp_path / "store")
    assert second.profiled == []
    np.testing.assert_array_equal(before.costs.seconds, after.costs.seconds)


def test_another_fingerprint_measures_again(tmp_path: Path) -> None:
    profiled(SyntheticModel(chain(3), SECONDS), tmp_path / "store")
    model = SyntheticModel(chain(3), {**SECONDS, "new": [1.0, 1.0, 1.0]})
    cluster = Cluster((FAST, replace(SLOW, fingerprint="new")))
    profile(
        model.graph,
        SOURCE,
        cluster,
        SyntheticRuntime(cluster.devices),  # type: ignore[arg-type]
        measuring=Measuring(CostStore(tmp_path / "store"), EFFORT),
        model=model,  # type: ignore[arg-type]
    )
    assert set(model.profiled) == {"c"}


def test_another_model_with_equal_units_changes_nothing(tmp_path: Path) -> None:
    before = profiled(SyntheticModel(chain(3), SECONDS), tmp_path / "store")
    other = SyntheticModel(chain(4), {"fast": [9.0] * 4, "slow": [9.0] * 4})
    costs = profiled(other, tmp_path / "store").costs.seconds
    np.testing.assert_array_equal(costs, np.full((4, 3), 9.0))
    again = SyntheticModel(chain(3), SECONDS)
    after = profiled(again, tmp_path / "store")
    assert again.profiled == []
    np.testing.assert_array_equal(before.costs.seconds, after.costs.seconds)


def test_an_interrupted_measurement_resumes(tmp_path: Path) -> None:
    broken = SyntheticModel(chain(3), SECONDS, fail_after=5)
    with pytest.raises(KeyboardInterrupt):
        profiled(broken, tmp_path / "store")
    resumed = SyntheticModel(chain(3), SECONDS)
    profiled(resumed, tmp_path / "store")
    whole = SyntheticModel(chain(3), SECONDS)
    profiled(whole, tmp_path / "other")
    assert 0 < len(resumed.profiled) < len(whole.profiled)


@pytest.mark.parametrize(("runs", "opened"), [(0, 1), (1, 2)])
def test_devices_that_were_opened_are_closed_if_a_warm_up_fails(
    runs: int, opened: int, tmp_path: Path
) -> None:
    """The process kept the number of threads of the last one."""
    restored: list[int] = []

    class Changing(SyntheticModel):
        def restore_caller(self) -> None:
            restored.append(len(self.profiled))

    model = Changing(chain(3), SECONDS, fail_after=runs)
    with pytest.raises(KeyboardInterrupt):
        profiled(model, tmp_path / "store")
    assert restored == [runs] * opened


def test_equal_units_share_one_cost(tmp_path: Path) -> None:
    class Repeating(SyntheticModel):
        def unit_labels(self, units: Any) -> tuple[str, ...]:
            return ("block", "other", "block")

    model = Repeating(chain(3), {"fast": [0.001, 0.002, 0.003], "slow": [0.1, 0.2, 0.3]})
    costs = profiled(model, tmp_path / "store").costs.seconds
    np.testing.assert_allclose(costs[:, 0], [0.002, 0.002, 0.002])
    np.testing.assert_allclose(costs[:, 2], [0.2, 0.2, 0.2])


@pytest.mark.parametrize(("first", "runs"), [(0.004, 12), (0.03, 4), (1e-5, 52), (0.5, 1)])
def test_a_short_model_is_timed_behind_forty_milliseconds_of_its_own_runs(
    monkeypatch: pytest.MonkeyPatch, first: float, runs: int
) -> None:
    """Kernels of 1 ms and a plain model whose runs take less each time."""
    clock, done = [0.0], []
    seconds = [first / (1 + at) for at in range(60)]

    class Plain:
        def instance(self) -> Plain:
            return self

        def run(self, inputs: Any) -> list[Any]:
            clock[0] += seconds[len(done)]
            done.append(inputs)
            return []

    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])
    model: Any = SyntheticModel(chain(3), SECONDS)
    monkeypatch.setattr(model, "reference", lambda device: Plain())
    with closing(measure.PlainRuns(model, CLUSTER.devices[0])) as plain:
        assert _SCALE(plain, 0.001) == pytest.approx(seconds[runs - 1] / 0.001)
    assert len(done) == runs


class Ticking:
    """A clock that goes on by one with each look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_deadline_ends_measuring_and_leaves_samples_open(tmp_path: Path) -> None:
    model = SyntheticModel(chain(3), SECONDS)
    deadline = Deadline(10.0, Stopwatch(Ticking()))
    cut = profiled(model, tmp_path / "store", ends=Ends(deadline))
    assert np.isfinite(cut.costs.seconds[0]).all(), "each device ran once"
    again = SyntheticModel(chain(3), SECONDS)
    profiled(again, tmp_path / "store")
    whole = SyntheticModel(chain(3), SECONDS)
    profiled(whole, tmp_path / "other")
    assert 0 < len(model.profiled) < len(whole.profiled)
    assert 0 < len(again.profiled) < len(whole.profiled), "it went on where it had stopped"


def test_a_deadline_before_the_first_run_says_so(tmp_path: Path) -> None:
    model = SyntheticModel(chain(3), SECONDS)
    with pytest.raises(OutOfTime, match="the total ended before 'a' had run the model once"):
        profiled(model, tmp_path / "store", ends=Ends(Deadline(0.0, Stopwatch(Ticking()))))
    assert model.profiled == []


def test_what_is_ahead_is_said_once_after_the_first_rounds(tmp_path: Path) -> None:
    """Two rounds are told before it."""
    seen: list[Progress] = []
    profiled(SyntheticModel(chain(3), SECONDS), tmp_path / "store", progress=seen.append)
    ahead = [at.ahead for at in seen if at.ahead is not None]
    assert [one.devices for one in ahead] == [("a", "c")]
    assert ahead[0].n_units == 3
    assert ahead[0].scatter == pytest.approx(0.0)
    planned = next(number for number, at in enumerate(seen) if at.ahead is not None)
    assert len([at for at in seen[:planned] if at.fraction > 0]) == 2
    again: list[Progress] = []
    profiled(SyntheticModel(chain(3), SECONDS), tmp_path / "store", progress=again.append)
    assert not [at for at in again if at.ahead is not None], "nothing is measured"


def test_a_quick_measurement_is_finished_by_a_later_one(tmp_path: Path) -> None:
    def run(effort: Effort) -> int:
        model = SyntheticModel(chain(3), SECONDS)
        store = CostStore(tmp_path / "store")
        profile(
            model.graph, SOURCE, CLUSTER, SyntheticRuntime(CLUSTER.devices),
            measuring=Measuring(store, effort), model=model,
        )  # type: ignore[arg-type]  # fmt: skip
        return len(model.profiled)

    quick = run(measure.QUICK)
    assert 2 * 2 <= quick <= 2 * (1 + measure.QUICK.max_rounds)
    assert run(measure.QUICK) == 0, "what a quick call needs is stored"
    assert run(EFFORT) > 0, "and is not taken for all"
    assert run(EFFORT) == 0
    assert run(measure.QUICK) == 0


def test_a_quick_measurement_that_measures_again_replaces_complete_samples(tmp_path: Path) -> None:
    """The next quick request took the samples that `--remeasure` was to replace."""
    profiled(SyntheticModel(chain(3), SECONDS), tmp_path / "store")
    now = {"fast": [0.004, 0.005, 0.006], "slow": [0.020, math.inf, 0.040]}

    def quick(store: CostStore) -> Any:
        return profile(
            chain(3), SOURCE, CLUSTER, SyntheticRuntime(CLUSTER.devices),
            measuring=Measuring(store, measure.QUICK), model=SyntheticModel(chain(3), now),
        )  # type: ignore[arg-type]  # fmt: skip

    quick(CostStore(tmp_path / "store", is_fresh=True))
    found = quick(CostStore(tmp_path / "store"))
    np.testing.assert_array_equal(found.costs.seconds[:, 0], now["fast"])


def test_a_limit_leaves_devices_to_others_of_their_kind(tmp_path: Path) -> None:
    """One round of each kind is measured all the same: nothing else tells of a kind."""
    seconds = {"fast": [0.001, 0.002], "slow": [0.010, 0.030], "gpu": [0.5, 0.25]}
    devices = (FAST, SLOW, Device("g", kind="gpu", fingerprint="gpu"))
    model = SyntheticModel(chain(2), seconds)
    ends = Ends(limit=Deadline(0.0, Stopwatch(lambda: 1.0)))
    measuring = Measuring(CostStore(tmp_path / "store"), EFFORT, ends=ends)
    cluster = Cluster(devices)
    runtime: Any = SyntheticRuntime(devices)
    problem = profile(model.graph, SOURCE, cluster, runtime, model=model, measuring=measuring)
    expected = np.array([seconds["fast"], seconds["fast"], seconds["gpu"]]).T
    np.testing.assert_array_equal(problem.costs.seconds, expected)
    assert ends.estimated == {"c": "a"}
    n_ops = model.graph.n_ops
    last = last_measured(CostStore(tmp_path / "store"), model_identity(model.graph, SOURCE), n_ops)
    assert last is not None
    assert last.devices == ("a", "g")
    np.testing.assert_array_equal(last.seconds, expected[:, [0, 2]])
    assert sorted(model.profiled) == ["a", "a", "g", "g"]  # a warm-up and a round
    again = Measuring(CostStore(tmp_path / "store"), EFFORT)
    later = profile(model.graph, SOURCE, cluster, runtime, model=model, measuring=again)
    np.testing.assert_array_equal(later.costs.seconds[:, 1], seconds["slow"])
    assert again.ends.estimated == {}


class LabelledByOps(SyntheticModel):
    """Units of the same ops have the same label."""

    def unit_labels(self, units: Grouping) -> tuple[str, ...]:
        return tuple(str(np.flatnonzero(units.group_of == g)) for g in range(units.n_groups))


def measured_in_units(
    path: Path, labels: list[int], seconds: dict[str, list[float]], effort: Effort = EFFORT
) -> tuple[list[float], list[str]]:
    """Seconds of the units on the first device, and the names of devices that ran."""
    model, runtime = LabelledByOps(chain(3), {**seconds}), SyntheticRuntime(CLUSTER.devices)
    problem = profile(
        model.graph, SOURCE, CLUSTER, runtime, model=model,
        measuring=Measuring(CostStore(path), effort),
        units=Grouping.from_labels(labels),
    )  # type: ignore[arg-type]  # fmt: skip
    return problem.costs.seconds[:, 0].tolist(), list(model.profiled)


NOW = {"fast": [0.004, 0.005, 0.006], "slow": [0.020, math.inf, 0.040]}  # of another hour


def test_a_quick_call_with_other_units_mixes_no_hours_and_is_stored(tmp_path: Path) -> None:
    """It took the last op's seconds from the earlier call, and each call measured again."""
    store = tmp_path / "store"
    measured_in_units(store, [0, 0, 1], SECONDS)
    found, ran = measured_in_units(store, [0, 1, 2], NOW, measure.QUICK)
    assert found == NOW["fast"]
    assert set(ran) == {"a", "c"}
    for _ in range(2):
        assert measured_in_units(store, [0, 1, 2], SECONDS, measure.QUICK) == (NOW["fast"], [])


def test_units_that_were_measured_keep_their_hour_after_others_were(tmp_path: Path) -> None:
    """The last op took its seconds from the measurement in other units."""
    store = tmp_path / "store"
    first, _ = measured_in_units(store, [0, 0, 1], SECONDS)
    assert measured_in_units(store, [0, 1, 2], NOW)[0] == NOW["fast"]
    assert measured_in_units(store, [0, 0, 1], NOW) == (first, [])


class Shared(CostStore):
    """Another process puts its only round in place of what was written."""

    def put_samples(
        self, rows: Mapping[str, Sequence[float]], *, complete: bool, is_final: bool = False
    ) -> None:
        super().put_samples(rows, complete=complete, is_final=is_final)
        CostStore(self.path).put_samples({key: [9.0] for key in rows}, complete=complete)


def test_rounds_of_another_process_do_not_replace_those_measured_here(tmp_path: Path) -> None:
    """Its only round was returned, and all that were measured here were lost."""
    model: Any = SyntheticModel(chain(3), {**SECONDS})
    runtime: Any = SyntheticRuntime(CLUSTER.devices)
    measuring = Measuring(Shared(tmp_path / "store"), EFFORT)
    problem = profile(model.graph, SOURCE, CLUSTER, runtime, model=model, measuring=measuring)
    expected = np.array([SECONDS["fast"], SECONDS["fast"], SECONDS["slow"]]).T
    np.testing.assert_array_equal(problem.costs.seconds, expected)


def test_kernels_that_no_timer_sees_have_shares_by_their_work(tmp_path: Path) -> None:
    """Units of 0 s would make every split free, and equal ones a product as cheap as a sum."""
    builder = GraphBuilder()
    tensor = builder.add_input(4000)
    for kind, flops in (("MatMul", 1e9), ("Add", 1e3)):
        op = builder.add_op(kind, kind, inputs=[tensor], flops=flops)
        tensor = builder.add_tensor(op, 4000, is_output=kind == "Add")
    model = SyntheticModel(builder.build(), {name: [0.0, 0.0] for name in SECONDS})
    seconds = profiled(model, tmp_path / "store").costs.seconds
    assert seconds.min() > 0
    assert (seconds[0] > 50 * seconds[1]).all()
