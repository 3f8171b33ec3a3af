"""Streams of samples: worked by hand, against a plain second implementation, and by their laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats, frozen_ints
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.layout import resident_bytes
from placewright.simulation.model import Simulator
from placewright.simulation.stream import play as module
from placewright.simulation.stream import tasks as tasks_module
from placewright.simulation.stream.peaks import TensorCopies, most_sample_bytes
from placewright.simulation.stream.play import Stream, play_stream
from placewright.testing.problems import random_problem, with_replicas
from tests.simulation.stream_oracle import StreamReference


def chain(seconds, size=0.0, devices=None, links=()) -> Problem:
    """A chain of ops whose tensors have `size` bytes; rows of `seconds` are ops."""
    builder = GraphBuilder()
    inputs: list[int] = []
    for at in range(len(seconds)):
        op = builder.add_op(f"op{at}", "Op", inputs=inputs)
        inputs = [builder.add_tensor(op, size)]
    table = np.array(seconds, dtype=np.float64)
    devices = devices or tuple(Device(f"d{i}") for i in range(table.shape[1]))
    return Problem(
        builder.build(),
        Cluster(devices, links),
        CostTable(frozen_floats(table)),
        Grouping.identity(len(seconds)),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )


def played(problem: Problem, device_of, samples=20, in_flight=None) -> Stream:
    arrays = Simulator(problem).arrays
    return play_stream(
        problem, arrays, frozen_ints(device_of), samples=samples, in_flight=in_flight
    )


def both_ways(bandwidth: float) -> tuple[Link, ...]:
    return (Link("d0", "d1", bandwidth=bandwidth), Link("d1", "d0", bandwidth=bandwidth))


def test_fill_steady_period_and_drain_of_two_stages():
    """3 s then 5 s, nothing to transfer. One sample takes 8 s. With two in flight the second stage
    is never idle after 3 s: sample n is done at 3 + 5 (n + 1)."""
    stream = played(chain([[3.0, 9.0], [9.0, 5.0]], links=both_ways(1.0)), [0, 1], in_flight=2)
    assert stream.fill == 8.0
    assert stream.finish.tolist() == [3.0 + 5.0 * (n + 1) for n in range(20)]
    assert (stream.steady.period, stream.steady.pattern) == (5.0, 1)
    # The last sample enters when the one before the one before it is done, 10 s before the end.
    assert stream.drain == 10.0


def test_one_sample_in_flight_takes_turns_between_devices():
    stream = played(chain([[3.0, 9.0], [9.0, 5.0]], links=both_ways(1.0)), [0, 1], in_flight=1)
    assert stream.steady.period == 8.0
    assert stream.latencies.tolist() == [8.0] * 20


def test_back_pressure_holds_the_fast_stage_back():
    """1 s then 5 s with three in flight: the first stage could be 20 samples ahead and is two."""
    stream = played(chain([[1.0, 9.0], [9.0, 5.0]], links=both_ways(1.0)), [0, 1], in_flight=3)
    under_way = [
        int(np.sum((stream.entry <= at) & (stream.finish > at))) for at in stream.entry.tolist()
    ]
    assert max(under_way) == 3
    assert stream.entry[10] == stream.finish[7]
    assert stream.latencies[10] == 15.0


def test_transfers_are_paid_by_both_ends_as_max_load_pays_them():
    """4 bytes at 2 B/s: each end pays 2 s, beside 3 and 5 s of compute: loads 5 and 7."""
    problem = chain([[3.0, 9.0], [9.0, 5.0]], size=4.0, links=both_ways(2.0))
    # The last tensor ends nowhere: it is no graph output.
    stream = played(problem, [0, 1])
    assert Simulator(problem).loads(np.array([0, 1])).tolist()[0][:2] == [5.0, 7.0]
    assert stream.steady.period == 7.0
    assert stream.fill == 12.0


def test_a_device_that_overlaps_transfers_is_as_slow_as_its_slower_part():
    devices = (Device("d0"), Device("d1", overlaps_transfers=True))
    problem = chain([[3.0, 9.0], [9.0, 5.0]], 4.0, devices, both_ways(2.0))
    stream = played(problem, [0, 1])
    assert stream.steady.period == 5.0  # loads 5 and max(5, 2)
    assert stream.fill == 12.0


def test_members_of_a_group_take_turns():
    """One op of 6 s on a group of three: a sample each 2 s, and each takes 6 s."""
    problem = chain([[6.0]], devices=(Device("d0", replicas=3),))
    stream = played(problem, [0], samples=30)
    assert stream.in_flight == 3
    assert stream.steady.period == pytest.approx(2.0)
    assert set(stream.latencies.tolist()) == {6.0}


@pytest.mark.parametrize(("members", "samples"), [(7, 20), (9, 24), (11, 24), (29, 60), (70, 200)])
def test_the_period_of_a_group_is_exact_however_few_samples_are_played(members, samples):
    """Each takes 2 s for each member, and as many begin at once. An average over the later half
    cut through them: it was longer by up to nine tenths."""
    problem = chain([[2.0 * members]], devices=(Device("d0", replicas=members),))
    for in_flight in (None, members):
        stream = played(problem, [0], samples, in_flight)
        assert (stream.in_flight, len(stream.finish)) == (members, samples)
        assert stream.steady.period == pytest.approx(2.0)
        assert stream.steady.pattern == members


def test_by_default_as_many_are_let_in_as_shorten_the_period():
    problem = chain(
        np.eye(3) * -6.0 + 10.0,
        links=[Link(f"d{a}", f"d{b}") for a in range(3) for b in range(3) if a != b],
    )
    assert played(problem, [0, 1, 2]).in_flight == 3
    assert played(problem, [0, 0, 0]).in_flight == 1


def fewest_in_flight(problem: Problem, device_of) -> int:
    """The rule word by word: of all allowed numbers the least whose period is near the shortest."""
    tasks = played(problem, device_of, samples=1).tasks.tables
    servers = dict(zip(tasks.first_server.tolist(), tasks.n_members.tolist(), strict=True))
    periods = [played(problem, device_of, samples=1, in_flight=1).latencies[0]]
    for in_flight in range(2, 2 * sum(servers.values()) + 3):
        stream = played(problem, device_of, samples=6 * in_flight + 8, in_flight=in_flight)
        periods.append(stream.steady.period)
    return next(at + 1 for at, one in enumerate(periods) if one <= 1.01 * min(periods))


@pytest.mark.parametrize("seed", range(25))
def test_the_fewest_samples_within_a_percent_of_the_shortest_period(seed):
    problem = variants(seed)
    device_of = np.random.default_rng(seed).integers(0, problem.n_devices, problem.n_units)
    assert played(problem, device_of).in_flight == fewest_in_flight(problem, device_of)


def test_a_gain_of_less_than_a_percent_lets_no_further_sample_in():
    """200 s on the first device, then 1 s on the second: two samples in flight take 200 s each
    instead of 201 s, half a percent less. With 4 s instead of 1 s the second one pays."""
    half, two = ([[200.0, 900.0], [900.0, second]] for second in (1.0, 4.0))
    assert played(chain(half, links=both_ways(1.0)), [0, 1]).in_flight == 1
    assert played(chain(two, links=both_ways(1.0)), [0, 1]).in_flight == 2


def test_many_small_gains_let_no_more_than_six_samples_into_two_cores():
    """Two devices take turns over 40 segments of random lengths: many samples would be needed to
    fill every gap, of which two for each device and two are tried. Other servers that have no tasks
    (engines, channels) let none in."""
    rng = np.random.default_rng(3)
    problem = chain(rng.uniform(0.1, 5.0, (40, 2)), links=both_ways(1.0))
    device_of = np.arange(40) % 2
    stream = played(problem, device_of)
    assert len(stream.segments) == 40
    free = [played(problem, device_of, 200, f).steady.period for f in (6, 24)]
    assert free[1] < 0.99 * free[0]  # more would pay
    assert stream.in_flight <= 6


def test_peaks_count_every_sample_in_flight():
    """Tensors of 4 bytes wait for the slow stage: three samples are in flight, of which one is
    being computed there, and two have left their tensor with the first device's sending."""
    problem = chain([[1.0, 9.0], [9.0, 5.0]], size=4.0, links=both_ways(float("inf")))
    one, three = (played(problem, [0, 1], in_flight=f).memory_peaks.tolist() for f in (1, 3))
    # The second device keeps what it reads and what it makes.
    assert one == [4.0, 8.0]
    assert three == [4.0, 8.0]


