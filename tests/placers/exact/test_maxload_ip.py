"""The max-load integer program, and the annealing that it starts from."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines import (
    best_by_brute_force,
    bytes_of,
    is_contiguous,
    loads_of,
    max_load,
    pipeline_problem,
    random_pipeline,
    random_training,
)

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.exact import maxload_ip
from placewright.placers.exact.cp_sat import CpSat
from placewright.placers.exact.integer_program import MipResult, solve
from placewright.placers.exact.max_load.annealing import anneal, annealing_state, fixed_arrays
from placewright.placers.exact.max_load.program import first_devices, relabelled
from placewright.placers.exact.maxload_ip import MaxloadIp
from placewright.placers.pipelines.ideal_dp import IdealDp
from placewright.placers.pipelines.ideals.load_model import load_model_of, why_not_separable
from placewright.placers.portfolio.auto import Auto
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import brute_force

QUICK = MaxloadIp(annealing_steps=2000, annealing_rounds=2)


@pytest.mark.parametrize("seed", range(12))
def test_loads_equal_a_plain_account(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_pipeline(rng, 7, 2, 1)
    model = load_model_of(problem, problem.colocation)
    for _ in range(20):
        device_of = rng.integers(0, 3, 7)
        expected = max_load(problem, device_of.tolist())
        fits = (bytes_of(model, device_of) <= model.memory[model.kind_of]).all()
        if fits and np.isfinite(loads_of(model, device_of)).all():
            assert loads_of(model, device_of).max() == pytest.approx(expected)
        else:
            assert expected == np.inf
        assert model.area_bound <= expected + 1e-9


@pytest.mark.parametrize("split_phases", [False, True])
def test_annealing_keeps_its_account_while_it_moves(split_phases: bool) -> None:
    """After thousands of moves the loads that were kept up to date equal those counted afresh."""
    problem = random_training(np.random.default_rng(1), 5, 3)
    model = load_model_of(problem, problem.colocation)
    fixed = fixed_arrays(model, split_phases=split_phases)
    state = annealing_state(fixed, np.zeros(model.n_items, dtype=np.int64))
    best = np.zeros(model.n_items, dtype=np.int64)
    value = anneal(fixed, state, best, np.inf, np.random.default_rng(0), 5000, 10.0, 0.1)
    fresh = annealing_state(fixed, state.device_of)
    for kept, counted in zip(state, fresh, strict=True):
        np.testing.assert_allclose(kept, counted, atol=1e-9)
    if not split_phases:
        assert value == pytest.approx(loads_of(model, best).max())


def test_annealing_finds_room_in_memory() -> None:
    """Four ops of 1 byte on two devices of 2 bytes, all on one device at first."""
    problem = pipeline_problem([[1] * 2] * 4, [], [0] * 4, sizes=[1] * 4, memory=2)
    model = load_model_of(problem, problem.colocation)
    fixed = fixed_arrays(model, split_phases=False)
    best = np.zeros(4, dtype=np.int64)
    state = annealing_state(fixed, best)
    assert anneal(fixed, state, best, np.inf, np.random.default_rng(0), 2000, 1.0, 0.01) == 2
    assert np.bincount(best).tolist() == [2, 2]


@pytest.mark.parametrize("seed", range(6))
def test_without_presolve_the_optimum_is_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where presolve would outlast the seconds, which are few beside the program's entries."""
    problem = random_pipeline(np.random.default_rng(seed), 6, 2, 1)
    asked: list[bool] = []

    def spied(*args: Any, presolve: bool, **options: Any) -> MipResult:
        asked.append(presolve)
        return solve(*args, presolve=presolve, **options)

    monkeypatch.setattr(maxload_ip, "solve", spied)
    monkeypatch.setattr(maxload_ip, "_PRESOLVED_PER_SECOND", 0)
    evaluator = Evaluator(problem, Budget(seconds=20.0))
    solution = QUICK.place(problem, evaluator, np.random.default_rng(0))
    assert asked == [False]
    assert solution.value == pytest.approx(best_by_brute_force(problem, contiguous=False))


