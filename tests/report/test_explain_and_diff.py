"""`explain` and `diff` against plain arithmetic and the oracle."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.plan import Searched
from placewright.core.problem import Problem
from placewright.core.quantities import value_text
from placewright.errors import GraphError
from placewright.report.difference import difference_of
from placewright.report.explain import explain, parts_of_value
from placewright.report.page import page_text
from placewright.report.page_document import plans_document
from placewright.report.page_times import busy_seconds
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem, with_power
from tests.report.report_problems import feasible_rows, layered_plan, odd_problem, plan_for
from tests.simulation.oracle import Reference


def _chain(memory: float = math.inf) -> Problem:
    """a -> b -> c; `b` takes 2 on d0 and 1 on d1, a transfer takes 4."""
    builder = GraphBuilder()
    builder.add_op("a", "Op")
    first = builder.add_tensor(0, 4.0)
    builder.add_op("b", "Op", inputs=[first], weights=[builder.add_weight(50.0)], module="head")
    second = builder.add_tensor(1, 4.0)
    builder.add_op("c", "Op", inputs=[second], module="head.out")
    cluster = Cluster(
        (Device("d0"), Device("d1", memory_bytes=memory)),
        (Link("d0", "d1", 0.0, 1.0), Link("d1", "d0", 0.0, 1.0)),
    )
    costs = CostTable(frozen_floats([[1.0, 1.0], [2.0, 1.0], [1.0, 1.0]]))
    return Problem.of_ops(builder.build(), cluster, costs)


def test_a_transfer_decides() -> None:
    """On d1 `b` saves 1 s and costs two transfers of 4 s: 4 becomes 11."""
    found = explain(plan_for(_chain(), np.array([0, 0, 0])), "b")
    assert found.value == 4.0
    assert (found.elsewhere[0].device, found.elsewhere[0].value) == ("d1", 11.0)
    assert found.elsewhere[0].crossing == 8.0
    assert "new transfer of 'a' from d0 to d1" in found.elsewhere[0].decides
    assert "next best, 'd1', gives 11 s (+175.00%)" in found.lines()[0]


def test_a_module_moves_as_a_whole() -> None:
    """On d1 `b` and `c` save 1 s together and cost one transfer of 4 s: 4 becomes 7."""
    found = explain(plan_for(_chain(), np.array([0, 0, 0])), "head")
    (elsewhere,) = found.elsewhere
    assert (found.kind, found.device, found.moves_with) == ("module, 2 units", "d0", ())
    assert (found.here.seconds, elsewhere.seconds) == (3.0, 2.0)
    assert (elsewhere.value, elsewhere.crossing) == (7.0, 4.0)
    alone = explain(plan_for(_chain(), np.array([0, 0, 0])), "head.out")
    assert (alone.kind, alone.elsewhere[0].value) == ("Op", 8.0)
    with pytest.raises(
        GraphError, match=r"module 'head' has ops on 'd0', 'd1'; .* such as 'b', 'c'"
    ):
        explain(plan_for(_chain(), np.array([0, 0, 1])), "head")


def test_own_time_decides_where_nothing_is_sent() -> None:
    builder = GraphBuilder()
    builder.add_op("alone", "Op")
    cluster = Cluster((Device("d0"), Device("d1")), ())
    problem = Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats([[3.0, 1.0]])))
    found = explain(plan_for(problem, np.array([0])), "alone")
    assert found.elsewhere[0].decides == "its own time: 2 s less there"
    assert found.lines()[0].endswith("'d1' would be better (1 s, -66.67%); search longer")


def test_no_longer_search_is_advised_for_what_the_search_has_found() -> None:
    """The plan holds d0 all the same, as the gain was not sure."""
    builder = GraphBuilder()
    builder.add_op("alone", "Op")
    cluster = Cluster((Device("d0"), Device("d1")), ())
    problem = Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats([[3.0, 1.0]])))
    plan = plan_for(problem, np.array([0]))
    better = replace(plan, searched=Searched(Placement.of(np.array([1])), 1.0))
    line = explain(better, "alone").lines()[0]
    assert line.endswith("the search found a placement as good, which argument `searched` takes")
    worse = replace(plan, searched=Searched(Placement.of(np.array([1])), 2.0))
    assert explain(worse, "alone").lines()[0].endswith("search longer")


@pytest.mark.parametrize("seconds", [0.99997, 1.00003])
def test_a_small_difference_is_not_shown_as_none(seconds: float) -> None:
    builder = GraphBuilder()
    builder.add_op("alone", "Op")
    cluster = Cluster((Device("d0"), Device("d1")), ())
    problem = Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats([[1.0, seconds]])))
    line = explain(plan_for(problem, np.array([0])), "alone").lines()[0]
    assert "1 s" in line
    assert "a change of less than 0.01%)" in line


def test_a_constraint_decides() -> None:
    found = explain(plan_for(_chain(memory=20.0), np.array([0, 0, 0])), "b")
    assert math.isinf(found.elsewhere[0].value)
    assert "'d1' needs 58 B and has 20 B" in found.elsewhere[0].decides
    assert "no other device can take it" in found.lines()[0]


def test_errors_of_adding_floats_are_no_part_of_a_difference() -> None:
    """Cuts cost nothing; the end of an op less its start is not its seconds to the last bit."""
    builder = GraphBuilder()
    for at in range(12):
        builder.add_op(f"op{at}", "Op", inputs=[at - 1] if at else [])
        builder.add_tensor(at, 4.0)
    cluster = Cluster((Device("d0"), Device("d1")), (Link("d0", "d1"), Link("d1", "d0")))
    seconds = np.random.default_rng(0).uniform(0.01, 0.1, size=(12, 2))
    problem = Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(seconds)))
    plan = plan_for(problem, np.zeros(12, dtype=np.int64))
    residues = parts_of_value(problem, Simulator(problem), plan.placement)
    assert residues is not None
    assert residues["cuts"] != 0.0
    for at in range(12):
        found = explain(plan, f"op{at}")
        [elsewhere] = found.elsewhere
        assert {name for name, part in elsewhere.parts.items() if part} == {"compute"}
        assert sum(elsewhere.parts.values()) == pytest.approx(elsewhere.value - found.value)
        assert "cuts" not in "\n".join(found.lines())


def test_an_op_that_is_not_there_is_named() -> None:
    with pytest.raises(GraphError, match="no op 'bb'"):
        explain(plan_for(_chain(), np.array([0, 0, 0])), "bb")


@pytest.mark.parametrize("seed", range(12))
def test_values_elsewhere_are_the_oracles(seed: int) -> None:
    problem = odd_problem(seed)
    feasible = feasible_rows(problem, seed)
    plan = plan_for(problem, feasible[0])
    unit = seed % problem.n_units
    found = explain(plan, problem.graph.op_names[unit])
    members = problem.colocation.members.row(int(problem.colocation.group_of[unit]))
    for row in (found.here, *found.elsewhere):
        device_of = plan.placement.device_of.copy()
        device_of[members] = problem.cluster.device(row.device)
        assert row.value == Reference(problem, Placement.of(device_of)).value()
    values = [row.value for row in found.elsewhere]
    assert values == sorted(values)


def test_diff_of_a_plan_with_itself_is_empty() -> None:
    plan = layered_plan(100)
    found = difference_of(plan, plan)
    assert found.lines()[0].startswith("the placements are the same")
    assert (found.n_moved, found.groups) == (0, ())


def test_diff_of_two_orders_on_the_same_devices_does_not_call_them_the_same() -> None:
    """`c` takes 5 s behind `a`, 1 s, on the other device; `b` takes 3 s before or after `a`."""
    builder = GraphBuilder()
    builder.add_op("a", "Op")
    made = builder.add_tensor(0, 4.0)
    builder.add_op("b", "Op")
    builder.add_op("c", "Op", inputs=[made])
    cluster = Cluster((Device("d0"), Device("d1")), (Link("d0", "d1"), Link("d1", "d0")))
    costs = CostTable(frozen_floats([[1.0, 9.0], [3.0, 9.0], [9.0, 5.0]]))
    problem = Problem.of_ops(builder.build(), cluster, costs)
    devices = np.array([0, 0, 1])
    first, other = (plan_for(problem, devices, np.array(order)) for order in ([0, 1, 2], [1, 0, 2]))
    found = difference_of(first, other)
    assert found.lines()[0] == "the devices are the same, and the orders differ: 6 s and 9 s"


def test_diff_names_what_moved_and_tries_each_move() -> None:
    problem = layered_plan(100).problem
    first = np.zeros(100, dtype=np.int64)
    other = first.copy()
    other[10:20], other[60] = 1, 2
    one, two = plan_for(problem, first), plan_for(problem, other)
    found = difference_of(one, two)
    assert found.n_moved == 11
    assert dict(((a, b), n) for a, b, n in found.moves) == {
        ("gpu:0", "gpu:1"): 10,
        ("gpu:0", "gpu:2"): 1,
    }
    assert sorted(unit for group in found.groups for unit in group.units) == [*range(10, 20), 60]
    simulator = Simulator(problem)
    for group in found.groups:
        alone, without = first.copy(), other.copy()
        alone[list(group.units)] = other[list(group.units)]
        without[list(group.units)] = first[list(group.units)]
        assert group.alone == simulator.value(Placement.of(alone))
        assert group.without == simulator.value(Placement.of(without))
    change = two.value / one.value - 1
    assert f"{abs(change):.2%} {'slower' if change > 0 else 'faster'}" in found.lines()[0]


def test_plans_of_different_models_say_that_values_do_not_compare() -> None:
    found = difference_of(layered_plan(100), layered_plan(120))
    assert not found.same_problem
    assert "values do not compare" in found.lines()[1]
    assert (found.only_first, found.only_other) == (0, 20)
    assert found.groups == ()


def test_plans_of_two_objectives_are_compared_by_that_of_the_first() -> None:
    """Seconds are not compared with joules; pins and limits of the first do not bind the other."""
    plain = random_problem(np.random.default_rng(3), n_ops=6, n_devices=2, constrained=False)
    charged = with_power(plain, objective="energy")
    timed = replace(charged, objective="latency", pins={0: 0}, limits={"energy": 1e9})
    first, moved = np.zeros(6, dtype=np.int64), np.ones(6, dtype=np.int64)
    one, two = plan_for(timed, first), plan_for(charged, moved)
    found = difference_of(one, two)
    change = found.other_value / one.value - 1
    assert found.other_value == Simulator(plain).value(Placement.of(moved)) != two.value
    assert f"the other is {abs(change):.2%} " in found.lines()[0]
    assert found.lines()[1] == "the other minimises energy: both values are latency"
    back = difference_of(two, one)
    energy = Simulator(charged).value(Placement.of(first))
    assert back.other_value == energy
    word = "more" if energy > two.value else "less"
    amount = f"{abs(energy / two.value - 1):.2%}"
    assert back.lines()[0].startswith(f"the other takes {amount} {word}: ")
    assert back.lines()[0].endswith(" J")


def test_rounding_is_no_difference() -> None:
    one = plan_for(_chain(), np.array([0, 0, 0]))
    two = plan_for(_chain(), np.array([1, 1, 0]))
    for factor, told in (
        (1 + 1e-15, "the placements differ and are equally fast: "),
        (1 + 1e-6, "the other is less than 0.01% slower: "),
        (1 - 0.5, "the other is 50.00% faster: "),
    ):
        found = difference_of(one, replace(two, value=one.value * factor))
        assert found.lines()[0].startswith(told)


def test_a_page_of_two_plans_says_what_moved() -> None:
    document = plans_document(("one", layered_plan(100)), ("two", layered_plan(100, seed=5)))
    other = document["other"]
    assert other["same_units"]
    first, second = document["plan"]["device"], other["plan"]["device"]
    moved = [unit for unit, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    assert other["moved_units"] == moved
    assert other["lines"][0] in page_text(document)


def test_seconds_of_computing_are_those_of_the_report_page() -> None:
    """Of a problem with contention and costs of cuts, so that units take longer than alone."""
    problem = odd_problem(3)
    row = feasible_rows(problem, 3)[0]
    plan = plan_for(problem, row)
    busy = plans_document(("one", plan))["plan"]["idle"]["busy"]
    assert busy != busy_seconds(problem, row)
    shown = [cells[2] for cells in difference_of(plan, plan).device_rows()]
    assert shown == [value_text(seconds, problem.time_unit) for seconds in busy]


@pytest.mark.parametrize("seed", range(16))
def test_parts_add_up_to_the_difference(seed: int) -> None:
    """Each part alone has a sign that it must have, and all of them add up to the value."""
    problem = odd_problem(seed)
    simulator = Simulator(problem)
    feasible = feasible_rows(problem, seed)
    for row in feasible[:5]:
        parts = parts_of_value(problem, simulator, Placement.of(row))
        assert parts is not None
        assert min(parts.values()) > -1e-9
        assert sum(parts.values()) == pytest.approx(simulator.value(Placement.of(row)), rel=1e-9)
    found = explain(plan_for(problem, feasible[0]), problem.graph.op_names[seed % problem.n_units])
    for other in found.elsewhere:
        if math.isfinite(other.value):
            assert sum(other.parts.values()) == pytest.approx(
                other.value - found.value, rel=1e-9, abs=1e-9
            )
    for name in problem.graph.op_names:  # a cause goes in the direction of its part
        for other in explain(plan_for(problem, feasible[0]), name).elsewhere:
            change = other.parts.get("transfers", 0.0)
            assert (
                change < 0 or "saved transfer" not in other.decides or not any(other.parts.values())
            )
            assert (
                change > 0 or "new transfer" not in other.decides or not any(other.parts.values())
            )


def test_contention_decides_worked_by_hand() -> None:
    """`b` is a second faster on d1, where a second device in use makes every op half as slow again.

    All on d0: one segment, 100 + 2 + 100 s and a dispatch of 3 s. With `b` on d1 the units take
    100, 1 and 100 s, contention adds 50, 0.5 and 50, three segments are dispatched, two copies
    cost a cut of 0.25 s each, and two transfers take 4 s each.
    """
    problem = _chain()
    seconds = CostTable(frozen_floats([[100.0, 100.0], [2.0, 1.0], [100.0, 100.0]]))
    devices = tuple(
        replace(one, memory_domain="ram", dispatch_seconds=3.0, cut_seconds=0.25)
        for one in problem.cluster.devices
    )
    cluster = Cluster(devices, problem.cluster.links, contention={"ram": (1.0, 1.5)})
    busy = replace(problem, costs=seconds, cluster=cluster)
    found = explain(plan_for(busy, np.array([0, 0, 0])), "b")
    assert found.value == 205.0
    other = found.elsewhere[0]
    assert other.parts == pytest.approx(
        {"compute": -1.0, "contention": 100.5, "dispatch": 6.0, "cuts": 0.5, "transfers": 8.0,
         "waiting": 0.0}
    )  # fmt: skip
    assert other.value - found.value == pytest.approx(114.0)
    assert other.decides == "contention: 100 s more there"
    told = "on 'd1' the plan takes +114 s: contention +100 s, transfers +8 s, dispatch +6 s"
    assert any(line.startswith(told) for line in found.lines())


def test_parts_of_a_load() -> None:
    """The busiest device changes: 3 s of units become 2 s and a transfer in and one out."""
    base = _chain()
    problem = replace(base, objective="throughput", execution_model=MaxLoad())
    found = explain(plan_for(problem, np.array([0, 0, 0])), "b")
    other = found.elsewhere[0]
    assert (found.value, other.value) == (4.0, 10.0)
    assert {name: s for name, s in other.parts.items() if s} == {"compute": -2.0, "transfers": 8.0}


def test_times_are_no_reasons_for_joules() -> None:
    """On d1 the op takes half as long, and three times the power."""
    base = _chain()
    devices = tuple(
        replace(one, busy_watts=watts)
        for one, watts in zip(base.cluster.devices, (10.0, 30.0), strict=True)
    )
    cluster = replace(base.cluster, devices=devices)
    problem = replace(base, cluster=cluster, objective="energy")
    found = explain(plan_for(problem, np.array([0, 0, 0])), "b")
    other = found.elsewhere[0]
    assert other.decides.startswith("the plan takes ")
    assert other.decides.endswith("J more there")
    assert not other.parts


def test_links_measured_twice_are_the_same_problem() -> None:
    """Latencies differ by noise: a warning; another channel or device is another problem."""
    one = layered_plan(100)
    problem = one.problem
    links = tuple(
        replace(link, latency_seconds=link.latency_seconds * 1.01 + 1e-9)
        for link in problem.cluster.links
    )
    again = replace(problem, cluster=replace(problem.cluster, links=links))
    moved = one.placement.device_of.copy()
    moved[10:20] = (moved[10:20] + 1) % problem.n_devices
    two = plan_for(again, moved)
    found = difference_of(one, two)
    assert found.same_problem
    assert found.other_value == Simulator(problem).value(Placement.of(moved)) != two.value
    assert found.lines()[1].startswith("warning: speeds of links differ (latencies by up to ")
    assert all(group.alone is not None for group in found.groups)
    shared = tuple(replace(link, channel="bus") for link in links)
    bus = replace(problem, cluster=replace(problem.cluster, links=shared))
    assert not difference_of(one, plan_for(bus, moved)).same_problem


@pytest.mark.parametrize("what", ["bytes", "pools"])
def test_other_tensors_or_another_memory_are_another_problem(what: str) -> None:
    one = layered_plan(100)
    problem, graph = one.problem, one.problem.graph
    if what == "bytes":
        larger = replace(graph, tensor_bytes=frozen_floats(graph.tensor_bytes * 1e3))
        other = replace(problem, graph=larger)
    else:
        first = replace(problem.cluster.devices[0], pool="ram")
        cluster = replace(
            problem.cluster, devices=(first, *problem.cluster.devices[1:]), pools={"ram": 1e12}
        )
        other = replace(problem, cluster=cluster)
    two = plan_for(other, one.placement.device_of)
    assert not difference_of(one, two).same_problem
    assert difference_of(one, plan_for(problem, one.placement.device_of)).same_problem