def test_what_waits_at_a_slow_reader_is_kept():
    """d0 makes a tensor for itself that it reads only after d1's answer: each sample in flight
    keeps it, 10 bytes."""
    builder = GraphBuilder()
    first = builder.add_op("first", "Op")
    kept, sent = builder.add_tensor(first, 10.0), builder.add_tensor(first, 1.0)
    middle = builder.add_op("middle", "Op", inputs=[sent])
    answer = builder.add_tensor(middle, 1.0)
    builder.add_op("last", "Op", inputs=[kept, answer])
    devices = (Device("d0"), Device("d1"))
    problem = Problem(
        builder.build(),
        Cluster(devices, both_ways(float("inf")), host="d0"),
        CostTable(frozen_floats(np.array([[1.0, 1.0], [4.0, 4.0], [1.0, 1.0]]))),
        Grouping.identity(3),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )
    peaks = {f: played(problem, [0, 1, 0], in_flight=f).memory_peaks[0] for f in (1, 2, 3)}
    assert peaks[1] == 11.0
    # While the first sample is away, the second one begins, and d0 keeps both tensors of 10 bytes
    # and both of 1 byte until each has been sent.
    assert peaks[2] == 21.0
    assert peaks[3] == 31.0


@pytest.mark.parametrize("samples", [1, 3])
def test_tensors_that_max_load_keeps_for_its_samples_do_not_count_again(samples):
    """A sample of three tensors of 4 bytes has two at a time; `max-load` keeps all of them."""
    plain, placement = chain([[1.0], [1.0], [1.0]], size=4.0), Placement.of([0, 0, 0])
    problem = replace(plain, execution_model=MaxLoad(samples_in_flight=samples))
    assert Simulator(problem).memory_peaks(placement).tolist() == [12.0 * samples]
    for each in (plain, problem):
        stream = Simulator(each).stream(placement, samples=9, in_flight=1)
        assert stream.memory_peaks.tolist() == [8.0]
    small = replace(problem, cluster=replace(problem.cluster, devices=(
        Device("d0", memory_bytes=8.0),
    )))  # fmt: skip
    assert Simulator(small).stream(placement, samples=9, in_flight=1).memory_peaks.tolist() == [8.0]


