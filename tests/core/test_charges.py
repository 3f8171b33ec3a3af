"""Energy and price by hand, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from testing.event_truth import legal_placements
from testing.plain_truth import amount, seconds_of
from testing.proof_problems import proof_problem

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Placeto
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import ClusterError, CostError, FieldError, UnknownNameError
from placewright.files.problem_file import read_problem, write_problem
from placewright.simulation.bounds import lower
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.bounds.lower import lower_bounds, quick_bounds
from placewright.simulation.model import Simulator


def two_ops() -> Problem:
    """A chain of two ops: 2 s each on slow, 1 s each on fast; a transfer takes 0.5 s.

    slow draws 5 W busy and 1 W idle and costs 1/s, fast 41 W and 3 W and 4/s.
    """
    plain = Problem.from_costs(
        _chain(), [[2.0, 1.0], [2.0, 1.0]], (0.5, float("inf")), devices=["slow", "fast"]
    )
    slow = Device("slow", busy_watts=5.0, idle_watts=1.0, price_per_hour=3600.0)
    fast = Device("fast", busy_watts=41.0, idle_watts=3.0, price_per_hour=4 * 3600.0)
    links = (Link("slow", "fast", 0.5), Link("fast", "slow", 0.5))
    return replace(plain, cluster=Cluster((slow, fast), links, host="slow"))


def _chain() -> object:
    from placewright.core.builder import GraphBuilder

    builder = GraphBuilder()
    first = builder.add_op("first", "Op")
    builder.add_op("second", "Op", inputs=[builder.add_tensor(first, 1.0)])
    return builder.build()


@pytest.mark.parametrize(
    ("device_of", "energy", "price"),
    [
        # 4 s: 2 ops x 2 s x (5 - 1) W, 4 s x (1 + 3) W idle; 4 s x 1.
        ([0, 0], 16.0 + 16.0, 4.0),
        # 2 s: 2 ops x 1 s x (41 - 3) W, 2 s x 4 W; 2 s x 4.
        ([1, 1], 76.0 + 8.0, 8.0),
        # 3.5 s: 8 J + 38 J, 3.5 s x 4 W; 3.5 s x (1 + 4).
        ([0, 1], 46.0 + 14.0, 17.5),
    ],
)
def test_energy_and_price_by_hand(device_of: list[int], energy: float, price: float) -> None:
    problem, placement = two_ops(), Placement.of(device_of)
    assert Simulator(replace(problem, objective="energy")).value(placement) == energy
    assert Simulator(replace(problem, objective="price")).value(placement) == price
    amounts = Simulator(problem).amounts(placement)
    assert (amounts["energy"], amounts["price"]) == (energy, price)


def test_bounds_are_those_of_the_best_device_here() -> None:
    """No placement is better than slow alone: 32 J, and 4 for the price.

    Energy: 16 J of units, and 4 W for the shortest time, 2 s. Price: 4 s of slow alone.
    """
    problem = two_ops()
    energy = {
        bound.method: bound.value for bound in quick_bounds(replace(problem, objective="energy"))
    }
    price = {
        bound.method: bound.value for bound in quick_bounds(replace(problem, objective="price"))
    }
    assert energy["cheapest units"] == pytest.approx(24.0)
    assert price["cheapest devices"] == pytest.approx(4.0)


def test_only_few_sets_of_devices_have_bounds_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of nine devices there are 512 sets: each would be a problem of its own."""
    seconds = np.full((2, 9), 2.0)
    plain = Problem.from_costs(_chain(), seconds, (0.5, float("inf")), devices=list("abcdefghi"))
    devices = tuple(
        replace(device, price_per_hour=3600.0 * (at + 1))
        for at, device in enumerate(plain.cluster.devices)
    )
    problem = replace(plain, cluster=replace(plain.cluster, devices=devices), objective="price")
    made: list[Problem] = []
    monkeypatch.setattr(lower, "replace", lambda *args, **more: made.append(replace(*args, **more)))
    found = {bound.method: bound.value for bound in quick_bounds(problem)}
    assert found["cheapest devices"] == pytest.approx(4.0)  # the cheapest for the critical path
    assert made == []
    assert quick_bounds(problem) is quick_bounds(problem)


def test_a_broken_limit_names_quantity_and_excess() -> None:
    problem = replace(two_ops(), limits={"energy": 50.0})
    assert Simulator(problem).value(Placement.of([0, 0])) == 4.0
    violation = Simulator(problem).violation(Placement.of([1, 1]))
    assert violation is not None
    assert (violation.constraint, violation.where, violation.excess) == ("limit", "energy", 34.0)
    assert "energy is 84 J and its limit 50 J: 34 J too much" in violation.message


def test_a_limit_below_every_placement_is_proven() -> None:
    proof = prove_infeasible(replace(two_ops(), limits={"energy": 20.0}))
    assert "energy of at least 24 J, and the limit is 20 J: 4 J too low" in str(proof)
    assert prove_infeasible(replace(two_ops(), limits={"energy": 24.0})) is None