@pytest.mark.parametrize("seed", range(8))
def test_it_equals_brute_force(seed: int) -> None:
    problem = random_pipeline(np.random.default_rng(seed), 6, 2, 1)
    best = best_by_brute_force(problem, contiguous=False)
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    proven = prove_infeasible(problem)
    nothing = "infeasible" if proven else "unknown"
    assert solution.status == ("optimal" if np.isfinite(best) else nothing)
    assert solution.value == pytest.approx(best)
    assert solution.lower_bound <= best


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), n_ops=st.integers(2, 8), n_cpus=st.integers(0, 1))
def test_it_equals_brute_force_up_to_eight_ops_and_three_devices(
    seed: int, n_ops: int, n_cpus: int
) -> None:
    problem = random_pipeline(np.random.default_rng(seed), n_ops, 2 + seed % 2 - n_cpus, n_cpus)
    best = brute_force(problem)
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.value == pytest.approx(best)
    assert solution.lower_bound <= best * (1 + 1e-9)
    if np.isfinite(best):
        assert solution.status == "optimal"
    else:
        assert solution.status == ("infeasible" if prove_infeasible(problem) else "unknown")


@pytest.mark.parametrize("seed", range(4))
def test_phases_apart_equal_brute_force(seed: int) -> None:
    """Max forward + max backward, the published ``diffmaxima``."""
    from dataclasses import replace

    problem = replace(
        random_training(np.random.default_rng(seed), 3, 2),
        execution_model=MaxLoad(0, split_phases=True),
    )
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.value == pytest.approx(best_by_brute_force(problem, contiguous=False))
    assert solution.status == "optimal"


@pytest.mark.parametrize("seed", range(4))
def test_contiguous_program_is_no_better_than_free_and_no_worse_than_ideals(seed: int) -> None:
    """Its sets need not follow one another, so it may only be better than the dynamic program."""
    problem = random_pipeline(np.random.default_rng(100 + seed), 6, 2, 1)
    placer = MaxloadIp(contiguous=True)
    solution = placer.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.value <= best_by_brute_force(problem, contiguous=True) + 1e-9
    assert solution.value >= best_by_brute_force(problem, contiguous=False) - 1e-9


@pytest.mark.parametrize("placer", [QUICK, CpSat()], ids=lambda placer: placer.name)
@pytest.mark.parametrize(
    ("limits", "device_of"),
    [
        ({}, [0, 1]),
        ({"price": 3.9}, [0, 0]),  # apart 1 s x (1 + 3), together on a 2 s x 1
        ({"price": 4.0}, [0, 1]),
        ({"energy": 6.9}, [0, 0]),  # apart 1 s x (1 + 1) + 5, together on a 2 s x (1 + 1)
        ({"energy": 7.0}, [0, 1]),
        ({"energy": 7.0, "price": 3.9}, [0, 0]),
    ],
)
def test_two_ops_stay_apart_as_long_as_limits_let_them(
    placer: MaxloadIp | CpSat, limits: dict[str, float], device_of: list[int]
) -> None:
    """Each takes 1 s on either device; on b it takes 5 J, and b costs three times as much as a."""
    problem = two_ops(
        Device("a", idle_watts=1, busy_watts=1, price_per_hour=3600),
        Device("b", idle_watts=1, busy_watts=1, price_per_hour=3 * 3600),
        limits=limits,
    )
    found = placer.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert found.placement is not None
    assert sorted(found.placement.device_of.tolist()) == device_of
    assert (found.value, found.status) == (2.0 - len(set(device_of)) + 1.0, "optimal")


@pytest.mark.parametrize("placer", [QUICK, CpSat(), Auto()], ids=lambda placer: placer.name)
@pytest.mark.parametrize("times", [1e5, 1e9, 1e300])
def test_limits_far_above_all_placements_change_nothing(
    placer: MaxloadIp | CpSat | Auto, times: float
) -> None:
    devices = (Device(name, idle_watts=1, busy_watts=2, price_per_hour=1) for name in "ab")
    problem = two_ops(*devices, limits={"energy": 7 * times, "price": times / 1800})
    evaluator = Evaluator(problem, Budget(evaluations=50))
    found = placer.place(problem, evaluator, np.random.default_rng(0))
    assert (found.value, found.status) == (1.0, "optimal")


@pytest.mark.parametrize("placer", [QUICK, CpSat()], ids=lambda placer: placer.name)
def test_a_limit_below_all_placements_is_not_kept(placer: MaxloadIp | CpSat) -> None:
    """Apart they take 7 J, together on a 4 J."""
    devices = (Device(name, idle_watts=1, busy_watts=1, price_per_hour=1) for name in "ab")
    problem = two_ops(*devices, limits={"energy": 3.9})
    found = placer.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert (found.status, found.placement) == ("unknown", None)
    assert "limits" in found.message


@pytest.mark.parametrize("placer", [QUICK, CpSat()], ids=lambda placer: placer.name)
def test_modes_of_one_processor_have_one_load(placer: MaxloadIp | CpSat) -> None:
    """1 s + 1 s, on whichever mode; a third device would take them apart."""
    problem = two_ops(Device("a"), Device("b", processors=("a",)))
    found = placer.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert (found.value, found.status) == (2.0, "optimal")


