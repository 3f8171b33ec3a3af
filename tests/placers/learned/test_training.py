"""Policies on disk, training over graphs, environments, zero-shot placing, comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import toys

from placewright.benchmarks.comparison import compare
from placewright.core.solution import Budget
from placewright.errors import FileFormatError, InputError
from placewright.placers.learned.training import train
from placewright.placers.registry import make_placer


@pytest.mark.parametrize("placer", ["placeto", "hsdag", "zero-shot"])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(placer: str, tmp_path: Path) -> None:
    from placewright.placers.learned.checkpoint import load_checkpoint

    problems = [toys.two_cluster_problem(2), toys.two_cluster_problem(3)]
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    settings = {"hidden": "8"} if placer != "placeto" else {}
    train(placer, problems, whole, episodes=2, settings=settings)
    train(placer, problems, parts, episodes=1, settings=settings)
    train(placer, problems, parts, episodes=2, settings=settings)
    first, second = load_checkpoint(whole, placer), load_checkpoint(parts, placer)
    names = [name for name in first.tensors if name.startswith("policy.")]
    different = [
        name for name in names if not np.allclose(first.tensors[name], second.tensors[name])
    ]
    if placer == "zero-shot":  # the others' running baselines are not part of a policy file
        assert different == []
    evaluator = toys.run(
        make_placer(placer, {**settings, "policy": str(whole)}), toys.two_cluster_problem(4), 20
    )
    assert evaluator.best is not None


def test_only_networks_that_carry_over_can_be_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be trained over graphs"):
        train("post", [toys.two_cluster_problem()], tmp_path / "x.safetensors")


def test_a_damaged_policy_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(b"not a policy")
    with pytest.raises(FileFormatError, match="cannot be read"):
        toys.run(make_placer("hsdag", {"policy": str(path)}), toys.two_cluster_problem(), 20)


def test_zero_shot_needs_at_most_ten_evaluations() -> None:
    problem = toys.two_cluster_problem(4)
    evaluator = toys.run(make_placer("zero-shot"), problem, 1_000)
    assert evaluator.evaluations <= 10
    assert evaluator.best_value <= min(problem.costs.seconds.sum(axis=0))


def test_environments_pass_gymnasiums_own_checker() -> None:
    from gymnasium.utils.env_checker import check_env

    from placewright.placers.learned.node_by_node_environment import NodeByNodeEnv
    from placewright.placers.learned.whole_placement_environment import WholePlacementEnv

    problem = toys.two_cluster_problem(2)
    check_env(NodeByNodeEnv(problem), skip_render_check=True)
    check_env(WholePlacementEnv(problem), skip_render_check=True)


def test_the_environments_rewards_add_up_to_the_fall_in_time() -> None:
    from placewright.placers.learned.node_by_node_environment import NodeByNodeEnv
    from placewright.placers.learned.returns import reference_value

    problem = toys.two_cluster_problem(2)
    env = NodeByNodeEnv(problem)
    _, info = env.reset(seed=3)
    first, total, done = info["time"], 0.0, False
    while not done:
        _, reward, done, _, info = env.step(0)
        total += reward
    assert total * reference_value(problem) == pytest.approx(first - info["time"])
    assert env.evaluator.evaluations == env.space.n_groups + 1


def test_a_comparison_resumes_and_counts_alike(tmp_path: Path) -> None:
    problem, path = toys.two_cluster_problem(2), tmp_path / "table.json"
    budget = Budget(evaluations=60)
    first = compare(problem, ["cem", "post"], 2, budget, results_path=path)
    asked: list[str] = []
    again = compare(
        problem,
        ["cem", "post"],
        3,
        budget,
        results_path=path,
        progress=lambda _, what: asked.append(what),
    )
    assert [run for run in again.runs if run.seed < 2] == list(first.runs)
    assert all(run.evaluations == 60 for run in again.runs)
    row = next(row for row in again.rows if row.placer == "post")
    values = sorted(run.value for run in again.runs if run.placer == "post")
    assert (row.low, row.median, row.high) == tuple(values)
    with pytest.raises(InputError, match="another problem or budget"):
        compare(problem, ["cem"], 1, Budget(evaluations=61), results_path=path)
