"""The smallest change that makes a problem feasible, against brute force with the oracle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.pipelines import streamed_chain

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InfeasibleError
from placewright.placers import advice as smallest_change
from placewright.placers.advice import (
    AmountChange,
    DeviceChange,
    LimitChange,
    advice,
    smallest_changes,
    streaming_placement,
    with_copy,
    with_limit,
)
from placewright.placers.packing import tightest_packing
from placewright.session.parsing import parse_limits
from placewright.session.search import find_plan
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import distinct_orders, topological_orders
from placewright.testing.problems import impossible_problem, packing_problem, random_problem
from tests.simulation.oracle import Reference

_RAISE_BUDGET = "there is a placement that keeps all limits: raise the budget of the search"


def with_memory(problem: Problem, device: int, limit: float) -> Problem:
    """The problem with another limit of one device."""
    return with_limit(problem, problem.cluster.device_names[device], limit)


def _too_small(seed: int) -> Problem | None:
    """A random problem of five ops whose devices are smaller than any placement needs."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, n_ops=5, n_devices=2)
    roomy = with_memory(with_memory(problem, 0, math.inf), 1, math.inf)
    peaks = [peak for _, peak in _outcomes(roomy)]
    if not peaks:
        return None
    most = min(max(peak) for peak in peaks)
    limits = [math.floor(most * share) for share in (0.9, 0.6)]
    small = with_memory(with_memory(problem, 0, limits[0]), 1, limits[1])
    return None if _fits(small) else small


def _outcomes(problem: Problem) -> Iterator[tuple[tuple[int, ...], list[float]]]:
    """All placements that keep every constraint, in all orders, with peaks, by the oracle."""
    orders = np.array(list(topological_orders(problem)))
    for row in itertools.product(range(problem.n_devices), repeat=problem.n_units):
        for order in (None, *distinct_orders(np.array(row), orders)):
            reference = Reference(problem, Placement.of(row, order))
            if math.isfinite(reference.value()):
                yield row, reference.peaks()


def _fits(problem: Problem) -> bool:
    return next(_outcomes(problem), None) is not None


def _least_limit(problem: Problem, device: int) -> float:
    peaks = [peak[device] for _, peak in _outcomes(with_memory(problem, device, math.inf))]
    return min(peaks, default=math.inf)


SMALL = [(seed, problem) for seed in range(30) if (problem := _too_small(seed)) is not None][:8]


@pytest.mark.parametrize(("seed", "problem"), SMALL, ids=[str(seed) for seed, _ in SMALL])
def test_limits_and_devices_are_those_of_brute_force(seed: int, problem: Problem) -> None:
    changes = smallest_changes(problem)
    limits = {c.device: c for c in changes if isinstance(c, LimitChange)}
    for device, name in enumerate(problem.cluster.device_names):
        wanted = _least_limit(problem, device)
        assert (name in limits) == math.isfinite(wanted)
        if name in limits:
            assert limits[name].limit == pytest.approx(wanted)
            assert limits[name].is_exact
    found = [c.more for c in changes if isinstance(c, LimitChange)]
    assert found == sorted(found)
    counts = {c.device: c.count for c in changes if isinstance(c, DeviceChange)}
    for device, name in enumerate(problem.cluster.device_names):
        if counts.get(name) == 1:
            assert _fits(with_copy(problem, device))
        else:
            assert not _fits(with_copy(problem, device))


