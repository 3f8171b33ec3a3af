"""Policies on disk, training over graphs, zero-shot placing, comparison."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import toys

from placewright.core.execution_models import Placeto, Subgraph
from placewright.core.solution import Budget
from placewright.errors import FileFormatError, InputError
from placewright.placers.learned.training import TrainingOptions, train
from placewright.placers.registry import make_placer
from placewright.session.comparison import compare


@pytest.mark.parametrize("placer", ["placeto", "hsdag", "zero-shot"])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(placer: str, tmp_path: Path) -> None:
    from placewright.placers.learned.shared.checkpoint import load_checkpoint

    problems = [toys.two_cluster_problem(2), toys.two_cluster_problem(3)]
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    settings = {"hidden": "8"} if placer != "placeto" else {}
    train(placer, problems, whole, episodes=4, settings=settings)

    def stop_in_the_third_episode(fraction: float, what: str) -> None:
        if fraction == 0.75:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            placer,
            problems,
            parts,
            episodes=4,
            settings=settings,
            progress=stop_in_the_third_episode,
        )
    assert load_checkpoint(parts, placer).setting("episodes") == 3
    train(placer, problems, parts, episodes=4, settings=settings)
    first, second = load_checkpoint(whole, placer), load_checkpoint(parts, placer)
    assert list(first.tensors) == list(second.tensors)
    for name, tensor in first.tensors.items():  # baselines that nothing uses are NaN in both
        np.testing.assert_array_equal(tensor.numpy(), second.tensors[name].numpy(), name)
    evaluator = toys.run(
        make_placer(placer, {**settings, "policy": str(whole)}), toys.two_cluster_problem(4), 20
    )
    assert evaluator.best is not None


def test_a_policy_of_a_changed_form_is_that_of_its_system(tmp_path: Path) -> None:
    path, problem = tmp_path / "policy.safetensors", toys.two_cluster_problem(2)
    train("placeto-mean", [problem], path, episodes=1)
    placer = make_placer("placeto-mean", {"policy": str(path)})
    assert toys.run(placer, problem, 20).best is not None
    with pytest.raises(FileFormatError, match="mean"):  # the settings of its network are others
        toys.run(make_placer("placeto", {"policy": str(path)}), problem, 20)


def test_only_networks_that_carry_over_can_be_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be trained over graphs"):
        train("post", [toys.two_cluster_problem()], tmp_path / "x.safetensors")


def test_training_stops_where_rounds_no_longer_get_faster(tmp_path: Path) -> None:
    """With learning rate 1e-12 nothing gets faster but by luck of the samples."""
    from placewright.placers.learned.shared.checkpoint import load_checkpoint

    path, settings = tmp_path / "p.safetensors", {"hidden": "8", "learning_rate": "1e-12"}
    problems = [toys.two_cluster_problem(2)]
    options = TrainingOptions(patience=5)
    train("zero-shot", problems, path, episodes=300, settings=settings, options=options)
    assert 5 < load_checkpoint(path, "zero-shot").setting("episodes") < 300


@pytest.mark.parametrize("placer", ["placeto", "hsdag"])
def test_a_policy_for_other_devices_is_refused(placer: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    settings = {"hidden": "8"} if placer == "hsdag" else {}
    train(placer, [toys.two_cluster_problem(2)], path, episodes=1, settings=settings)
    wide = toys.separable_problem(4, n_devices=3)
    with pytest.raises(FileFormatError, match="is for 2 devices"):
        toys.run(make_placer(placer, {"policy": str(path)}), wide, 20)
    with pytest.raises(FileFormatError, match=f"trained for placer '{placer}', not 'zero-shot'"):
        toys.run(make_placer("zero-shot", {"policy": str(path)}), wide, 20)


def test_a_policy_brings_the_settings_of_its_network(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    settings = {"hidden": "8", "without_node_id": "true"}
    train("hsdag", [toys.two_cluster_problem(2)], path, episodes=1, settings=settings)
    evaluator = toys.run(
        make_placer("hsdag", {"policy": str(path)}), toys.two_cluster_problem(), 20
    )
    assert evaluator.evaluations == 20


@pytest.mark.parametrize(
    ("placer", "settings", "message"),
    [
        (
            "hsdag",
            {"without_grouping": "true"},
            "has without_grouping = False, not True; leave the",
        ),
        ("hsdag", {"hidden": "16"}, "has hidden = 8, not 16; leave the"),
        ("hsdag-released", {}, "has parse_rounds = 1, not 0; train"),
        ("hsdag-released", {"parse_rounds": "1"}, "has features = paper, not released; t"),
    ],
)
def test_a_policy_with_other_settings_than_those_given_is_refused(
    placer: str, settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    path, problem = tmp_path / "policy.safetensors", toys.two_cluster_problem(2)
    train("hsdag", [problem], path, episodes=1, settings={"hidden": "8"})
    with pytest.raises(FileFormatError, match=message):
        toys.run(make_placer(placer, {**settings, "policy": str(path)}), problem, 20)


def test_a_policy_file_of_another_network_is_refused(tmp_path: Path) -> None:
    import torch

    from placewright.placers.learned.shared.checkpoint import Checkpoint, save_checkpoint

    path = tmp_path / "policy.safetensors"
    tensors = {"policy.first.weight": torch.zeros(2, 2)}
    placer = make_placer("zero-shot", {"policy": str(path)})
    for metadata, message in (({}, "does not say 'hidden'"), ({"hidden": 8}, "first.weight")):
        save_checkpoint(Checkpoint(str(path), "zero-shot", metadata, tensors))
        with pytest.raises(FileFormatError, match=message):
            toys.run(placer, toys.two_cluster_problem(), 20)


@pytest.mark.parametrize(
    ("placer", "name", "values"),
    [
        ("zero-shot", "hidden", ["abc", -5, 0, None, True, 8.5, float("inf"), 400_000, 60_000]),
        ("hsdag", "hidden", ["abc", -5, None, float("inf"), 400_000, 60_000]),
        ("hsdag", "vocabulary", [None, "MatMul", [1]]),
        ("hsdag", "without_node_id", [None, 1, "true"]),
        ("hsdag", "features", [None, "unheard"]),
        ("hsdag", "n_devices", [None, "2", float("nan")]),
        ("placeto", "rounds", [None, -5, "abc", 400_000, float("inf")]),
    ],
)
def test_a_policy_file_with_impossible_settings_is_refused(
    placer: str, name: str, values: list[object], tmp_path: Path
) -> None:
    """A width of 60,000 is a possible number, and refused before such a network is built."""
    from dataclasses import replace

    from placewright.placers.learned.shared.checkpoint import load_checkpoint, save_checkpoint

    path, problem = tmp_path / "policy.safetensors", toys.two_cluster_problem(2)
    settings = {"hidden": "8"} if placer != "placeto" else {}
    train(placer, [problem], path, episodes=1, settings=settings)
    good = load_checkpoint(path, placer)
    for value in values:
        save_checkpoint(replace(good, metadata={**good.metadata, name: value}))
        with pytest.raises((FileFormatError, InputError), match=f"policy|{name}"):
            toys.run(make_placer(placer, {"policy": str(path)}), problem, 20)


@pytest.mark.parametrize("placer", ["placeto", "hsdag", "zero-shot"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_policy_file_with_weights_that_are_no_numbers_is_refused(
    placer: str, value: float, tmp_path: Path
) -> None:
    from dataclasses import replace

    from placewright.placers.learned.shared.checkpoint import load_checkpoint, save_checkpoint

    path, problem = tmp_path / "policy.safetensors", toys.two_cluster_problem(2)
    settings = {"hidden": "8"} if placer != "placeto" else {}
    train(placer, [problem], path, episodes=1, settings=settings)
    good = load_checkpoint(path, placer)
    name = next(name for name in good.tensors if name.startswith("policy."))
    worse = good.tensors[name].clone()
    worse.view(-1)[0] = value
    save_checkpoint(replace(good, tensors={**good.tensors, name: worse}))
    with pytest.raises(FileFormatError, match="no finite numbers"):
        toys.run(make_placer(placer, {"policy": str(path)}), problem, 20)


def test_a_training_that_lost_its_state_does_not_continue(tmp_path: Path) -> None:
    from dataclasses import replace

    from placewright.placers.learned.shared.checkpoint import load_checkpoint, save_checkpoint

    path, problems = tmp_path / "policy.safetensors", [toys.two_cluster_problem(2)]
    train("placeto", problems, path, episodes=1)
    good = load_checkpoint(path, "placeto")
    kept = {name: value for name, value in good.tensors.items() if "trainee" not in name}
    name = next(iter(kept))
    save_checkpoint(replace(good, tensors=kept))
    with pytest.raises(FileFormatError, match=r"has no 'baseline.0'"):
        train("placeto", problems, path, episodes=2)
    strange = {"optimiser.x": good.tensors[name].clone()}
    save_checkpoint(replace(good, tensors={**good.tensors, **strange}))
    with pytest.raises(FileFormatError, match=r"has an unknown tensor 'optimiser.x'"):
        train("placeto", problems, path, episodes=2)
    save_checkpoint(replace(good, metadata={**good.metadata, "episodes": "abc"}))
    with pytest.raises(FileFormatError, match="'episodes' must be a whole number"):
        train("placeto", problems, path, episodes=2)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "with seed = 0, not 1"),
        ({"groups": "4"}, "with groups = 64, not 4"),  # of other baselines
        ({"learning_rate": "0.5"}, r"with learning_rate = 0.001, not 0.5"),
        ({"sizes": (2, 4)}, "on another problem 2, or with other costs, as a model has"),
        ({"sizes": (2,)}, "with number of graphs = 2, not 1"),
        ({"rounds": "2"}, "with rounds = 8, not 2"),
    ],
)
def test_a_training_of_another_kind_does_not_continue(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, settings = tmp_path / "p.safetensors", dict(change)
    sizes, seed = settings.pop("sizes", (2, 3)), settings.pop("seed", 0)
    train("placeto", [toys.two_cluster_problem(size) for size in (2, 3)], path, episodes=1)
    before = path.read_bytes()
    problems = [toys.two_cluster_problem(size) for size in sizes]
    options = TrainingOptions(seed=seed)
    with pytest.raises(FileFormatError, match=f"'{path}' was trained {message}.*; give another"):
        train("placeto", problems, path, episodes=2, settings=settings, options=options)
    assert path.read_bytes() == before


def test_what_no_training_reads_may_change_and_older_files_do_not_continue(tmp_path: Path) -> None:
    from dataclasses import replace

    from placewright.placers.learned.shared.checkpoint import load_checkpoint, save_checkpoint

    path, problems = tmp_path / "p.safetensors", [toys.two_cluster_problem(2)]
    train("placeto", problems, path, episodes=1)
    train("placeto", problems, path, episodes=2, settings={"horizon": "7"})
    good = load_checkpoint(path, "placeto")
    assert good.setting("episodes") == 2
    told = {name: value for name, value in good.metadata.items() if name != "training"}
    save_checkpoint(replace(good, metadata=told))
    with pytest.raises(FileFormatError, match="older than the check"):
        train("placeto", problems, path, episodes=3)


def test_patience_that_was_interrupted_ends_as_if_it_was_not(tmp_path: Path) -> None:
    """Hardly anything is learned, so that the first turns are nearly the best."""
    problems = [toys.two_cluster_problem(2), toys.two_cluster_problem(3)]
    settings, options = {"hidden": "8", "learning_rate": "1e-12"}, TrainingOptions(patience=6)
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"

    def trained(path: Path, end_at: int) -> list[int]:
        done: list[int] = []

        def stop(fraction: float, what: str) -> None:
            done.append(round(fraction * 200))
            if done[-1] == end_at:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            train("zero-shot", problems, path, episodes=200, settings=settings, progress=stop,
                  options=options)  # fmt: skip
        return done

    *_, last = trained(whole, 0)
    assert 6 < last < 200
    for end_at in (last - 5, last - 2):
        trained(parts, end_at)
    assert trained(parts, 0)[-1] == last
    assert trained(parts, 0) == []  # it is over
    assert parts.read_bytes() == whole.read_bytes()


def test_a_problem_has_one_hash_in_any_folder(tmp_path: Path) -> None:
    from dataclasses import replace

    from placewright.files.problem_file import read_problem, write_problem
    from placewright.placers.learned.training import sha256_of

    problem = toys.two_cluster_problem(2)
    write_problem(tmp_path / "a.json", problem)
    assert sha256_of(read_problem(tmp_path / "a.json")) == sha256_of(problem)
    assert sha256_of(toys.two_cluster_problem(3)) != sha256_of(problem)
    assert sha256_of(replace(problem, objective="training")) != sha256_of(problem)
    assert sha256_of(problem.under(Subgraph())) != sha256_of(problem.under(Placeto()))
    cluster = problem.cluster
    links = {(one.source, one.destination): one for one in cluster.links}
    from_device, from_host = (
        replace(cluster, links=(links[end, "gpu:1"],)) for end in ("gpu:0", "host")
    )
    assert from_device.links[0] == replace(from_host.links[0], source="gpu:0")
    ways = (from_device, from_host)
    assert len({sha256_of(replace(problem, cluster=each)) for each in ways}) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TrainingOptions(save_every=0), "save_every >= 1, got 0"),
        (TrainingOptions(patience=-1), "patience >= 0, got -1"),
    ],
)
def test_options_out_of_range_are_refused(
    options: TrainingOptions, message: str, tmp_path: Path
) -> None:
    problems = [toys.two_cluster_problem(2)]
    with pytest.raises(InputError, match=message):
        train("zero-shot", problems, tmp_path / "p.safetensors", options=options)


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("policy", "argument `output`"),
        ("patience", "`patience` of argument `options`"),
        ("tensorboard", "`tensorboard` of argument `options`"),
        ("updates", "leave it out"),
        ("homogeneous_starts", "leave it out"),
    ],
)
def test_settings_that_no_training_reads_are_refused(
    setting: str, instead: str, tmp_path: Path
) -> None:
    path, problems = tmp_path / "p.safetensors", [toys.two_cluster_problem(2)]
    with pytest.raises(InputError, match=f"does not read setting '{setting}': .*{instead}"):
        train("placeto", problems, path, episodes=1, settings={setting: "1"})


def test_a_missing_folder_is_noticed_before_the_first_episode(tmp_path: Path) -> None:
    path, done = tmp_path / "absent" / "p.safetensors", list[str]()
    with pytest.raises(InputError, match=r"absent' of 'p.safetensors' does not exist"):
        train("placeto", [toys.two_cluster_problem(2)], path, episodes=1,
              progress=lambda _, what: done.append(what))  # fmt: skip
    assert not done


def test_each_episode_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from placewright.placers.learned import training

    built: list[int] = []
    plain = training.Episode

    def noted(number: int, of: int, seed: int) -> Any:
        built.append(number)
        return plain(number, of, seed)

    monkeypatch.setattr(training, "Episode", noted)
    train("placeto", [toys.two_cluster_problem(2)], tmp_path / "p.safetensors", episodes=4)
    assert built == [0, 1, 2, 3]


def test_the_best_mean_time_is_kept_as_it_is(tmp_path: Path) -> None:
    """After one episode of one graph, it is the mean time of this episode."""
    from placewright.placers.learned.shared.checkpoint import load_checkpoint

    path = tmp_path / "p.safetensors"
    train("placeto", [toys.two_cluster_problem(2)], path, episodes=1)
    course = load_checkpoint(path, "placeto").under("course")
    assert course["stop"][0].item() == course["last"][0].item()


@pytest.mark.parametrize("is_package", [False, True])
def test_a_placer_of_another_package_without_a_trainee_is_refused(
    is_package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from placewright.placers.learned.shared.training_episodes import Job

    module = f"without_trainee_{int(is_package)}"
    text = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    name = paper = "mine"
    objectives, needs_training = ("latency",), True
    policy: str = ""

    def why_not(self, problem): ...
    def place(self, problem, evaluator, rng): ...
"""
    (tmp_path / module).mkdir()
    inside = tmp_path / module / "mine.py"
    (inside if is_package else tmp_path / f"{module}.py").write_text(text)
    if is_package:
        (tmp_path / module / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    name = f"{module}.mine:Mine" if is_package else f"{module}:Mine"
    with pytest.raises(InputError, match=f"'{name}' .* no module `algorithm` with .* `trainee`"):
        _ = Job(name, None, ()).trainee


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("optimiser.0.exp_avg", "narrow", r"'optimiser.0.exp_avg' must have shape"),
        ("optimiser.0.exp_avg_sq", "nan", "finite values"),
        ("optimiser.0.exp_avg", None, "has no 'optimiser.0.exp_avg'"),
        ("optimiser.9999.step", "new", "an unknown tensor 'optimiser.9999.step'"),
        ("optimiser.0.other", "new", "an unknown tensor 'optimiser.0.other'"),
        ("course.stop", "nan", "'course.stop' must be a time and a number"),
        ("course.last", "half", "'course.last' must be float32 or float64, got bfloat16"),
        ("optimiser.0.exp_avg", "whole", "must be float32 or float64, got int64"),
    ],
)
def test_an_edited_state_of_a_training_is_refused(
    name: str, value: str | None, message: str, tmp_path: Path
) -> None:
    from dataclasses import replace

    import torch

    from placewright.placers.learned.shared.checkpoint import load_checkpoint, save_checkpoint

    path, problems = tmp_path / "policy.safetensors", [toys.two_cluster_problem(2)]
    train("placeto", problems, path, episodes=1)
    good = load_checkpoint(path, "placeto")
    tensors = dict(good.tensors)
    old = tensors.pop(name, torch.zeros(()))
    edits = {
        "narrow": torch.zeros(1, 1, 1),
        "nan": torch.full_like(old, torch.nan),
        "half": old.bfloat16(),
        "whole": old.long(),
        "new": old,
    }
    if value is not None:
        tensors[name] = edits[value]
    save_checkpoint(replace(good, tensors=tensors))
    with pytest.raises(FileFormatError, match=message):
        train("placeto", problems, path, episodes=2)