def test_a_table_of_energy_replaces_power_and_follows_groups() -> None:
    from placewright.core.grouping import Grouping

    table = np.array([[1.0, 2.0], [3.0, 4.0]])
    problem = replace(two_ops(), op_joules=table, objective="energy")
    assert Simulator(problem).value(Placement.of([0, 0])) == 4.0 + 16.0
    coarse = problem.coarsened(Grouping.from_labels([0, 0]))
    assert coarse.op_joules is not None
    assert coarse.op_joules.tolist() == [[4.0, 6.0]]
    with pytest.raises(CostError, match="op_joules has shape"):
        replace(problem, op_joules=table[:1])


def test_unknown_power_and_wrong_limits_are_refused() -> None:
    problem = two_ops()
    bare = replace(
        problem, cluster=replace(problem.cluster, devices=(Device("slow"), Device("fast")))
    )
    with pytest.raises(FieldError, match=r"no energy of device 'slow': add its power"):
        replace(bare, objective="energy")
    with pytest.raises(FieldError, match=r"no price of device 'slow': add its price"):
        replace(bare, limits={"price": 1.0})
    with pytest.raises(UnknownNameError, match="limited quantity"):
        replace(problem, limits={"heat": 1.0})
    with pytest.raises(FieldError, match="must be > 0"):
        replace(problem, limits={"energy": 0.0})
    with pytest.raises(ClusterError, match="exchange them"):
        Device("odd", busy_watts=1.0, idle_watts=2.0)


def test_the_smallest_change_is_the_least_energy() -> None:
    """No placement takes less than slow alone: 32 J, with the other limit as well."""
    from placewright.placers.advice import AmountChange, advice, smallest_changes

    problem = replace(two_ops(), limits={"energy": 25.0, "latency": 4.0})
    (change,) = [one for one in smallest_changes(problem) if isinstance(one, AmountChange)]
    assert (change.quantity, change.amount, change.more) == ("energy", 32.0, 7.0)
    assert "argument `limits` energy=32.02J, 7 J more" in advice(problem)


@pytest.mark.parametrize(
    ("quantity", "seed"),
    [("energy", 0), ("energy", 1), ("energy", 9), ("energy", 18), ("price", 0), ("price", 7)],
)
def test_the_smallest_limit_under_max_load_is_that_of_brute_force(quantity: str, seed: int) -> None:
    """If placements are not enumerated, the limit is one that a placement keeps, and not much more.

    The bisection may end above the least amount; it never ends below.
    """
    from placewright.placers.advice import _amounts, _Search

    problem = replace(proof_problem(seed, "max-load"), limits={})
    rows = legal_placements(problem)
    amounts = [amount(problem, quantity, row, seconds_of(problem, row)) for row in rows]
    least = min(amounts)
    assert 0 < least < np.inf, "choose a seed in which no placement is free"
    limited = replace(problem, limits={quantity: 0.5 * least})
    for most in (20_000, 1):
        (change,) = _amounts(limited, _Search(most, math.inf))
        if most > 1:
            assert change.amount == pytest.approx(least)
        else:
            assert least * (1 - 1e-9) <= change.amount <= 2.0 * least


def test_what_a_limit_accepts_is_above_no_bound() -> None:
    """The fast device takes 1 kJ, and the limit is less than a billionth below it.

    That is within the rounding of sums, so that the fast device is allowed, and 1 s is the best.
    """
    problem = replace(two_ops(), op_joules=1e3 * np.array([[0.0, 0.5], [0.0, 0.5]]))
    idle = tuple(replace(device, idle_watts=0.0) for device in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=idle)
    table = 1e3 * np.array([[1.0 - 1e-9, 1.0], [0.0, 0.0]])
    costs = CostTable(frozen_floats([[1e3, 1.0], [0.0, 0.0]]))
    problem = replace(
        problem, cluster=cluster, costs=costs, op_joules=table, limits={"energy": 1e3 - 9e-7}
    )
    best = Simulator(problem).value(Placement.of([1, 1]))
    assert best == 1.0
    assert max(bound.value for bound in lower_bounds(problem)) <= best


def test_idle_power_without_busy_power_is_kept_in_files(tmp_path: Path) -> None:
    """A table has the energy of units, so that a device may say its idle power alone: 4 J + 2 W."""
    problem = replace(two_ops(), op_joules=np.array([[1.0, 2.0], [3.0, 4.0]]), objective="energy")
    devices = tuple(Device(name, idle_watts=1.0) for name in ("slow", "fast"))
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    write_problem(tmp_path / "p.json", problem)
    read = read_problem(tmp_path / "p.json")
    slow = Placement.of([0, 0])
    assert Simulator(problem).value(slow) == 4.0 + 2 * 4.0
    assert Simulator(read).value(slow) == 4.0 + 2 * 4.0


def test_a_change_is_named_under_models_that_do_not_minimise_energy() -> None:
    from placewright.placers.advice import advice

    problem = replace(two_ops(), limits={"energy": 1.0}).under(Placeto())
    assert "argument `limits` energy=32.02J, 31 J more" in advice(problem)


def test_a_limit_of_latency_beside_costs_in_milliseconds_is_refused() -> None:
    """It is in seconds, and would be taken for so many milliseconds."""
    problem = replace(two_ops(), time_unit="ms")
    with pytest.raises(FieldError, match="limits: latency needs costs in seconds, and these are"):
        replace(problem, limits={"latency": 5.0})