def test_too_many_samples_for_the_memory_are_refused_and_never_chosen():
    problem = chain([[6.0]], devices=(Device("d0", replicas=1, memory_bytes=3.0),), size=4.0)
    with pytest.raises(InfeasibleError, match="1 samples in flight takes 4 bytes on 'd0'"):
        played(problem, [0])


def test_samples_that_take_no_time_are_in_memory_at_once():
    problem = chain([[0.0]], devices=(Device("d0", memory_bytes=5.0),), size=4.0)
    with pytest.raises(InfeasibleError, match="1 samples in flight takes 8 bytes on 'd0'"):
        played(problem, [0])


def test_peaks_of_roomy_devices_are_counted_for_the_answer_alone(monkeypatch):
    """Those of a graph with 60,000 ops take seconds, for each number of samples in flight."""
    calls, peaks = [], TensorCopies.peaks
    monkeypatch.setattr(TensorCopies, "peaks", lambda *a: calls.append(1) or peaks(*a))
    problem = chain([[3.0, 9.0], [9.0, 5.0]], 4.0, links=both_ways(10.0))
    assert played(problem, [0, 1]).in_flight > 1
    assert len(calls) == 1


def test_copies_that_pile_up_late_are_never_chosen():
    """The second stage falls behind by a millisecond with each sample."""
    builder = GraphBuilder()
    builder.add_op("a", "Op")
    tensor = builder.add_tensor(0, 100.0)
    builder.add_op("b", "Op", inputs=[tensor])
    devices = (
        Device("A", pays_transfers=False),
        Device("B", memory_bytes=250.0, pays_transfers=False),
    )
    cluster = Cluster(devices, (Link("A", "B", 0.9, np.inf, "bus"),), host="A")
    costs = CostTable(frozen_floats(np.array([[1.0, 9.0], [9.0, 1.001]])))
    problem = replace(
        Problem.of_ops(builder.build(), cluster, costs),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )
    stream = Simulator(problem).stream(Placement.of([0, 1]))
    assert stream.memory_peaks[1] <= 250.0


