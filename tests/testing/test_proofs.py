"""Bounds, `optimal` and `infeasible` against brute force: a slice of `benchmarks.proofs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

import numpy as np
import pytest
from simulation.oracle import Reference
from testing.event_truth import least_makespan, legal_placements, makespan, told, topological_orders
from testing.plain_truth import is_charged, least_value, plain_value
from testing.proof_campaign import Tally, ask, disagreements, look_at
from testing.proof_magnitudes import FACTORS, in_other_seconds
from testing.proof_mutations import MUTATIONS
from testing.proof_problems import (
    CHARGES,
    FEATURES,
    MODELS,
    NOT_SEPARABLE,
    REFUSED,
    drawn_features,
    features_of,
    problem_of_later_readers,
    problem_of_two_limits,
    proof_problem,
)

from placewright.core.graph import FORWARD, ComputationGraph
from placewright.core.placement import Placement
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import brute_force


@pytest.mark.parametrize("model", MODELS)
def test_the_simulator_equals_the_reference_with_all_features_at_once(model: str) -> None:
    finite, found = 0, list[str]()
    for seed in range({"event": 140, "max-load": 100}.get(model, 50)):
        _, feasible, different = disagreements(model, seed)
        finite, found = finite + feasible, found + different
    assert found == []
    assert finite > 100


def test_two_references_of_event_agree_to_the_last_bit() -> None:
    """Both are written from the page, apart from each other."""
    finite = 0
    for seed in range(56):
        problem, rng = proof_problem(seed, "event"), np.random.default_rng(seed)
        placements, orders = legal_placements(problem), topological_orders(told(problem).edge)
        for _ in range(4 if len(placements) else 0):
            device_of, order = rng.choice(placements), rng.choice(orders)
            value = makespan(problem, device_of, order)
            assert value == Reference(problem, Placement.of(device_of, order)).value(), seed
            finite += value < np.inf
    assert finite > 60


def test_the_compiled_brute_force_finds_what_the_simulators_finds() -> None:
    for seed in (3, 4, 7, 9, 11, 12):
        problem = proof_problem(seed, "event")
        if problem.n_units <= 5:
            assert least_value(problem) == pytest.approx(brute_force(problem), rel=1e-12)


def test_a_problem_without_a_feature_is_the_same_in_all_else() -> None:
    assert {name for model in MODELS for name in features_of(model)} == set(FEATURES)
    for model in MODELS:
        for seed in range(3):
            for name in set(features_of(model)) - set(drawn_features(seed, model)):
                one, other = proof_problem(seed, model), proof_problem(seed, model, {name})
                assert one.cluster.devices == other.cluster.devices
                assert one.cluster.links == other.cluster.links
                assert np.array_equal(one.costs.seconds, other.costs.seconds)


@pytest.mark.parametrize(
    "model", sorted({model for feature in FEATURES.values() for model in feature.unmoved})
)
def test_what_has_no_effect_changes_no_value(model: str) -> None:
    idle = {name for name, feature in FEATURES.items() if model in feature.unmoved}
    for seed in range(20):
        assert least_value(proof_problem(seed, model)) == least_value(
            proof_problem(seed, model, idle)
        )


@pytest.mark.parametrize("model", MODELS)
def test_nothing_that_is_claimed_is_false(model: str) -> None:
    tally = Tally()
    for seed in range(8):
        look_at(model, seed, tally)
    assert tally.faults == []
    assert model == "placeto" or tally.counts["auto"]["optimal"] > 0


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("model", ["max-load", "subgraph", "subgraph-ip", "sequential"])
def test_nothing_that_is_claimed_in_microseconds_or_weeks_is_false(
    model: str, factor: float
) -> None:
    """Tolerances of solvers are absolute."""
    tally = Tally()
    for seed in range(12):
        problem = proof_problem(seed, model, CHARGES)
        ask(str(seed), in_other_seconds(problem, factor), least_value(problem) * factor, tally)
    assert tally.faults == []
    assert tally.counts["auto"]["optimal"] > 0


def test_the_best_contiguous_split_is_that_of_brute_force() -> None:
    """With hosts that pay for outputs; only what `ideal-dp` says of all splits counts."""
    told_best, found = 0, list[str]()
    for seed in range(120):
        problem = proof_problem(seed, "max-load", REFUSED["ideal-dp"])
        evaluator = Evaluator(problem)
        placer = make_placer("ideal-dp")
        if placer.why_not(problem) is not None:
            continue
        solution = placer.place(problem, evaluator, np.random.default_rng(0))
        if solution.message != "optimal among pipelines of contiguous stages":
            continue
        told_best += 1
        graph = problem.unit_graph
        splits = [row for row in legal_placements(problem) if is_split_in_order(graph, row)]
        best = min((plain_value(problem, row) for row in splits), default=np.inf)
        if solution.value > best * (1 + 1e-9):
            found.append(f"{seed}: {solution.value} where {best} exists")
    assert found == []
    assert told_best > 20


def is_split_in_order(graph: ComputationGraph, device_of: Sequence[int]) -> bool:
    """True if the devices can be put in a row that all edges follow, without training phases."""
    if (graph.op_phases != FORWARD).any():
        return False
    pairs = zip(graph.successors.row_of_each().tolist(), graph.successors.indices, strict=True)
    follows = {(int(device_of[a]), int(device_of[b])) for a, b in pairs}
    sorter = TopologicalSorter[int]()
    for before, after in follows:
        if before != after:
            sorter.add(after, before)
    try:
        sorter.prepare()
    except CycleError:
        return False
    return True


# Problems with these as objective or limit that take less than two seconds.
CHARGED = {
    "event": (1927, 3, 4, 6, 8, 10, 11, 13, 14, 17, 18, 20, 24, 26, 30, 32, 35, 36, 45),
    "max-load": (8, 12, 13, 17),
}


@pytest.mark.parametrize("model", CHARGED)
def test_nothing_that_is_claimed_of_energy_and_price_is_false(model: str) -> None:
    """Unlike seconds, they add up over devices."""
    tally = Tally()
    for seed in CHARGED[model]:
        assert is_charged(proof_problem(seed, model))
        look_at(model, seed, tally)
    assert tally.faults == []
    assert 0 < tally.counts["auto"]["infeasible"] < len(CHARGED[model])
    assert tally.counts["auto"]["optimal"] > 0


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_takes_all_problems_without_what_it_refuses(name: str) -> None:
    placer, refused = make_placer(name), 0
    for seed in range(40):
        assert placer.why_not(proof_problem(seed, "max-load", REFUSED[name])) is None
        refused += placer.why_not(proof_problem(seed, "max-load")) is not None
    assert refused > 20


def test_programs_of_loads_prove_every_optimum_with_limits_and_modes() -> None:
    tally, having = Tally(), Counter[str]()
    for seed in range(60):
        problem = proof_problem(seed, "max-load", NOT_SEPARABLE)
        known = [*problem.limits, *["modes"] * bool(problem.cluster.shared_processors)]
        if known and problem.n_units <= 4:
            having.update(known)
            ask(str(seed), problem, least_value(problem), tally, ("cp-sat", "maxload-ip"))
    assert tally.faults == []
    assert having["energy"] > 5 < having["modes"]
    assert having["price"] > 0
    for counts in tally.counts.values():
        assert 5 < counts["optimal"] == tally.problems - tally.infeasible


def test_a_limit_that_is_not_kept_is_seen() -> None:
    """Beside the least value without limits, some problem's `infeasible` or value is false."""
    tally = Tally()
    for seed in range(24):
        problem = proof_problem(seed, "event")
        if problem.limits:
            ask("", problem, least_value(replace(problem, limits={})), tally, ("auto",))
    assert any("false" in fault for fault in tally.faults)


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_finds_what_it_breaks(name: str) -> None:
    """Only the campaign opens most of them, and a function may be renamed between two campaigns."""
    with MUTATIONS[name].patch():
        pass


