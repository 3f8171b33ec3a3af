"""The max-load integer program, and the annealing that it starts from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pipelines import (
    best_by_brute_force,
    max_load,
    pipeline_problem,
    random_pipeline,
    random_training,
)

from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.ideals.load_model import load_model
from placewright.placers.max_load.annealing import anneal, fixed_arrays, state_of
from placewright.placers.max_load.symmetry import first_devices, relabelled
from placewright.placers.maxload_ip import MaxloadIp
from placewright.simulation.evaluator import Evaluator

QUICK = MaxloadIp(annealing_steps=2000, annealing_rounds=2)


@pytest.mark.parametrize("seed", range(12))
def test_loads_equal_a_plain_account(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_pipeline(rng, 7, 2, 1)
    model = load_model(problem, problem.colocation)
    for _ in range(20):
        device_of = rng.integers(0, 3, 7)
        expected = max_load(problem, device_of.tolist())
        if model.is_feasible(device_of):
            assert model.loads(device_of).max() == pytest.approx(expected)
        else:
            assert expected == np.inf
        assert model.area_bound <= expected + 1e-9


@pytest.mark.parametrize("split_phases", [False, True])
def test_annealing_keeps_its_account_while_it_moves(split_phases: bool) -> None:
    """After thousands of moves the loads that were kept up to date equal those counted afresh."""
    problem = random_training(np.random.default_rng(1), 5, 3)
    model = load_model(problem, problem.colocation)
    fixed = fixed_arrays(model, split_phases=split_phases)
    state = state_of(fixed, np.zeros(model.n_items, dtype=np.int64))
    best = np.zeros(model.n_items, dtype=np.int64)
    value = anneal(fixed, state, best, np.inf, np.random.default_rng(0), 5000, 10.0, 0.1)
    fresh = state_of(fixed, state.device_of)
    for kept, counted in zip(state, fresh, strict=True):
        np.testing.assert_allclose(kept, counted, atol=1e-9)
    if not split_phases:
        assert value == pytest.approx(model.loads(best).max())


def test_annealing_finds_room_in_memory() -> None:
    """Four ops of 1 byte on two devices of 2 bytes, all on one device at first."""
    problem = pipeline_problem([[1] * 2] * 4, [], [0] * 4, sizes=[1] * 4, memory=2)
    model = load_model(problem, problem.colocation)
    fixed = fixed_arrays(model, split_phases=False)
    best = np.zeros(4, dtype=np.int64)
    state = state_of(fixed, best)
    assert anneal(fixed, state, best, np.inf, np.random.default_rng(0), 2000, 1.0, 0.01) == 2
    assert np.bincount(best).tolist() == [2, 2]


@pytest.mark.parametrize("seed", range(8))
def test_it_equals_brute_force(seed: int) -> None:
    problem = random_pipeline(np.random.default_rng(seed), 6, 2, 1)
    best = best_by_brute_force(problem, contiguous=False)
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.status == ("optimal" if np.isfinite(best) else "infeasible")
    assert solution.value == pytest.approx(best)
    assert solution.lower_bound <= best


@pytest.mark.parametrize("seed", range(4))
def test_phases_apart_equal_brute_force(seed: int) -> None:
    """Max forward + max backward, the published ``diffmaxima``."""
    from dataclasses import replace

    problem = replace(random_training(np.random.default_rng(seed), 3, 2), split_phases=True)
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


def test_memory_that_cannot_suffice_is_proven() -> None:
    """Three ops of 2 bytes on two devices of 3 bytes."""
    problem = pipeline_problem([[1] * 2] * 3, [], [0] * 3, sizes=[2] * 3, memory=3)
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.status == "infeasible"
    assert "cannot be packed: 6 B" in solution.message


def test_every_placement_has_a_twin_that_symmetry_allows() -> None:
    problem = pipeline_problem([[5] * 3, [4] * 3, [3] * 3, [2] * 3], [], [0] * 4)
    model = load_model(problem, problem.colocation)
    may_be = first_devices(model)
    for device_of in itertools.product(range(3), repeat=4):
        twin = relabelled(model, np.array(device_of))
        assert may_be[np.arange(4), twin].all()
        assert sorted(model.loads(twin)) == sorted(model.loads(np.array(device_of)))


def test_settings_that_it_refuses() -> None:
    with pytest.raises(InputError, match=r"annealing_share must be in \[0, 1\), got 1"):
        MaxloadIp(annealing_share=1)
    with pytest.raises(InputError, match="max_nodes must be >= 1, got 0"):
        MaxloadIp(max_nodes=0)