@pytest.mark.parametrize("numbers", [{"samples": 0}, {"in_flight": 0}])
def test_numbers_below_one_are_refused(numbers):
    with pytest.raises(InputError, match="must be >= 1, got 0"):
        played(chain([[6.0]]), [0], **numbers)


def test_no_more_samples_are_in_flight_than_there_are():
    two = chain([[6.0, 9.0], [9.0, 6.0]], links=both_ways(1.0))
    for in_flight in (100, 2**63, 2**70):
        assert played(two, [0, 1], samples=10, in_flight=in_flight).in_flight == 10


def test_times_of_tensors_count_against_the_largest_stream(monkeypatch):
    """Begin and end of two tasks, and of two tensors, one of them on two devices: ten times."""
    two = chain([[6.0, 9.0], [9.0, 6.0]], links=both_ways(1.0))
    monkeypatch.setattr(module, "_LARGEST", 100)
    assert len(played(two, [0, 1], samples=10, in_flight=1).entry) == 10
    with pytest.raises(InputError, match="2 tasks and 2 tensors are too many; play 10 at most"):
        played(two, [0, 1], samples=11, in_flight=1)
    counted: list[int] = []
    kernel = module.play

    def counting(tables, n_samples, *others):
        counted.append(n_samples)
        kernel(tables, n_samples, *others)

    monkeypatch.setattr(module, "play", counting)
    assert played(two, [0, 1], samples=10).in_flight == 1
    assert max(counted) <= 10


def test_devices_in_use_are_counted_once_for_all_segments(monkeypatch):
    devices = tuple(Device(f"d{at}", memory_domain="ram") for at in range(2))
    problem = chain([[1.0, 1.0]] * 6, devices=devices, links=both_ways(1.0))
    contended = replace(problem.cluster, contention={"ram": (1.0, 2.0)})
    counted: list[int] = []
    unique = np.unique

    def counting(array, *others, **more):
        counted.append(len(array))
        return unique(array, *others, **more)

    monkeypatch.setattr(tasks_module.np, "unique", counting)
    arrays = Simulator(replace(problem, cluster=contended)).arrays
    counts = []
    for device_of in ([0, 0, 0, 1, 1, 1], [0, 1] * 3):
        counted.clear()
        made = tasks_module.sample_tasks(problem, arrays, frozen_ints(device_of))
        assert made.tables.seconds.sum() == 12.0  # each unit takes twice its second
        counts.append(counted.count(6))
    assert counts[0] == counts[1]


