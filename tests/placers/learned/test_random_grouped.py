"""The controls of learning: updates off, uniform draws over a learner's groups, fair starts."""

from __future__ import annotations

import numpy as np
import pytest
from support import toys

from placewright.errors import InputError
from placewright.placers.baselines.simple import homogeneous_placements
from placewright.placers.learned.controls import HasActions
from placewright.placers.registry import make_placer

LEARNERS = ("cem", "post", "seq2seq", "grouper-placer", "hierarchical", "placeto", "hsdag")
NARROW = {"hierarchical": {"hidden": "16"}}  # its 512 take most of a run, and change no control


@pytest.mark.parametrize("name", LEARNERS)
def test_with_updates_off_the_policy_stays_as_it_is(name: str) -> None:
    """Timed by the sum of costs, the last placements are no better than chance makes them."""
    problem = toys.separable_problem(7)
    recorder = toys.Recorder(problem)
    placer = make_placer(name, {"updates": "false", **NARROW.get(name, {})})
    toys.run(placer, problem, 600, measure=recorder)
    every = 8 if name == "placeto" else 1
    late = toys.optimal_share(recorder, toys.best_devices(7), 240 // every, every)
    assert 0.3 < late < 0.7


@pytest.mark.parametrize("name", LEARNERS)
def test_only_the_policys_own_draws_are_samples(name: str) -> None:
    problem = toys.two_cluster_problem()
    evaluator = toys.run(make_placer(name, NARROW.get(name)), problem, 200)
    starts = evaluator.problem.n_devices
    if name == "placeto":
        assert len(evaluator.samples) == (200 - starts) // 17  # 16 groups and a first placement
    else:
        assert len(evaluator.samples) == 200 - starts
    assert evaluator.solution().samples == tuple(evaluator.samples)
    assert min(evaluator.samples) >= evaluator.best_value


@pytest.mark.parametrize("name", [*LEARNERS, "random-grouped"])
def test_homogeneous_starts_are_for_all_or_for_none(name: str) -> None:
    problem = toys.two_cluster_problem()
    for with_starts in (True, False):
        recorder = toys.Recorder(problem)
        starts = {"homogeneous_starts": str(with_starts).lower()}
        placer = make_placer(name, {**starts, **NARROW.get(name, {})})
        toys.run(placer, problem, 40, measure=recorder)
        first = np.stack(recorder.placements[: problem.n_devices])
        assert np.array_equal(first, homogeneous_placements(problem)) == with_starts


@pytest.mark.parametrize("name", ["post", "seq2seq", "placeto"])
def test_random_grouped_draws_uniformly_over_the_groups_of_the_learner(name: str) -> None:
    problem = toys.two_cluster_problem(12)
    learner = make_placer(name, {"groups": "5"})
    assert isinstance(learner, HasActions)
    actions = learner.actions(problem)
    placements = actions.uniform(4_000, np.random.default_rng(0))
    groups = actions.grouping.group_of  # type: ignore[attr-defined]
    first = np.array([np.flatnonzero(groups == group)[0] for group in range(5)])
    assert np.array_equal(placements, placements[:, first][:, groups])
    assert np.abs(placements[:, first].mean(axis=0) - 0.5).max() < 0.04
    recorder = toys.Recorder(problem)
    control = make_placer("random-grouped", {"learner": name, "groups": "5"})
    run = toys.run(control, problem, 60, measure=recorder)
    assert len(run.samples) == 60 - problem.n_devices
    drawn = np.stack(recorder.placements)
    assert np.array_equal(drawn, drawn[:, first][:, groups])


def test_random_grouped_needs_a_learner() -> None:
    with pytest.raises(InputError, match="'heft' is no learner with groups"):
        make_placer("random-grouped", {"learner": "heft"})
    with pytest.raises(InputError, match="groups must be >= 0, got -1"):
        make_placer("random-grouped", {"groups": "-1"})
    # hsdag's groups follow from the graph
    with pytest.raises(InputError, match="unknown setting of placer hsdag 'groups'"):
        make_placer("random-grouped", {"learner": "hsdag", "groups": "5"})
