"""Each learner learns: a separable toy, a two-cluster toy, and the gradients behind them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import mannwhitneyu
from support import toys
from support.small_problems import graph_of, problem_of

from placewright.core.arrays import FloatArray, IntArray, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.execution_models import Placeto
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.learned.grouper_placer.placer import GrouperPlacer, GrouperPlacerMi
from placewright.placers.learned.hierarchical.placer import HierarchicalMi
from placewright.placers.learned.hsdag.placer import HsdagCorrected, HsdagReleased
from placewright.placers.learned.placeto.placer import PlacetoPlacer
from placewright.placers.learned.post.algorithm import Distribution, log_softmax, ppo_objective
from placewright.placers.learned.post.placer import Post
from placewright.placers.learned.seq2seq.placer import Seq2SeqEntropy, Seq2SeqHsdagRnn
from placewright.placers.learned.shared.returns import PerStepAverage
from placewright.placers.registry import Placer, make_placer
from placewright.placers.search.cem import Cem
from placewright.simulation.evaluator import Evaluator

# placer with its default settings, ops of the toy, evaluations, and every how many evaluations a
# placement is complete; the last evaluation is of a complete one
SEPARABLE = [
    (Cem(), 7, 1_000, 1),
    (Post(), 7, 1_500, 1),
    (Seq2SeqEntropy(), 7, 1_200, 1),
    (GrouperPlacerMi(), 4, 2_500, 1),
    (HierarchicalMi(), 4, 1_000, 1),
    (PlacetoPlacer(), 4, 1_502, 5),
    (HsdagCorrected(), 7, 1_200, 1),
]
TWO_CLUSTERS = [
    (Cem(), 1_000),
    (Post(), 1_000),
    (Seq2SeqEntropy(), 1_000),
    (PlacetoPlacer(), 2_000),
    (HsdagCorrected(), 300),
    (HsdagReleased(), 3_000),
    (GrouperPlacerMi(), 5_000),
    (HierarchicalMi(), 5_000),
]


def name_of(value: object) -> str:
    return getattr(value, "name", str(value))


@pytest.mark.parametrize(("placer", "n_ops", "evaluations", "every"), SEPARABLE, ids=name_of)
def test_the_optimal_action_becomes_likely(
    placer: Placer, n_ops: int, evaluations: int, every: int
) -> None:
    """Timed by the sum of costs, every op's best device ends above probability 0.95."""
    share = toys.separable_share(placer, n_ops, evaluations, every=every)
    assert share > 0.95


@pytest.mark.slow  # that each learns is tested above and below; this takes five long runs of each
@pytest.mark.parametrize(("placer", "evaluations"), TWO_CLUSTERS, ids=name_of)
def test_the_optimum_of_two_clusters_is_found_from_four_of_five_seeds(
    placer: Placer, evaluations: int
) -> None:
    """Rounding differs between processors, and with it the one seed in twenty that fails."""
    found = [toys.evaluations_to_optimum(placer, evaluations, seed) for seed in range(5)]
    assert sum(count is not None for count in found) >= 4, found