def test_the_false_bound_of_a_shared_channel_is_seen() -> None:
    """The program of commit a3b472d, which took each of two transfers for the first one."""
    mutation = MUTATIONS["one of two transfers that exclude each other is first"]
    tally = Tally()
    with mutation.patch():
        for seed in (95, 141):
            look_at(mutation.model, seed, tally, mutation.methods)
    assert any("false bound" in fault for fault in tally.faults)


@pytest.mark.parametrize(
    "name", [name for name, mutation in MUTATIONS.items() if mutation.first > 0]
)
def test_what_seldom_binds_is_seen_by_a_problem_in_which_it_does(name: str) -> None:
    mutation, tally, broken = MUTATIONS[name], Tally(), Tally()
    look_at(mutation.model, mutation.first, tally, mutation.methods)
    with mutation.patch():
        look_at(mutation.model, mutation.first, broken, mutation.methods)
    assert tally.faults == []
    assert any("false bound" in fault for fault in broken.faults)


def test_a_reader_after_a_part_may_be_served_before_those_inside() -> None:
    """The arithmetic stands at the problem: 9 s, and 10 in the order of the part's own readers."""
    mutation = MUTATIONS["readers of a part are in the order of the whole"]
    problem, tally, broken = problem_of_later_readers(), Tally(), Tally()
    assert least_makespan(problem) == 9.0
    ask("", problem, 9.0, tally)
    with mutation.patch():
        ask("", problem, 9.0, broken, mutation.methods)
    assert tally.faults == []
    assert any("false bound (bound 9.999" in fault for fault in broken.faults)


