"""Small problems end at the optimum over placements and orders, and with its proof."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from placewright.core.builder import GraphBuilder
from placewright.core.execution_models import (
    Event,
    ExecutionModel,
    Placeto,
    Subgraph,
    SubgraphIP,
)
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.placers.portfolio import enumeration
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.enumeration import (
    all_peaks,
    all_placements,
    enumerate_small,
    orders_that_matter,
)
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import brute_force, legal_placements
from placewright.testing.problems import packing_problem, random_problem, under_subgraphs

MODELS = ("event", "event-fifo", "max-load", "subgraph", "subgraph-ip", "placeto")


def small_problem(model: str, seed: int) -> Problem:
    """Three to six ops on two or three devices, with unlike links and all kinds of limits."""
    rng = np.random.default_rng([seed, 33])
    problem = random_problem(
        rng,
        n_ops=int(rng.integers(3, 7)),
        n_devices=int(rng.integers(2, 4)),
        objective="throughput" if model == "max-load" else "latency",
    )
    links = tuple(
        replace(
            link,
            latency_seconds=float(rng.integers(0, 4)),
            bandwidth=float(rng.integers(1, 9)),
        )
        for link in problem.cluster.links
    )
    problem = replace(problem, cluster=replace(problem.cluster, links=links))
    others: dict[str, ExecutionModel] = {
        "event-fifo": Event(dispatch="fifo"),
        "placeto": Placeto(),
        "subgraph": Subgraph(),
        "subgraph-ip": SubgraphIP(per_accelerator=1 + seed % 2),
    }
    if model.startswith("subgraph"):
        return under_subgraphs(problem, others[model])
    return replace(problem, execution_model=others.get(model, problem.execution_model))


def placed(problem: Problem, evaluations: int = 50_000, seed: int = 0) -> Solution:
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    return Auto().place(problem, evaluator, np.random.default_rng(seed))


def check_optimum(model: str, seed: int) -> None:
    problem = small_problem(model, seed)
    best, found = brute_force(problem), placed(problem)
    assert found.value == best, (model, seed)
    assert found.status == ("infeasible" if math.isinf(best) else "optimal"), (model, seed)
    assert found.lower_bound <= best
    if found.placement is not None:
        assert Simulator(problem).value(found.placement) == best


@pytest.mark.parametrize("model", MODELS)
def test_small_problems_end_at_the_proven_optimum(model: str) -> None:
    for seed in range(12):
        check_optimum(model, seed)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_three_hundred_small_problems_end_at_the_proven_optimum(model: str) -> None:
    for seed in range(300):
        check_optimum(model, seed)


def test_an_order_that_makes_a_placement_fit_is_found() -> None:
    """No placement fits as devices dispatch by themselves, and some does in an order."""
    for seed in range(2000):
        problem = small_problem("event", seed)
        rows = np.array(list(legal_placements(problem)))
        if np.isfinite(problem.cluster.memory_bytes).any() and len(rows) > 0:
            values = Simulator(problem).values(rows)
            if np.isinf(values).all() and math.isfinite(brute_force(problem)):
                break
    found = placed(problem)
    assert found.placement is not None
    assert found.placement.order is not None
    assert (found.status, found.value) == ("optimal", brute_force(problem))


def test_an_order_that_is_faster_than_dispatch_is_found() -> None:
    """Ranks alone miss the optimum of some problems without limits of memory."""
    n_better = 0
    for seed in range(40):
        problem = random_problem(
            np.random.default_rng([seed, 5]), n_ops=6, n_devices=2, constrained=False
        )
        by_rank = Simulator(problem).values(np.array(list(legal_placements(problem)))).min()
        found = placed(problem)
        assert (found.value, found.status) == (brute_force(problem), "optimal"), seed
        n_better += found.value < by_rank
    assert n_better > 0


def test_a_proof_that_nothing_fits_says_what_was_tried() -> None:
    for objective, orders in (("latency", ", in any order,"), ("throughput", "")):
        found = placed(packing_problem(objective=objective))  # type: ignore[arg-type]
        assert found.status == "infeasible"
        assert found.message.startswith(f"none of all 8 placements{orders} keeps every constraint")
        assert "device 'a'" in found.message


@pytest.mark.parametrize("evaluations", [3, 40, 64, 70, 200])
def test_the_budget_is_kept(evaluations: int) -> None:
    """64 placements: with less they are left alone, with more all count."""
    problem = random_problem(np.random.default_rng(4), n_ops=6, n_devices=2, constrained=False)
    found = placed(problem, evaluations)
    assert found.evaluations <= evaluations
    best = brute_force(problem)
    assert found.lower_bound <= best
    assert found.status == "feasible" or found.value <= best * (1 + 3e-6)
    if evaluations >= 64:
        simulator = Simulator(problem)
        assert found.value <= simulator.values(np.array(list(legal_placements(problem)))).min()


def test_measured_and_large_problems_are_left_alone() -> None:
    small = random_problem(np.random.default_rng(4), n_ops=6, n_devices=2, constrained=False)
    large = random_problem(np.random.default_rng(4), n_ops=13, n_devices=2, constrained=False)

    def measure(placement: Placement) -> float:
        raise AssertionError(placement)

    for evaluator in (Evaluator(small, measure=measure), Evaluator(large)):
        assert enumerate_small(evaluator.problem, evaluator) is None
        assert evaluator.evaluations == 0


def test_one_device_has_nothing_to_order() -> None:
    """Any order takes the same time, and there are too many: the bound ends it at once."""
    builder = GraphBuilder()
    for name in "abcdefgh":
        builder.add_op(name, "Op")
    problem = Problem.from_costs(builder.build(), np.ones((8, 1)), (0.0, 1.0))
    found = placed(problem)
    assert (found.value, found.status) == (8.0, "optimal")
    assert found.evaluations < 10


def test_orders_of_many_ops_are_no_deeper_than_the_interpreter_goes() -> None:
    builder = GraphBuilder()
    first = builder.add_tensor(builder.add_op("first", "Op"), 1.0)
    for number in range(1500):
        builder.add_op(f"op{number}", "Op", inputs=[first])
    problem = Problem.from_costs(builder.build(), np.ones((1501, 1)), (0.0, 1.0))
    order = next(orders_that_matter(problem, [0] * 1501))
    assert order == list(range(1501))


def test_orders_that_matter_are_all_sequences_of_a_processor() -> None:
    """Of ops 0 -> 2 and 1 -> 3 on one device: six interleavings; apart one order alone."""
    builder = GraphBuilder()
    tensors = [builder.add_tensor(builder.add_op(name, "Op"), 1.0) for name in "ab"]
    for name, tensor in zip("cd", tensors, strict=True):
        builder.add_op(name, "Op", inputs=[tensor])
    problem = Problem.from_costs(builder.build(), np.ones((4, 2)), (0.0, 1.0))
    together = [tuple(order) for order in orders_that_matter(problem, [0, 0, 0, 0])]
    assert len(together) == len(set(together)) == 6
    assert len(list(orders_that_matter(problem, [0, 1, 0, 1]))) == 1


def test_placements_of_which_some_have_no_answer_prove_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time may end within a batch, which then has fewer answers."""
    problem = random_problem(np.random.default_rng(0), n_ops=7, constrained=False)
    evaluator = Evaluator(problem)
    answered = evaluator.evaluate_many
    monkeypatch.setattr(evaluator, "evaluate_many", lambda rows: answered(rows[:-1]))
    assert enumerate_small(problem, evaluator) is None
    assert evaluator.bounded_by == set()