@pytest.mark.parametrize("most_searched", [3_000, 0], ids=["searched", "packed alone"])
@pytest.mark.parametrize(("seed", "problem"), SMALL[:4], ids=[str(s) for s, _ in SMALL[:4]])
def test_what_is_not_enumerated_fits_and_is_bounded(
    seed: int, problem: Problem, most_searched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As large problems are: no enumeration, and no search for the largest."""
    monkeypatch.setattr(smallest_change, "_MOST_SEARCHED", most_searched)
    for change in smallest_changes(problem, most_enumerated=0):
        if isinstance(change, DeviceChange):
            device = problem.cluster.device_index[change.device]
            larger = [problem]
            for _ in range(change.count):
                larger.append(with_copy(larger[-1], device))
            assert not any(_fits(one) for one in larger[: change.at_least])
            if len(larger) < 4:
                assert _fits(larger[-1])
            continue
        device = problem.cluster.device(change.device)
        exact = _least_limit(problem, device)
        assert change.at_least <= exact + 1e-9 <= change.limit + 2e-9
        assert _fits(with_memory(problem, device, change.limit))


def _chain(n_ops: int, memory: float, n_devices: int = 3) -> Problem:
    """Ops of 100 bytes of weights each, and tensors of 1 byte."""
    builder = GraphBuilder()
    tensor = builder.add_input(1)
    for number in range(n_ops):
        weight = builder.add_weight(100)
        op = builder.add_op(f"op{number}", "MatMul", inputs=[tensor], weights=[weight])
        tensor = builder.add_tensor(op, 1, is_output=number == n_ops - 1)
    names = [f"d{number}" for number in range(n_devices)]
    links = [Link(a, b, 1e-6, 1e9) for a in (*names, "host") for b in (*names, "host") if a != b]
    cluster = Cluster(tuple(Device(n, memory_bytes=memory) for n in names), tuple(links))
    seconds = np.full((n_ops, n_devices), 1e-6)
    return Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(seconds)))


@pytest.mark.parametrize("n_ops", [3_001, 20_000])
def test_large_problems_get_an_answer_close_to_what_is_proven(n_ops: int) -> None:
    """Three devices hold 30 % of the weights each: 10 % more of one, or one more device."""
    total = 100.0 * n_ops
    problem = _chain(n_ops, 0.3 * total)
    changes = smallest_changes(problem)
    (limit,) = [c for c in changes if isinstance(c, LimitChange)]
    assert limit.at_least <= limit.limit <= 0.4 * total + 500
    assert limit.at_least >= 0.3999 * total
    below = with_memory(problem, 0, limit.at_least)
    assert prove_infeasible(below) is not None
    fitting = with_memory(problem, 0, limit.limit)
    packing = tightest_packing(fitting, 0)
    assert packing is not None
    assert math.isfinite(Simulator(fitting).value(packing.placement))
    assert [c for c in changes if isinstance(c, DeviceChange)] == [DeviceChange("d0", 1)]
    assert "argument `memory` d0=" in advice(problem)


def test_several_devices_are_counted_exactly_where_the_proof_says_so() -> None:
    """Three devices of 5 % each: 17 more would hold the rest but for the tensors, 18 do."""
    problem = _chain(4_000, 0.05 * 400_000)
    (found,) = [c for c in smallest_changes(problem) if isinstance(c, DeviceChange)]
    assert (found.count, found.at_least) == (18, 18)


@pytest.mark.parametrize("seed", range(6))
def test_a_packing_keeps_all_limits_but_one(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), n_ops=40, n_devices=3)
    roomy = problem
    for device in range(3):
        roomy = with_memory(roomy, device, math.inf)
    peaks = Simulator(roomy).memory_peaks(Placement.of([n % 3 for n in range(roomy.n_units)]))
    tight = roomy
    for device in range(3):
        tight = with_memory(tight, device, 0.5 * float(peaks.max()))
    for device in range(3):
        packing = tightest_packing(tight, device)
        if packing is None:
            continue
        reference = Reference(with_memory(tight, device, math.inf), packing.placement)
        assert math.isfinite(reference.value())
        assert reference.peaks()[device] == pytest.approx(packing.peak)


def test_problems_worked_by_hand() -> None:
    """100 bytes (and 1 of input) fit on a device of 60 or 50 after 41 or 51 more bytes; three
    times 3 bytes on 5 and 5 after one more on either, or on a third device."""
    first = smallest_changes(impossible_problem())
    assert [(c.device, c.more) for c in first if isinstance(c, LimitChange)] == [
        ("a", 41.0),
        ("b", 51.0),
    ]
    assert not [c for c in first if isinstance(c, DeviceChange)]
    packed = smallest_changes(packing_problem())
    assert packed[0] == LimitChange("a", 6.0, 1.0, 6.0)
    assert DeviceChange("a", 1) in packed
    assert advice(packing_problem()) == (
        "the smallest change found: argument `memory` a=6B, 1 B more, or one more device like 'a'"
    )


def test_the_option_that_counts_weights_only_is_named_where_it_helps() -> None:
    """Eight weights of 5 bytes and tensors of 7: half of them stream in 20 + 14 bytes."""
    option = "argument `samples_in_flight` 0, which counts weights only"
    for samples, limit in ((1, 34.0), (1, 33.0), (0, 19.0)):
        problem = streamed_chain(limit).with_samples_in_flight(samples)
        assert "argument `memory`" in advice(problem)
        assert (option in advice(problem)) == (limit == 34.0)


def test_a_second_try_leaves_room_in_memory_that_devices_share() -> None:
    """Halves of 20 bytes of weights, each with 14 of tensors: 68 are too many for a pool of 60."""
    chain = streamed_chain(math.inf).with_samples_in_flight(0)
    devices = tuple(replace(device, pool="ram") for device in chain.cluster.devices)
    problem = replace(chain, cluster=replace(chain.cluster, devices=devices, pools={"ram": 60.0}))
    tried: list[Cluster] = []

    def found(one: Problem) -> Placement:
        tried.append(one.cluster)
        return Placement.of([0] * 4 + [1] * 4)

    assert streaming_placement(problem, found) is None
    assert [cluster.pools["ram"] for cluster in tried] == [60.0, 32.0]


def test_a_search_that_finds_nothing_says_what_would_help() -> None:
    with pytest.raises(
        InfeasibleError, match=r"smallest change .*: argument `memory` a=6B, 1 B more"
    ):
        find_plan(packing_problem(), budget=Budget(evaluations=50))


def test_enough_problems_are_too_small() -> None:
    assert len(SMALL) >= 5


def test_nothing_is_said_where_something_fits() -> None:
    roomy = replace(packing_problem())
    roomy = with_memory(roomy, 0, 100.0)
    assert smallest_changes(roomy) == ()
    assert advice(roomy) == _RAISE_BUDGET


def test_advice_ends_with_its_seconds() -> None:
    problem = _chain(2_000, 0.3 * 200_000)
    assert smallest_changes(problem, seconds=0.0) == ()
    assert advice(problem, seconds=0.0) == ""


def _ends_with_the_first(fits: Callable[[Problem], bool]) -> Callable[..., Placement | None]:
    """A search that finds a placement of the first problem that fits, when its time is over."""

    def found(search: smallest_change._Search, problem: Problem) -> Placement | None:
        if search.is_over or not fits(problem):
            return None
        search._ends = -math.inf
        return Placement.of([0] * problem.n_units)

    return found


def test_a_time_that_is_over_proves_no_number_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five ops of 3 bytes on two devices of 5: three more would do, and four were found."""
    problem = packing_problem(objective="throughput", n_ops=5)
    problem = with_memory(with_memory(problem, 0, 5.0), 1, 5.0)
    found = _ends_with_the_first(lambda larger: larger.n_devices >= 5)
    monkeypatch.setattr(smallest_change._Search, "found", found)
    change = smallest_change._copies(problem, 0, smallest_change._Search(4096, math.inf))
    assert change is not None
    assert change.count == 4
    assert change.at_least <= 3


def test_a_time_that_is_over_proves_no_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = packing_problem(n_ops=5)
    first, second = problem.cluster.devices
    devices = (replace(first, max_segments=1), second)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    found = _ends_with_the_first(lambda one: (one.cluster.devices[0].max_segments or 0) >= 3)
    monkeypatch.setattr(smallest_change._Search, "found", found)
    change = smallest_change._segments(problem, 0, smallest_change._Search(4096, math.inf))
    assert change is not None
    assert change.segments == 4
    assert not change.is_exact


def test_a_copy_is_linked_as_its_model_is() -> None:
    problem = packing_problem()
    wider = with_copy(problem, 0)
    names = wider.cluster.device_names
    assert names == ("a", "b", "a#2")
    ways = {(link.source, link.destination) for link in wider.cluster.links}
    assert {("a#2", "b"), ("b", "a#2"), ("a", "a#2"), ("a#2", "a")} <= ways
    assert math.isfinite(Simulator(wider).value(Placement.of([0, 1, 2])))


def test_a_copy_computes_on_a_processor_of_its_own() -> None:
    problem = packing_problem()
    devices = [replace(one, processors=("card",)) for one in problem.cluster.devices[:1]]
    devices += problem.cluster.devices[1:]
    wider = with_copy(replace(problem, cluster=replace(problem.cluster, devices=tuple(devices))), 0)
    assert not wider.cluster.shared_processors


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        ("latency", "latency=2.001e-05s, "),
        ("energy", "energy=2.001e-05J, "),
        ("price", "price=2.001e-05, "),
    ],
)
def test_a_limit_is_advised_as_it_is_read_without_a_warning(
    quantity: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The amount had no unit, which the command line then warned of."""
    told = AmountChange(quantity, 2e-5, 1e-6).text()
    assert text in told
    advised = told.split()[2].rstrip(",")
    assert parse_limits(advised) == {quantity: pytest.approx(2.001e-5)}
    assert caplog.messages == []