def variants(seed: int) -> Problem:
    """Random problems with named channels, overlap, free transfers, overheads, groups."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng,
        n_ops=int(rng.integers(1, 9)),
        n_devices=int(rng.integers(1, 4)),
        objective="throughput",
        constrained=False,
    )
    if rng.random() < 0.3:
        problem = with_replicas(problem, int(rng.integers(2, 4)))
    devices = tuple(
        replace(
            device,
            overlaps_transfers=bool(rng.random() < 0.4),
            pays_transfers=bool(rng.random() < 0.8),
            dispatch_seconds=float(rng.integers(0, 2)),
            cut_seconds=float(rng.integers(0, 2)),
            memory_domain="ram" if rng.random() < 0.5 else None,
            memory_bytes=float("inf"),
        )
        for device in problem.cluster.devices
    )
    shared = rng.random(len(problem.cluster.links)) < 0.4
    links = tuple(
        replace(link, channel="bus" if on else link.channel)
        for link, on in zip(problem.cluster.links, shared, strict=True)
    )
    contention = {"ram": (1.0, 1.25, 1.5)}
    cluster = replace(problem.cluster, devices=devices, links=links, contention=contention)
    return replace(problem, cluster=cluster)


def modes(seed: int) -> Problem:
    """Variants whose devices compute on one or two of three processors."""
    rng, problem = np.random.default_rng([seed, 1]), variants(seed)
    names = [rng.choice(["p", "q", "r"], rng.integers(1, 3), replace=False) for _ in range(3)]
    one_at_a_time = {"streams": 1, "replicas": 1, "replica_bandwidth": None, "members": ()}
    devices = tuple(
        replace(device, processors=tuple(own), overlaps_transfers=False, memory_domain=None,
                **one_at_a_time)
        for device, own in zip(problem.cluster.devices, names, strict=False)
    )  # fmt: skip
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def test_two_modes_of_a_card_take_turns_and_the_oldest_sample_comes_first():
    """3 s in one mode, then 5 s in the other: at 3 s the first sample goes on before the second
    begins, so that a sample takes 8 s of the card, and two in flight do not help."""
    card = tuple(Device(f"d{at}", processors=("card",)) for at in range(2))
    problem = chain([[3.0, 9.0], [9.0, 5.0]], devices=card, links=both_ways(1.0))
    stream = played(problem, [0, 1], in_flight=2)
    assert stream.begin[:3].tolist() == [[0.0, 3.0], [8.0, 11.0], [16.0, 19.0]]
    assert (stream.steady.period, played(problem, [0, 1]).in_flight) == (8.0, 1)


def test_a_pair_waits_for_both_cards_and_holds_none_meanwhile():
    """1 s on a card of its own, then 4 s on the pair, of which the other card works 2 s."""
    named = (("a",), ("b",), ("a", "b"))
    devices = tuple(Device(f"d{at}", processors=own) for at, own in enumerate(named))
    builder = GraphBuilder()
    made = builder.add_tensor(builder.add_op("first", "Op"), 0.0)
    builder.add_op("both", "Op", inputs=[made])
    builder.add_op("other", "Op")
    links = [Link(f"d{a}", f"d{b}") for a in range(3) for b in range(3) if a != b]
    problem = Problem(
        builder.build(),
        Cluster(devices, tuple(links)),
        CostTable(frozen_floats([[1.0] * 3, [4.0] * 3, [2.0] * 3])),
        Grouping.identity(3),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )
    stream = played(problem, [0, 2, 1], samples=2, in_flight=2)
    at = {
        segment.units[0]: tasks.compute
        for segment, tasks in zip(stream.segments, stream.tasks.of_segment, strict=True)
    }
    begins = stream.begin[:, [at[0], at[1], at[2]]]
    # At 1 s the second sample takes the free card a; at 2 s both cards are free.
    assert begins[0].tolist() == [0.0, 2.0, 0.0]
    assert begins[1].tolist()[0] == 1.0


@pytest.mark.parametrize("seed", range(60))
def test_modes_agree_with_the_plain_second_implementation(seed):
    compare_with_reference(modes(seed), seed)


@pytest.mark.parametrize("seed", range(120))
def test_a_plain_second_implementation_agrees(seed):
    compare_with_reference(variants(seed), seed)


def compare_with_reference(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    device_of = rng.integers(0, problem.n_devices, problem.n_units)
    in_flight = int(rng.integers(1, 6))
    stream = played(problem, device_of, samples=8, in_flight=in_flight)
    segments = [(segment.device, list(segment.units)) for segment in stream.segments]
    reference = StreamReference(problem, device_of.tolist(), segments)
    spans = reference.play(8, in_flight)
    np.testing.assert_allclose(stream.entry, [one[""][0] for one in spans], rtol=1e-12)
    np.testing.assert_allclose(stream.finish, [one[""][1] for one in spans], rtol=1e-12)
    for index, tasks in enumerate(stream.tasks.of_segment):
        ours = stream.begin[:, tasks.compute]
        np.testing.assert_allclose(ours, [one[f"run {index}"][0] for one in spans], rtol=1e-12)
    weights = resident_bytes(Simulator(problem).arrays, device_of)
    live = (stream.memory_peaks - weights).tolist()
    assert live == pytest.approx(reference.peaks(spans))
    at_once = 2 * in_flight if stream.latencies[0] > 0 else len(stream.entry)
    at_most = at_once * most_sample_bytes(problem, device_of)
    assert np.all(np.array(live) <= at_most * (1 + 1e-12))
    loads = Simulator(problem).loads(device_of)
    if not any(
        d.dispatch_seconds or d.cut_seconds or d.memory_domain for d in problem.cluster.devices
    ):
        assert reference.load() == pytest.approx(float(loads.max()))


@pytest.mark.parametrize("block", range(10))
def test_the_steady_period_is_never_below_the_largest_load(block):
    found = 0  # streams whose pattern came back
    for seed in range(100 * block, 100 * block + 100):
        problem = variants(seed) if seed % 4 else modes(seed)
        device_of = np.random.default_rng(seed).integers(0, problem.n_devices, problem.n_units)
        stream = played(problem, device_of, samples=90)
        load = float(Simulator(problem).loads(device_of).max())
        found += stream.steady.pattern > 0
        assert stream.steady.period >= load * (1 - 1e-9)
        # Whatever the pattern: no server can do more than it can.
        assert stream.finish.max() >= load * 90 * (1 - 1e-9)
    assert found >= 90


@pytest.mark.parametrize("seed", range(30))
def test_chains_without_overheads_reach_their_load(seed):
    rng = np.random.default_rng(seed)
    n_devices = int(rng.integers(1, 5))
    lengths = rng.integers(1, 4, n_devices)
    device_of = np.repeat(np.arange(n_devices), lengths)
    seconds = rng.uniform(0.1, 5.0, (len(device_of), n_devices))
    links = [
        Link(f"d{a}", f"d{b}", bandwidth=float(rng.uniform(1, 9)))
        for a in range(n_devices)
        for b in range(n_devices)
        if a != b
    ]
    problem = chain(seconds, size=float(rng.uniform(0, 9)), links=links)
    load = float(Simulator(problem).loads(device_of).max())
    stream = played(problem, device_of, samples=120, in_flight=4 * n_devices)
    assert stream.steady.period == pytest.approx(load, rel=0.01)
    assert len(stream.segments) == n_devices


def test_segments_cover_all_units_once_and_need_only_earlier_ones():
    for seed in range(40):
        problem = variants(seed)
        device_of = np.random.default_rng(seed).integers(0, problem.n_devices, problem.n_units)
        segments = played(problem, device_of, samples=1).segments
        assert sorted(u for s in segments for u in s.units) == list(range(problem.n_units))
        made: set[int] = set()
        graph = problem.unit_graph
        for segment in segments:
            assert {int(device_of[u]) for u in segment.units} == {segment.device}
            for tensor in segment.inputs:
                assert graph.tensor_producers[tensor] < 0 or tensor in made
            made.update(t for u in segment.units for t in graph.op_outputs.row(u).tolist())
