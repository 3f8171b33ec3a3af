"""`cooling`: draws that come closer to the best single device, and read nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from support import toys

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.baselines.simple import homogeneous_placements
from placewright.placers.learned import controls
from placewright.placers.learned.controls import Cooling, RandomGrouped, moved_away
from placewright.simulation.evaluator import Evaluator


def test_moves_get_rarer_down_to_the_last_probability() -> None:
    problem = toys.separable_problem(200)
    recorder = toys.Recorder(problem)
    toys.run(Cooling(), problem, 402, 0, measure=recorder)
    singles = homogeneous_placements(problem)
    best = singles[np.argmin([Evaluator(problem).evaluate(row) for row in singles])]
    moved = (np.stack(recorder.placements)[2:] != best).mean(axis=1)
    expected = 0.5 * 0.004 ** (np.arange(400) / 399)
    assert abs(moved - expected).max() < 0.15
    assert moved[:40].mean() == pytest.approx(expected[:40].mean(), abs=0.02)
    assert moved[-40:].mean() == pytest.approx(expected[-40:].mean(), abs=0.002)


class Scored(toys.Recorder):
    """Device 0 takes 1 s and device 1 takes 2 s; other placements take what a generator says."""

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem)
        self.rng = np.random.default_rng(seed)

    def __call__(self, placement: Placement) -> float:
        super().__call__(placement)
        return float(len(self.placements)) if len(self.placements) < 3 else self.rng.random()


def test_values_of_draws_change_no_later_draw() -> None:
    drawn = []
    for seed in (1, 2):
        scored = Scored(toys.separable_problem(9), seed)
        toys.run(Cooling(), scored.problem, 100, 5, measure=scored)
        drawn.append(np.stack(scored.placements))
    assert np.array_equal(drawn[0], drawn[1])


def test_a_unit_moves_to_devices_that_may_hold_it() -> None:
    problem = toys.separable_problem(6, n_devices=3)
    placement = np.zeros(6, dtype=np.int64)
    every = moved_away(problem, placement, np.ones(50), np.random.default_rng(0))
    assert set(np.unique(every)) == {1, 2}
    none = moved_away(problem, placement, np.zeros(5), np.random.default_rng(0))
    assert np.array_equal(none, np.zeros((5, 6)))


@pytest.mark.parametrize(
    "settings", [{"first": 0.0}, {"first": 1.5}, {"last": 0.9}, {"last": 0.0}, {"batch": 0}]
)
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match="cooling"):
        Cooling(**settings)  # type: ignore[arg-type]


def test_without_a_count_it_draws_samples() -> None:
    evaluator = Evaluator(toys.separable_problem(4), Budget())
    Cooling(samples=70).place(evaluator.problem, evaluator, np.random.default_rng(0))
    assert len(evaluator.samples) == 70


@pytest.mark.parametrize("placer", [Cooling(), RandomGrouped()])
def test_fewer_placements_of_a_large_graph_are_drawn_at_once(
    placer: Cooling | RandomGrouped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls, "at_once", lambda problem: 7)
    sizes = []
    real = Evaluator.sample_many

    def counted(self: Evaluator, rows: np.ndarray) -> np.ndarray:
        sizes.append(len(rows))
        return real(self, rows)

    monkeypatch.setattr(Evaluator, "sample_many", counted)
    toys.run(placer, toys.separable_problem(9), 100)
    assert max(sizes) == 7