def two_ops(*devices: Device, limits: dict[str, float] | None = None) -> Problem:
    """Of 1 s on either device, without a tensor; on the second device they take 5 J."""
    builder = GraphBuilder()
    for name in ("one", "other"):
        builder.add_op(name, "Op")
    links = tuple(Link(one, other, 0, 1) for one, other in ("ab", "ba"))
    return Problem(
        builder.build(),
        Cluster(devices, links, "a"),
        CostTable(frozen_floats([[1.0, 1.0]] * 2)),
        Grouping.identity(2),
        objective="throughput",
        execution_model=MaxLoad(),
        limits=limits or {},
        op_joules=frozen_floats([[0.0, 5.0]] * 2) if limits else None,
    )


def test_same_seed_and_evaluations_same_answer() -> None:
    problem = random_pipeline(np.random.default_rng(5), 9, 3, 1)
    runs = [
        QUICK.place(problem, Evaluator(problem, Budget(evaluations=50)), np.random.default_rng(7))
        for _ in range(2)
    ]
    assert runs[0].value == runs[1].value
    assert runs[0].placement is not None
    assert runs[1].placement is not None
    assert np.array_equal(runs[0].placement.device_of, runs[1].placement.device_of)


def test_a_packing_that_fails_is_unknown() -> None:
    """Three ops of 3 bytes on two devices of 5 bytes: 9 of 10, but no two fit one. The solver finds
    that out; there is no short proof."""
    problem = pipeline_problem([[1] * 2] * 3, [], [0] * 3, sizes=[3] * 3, memory=5)
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.status == "unknown"
    assert "no packing of 9 B into 10 B" in solution.message
    assert "no short proof" in solution.message


def test_every_placement_has_a_twin_that_symmetry_allows() -> None:
    problem = pipeline_problem([[5] * 3, [4] * 3, [3] * 3, [2] * 3], [], [0] * 4)
    model = load_model_of(problem, problem.colocation)
    may_be = first_devices(model)
    for device_of in itertools.product(range(3), repeat=4):
        twin = relabelled(model, np.array(device_of))
        assert may_be[np.arange(4), twin].all()
        assert sorted(loads_of(model, twin)) == sorted(loads_of(model, np.array(device_of)))


def test_settings_that_it_refuses() -> None:
    with pytest.raises(InputError, match=r"annealing_share must be in \[0, 1\), got 1"):
        MaxloadIp(annealing_share=1)
    with pytest.raises(InputError, match="max_nodes must be >= 1, got 0"):
        MaxloadIp(max_nodes=0)


def test_a_class_that_fits_nowhere_is_named() -> None:
    """Ops 0 and 1 share a device and keep 5 + 5 bytes; accelerators have 8."""
    problem = pipeline_problem(
        [[1] * 2] * 3, [], [0] * 3, sizes=[5, 5, 1], memory=8, classes=[0, 0, 1]
    )
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.status == "infeasible"
    assert "op '0'" in solution.message
    assert "'acc:0', is 2 B short" in solution.message


