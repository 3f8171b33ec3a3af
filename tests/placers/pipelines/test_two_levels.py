"""Links of two levels: what the groups are, a case by hand, brute force over splits in groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.host_groups import best_in_groups, hosts, in_groups, load_over_links, problem_on

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Link
from placewright.core.costs import CostTable
from placewright.core.graph import BACKWARD, FORWARD
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution, Stop
from placewright.placers.exact.maxload_ip import MaxloadIp
from placewright.placers.pipelines.dpl import Dpl
from placewright.placers.pipelines.ideal_dp import IdealDp
from placewright.placers.pipelines.ideals import program, two_levels
from placewright.placers.pipelines.ideals.two_levels import link_levels
from placewright.simulation.evaluator import Evaluator


def solved(problem: Problem, placer: IdealDp | Dpl) -> Solution:
    assert placer.why_not(problem) is None
    return placer.place(problem, Evaluator(problem), np.random.default_rng(0))


def test_the_cheap_edge_is_cut_between_the_machines() -> None:
    """Chain of four ops of 6 s on two machines of two devices; tensors of 3, 1 and 3 B cost 1 s/B
    within a machine and 2 s/B between them. Each op on its own device, 0 and 1 on one machine,
    carries 6 + 3, 6 + 3 + 2, 6 + 2 + 3 and 6 + 3, so 11. At far prices all over, inner ops would
    carry 6 + 6 + 2 = 14; two ops on a device are 12 s before any transfer."""
    problem = problem_on(hosts([2, 2], 1, 2), [6] * 4, [(0, 1), (1, 2), (2, 3)], [3, 1, 3, 0])
    solution = solved(problem, IdealDp())
    assert solution.value == 11
    assert solution.message == "optimal among placements whose devices and groups are contiguous"
    assert solution.placement is not None
    device_of = solution.placement.device_of.tolist()
    assert [device // 2 for device in device_of] in ([0, 0, 1, 1], [1, 1, 0, 0])


@pytest.mark.parametrize("seed", range(16))
def test_it_equals_brute_force_over_splits_in_groups(seed: int) -> None:
    """Two machines of two devices, or of two and one; inputs, outputs and memory now and then."""
    rng = np.random.default_rng(seed)
    n_ops = 5
    edges = [pair for pair in itertools.combinations(range(n_ops), 2) if rng.random() < 0.5]
    weights = rng.integers(0, 5, n_ops).astype(float)
    ends = seed % 4 >= 2
    cluster = hosts(
        [2, 2] if seed % 2 else [2, 1],
        near=float(rng.uniform(0.1, 1)),
        far=float(rng.uniform(1, 3)),
        with_host=ends,
        memory=float(math.ceil(weights.sum() * rng.uniform(0.4, 1.2))),
    )
    problem = problem_on(
        cluster,
        rng.integers(1, 10, n_ops).astype(float).tolist(),
        edges,
        rng.integers(0, 6, n_ops).astype(float).tolist(),
        ends=ends,
        weights=weights.tolist(),
    )
    best = best_in_groups(problem)
    solution = solved(problem, IdealDp())
    if math.isinf(best):
        assert solution.placement is None
        return
    assert solution.placement is not None
    assert solution.value == pytest.approx(
        load_over_links(problem, solution.placement.device_of.tolist())
    )
    assert solution.value <= best * (1 + 1e-9)
    assert solution.lower_bound <= solution.value
    device_of = solution.placement.device_of.tolist()
    levels = link_levels(problem)
    assert levels is not None
    if in_groups(problem, levels.group_of.tolist(), device_of):
        assert solution.value == pytest.approx(best)
    assert solved(problem, Dpl()).value >= solution.value - 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_backward_ops_follow_their_forward_ops(seed: int) -> None:
    """A training graph of four layers on two machines of two devices."""
    rng = np.random.default_rng(seed)
    n = 4
    ahead = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.6]
    edges = ahead + [(n + after, n + before) for before, after in ahead]
    edges += [(op, n + op) for op in range(n)]
    problem = problem_on(
        hosts([2, 2], 0.5, 2),
        rng.integers(1, 10, 2 * n).astype(float).tolist(),
        edges,
        rng.integers(0, 6, 2 * n).astype(float).tolist(),
        phases=[FORWARD] * n + [BACKWARD] * n,
    )
    solution = solved(problem, IdealDp())
    assert solution.placement is not None
    device_of = solution.placement.device_of.tolist()
    assert solution.value == pytest.approx(load_over_links(problem, device_of))
    assert solution.value <= best_in_groups(problem) * (1 + 1e-9)


def test_a_split_in_groups_that_exceeds_the_memory_by_a_rounding_is_no_answer() -> None:
    """Both ops on a device keep a byte more than its gigabyte; apart they take 1 s + 10 s."""
    cluster = hosts([2, 2], 1, 2, memory=1e9)
    problem = problem_on(cluster, [1, 1], [(0, 1)], [10, 0], weights=[6e8, 4e8 + 1.0])
    for placer in (Dpl(), IdealDp()):
        solution = solved(problem, placer)
        assert (solution.value, solution.message) == (11.0, program.NO_ROOM)


def test_a_better_placement_that_is_no_split_is_not_called_the_best_one() -> None:
    """A chain on three devices: splits take 1 + 4 s, and the short ops on one device 4 s."""
    chain = [(0, 1), (1, 2), (2, 3), (3, 4)]
    problem = problem_on(hosts([2, 1], 1, 2), [1, 4, 1, 4, 2], chain, [0] * 5)
    best = solved(problem, IdealDp())
    assert best.value == 5.0
    assert best.message == "optimal among placements whose devices and groups are contiguous"
    evaluator = Evaluator(problem)
    assert evaluator.evaluate([0, 1, 0, 2, 0]) == 4.0
    solution = IdealDp().place(problem, evaluator, np.random.default_rng(0))
    assert (solution.value, solution.message) == (4.0, "")


def test_groups_are_read_off_the_links() -> None:
    problem = problem_on(hosts([2, 3, 1], 1, 2), [1, 1], [(0, 1)], [1, 1])
    levels = link_levels(problem)
    assert levels is not None
    assert levels.group_of.tolist() == [0, 0, 2, 2, 2, 5]
    assert levels.near.receive[:, 0].tolist() == [1, 1, 1, 1, 1, 2]
    assert levels.far.send[:, 0].tolist() == [2] * 6


def test_groups_within_one_level_stand_alone() -> None:
    problem = problem_on(hosts([3], 1, 2), [1, 1], [(0, 1)], [1, 1])
    levels = link_levels(problem)
    assert levels is not None
    assert levels.group_of.tolist() == [0, 1, 2]


def test_three_levels_and_shared_channels_are_refused() -> None:
    """Links of 1, 2 and 3 s/B; two machines whose network is one channel."""
    cluster = hosts([2, 2], 1, 2)
    links = [
        Link(link.source, link.destination, bandwidth=1 / 3) if at == 2 else link
        for at, link in enumerate(cluster.links)
    ]
    problem = problem_on(Cluster(cluster.devices, tuple(links)), [1, 1], [(0, 1)], [1, 1])
    assert "depends on the device at its other end" in str(IdealDp().why_not(problem))
    links = [
        Link(link.source, link.destination, bandwidth=0.5, channel="network")
        if link.bandwidth < 1
        else link
        for link in cluster.links
    ]
    problem = problem_on(Cluster(cluster.devices, tuple(links)), [1, 1], [(0, 1)], [1, 1])
    assert "share a channel" in str(Dpl().why_not(problem))


def test_the_integer_program_needs_one_level() -> None:
    problem = problem_on(hosts([2, 2], 1, 2), [1, 1], [(0, 1)], [1, 1])
    assert "depends on the device at its other end" in str(MaxloadIp().why_not(problem))


def test_too_many_ideals_and_a_spent_budget() -> None:
    problem = problem_on(hosts([2, 2], 1, 2), [4] * 6, [(0, 1), (2, 3)], [3, 1, 3, 0, 0, 0])
    assert "too many ideals" in solved(problem, IdealDp(max_ideals=5)).message
    evaluator = Evaluator(problem, Budget(evaluations=1))
    solution = IdealDp().place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    assert solution.evaluations == 1


def four_in_a_row() -> Problem:
    """The problem of `test_the_cheap_edge_is_cut_between_the_machines`, whose best value is 11."""
    return problem_on(hosts([2, 2], 1, 2), [6] * 4, [(0, 1), (1, 2), (2, 3)], [3, 1, 3, 0])


def test_tables_of_devices_within_a_group_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines of three devices that all differ: 4 states over groups, 8 within each."""
    problem = problem_on(hosts([3, 3], 1, 2), [1] * 6, [(0, 1), (1, 2)], [1] * 6)
    seconds = np.arange(1.0, 37.0).reshape(6, 6)
    problem = replace(problem, costs=CostTable(frozen_floats(seconds)))
    monkeypatch.setattr(program, "MAX_TABLE_ENTRIES", 100)
    assert solved(problem, Dpl()).message == program.TOO_MANY_KINDS