@pytest.mark.parametrize(
    "name", [name for name, one in MUTATIONS.items() if one.problem is problem_of_two_limits]
)
def test_limits_that_a_broken_row_does_not_keep_are_seen(name: str) -> None:
    """The arithmetic stands at the problem: 1 s, and 2 s where amounts are too large."""
    mutation, problem, tally, broken = MUTATIONS[name], problem_of_two_limits(), Tally(), Tally()
    assert least_value(problem) == 1.0
    ask("", problem, 1.0, tally, mutation.methods)
    with mutation.patch():
        ask("", problem, 1.0, broken, mutation.methods)
    assert tally.faults == []
    assert any("false bound (bound 1.99999" in fault for fault in broken.faults)


def test_a_class_on_a_cpu_is_not_bounded_by_the_cpu_of_least_total_time() -> None:
    """Which of two unlike CPUs is best for a class depends on paths: the campaign saw 8.5 for 5."""
    tally = Tally()
    look_at("subgraph-ip", 455, tally, ("latency-ip",))
    assert tally.faults == []


def test_placeto_begins_a_unit_without_seconds_after_the_unit_that_it_waited_for() -> None:
    """Found by this campaign.

    Unit 1 takes no time and waits for unit 2 on its device, so the tensor of unit 2 gets the bus
    first.
    """
    problem = proof_problem(3010, "placeto")
    placement = Placement.of([0, 1, 1, 0, 0, 0])
    expected = plain_value(problem, placement.device_of)
    assert Simulator(problem).value(placement) == pytest.approx(expected, rel=1e-9)


def test_a_bound_that_rises_tick_by_tick_ends_with_the_limit_of_work() -> None:
    """The solver's own measure counts the rise as next to nothing, and would let it go on."""
    absent = (*CHARGES, "resident inputs", "weights held once")
    problem, tally = proof_problem(1521, "event", absent), Tally()
    ask("", problem, least_value(problem), tally, ("cp-sat",))
    assert tally.faults == []
    assert tally.counts["cp-sat"]["feasible"] == 1
