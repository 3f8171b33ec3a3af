"""Devices that share processors: times by hand, what they refuse, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.small_problems import graph_of, problem_of

from placewright.core.cluster import Cluster, Device, Link
from placewright.core.execution_models import Event, MaxLoad, Sequential, Subgraph
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices
from placewright.errors import ClusterError
from placewright.simulation.bounds.lower import lower_bounds
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import brute_force, distinct_orders

LINKS = [Link(f"d{a}", f"d{b}") for a in range(3) for b in range(3) if a != b]


def in_modes(problem: Problem, *processors: tuple[str, ...], **changed: object) -> Problem:
    """The problem with processors of each device; changes are of the first device."""
    devices = [
        replace(device, processors=names)
        for device, names in zip(problem.cluster.devices, processors, strict=True)
    ]
    devices[0] = replace(devices[0], **changed)  # type: ignore[arg-type]
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


def fork(seconds: list[list[float]]) -> Problem:
    """One op, and two that read it; a tensor takes no time on its way."""
    return problem_of(graph_of(3, [(0, [1, 2])]), seconds, LINKS)


def test_two_modes_of_one_processor_take_turns() -> None:
    apart = fork([[1.0] * 3, [2.0] * 3, [3.0] * 3])
    placement = Placement.of([0, 0, 1])
    assert Simulator(apart).timeline(placement).start.tolist() == [0.0, 1.0, 1.0]
    timeline = Simulator(in_modes(apart, ("p",), ("p",), ("q",))).timeline(placement)
    # op2 has the higher rank, 3 s, so that op1 waits although its own device is idle
    assert timeline.start.tolist() == [0.0, 4.0, 1.0]
    assert timeline.value == 6.0
    assert timeline.waits == ("none", "processor op2", "input op0")
    assert [step.what for step in timeline.critical_path][-2:] == ["op2", "op1"]


def test_in_turn_the_unit_that_was_ready_first_begins() -> None:
    """op1 and op2 wait for op3, and then the inputs of op2 were there first."""
    graph = graph_of(4, [(0, [1]), (0, [2])])
    links = [Link("d0", "d1", 0.0, 4.0), Link("d0", "d2")]
    whole = problem_of(graph, [[1.0] * 3, [1.0] * 3, [5.0] * 3, [3.0] * 3], links)
    problem = in_modes(whole, ("own",), ("p",), ("p",))
    placement = Placement.of([0, 1, 2, 1])
    by_rank = Simulator(problem).timeline(placement)
    assert by_rank.start.tolist() == [0.0, 8.0, 3.0, 0.0]
    in_turn = replace(problem, execution_model=Event(dispatch="fifo"))
    assert Simulator(in_turn).timeline(placement).start.tolist() == [0.0, 8.0, 3.0, 0.0]
    # the other way round: op1's tensor is there at 1, op2's at 2
    links = [Link("d0", "d1"), Link("d0", "d2", 0.0, 4.0)]
    whole = problem_of(graph, [[1.0] * 3, [1.0] * 3, [5.0] * 3, [3.0] * 3], links)
    in_turn = replace(
        in_modes(whole, ("own",), ("p",), ("p",)), execution_model=Event(dispatch="fifo")
    )
    assert Simulator(in_turn).timeline(placement).start.tolist() == [0.0, 3.0, 4.0, 0.0]


def test_a_pair_waits_for_both_and_holds_none_meanwhile() -> None:
    """op0 on the pair is ready at once, but op1 and op2 have higher ranks and begin before."""
    problem = problem_of(graph_of(4, []), [[1.0] * 3, [2.0] * 3, [3.0] * 3, [0.5] * 3], LINKS)
    problem = in_modes(problem, ("p", "q"), ("p",), ("q",))
    # 0-2 op1 on p, 0-3 op2 on q; op3 fills p from 2 to 2.5, since nobody keeps p for the pair
    timeline = Simulator(problem).timeline(Placement.of([0, 1, 2, 1]))
    assert timeline.start.tolist() == [3.0, 0.0, 0.0, 2.0]
    assert timeline.waits == ("processor op2", "none", "none", "stream op1")


def test_an_order_is_one_of_each_processor() -> None:
    problem = in_modes(
        problem_of(graph_of(3, []), [[1.0] * 3, [2.0] * 3, [4.0] * 3], LINKS),
        ("p", "q"), ("p",), ("q",),
    )  # fmt: skip
    devices = [0, 1, 2]
    timeline = Simulator(problem).timeline(Placement.of(devices, [1, 0, 2]))
    # q is free at 0, but the pair comes before op2 in the order
    assert timeline.start.tolist() == [2.0, 0.0, 3.0]
    assert timeline.waits == ("order op1", "none", "order op0")
    assert Simulator(problem).value(Placement.of(devices, [2, 1, 0])) == 5.0
    orders = np.array([[0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 1, 0]])
    kept = distinct_orders(np.array(devices), orders, problem.cluster.excludes)
    assert kept.tolist() == [[0, 1, 2], [1, 0, 2], [1, 2, 0]]
    assert brute_force(problem) == 4.0  # op2 on q, the others one after the other on p


def test_a_unit_behind_one_that_takes_no_time_waits_for_what_ran_before() -> None:
    """op1 takes no time on both processors, so that op2 waits for op0 through it."""
    problem = in_modes(
        problem_of(graph_of(3, []), [[1.0] * 3, [0.0] * 3, [2.0] * 3], LINKS),
        ("p",), ("p", "q"), ("q",),
    )  # fmt: skip
    timeline = Simulator(problem).timeline(Placement.of([0, 1, 2], [0, 1, 2]))
    assert timeline.start.tolist() == [0.0, 1.0, 1.0]
    assert timeline.waits == ("none", "order op0", "order op1")
    assert sum(step.end - step.start for step in timeline.critical_path) == timeline.value


def test_a_processor_has_the_load_of_all_its_modes() -> None:
    problem = fork([[1.0] * 3, [2.0] * 3, [4.0] * 3])
    problem = replace(problem, objective="throughput", execution_model=MaxLoad(0))
    placement = Placement.of([0, 1, 2])
    assert Simulator(problem).value(placement) == 4.0
    shared = in_modes(problem, ("p",), ("p", "q"), ("q",))
    loads = Simulator(shared).loads(placement.device_of)
    assert loads[0, -2:].tolist() == [3.0, 6.0]
    assert Simulator(shared).value(placement) == 6.0
    assert max(bound.value for bound in lower_bounds(in_modes(problem, *[("p",)] * 3))) > 6.9


def test_a_sum_is_the_same_in_modes() -> None:
    problem = replace(fork([[1.0] * 3, [2.0] * 3, [4.0] * 3]), execution_model=Sequential())
    placement = Placement.of([0, 1, 2])
    expected = Simulator(problem).value(placement)
    assert Simulator(in_modes(problem, *[("p",)] * 3)).value(placement) == expected


def test_the_linear_relaxation_counts_a_processor() -> None:
    """Three independent ops of 2 s in two modes of one processor, and nowhere else."""
    problem = problem_of(graph_of(3, []), [[2.0, 2.0, np.inf]] * 3, LINKS)
    shared = in_modes(problem, ("p",), ("p",), ("q",))
    assert brute_force(shared) == 6.0
    assert max(bound.value for bound in lower_bounds(shared)) == pytest.approx(6.0)


def test_modes_are_exchanged_with_nothing() -> None:
    problem = fork([[1.0] * 3] * 3)
    assert alike_devices(problem).n_groups < 3
    assert alike_devices(in_modes(problem, (), (), ("d0",))).n_groups == 3


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"streams": 2}, "several streams"),
        ({"overlaps_transfers": True}, "overlap compute"),
        ({"replicas": 2}, "replicas"),
    ],
)
def test_what_says_how_much_a_device_does_at_once_is_refused(
    changed: dict[str, Any], reason: str
) -> None:
    devices = (Device("d0", processors=("p",), **changed), Device("d1", processors=("q",)))
    Cluster(devices)
    with pytest.raises(ClusterError, match=f"device 'd0' has .*{reason}.* processor 'p'"):
        Cluster((devices[0], Device("d1", processors=("p",))))


def test_contention_between_modes_is_refused() -> None:
    cluster = fork([[1.0] * 3] * 3).cluster
    devices = tuple(replace(one, memory_domain="ram", processors=("p",)) for one in cluster.devices)
    replace(cluster, devices=devices)
    with pytest.raises(ClusterError, match="a memory domain with contention"):
        replace(cluster, devices=devices, contention={"ram": (1.0, 2.0)})


def test_names_of_processors_are_checked() -> None:
    for names in (("p", "p"), ("",)):
        with pytest.raises(ClusterError, match="processors must be names, each once"):
            Cluster((Device("d", processors=names),))


def test_what_does_not_know_modes_refuses_them() -> None:
    problem = in_modes(fork([[1.0] * 3] * 3), ("p",), ("p",), ("q",), busy_watts=1.0)
    told = "devices 'd0', 'd1' share processor 'p'"
    with pytest.raises(ClusterError, match=f"{told}, which execution model 'subgraph'"):
        replace(problem, execution_model=Subgraph())


def test_a_card_idles_once_and_is_rented_once_however_many_modes_it_has() -> None:
    """Two modes of a card (9 W idle), a pair of it with a second card (15 W and price 5 in all).

    Nobody has the second card alone: it idles with 15 - 9 W and costs 5 - 3.
    """
    named = (("card",), ("card",), ("card", "second"))
    watts, prices = ((20.0, 9.0), (30.0, 2.0), (50.0, 15.0)), (3.0, 1.0, 5.0)
    problem = in_modes(fork([[1.0] * 3] * 3), *named)
    devices = [
        replace(device, busy_watts=busy, idle_watts=idle, price_per_hour=3600.0 * price)
        for device, (busy, idle), price in zip(problem.cluster.devices, watts, prices, strict=True)
    ]
    problem = replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))
    energy, price = problem.charges_of("energy"), problem.charges_of("price")
    # 1 s in each mode adds 11, 21 and 35 J to 15 W in all.
    assert energy.of_one(np.array([0, 1, 2]), 4.0) == 11.0 + 21.0 + 35.0 + 4.0 * 15.0
    assert price.of_one(np.array([0, 1, 1]), 4.0) == 4.0 * 3.0
    assert price.of_one(np.array([1, 1, 2]), 4.0) == 4.0 * 5.0
    assert (price.least_rate, price.rate(np.array([True, False, True]))) == (3.0, 5.0)
    low = replace(devices[1], busy_watts=8.0)
    with pytest.raises(ClusterError, match=r"'d1': its busy power, 8 W, is below .*, 9 W"):
        replace(problem.cluster, devices=(devices[0], low, devices[2]))


def test_idle_power_of_pairs_alone_is_divided() -> None:
    """Three cards, of which only pairs are devices: 20 W each, whichever pairs name them."""
    pairs = (("a", "b"), ("b", "c"), ("a", "c"))
    devices = tuple(
        Device(f"d{at}", processors=names, busy_watts=90.0, idle_watts=40.0)
        for at, names in enumerate(pairs)
    )
    problem = fork([[1.0] * 3] * 3)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    charges = problem.charges_of("energy")
    assert charges.always == 60.0
    assert charges.own.tolist() == [[50.0] * 3] * 3