@pytest.mark.parametrize("host_is_device", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_loads_with_links_equal_the_simulator(seed: int, host_is_device: bool) -> None:
    """Graph inputs and outputs, links through the host, streams, overlap, shared weights."""
    rng = np.random.default_rng(seed)
    problem = linked_problem(rng, host_is_device=host_is_device)
    assert why_not_separable(problem) is None
    simulator = Simulator(problem)
    model = load_model_of(problem, problem.colocation)
    fixed = fixed_arrays(model, split_phases=False)
    for _ in range(40):
        device_of = rng.integers(0, 3, problem.n_units)
        value = simulator.value(Placement.of(device_of))
        assert loads_of(model, device_of).max() == pytest.approx(value)
        state = annealing_state(fixed, device_of)
        assert value == pytest.approx(
            max(
                max(c, t) if overlaps else c + t
                for c, t, overlaps in zip(
                    state.compute[0], state.transfers[0], fixed.overlaps, strict=True
                )
            )
        )
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    best = min(
        simulator.value(Placement.of(device_of))
        for device_of in itertools.product(range(3), repeat=problem.n_units)
    )
    assert solution.value == pytest.approx(best)
    assert solution.status == "optimal"
    in_a_row = IdealDp().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert in_a_row.value == pytest.approx(
        min(
            simulator.value(Placement.of(device_of))
            for device_of in itertools.product(range(3), repeat=problem.n_units)
            if is_contiguous(problem, list(device_of))
        )
    )


def linked_problem(rng: np.random.Generator, *, host_is_device: bool) -> Problem:
    """Six ops on a CPU and two accelerators that reach each other through the host."""
    builder = GraphBuilder()
    shared = builder.add_weight(3)
    tensors = [builder.add_input(float(rng.integers(1, 9)))]
    for op in range(6):
        inputs = [tensors[i] for i in range(len(tensors)) if rng.random() < 0.5] or tensors[-1:]
        builder.add_op(str(op), "Op", inputs=inputs, weights=[shared])
        size = float(rng.integers(1, 9))
        tensors.append(builder.add_tensor(op, size, is_output=op == 5 or rng.random() < 0.3))
    devices = (
        Device("cpu", streams=2),
        Device("acc:0", "accelerator", memory_bytes=8, overlaps_transfers=True),
        Device("acc:1", "accelerator", memory_bytes=8),
    )
    host = "cpu" if host_is_device else "host"
    ends = [device.name for device in devices if device.name != host]
    links = [
        Link(*pair, latency_seconds=0.25 + number, bandwidth=1.0 + number)
        for number, end in enumerate(ends)
        for pair in ((end, host), (host, end))
    ]
    if host_is_device:  # the CPU's own hops must not depend on the accelerator
        links = [Link(link.source, link.destination, 0.25, 2.0) for link in links]
    seconds = rng.integers(1, 20, (6, 3)).astype(float)
    return Problem(
        builder.build(),
        Cluster(devices, tuple(links), host=host),
        CostTable(frozen_floats(seconds)),
        Grouping.identity(6),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )


def test_items_that_no_device_takes_are_told_not_divided_by() -> None:
    """Two classes that need each other are one item; their pins differ."""
    builder = GraphBuilder()
    tensor = None
    for op in range(4):
        inputs = [] if tensor is None else [tensor]
        builder.add_op(f"op{op}", "MatMul", inputs=inputs, colocation=op % 2)
        tensor = builder.add_tensor(op, 1.0, is_output=op == 3)
    cluster = Cluster(
        (Device("a"), Device("b")), (Link("a", "b"), Link("b", "a")), host="a"
    )  # fmt: skip
    costs = CostTable(frozen_floats(np.ones((4, 2))))
    free = Problem.of_ops(builder.build(), cluster, costs)
    problem = replace(free, objective="throughput", execution_model=MaxLoad(), pins={0: 0, 1: 1})
    found = MaxloadIp(contiguous=True).place(
        problem, Evaluator(problem, Budget(evaluations=100)), np.random.default_rng(0)
    )
    assert found.placement is None
    assert "contiguous placement" in found.message


@pytest.mark.parametrize("pins", [{}, {0: 0}])
def test_an_op_that_takes_energy_and_no_time_is_placed_on_its_own(pins: dict[int, int]) -> None:
    """Ten joules on a and none on b, of five; the op before it is faster on a."""
    builder = GraphBuilder()
    first = builder.add_op("first", "Op")
    builder.add_op("last", "Op", inputs=[builder.add_tensor(first, 0.0)])
    problem = Problem(
        builder.build(),
        Cluster(
            tuple(Device(name, idle_watts=0, busy_watts=0) for name in "ab"),
            (Link("a", "b"), Link("b", "a")),
            "a",
        ),
        CostTable(frozen_floats([[1.0, 2.0], [0.0, 0.0]])),
        Grouping.identity(2),
        objective="throughput",
        execution_model=MaxLoad(0),
        pins=pins,
        limits={"energy": 5.0},
        op_joules=frozen_floats([[1.0, 1.0], [10.0, 0.0]]),
    )
    found = MaxloadIp(contiguous=True).place(problem, Evaluator(problem), np.random.default_rng(0))
    assert found.placement is not None
    assert (found.placement.device_of.tolist(), found.value) == ([0, 1], 1.0)


def test_a_proof_about_fused_classes_says_so() -> None:
    """Two classes that need each other move as one, 14 s, though 7 s would be possible."""
    problem = pipeline_problem(
        [[5.0] * 2, [1.0] * 2, [6.0] * 2, [2.0] * 2],
        [(0, 1), (2, 3)],
        [0.0] * 4,
        classes=[0, 1, 1, 0],
    )
    found = MaxloadIp(contiguous=True).place(problem, Evaluator(problem), np.random.default_rng(0))
    assert found.value == 14.0
    assert found.message == "optimal among contiguous placements of fused classes"