def chain_on(n_ops: int, n_devices: int) -> Problem:
    """A chain of ops of 1 s on devices that are the same."""
    builder, tensors = GraphBuilder(), list[int]()
    for number in range(n_ops):
        op = builder.add_op(f"op{number}", "Op", inputs=tensors)
        tensors = [builder.add_tensor(op, 1.0)]
    return Problem.from_costs(builder.build(), np.ones((n_ops, n_devices)), (0.0, 1.0))


def no_orders(problem: Problem, device_of: list[int]) -> Iterator[list[int]]:
    raise AssertionError(f"an order of {problem.n_units} units on {len(device_of)} devices")


def test_no_order_of_a_large_graph_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first order alone would take longer than a budget; the value stays."""
    monkeypatch.setattr(enumeration, "orders_that_matter", no_orders)
    problem = chain_on(3000, 1)
    slow = replace(problem.cluster.devices[0], dispatch_seconds=1.0)  # above the bound
    problem = replace(problem, cluster=replace(problem.cluster, devices=(slow,)))
    evaluator = Evaluator(problem)
    assert enumerate_small(problem, evaluator) is None
    assert math.isfinite(evaluator.best_value)
    assert all_peaks(problem) is None


def test_placements_of_a_large_graph_are_not_made_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = chain_on(10, 2)
    monkeypatch.setattr(enumeration, "_MOST_CELLS", 1024 * 10)
    assert all_placements(problem) is not None
    monkeypatch.setattr(enumeration, "_MOST_CELLS", 1024 * 10 - 1)
    assert all_placements(problem) is None


def test_placements_that_take_too_long_leave_time_for_searches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call takes a fifth of the seconds: three are made, and the budget is not spent."""
    problem = chain_on(6, 2)
    evaluator = Evaluator(problem, Budget(seconds=1000.0))
    clock = [0.0]
    monkeypatch.setattr(Evaluator, "seconds", property(lambda self: clock[0]))
    monkeypatch.setattr(enumeration, "_AT_ONCE", 4)
    real = Evaluator.evaluate_many

    def slow(self: Evaluator, rows: np.ndarray) -> np.ndarray:
        values = real(self, rows)
        clock[0] += 200.0
        return values

    monkeypatch.setattr(Evaluator, "evaluate_many", slow)
    assert enumerate_small(problem, evaluator) is None
    assert evaluator.evaluations == 12
    assert not evaluator.is_spent


def test_peaks_end_when_they_are_told_to() -> None:
    problem, asked = chain_on(6, 2), []

    def is_over() -> bool:
        asked.append(None)
        return len(asked) > 5

    assert all_peaks(problem) is not None
    assert all_peaks(problem, is_over=is_over) is None
    assert len(asked) == 6