def test_members_of_too_many_ideals_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_levels, "_MOST_MEMBERS", 19)  # of 5 prefixes of 4 ops
    for placer in (Dpl(), IdealDp()):
        found = solved(four_in_a_row(), placer)
        assert found.message.startswith("too many ops for groups")
        assert found.placement is not None


@pytest.mark.parametrize("placer", [Dpl(), IdealDp()])
def test_a_split_found_by_the_end_of_the_budget_is_valued(
    placer: Dpl | IdealDp, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = [0.0], two_levels.TwoLevelProgram.run
    monkeypatch.setattr(Evaluator, "seconds", property(lambda self: clock[0]))
    evaluator = Evaluator(four_in_a_row(), Budget(seconds=1000.0))

    def slow(self: two_levels.TwoLevelProgram, is_spent: Callable[[], bool]) -> bool:
        assert real(self)
        clock[0] += evaluator.remaining_seconds + 1.0  # of its share
        assert is_spent()
        return False

    monkeypatch.setattr(two_levels.TwoLevelProgram, "run", slow)
    found = placer.place(evaluator.problem, evaluator, np.random.default_rng(0))
    assert found.value == 11
    assert found.message == "the budget ended before the best split"
    assert found.stop == Stop.SECONDS


def test_programs_within_a_group_end_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """One evaluation is spent before any program within a group runs."""
    asked, real = [], program.ContiguousProgram.run

    def run(self: program.ContiguousProgram, is_spent: Callable[[], bool] = lambda: False) -> bool:
        asked.append(is_spent())
        return real(self, is_spent)

    monkeypatch.setattr(program.ContiguousProgram, "run", run)
    evaluator = Evaluator(four_in_a_row(), Budget(evaluations=1))
    Dpl().place(evaluator.problem, evaluator, np.random.default_rng(0))
    assert asked == [False, True]
