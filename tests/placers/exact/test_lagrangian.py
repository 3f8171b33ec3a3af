"""Chains under the Lagrangian relaxation, beside all placements listed and valued by plain sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.sequential_problems import drawn
from testing.sequential_truth import plain_sum

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Sequential
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.exact.lagrangian import Chain, best_in_beam


def best_in_runs(problem: Problem, run: list[int], rank: list[int]) -> float:
    """The least plain value of placements whose run has ascending ranks."""
    every = itertools.product(range(problem.n_devices), repeat=problem.graph.n_ops)
    return min(
        (
            plain_sum(problem, chosen)
            for chosen in every
            if sorted(rank[chosen[op]] for op in run) == [rank[chosen[op]] for op in run]
        ),
        default=math.inf,
    )


@pytest.mark.parametrize("seed", range(40))
def test_bound_and_a_wide_beam_beside_all_placements(seed: int) -> None:
    """Pins, classes, shared weights, pools, cuts, missing links; every second one has a run."""
    problem = drawn(seed)
    rank = np.random.default_rng(seed).permutation(problem.n_devices).tolist()
    run = problem.graph.topological_order.tolist()[1:4] if seed % 2 else []
    chain = Chain(problem, run, rank)
    bound, prices = chain.bound()
    best, found = best_in_runs(problem, run, rank), best_in_beam(chain, prices, 10**6)
    if math.isinf(best):
        assert found.devices is None
        return
    assert bound <= best * (1 + 1e-9)
    assert found.devices is not None
    chosen = tuple(problem.colocation.expand(found.devices).tolist())
    assert plain_sum(problem, chosen) == pytest.approx(best)
    assert found.bound == pytest.approx(best)
    none = best_in_beam(chain, prices, 10**6, best * 0.999)
    assert none.devices is None
    assert math.isinf(none.bound)


@pytest.mark.parametrize("seed", range(20))
def test_a_bound_of_placements_with_an_item_on_a_device(seed: int) -> None:
    """At any prices no placement with an op on the device is quicker; without limits one is as."""
    problem = drawn(seed)
    chain = Chain(problem, [], [0] * problem.n_devices)
    items = problem.colocation.group_of.tolist()
    every = list(itertools.product(range(problem.n_devices), repeat=problem.graph.n_ops))
    values = [plain_sum(problem, chosen) for chosen in every]
    _, prices = chain.bound()
    for device, free in itertools.product(range(problem.n_devices), ((), (0,))):
        best = min(
            (
                value
                for chosen, value in zip(every, values, strict=True)
                if any(
                    at == device and item not in free
                    for at, item in zip(chosen, items, strict=True)
                )
            ),
            default=math.inf,
        )
        assert chain.least_on(prices, device, free) <= best * (1 + 1e-9)
        if not len(chain.limits):
            assert chain.least_on(prices, device, free) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
def test_without_limits_the_bound_is_the_optimum(seed: int) -> None:
    problem = drawn(seed)
    devices = tuple(replace(each, memory_bytes=math.inf) for each in problem.cluster.devices)
    free = replace(
        problem.cluster, devices=devices, pools=dict.fromkeys(problem.cluster.pools, 9e9)
    )
    problem = replace(problem, cluster=free)
    bound, _ = Chain(problem, [], [0] * problem.n_devices).bound()
    assert bound == pytest.approx(best_in_runs(problem, [], [0] * problem.n_devices))


def in_a_row(
    seconds: Sequence[Sequence[float]], limit: float, sizes: Sequence[float] = ()
) -> Problem:
    """Ops that keep a byte, or `sizes`; a message takes 3 s; the first device has a limit."""
    builder = GraphBuilder()
    state = builder.add_input(0.0)
    for at in range(len(seconds)):
        op = builder.add_op(
            f"op{at}",
            "A",
            inputs=[state],
            weights=[builder.add_weight(sizes[at] if sizes else 1.0)],
        )
        state = builder.add_tensor(op, 0.0, is_output=at == len(seconds) - 1)
    ends = ["fast", "slow", "host"]
    free = [Link(a, b, 0.0) for a, b in itertools.permutations(ends, 2) if "host" in (a, b)]
    links = (*free, Link("fast", "slow", 3.0), Link("slow", "fast", 3.0))
    devices = (Device("fast", memory_bytes=limit), Device("slow"))
    costs, units = CostTable(np.array(seconds)), Grouping.identity(len(seconds))
    cluster = Cluster(devices, links)
    return Problem(builder.build(), cluster, costs, units, execution_model=Sequential())


def test_a_price_by_hand() -> None:
    """Four ops take 1 s on the fast device and 5 s on the slow one; two fit on the fast one.

    Two on each device is 2 + 10 + 3 = 15 s. All on the slow one is 20 s, with no byte used. At a
    price of 4 s per byte, all on the fast one is 4 + 4 x 4 = 20, too, so that the bound is
    20 - 2 x 4 = 12 s: the way costs nothing in the mixture of both.
    """
    problem = in_a_row([[1.0, 5.0]] * 4, 2.0)
    bound, prices = Chain(problem, [], [0, 1]).bound()
    assert bound == pytest.approx(12.0)
    assert prices[0] == pytest.approx(4.0 * 4)  # for the four bytes of the model
    found = best_in_beam(Chain(problem, [], [0, 1]), prices, 10).devices
    assert found is not None
    assert sorted(found.tolist()) == [0, 0, 1, 1]
    backwards = best_in_beam(Chain(problem, range(4), [1, 0]), prices, 10).devices
    assert backwards is not None
    assert backwards.tolist() == [1, 1, 0, 0]


def test_what_a_narrow_beam_loses_bounds_the_optimum() -> None:
    """Seven ops of drawn sizes, half of which fit on the fast device; 128 placements, listed."""
    rng, raised, short = np.random.default_rng(0), 0, 0
    for _ in range(60):
        sizes = rng.integers(1, 9, 7).astype(float).tolist()
        seconds = np.stack([rng.uniform(0.5, 2.0, 7), rng.uniform(2.0, 9.0, 7)], axis=1)
        problem = in_a_row(seconds.tolist(), 0.5 * sum(sizes), sizes)
        chain = Chain(problem, [], [0, 1])
        bound, prices = chain.bound()
        best = best_in_runs(problem, [], [0, 1])
        for width in (1, 2, 4, 8):
            found = best_in_beam(chain, prices, width)
            assert found.bound <= best * (1 + 1e-9)
            raised += bool(bound * 1.001 < found.bound < best * 0.999)
            short += bool(best_in_beam(chain, prices, width, best * 1.001).bound < best)
    assert raised > 20
    assert short > 20


def test_a_wide_graph_is_refused() -> None:
    """Twenty ops without an order, whose outputs one op reads: 3 ** 20 choices at once."""
    builder = GraphBuilder()
    start = builder.add_input(1.0)
    ends = [
        builder.add_tensor(builder.add_op(f"op{at}", "A", inputs=[start]), 1.0) for at in range(20)
    ]
    builder.add_tensor(builder.add_op("end", "A", inputs=ends), 1.0, is_output=True)
    cluster = Cluster(tuple(Device(f"d{at}") for at in range(3)), host="d0")
    costs, units = CostTable(np.ones((21, 3))), Grouping.identity(21)
    problem = Problem(builder.build(), cluster, costs, units, execution_model=Sequential())
    with pytest.raises(InputError, match="hang together too much"):
        Chain(problem, [], [0, 1, 2])


def test_a_bound_ends_with_the_budget_and_holds() -> None:
    """Prices of memory need several rounds; the first one has a bound without them."""
    problem = drawn(1)
    chain = Chain(problem, [], [0] * problem.n_devices)
    asked: list[None] = []

    def is_over() -> bool:
        asked.append(None)
        return True

    first, prices = chain.bound(is_over)
    assert len(asked) == 1
    assert not prices.any()
    assert -math.inf < first <= chain.bound()[0]


def freely_linked(
    seconds: Sequence[Sequence[float]],
    sizes: Sequence[float],
    limit: float,
    pins: Mapping[int, int],
) -> Problem:
    """Ops in a row, whose messages take no time; the first device has a limit."""
    builder = GraphBuilder()
    state = builder.add_input(0.0)
    for at, size in enumerate(sizes):
        op = builder.add_op(f"op{at}", "A", inputs=[state], weights=[builder.add_weight(size)])
        state = builder.add_tensor(op, 0.0, is_output=at == len(sizes) - 1)
    names = [f"d{at}" for at in range(len(seconds[0]))]
    links = tuple(Link(a, b, 0.0) for a, b in itertools.permutations([*names, "host"], 2))
    devices = (Device(names[0], memory_bytes=limit), *(Device(name) for name in names[1:]))
    costs, units = CostTable(np.array(seconds)), Grouping.identity(len(sizes))
    cluster = Cluster(devices, links)
    return Problem(
        builder.build(), cluster, costs, units, execution_model=Sequential(), pins=dict(pins)
    )


def test_a_device_that_is_far_slower_hides_no_seconds() -> None:
    """The first device holds the first op alone, and the last one takes 1e12 s.

    The others take 1.9 ms each on the third device. A price that keeps all ops from the first
    device may be so large that milliseconds are less than the last digit of a priced sum.
    """
    seconds = [[1e-3] * 4, *[[1e-3, 2e-3, 1.9e-3, 1e12]] * 2]
    problem = freely_linked(seconds, [1.0] * 3, 1.0, {0: 0})
    chain = Chain(problem, [], [0] * 4)
    bound, prices = chain.bound()
    assert bound <= 0.0048 * (1 + 1e-9)
    assert bound == pytest.approx(0.0048, rel=1e-4)
    for tried in (prices, np.array([8e12])):
        found = best_in_beam(chain, tried, 1000)
        assert found.devices is not None
        assert problem.colocation.expand(found.devices).tolist() == [0, 2, 2]
        assert found.bound <= 0.0048 * (1 + 1e-9)


def test_sums_of_bytes_that_differ_by_one_are_not_alike() -> None:
    """The first device holds two of three ops to the byte, and the rest takes 4e12 bytes.

    The quicker one of two choices has a byte more, so that the third op, which is pinned there,
    has no room behind it.
    """
    sizes = [5e10, 5e10 + 1, 1.0, 5e10, 3.85e12]
    seconds = [[1.0, 3.0], [1.0, 3.1], *[[0.0, 0.0]] * 3]
    problem = freely_linked(seconds, sizes, 1e11, {2: 1, 3: 0, 4: 1})
    chain = Chain(problem, [], [0, 1])
    _, prices = chain.bound()
    found = best_in_beam(chain, prices, 1000)
    assert found.devices is not None
    chosen = problem.colocation.expand(found.devices).tolist()
    assert plain_sum(problem, chosen) == pytest.approx(best_in_runs(problem, [], [0, 1]))
    assert plain_sum(problem, chosen) == pytest.approx(4.1)
    assert found.bound <= 4.1 * (1 + 1e-9)