@pytest.mark.parametrize(
    "placer",
    [
        "cem",
        "post",
        "seq2seq-entropy",
        "grouper-placer-mi",
        "hierarchical-mi",
        "hsdag-corrected",
        pytest.param("placeto", marks=pytest.mark.slow),
    ],
)
def test_with_default_settings_the_policy_gets_better_on_two_clusters(placer: str) -> None:
    """Its last samples against those of the same learner with its updates off."""
    problem, evaluations = toys.two_cluster_problem(), 2_000 if placer == "placeto" else 600

    def last_samples(**settings: str) -> list[float]:
        samples = toys.run(make_placer(placer, settings), problem, evaluations).samples
        return list(samples[-len(samples) // 5 :])

    better = mannwhitneyu(last_samples(), last_samples(updates="false"), alternative="less")
    assert better.pvalue < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_search_does_not_find_the_optimum_of_two_clusters(seed: int) -> None:
    """Of 2^16 placements one is best: what the learners find, chance does not."""
    problem = toys.two_cluster_problem()
    best = Evaluator(problem).evaluate(toys.two_cluster_optimum(problem))
    largest = max(evaluations for _, evaluations in TWO_CLUSTERS)
    assert toys.run(make_placer("random"), problem, largest, seed).best_value > 1.05 * best


def test_post_needs_no_pytorch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.path[:0] = ['tests']; "
        "from support import toys; "
        "from placewright.placers.registry import make_placer; "
        "print(toys.run(make_placer('post'), toys.separable_problem(4), 60).best_value)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) > 0.0


def test_a_setting_counts_beside_a_form() -> None:
    paper = GrouperPlacer()
    assert (paper.aligned, paper.entropy_weight, paper.grouper_scale) == (False, 0.3, 1.0)
    mine = make_placer("grouper-placer", {"entropy_weight": "2.0"})
    assert mine == dataclasses.replace(paper, entropy_weight=2.0)
    assert GrouperPlacerMi().entropy_weight == 1.0
    assert dataclasses.replace(paper, groups=8).entropy_weight == 0.3
    assert Seq2SeqHsdagRnn(learning_rate=0.5).learning_rate == 0.5


def test_placetos_baseline_includes_the_current_episode() -> None:
    """By hand: one episode is its own baseline; of two the mean is between them."""
    baseline = PerStepAverage(window=2)
    baseline.update(np.array([4.0, 2.0]))
    assert baseline.value.tolist() == [4.0, 2.0]
    assert baseline.deviation == 0.0
    baseline.update(np.array([2.0, 2.0]))
    assert baseline.value.tolist() == [3.0, 2.0]
    assert baseline.deviation == pytest.approx(np.sqrt(0.5))  # of 1, -1, 0, 0
    baseline.update(np.array([0.0, 0.0]))
    assert baseline.value.tolist() == [1.0, 1.0]


def test_placetos_episodes_start_from_one_placement() -> None:
    problem = toys.separable_problem(4)
    recorder = toys.Recorder(problem)
    placer = PlacetoPlacer(homogeneous_starts=False, entropy_weight=1.0)
    toys.run(placer, problem, 5 * 4, 3, measure=recorder)
    assert len({tuple(row.tolist()) for row in recorder.placements[::5]}) == 1
    assert len({tuple(row.tolist()) for row in recorder.placements}) > 4


def test_placetos_entropy_weight_stays_or_falls() -> None:
    falling = PlacetoPlacer(entropy_weight=0.5)
    assert [falling.entropy_weight_at(at) for at in (0.0, 0.5, 1.0)] == [0.5, 0.25, 0.0]
    constant = PlacetoPlacer(entropy_weight=1.0, last_entropy_weight=1.0)
    assert {constant.entropy_weight_at(at) for at in (0.0, 0.3, 1.0)} == {1.0}
    with pytest.raises(InputError, match="last_entropy_weight"):
        PlacetoPlacer(last_entropy_weight=-0.1)


def test_placetos_start_times_are_those_of_its_own_simulator() -> None:
    """On three devices, the second tensor waits for the bus (see `test_by_hand.py`)."""
    from placewright.placers.learned.placeto.algorithm import PlacetoGraph

    graph = graph_of(3, [(0, [1]), (0, [2])], size=7600.0)
    problem = problem_of(graph, [[1e-5] * 3] * 3, []).under(Placeto())
    placer = PlacetoPlacer(groups=3)
    state = PlacetoGraph.of(placer.actions(problem), Evaluator(problem))
    starts = state.starts(np.array([0, 1, 2]))
    assert sorted(starts.tolist()) == pytest.approx([0.0, 1.1e-5, 3.7e-5])


@pytest.mark.parametrize("aggregation", ["sum", "mean"])
def test_placetos_messages_are_those_of_each_node_by_itself(aggregation: str) -> None:
    import torch

    from placewright.placers.learned.placeto.algorithm import PlacetoGraph, PlacetoPolicy

    problem = toys.two_cluster_problem(3)
    graph = PlacetoGraph.of(PlacetoPlacer().actions(problem), Evaluator(problem))
    policy = PlacetoPolicy(2, 3, aggregation=aggregation)
    n = graph.space.n_groups
    features = torch.rand(2, n, 8)
    own = policy.transform(features)
    both = policy.embed(graph, features).split(8, dim=-1)
    for side, links in enumerate((graph.adjacency.T, graph.adjacency)):
        x = own
        for _ in range(3):
            sent = policy.messages[side](x)
            rows = []
            for node in range(n):
                near = links[node].nonzero().squeeze(1)
                taken = (
                    sent[:, near].sum(dim=1) if aggregation == "sum" else sent[:, near].mean(dim=1)
                )
                got = policy.updates[side](taken) if len(near) else 0.0
                rows.append(own[:, node] + got)
            x = torch.stack(rows, dim=1)
        assert torch.allclose(both[side], x, atol=1e-5)


def test_post_skips_the_ppo_step_where_a_cross_entropy_step_falls() -> None:
    post = Post(ppo_every=10, ce_every=50)
    steps = {n: post.step_after(n) for n in range(1, 101)}
    assert [n for n, step in steps.items() if step == "ce"] == [50, 100]
    assert [n for n, step in steps.items() if step == "ppo"] == [10, 20, 30, 40, 60, 70, 80, 90]
    only_ppo = dataclasses.replace(post, ablation="ppo_only")
    assert only_ppo.step_after(50) == "ppo"
    assert dataclasses.replace(post, ablation="ce_only").step_after(10) == ""


@pytest.mark.parametrize("settings", [Post(), Post(ablation="ppo_only"), Post(kl_target=0.003)])
def test_no_ppo_update_of_post_goes_beyond_twice_its_kl_target(settings: Post) -> None:
    """Measured again here, from the distributions before and after each update."""
    problem = toys.two_cluster_problem()
    actions = settings.actions(problem)
    f = Distribution.uniform(actions.allowed, settings)
    rng = np.random.default_rng(0)
    moved = []
    for _ in range(60):
        samples = f.sample(settings.ppo_every, rng)
        times = Evaluator(problem).evaluate_many(actions.expand(samples))
        before = np.exp(f.log_f)
        reported = f.ppo(samples, times.mean() - times, settings)
        after = np.exp(f.log_f)
        joint = float((before * np.log(before / after)).sum())
        assert reported == pytest.approx(joint, abs=1e-9)
        assert joint <= 2.0 * settings.kl_target + 1e-9
        moved.append(joint)
    assert np.median(moved) > settings.kl_target / 4.0  # the steps are not simply tiny


def test_the_history_of_post_holds_the_kl_of_every_ppo_update() -> None:
    post = Post()
    evaluator = toys.run(post, toys.two_cluster_problem(), 302)
    found = [u.values["kl"] for u in evaluator.solution().updates if "kl" in u.values]
    assert len(found) == 24  # of 300 samples every tenth, but for the six after cross-entropy steps
    assert max(found) <= 2.0 * post.kl_target


def test_gradient_of_the_ppo_objective_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    allowed = np.ones((4, 3), dtype=np.bool_)
    allowed[2, 1] = False
    u, old = rng.normal(size=(4, 3)), log_softmax(rng.normal(size=(4, 3)), allowed)
    samples = np.array([[0, 1, 2, 0], [2, 2, 0, 1], [1, 0, 0, 2]])
    advantage = np.array([0.7, -1.2, 0.3])
    _, gradient = ppo_objective(u, old, allowed, samples, advantage, 0.8)
    for entry in zip(*np.nonzero(allowed), strict=True):
        step = np.zeros_like(u)
        step[entry] = 1e-6
        up, _ = ppo_objective(u + step, old, allowed, samples, advantage, 0.8)
        down, _ = ppo_objective(u - step, old, allowed, samples, advantage, 0.8)
        assert gradient[entry] == pytest.approx((up - down) / 2e-6, abs=1e-6)


@pytest.mark.parametrize(
    "placer",
    [
        Cem(),
        Post(),
        Seq2SeqEntropy(),
        GrouperPlacerMi(),
        HierarchicalMi(hidden=64),
        PlacetoPlacer(),
        HsdagCorrected(),
        HsdagReleased(),
    ],
    ids=name_of,
)
def test_a_placement_that_does_not_fit_never_becomes_the_incumbent(placer: Placer) -> None:
    """Everything on the faster device would be best and does not fit."""
    problem = toys.tight_problem()
    recorder = toys.Recorder(problem)  # is asked for what fits only
    evaluator = toys.run(placer, problem, 300, measure=recorder)
    assert len(recorder.placements) < evaluator.evaluations <= 300
    assert evaluator.best is not None
    assert evaluator.simulator.violation(evaluator.best) is None
    assert 14.0 <= evaluator.best_value < 24.0  # five ops at 1 s and three at 3 s, or slower


@pytest.mark.parametrize(
    "placer", [Post(), Seq2SeqEntropy(), HsdagCorrected(), PlacetoPlacer()], ids=name_of
)
def test_same_seed_same_run_on_any_number_of_threads(placer: Placer) -> None:
    import torch

    problem = toys.two_cluster_problem()
    before = torch.get_num_threads()
    runs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        runs.append([(p.evaluations, p.value) for p in toys.run(placer, problem, 200, 7).history])
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert runs[0] == runs[1]


def test_forbidden_devices_are_never_chosen() -> None:
    problem = toys.separable_problem(4)
    seconds = np.array(problem.costs.seconds)
    seconds[1, 1] = np.inf
    costs = dataclasses.replace(problem.costs, seconds=frozen_floats(seconds))
    evaluator = Evaluator(dataclasses.replace(problem, costs=costs), Budget(evaluations=100))
    Post().place(evaluator.problem, evaluator, np.random.default_rng(0))
    assert evaluator.best is not None
    assert evaluator.best.device_of[1] == 0


def test_untrained_placeto_is_decided_by_sums_and_open_with_means() -> None:
    """Why it learns nothing on some graphs: where sums grow, nothing is explored."""
    import torch

    from placewright.placers.learned.placeto.algorithm import PlacetoGraph, PlacetoPolicy
    from placewright.placers.learned.shared.learning_scope import entropy, masked_log_softmax

    problem = dense_problem()
    graph = PlacetoGraph.of(PlacetoPlacer().actions(problem), Evaluator(problem))
    n = graph.space.n_groups
    devices = np.zeros(n, dtype=np.int64)
    state = torch.tensor(graph.features(devices, n // 2))[None]
    spread = {}
    for aggregation in ("sum", "mean"):
        found = []
        for seed in range(10):
            torch.manual_seed(seed)
            policy = PlacetoPolicy(2, 8, aggregation=aggregation)
            logits = policy(graph, state, torch.tensor([n // 2])).detach()
            log_p = masked_log_softmax(logits, torch.ones(1, 2, dtype=torch.bool))
            found.append(entropy(log_p).item() / np.log(2))
        spread[aggregation] = float(np.median(found))
    assert spread["mean"] > 0.95
    assert spread["sum"] < 0.5


def dense_problem() -> Problem:
    """Forty ops, each of which reads what the ten before it make."""
    builder = GraphBuilder()
    made: list[int] = []
    for number in range(40):
        inputs = made[-10:] or [builder.add_input(1e3)]
        made.append(builder.add_tensor(builder.add_op(f"op{number}", "Op", inputs=inputs), 1e3))
    builder.mark_output(made[-1])
    return Problem.from_costs(builder.build(), np.full((40, 2), 1e-3), (1e-6, 1e9))


def test_placetos_ablations_see_what_they_should() -> None:
    """Without messages edges do not count, but who comes before whom; as one sum not even that."""
    import torch

    from placewright.placers.learned.placeto.algorithm import PlacetoGraph, PlacetoPolicy

    problem = toys.two_cluster_problem(2)
    graph = PlacetoGraph.of(PlacetoPlacer().actions(problem), Evaluator(problem))
    n = graph.space.n_groups
    cut = dataclasses.replace(graph, adjacency=torch.zeros_like(graph.adjacency))
    turned = dataclasses.replace(cut, ancestors=graph.descendants, descendants=graph.ancestors)
    features, current = torch.rand(1, n, 8), torch.tensor([n // 2])
    same = {}
    for embedding in ("messages", "partition", "sum"):
        torch.manual_seed(0)
        policy = PlacetoPolicy(2, 2, embedding)
        logits = [policy(view, features, current) for view in (graph, cut, turned)]
        same[embedding] = [torch.allclose(logits[0], other, atol=1e-6) for other in logits[1:]]
    assert same == {"messages": [False, False], "partition": [True, False], "sum": [True, True]}


def test_a_terminal_reward_pays_every_step_the_fall_over_the_episode() -> None:
    """The gradient is that of the same actions with the whole return at each step."""
    import torch

    from placewright.placers.learned.placeto.algorithm import (
        Episode,
        PlacetoGraph,
        PlacetoPolicy,
        episode_loss,
    )

    problem = toys.two_cluster_problem(2)
    graph = PlacetoGraph.of(PlacetoPlacer().actions(problem), Evaluator(problem))
    n = graph.space.n_groups
    actions = torch.zeros(n, dtype=torch.int64)
    features = torch.rand(n, n, 8)
    rewards = np.arange(1.0, n + 1.0)
    told = np.zeros_like(rewards)
    told[-1] = rewards.sum()  # returns from here on are the whole sum at every step
    losses = []
    for reward, paid in (("terminal", rewards), ("intermediate", told)):
        torch.manual_seed(0)
        policy = PlacetoPolicy(2, 2)
        baseline = PerStepAverage()
        baseline.update(np.zeros(n))
        settings = PlacetoPlacer(reward=reward, normalised=False)
        episode = Episode(features, actions, -np.cumsum([0.0, *paid]))
        loss, _ = episode_loss(settings, policy, graph, episode, baseline, 0.5)
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1])


def test_post_keeps_no_more_samples_than_a_step_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = Distribution.cross_entropy

    def noted(self: Distribution, samples: IntArray, times: FloatArray, settings: Post) -> None:
        sizes.append(len(samples))
        plain(self, samples, times, settings)

    monkeypatch.setattr(Distribution, "cross_entropy", noted)
    toys.run(Post(ppo_every=10, ce_every=20), toys.separable_problem(4), 120)
    assert sizes
    assert set(sizes) == {20}