@pytest.mark.parametrize(
    ("placer", "settings", "message"),
    [
        ("placeto", {"learning_rate": "0"}, "learning_rate must be > 0, got 0"),
        ("placeto", {"last_learning_rate": "-1"}, "last_learning_rate must be >= 0, got -1"),
        ("placeto", {"clip_norm": "-1"}, "clip_norm must be >= 0, got -1"),
        ("placeto", {"baseline_window": "1"}, "baseline_window must be >= 2, got 1"),
        ("zero-shot", {"learning_rate": "-1"}, "learning_rate must be > 0, got -1"),
        ("zero-shot", {"samples": "1"}, "samples must be >= 2, got 1"),
        ("seq2seq", {"learning_rate": "nan"}, "learning_rate"),
        ("seq2seq", {"baseline_decay": "1"}, r"baseline_decay must be in \[0, 1\), got 1"),
        ("hierarchical", {"clip_norm": "-1"}, "clip_norm must be >= 0, got -1"),
        ("grouper-placer", {"baseline_decay": "-1"}, r"baseline_decay must be in \[0, 1\)"),
        ("post", {"patience": "-1"}, "patience must be >= 0, got -1"),
        ("hsdag", {"draws": "3"}, "steps must be a multiple of draws, got 20 and 3"),
    ],
)
def test_settings_out_of_range_are_refused(
    placer: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_placer(placer, settings)


def test_the_mean_time_of_an_episode_of_placeto_is_that_of_its_placements() -> None:
    import torch

    from placewright.placers.learned.placeto.algorithm import trainee
    from placewright.placers.learned.placeto.placer import PlacetoPlacer
    from placewright.placers.learned.shared.returns import reference_value
    from placewright.simulation.evaluator import Evaluator

    problem = toys.two_cluster_problem(2)
    asked: list[float] = []

    def values(self: Evaluator, devices_of: Any) -> Any:
        found = plain(self, devices_of)
        asked.extend(found.tolist())
        return found

    plain = Evaluator.evaluate_many
    made = trainee(PlacetoPlacer(), [problem])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "evaluate_many", values)
        result = made.episode(0, 0.0, torch.Generator().manual_seed(0))
    assert result.mean_time == pytest.approx(np.mean(asked) / reference_value(problem))
    assert result.mean_time > 1.0


def test_a_policy_places_from_where_its_episodes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from placewright.placers.learned.placeto import algorithm

    path, problem = tmp_path / "p.safetensors", toys.two_cluster_problem(2)
    train("placeto", [problem], path, episodes=1)
    starts: list[Any] = []

    def noted(name: str, at: int) -> None:
        plain = getattr(algorithm, name)

        def wrapped(*arguments: Any) -> Any:
            starts.append(arguments[at].copy())
            return plain(*arguments)

        monkeypatch.setattr(algorithm, name, wrapped)

    noted("greedy_placement", 2)
    noted("run_episode", 3)
    toys.run(make_placer("placeto", {"policy": str(path)}), problem, 40)
    assert len(starts) > 2
    assert len(np.unique(starts, axis=0)) == 1
    assert np.unique(starts).tolist() == [0, 1]


def test_learning_leaves_the_random_states_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of accelerators, too, which `torch.manual_seed` would seed for good."""
    import torch

    from placewright.placers.learned.shared.learning_scope import torch_scope
    from placewright.placers.learned.shared.training_episodes import Episode

    monkeypatch.setattr(torch.cuda, "manual_seed_all", None)
    before = torch.get_rng_state()
    with torch_scope(np.random.default_rng(0)) as generator:
        first = torch.rand(3)
        Episode(0, 1, 0).draw_from(generator)
    assert torch.equal(torch.get_rng_state(), before)
    with torch_scope(np.random.default_rng(0)):
        assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize("flushed", [False, True])
def test_subnormal_numbers_are_0_while_a_system_learns_and_as_before_after(flushed: bool) -> None:
    import torch

    from placewright.placers.learned.shared.learning_scope import flushes_subnormals, torch_scope

    if not torch.set_flush_denormal(flushed):
        pytest.skip("this processor cannot replace subnormal numbers by 0")
    try:
        with torch_scope(np.random.default_rng(0)):
            assert flushes_subnormals()
        assert flushes_subnormals() == flushed
    finally:
        torch.set_flush_denormal(False)
