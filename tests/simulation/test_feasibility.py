"""Proofs that no placement exists: each kind by hand, and against brute force."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.files.model_names import model_of
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.testing.brute_force import brute_force
from placewright.testing.problems import impossible_problem, packing_problem, random_problem

INF = math.inf
BOTH_WAYS = (Link("a", "b"), Link("b", "a"))


def chain(
    weights: list[float],
    memory: tuple[float, ...],
    *,
    tensor: float = 0.0,
    seconds: list[list[float]] | None = None,
    together: tuple[int, ...] = (),
    pins: dict[int, int] | None = None,
    links: tuple[Link, ...] = BOTH_WAYS,
    model: str = "event",
    in_flight: int = 0,
    host: str = "a",
) -> Problem:
    """Ops x0 -> x1 -> ... that keep `weights` bytes and pass `tensor` bytes, on devices a, b, ...

    Args:
        together: ops of one colocation class.
    """
    builder = GraphBuilder()
    inputs: list[int] = []
    for op, size in enumerate(weights):
        builder.add_op(
            f"x{op}",
            "Op",
            inputs=inputs,
            weights=[builder.add_weight(size)],
            colocation=0 if op in together else -1,
        )
        if op < len(weights) - 1:
            inputs = [builder.add_tensor(op, tensor)]
    devices = tuple(
        Device(name, memory_bytes=size) for name, size in zip("abc", memory, strict=False)
    )
    costs = np.ones((len(weights), len(memory))) if seconds is None else np.array(seconds)
    return Problem(
        builder.build(),
        Cluster(devices, links, host=host),
        CostTable(frozen_floats(costs)),
        Grouping.identity(len(weights)),
        objective="throughput" if model == "max-load" else "latency",
        execution_model=model_of(model, samples_in_flight=in_flight),
        pins=pins or {},
    )


def proof(problem: Problem) -> str:
    found = prove_infeasible(problem)
    assert found is not None, "no proof"
    assert brute_force(problem) == INF
    return found


def test_a_pin_to_a_device_that_cannot_run_the_op() -> None:
    problem = chain([1, 1], (INF, INF), seconds=[[1, 1], [1, INF]], pins={1: 1})
    assert proof(problem) == "op 'x1' is pinned to 'b', which cannot run it"


def test_two_pins_that_tear_a_class_apart() -> None:
    """x0 and x2 must share a device and are pinned to two; x1 of the same class is free."""
    problem = chain([1, 1, 1], (INF, INF), together=(0, 1, 2), pins={0: 0, 2: 1})
    assert proof(problem) == (
        "op 'x0' and op 'x2' must share a device; the first may run on 'a' only, the second on "
        "'b'; drop a pin or the colocation"
    )


def test_support_and_a_pin_that_tear_a_class_apart() -> None:
    """Only a runs x0; x1 is pinned to b."""
    problem = chain([1, 1], (INF, INF), seconds=[[1, INF], [1, 1]], together=(0, 1), pins={1: 1})
    assert "the first may run on 'a' only, the second on 'b'" in proof(problem)


def test_a_class_whose_ops_agree_in_pairs_but_not_all() -> None:
    """a or b, b or c, a or c: any two ops have a device in common, the three have none."""
    links = tuple(Link(x, y) for x in "abc" for y in "abc" if x != y)
    seconds = [[1, 1, INF], [INF, 1, 1], [1, INF, 1]]
    problem = chain([1] * 3, (INF,) * 3, seconds=seconds, together=(0, 1, 2), links=links)
    assert "op 'x0' and the 2 ops that must share its device have no device" in proof(problem)


def test_one_op_too_large_for_each_device() -> None:
    """x1 keeps 50, reads 7 and makes 7 bytes: 64 of 60 on b, the larger device: 4 short."""
    problem = chain([1, 50, 1], (40, 60), tensor=7)
    assert proof(problem) == (
        "op 'x1' with its weights, inputs and outputs needs 64 B; the largest device that may run "
        "it, 'b', is 4 B short"
    )


def test_only_devices_that_may_run_an_op_count() -> None:
    """b would hold x1's 64 bytes, but it is pinned to a: 24 short."""
    assert "'a', is 24 B short" in proof(chain([1, 50, 1], (40, 100), tensor=7, pins={1: 0}))


def test_inputs_and_outputs_of_a_unit_that_takes_no_time_do_not_meet() -> None:
    """x1 takes 0 s: x0's 40 bytes go as x1's 40 come, so 60 bytes suffice; with 1 s they do not."""
    seconds = [[1.0], [0.0], [1.0]]
    problem = chain([0, 0, 0], (60,), tensor=40, seconds=seconds, links=())
    assert prove_infeasible(problem) is None
    assert math.isfinite(brute_force(problem))
    seconds[1] = [1.0]
    assert "is 20 B short" in proof(chain([0] * 3, (60,), tensor=40, seconds=seconds, links=()))


def test_max_load_counts_samples_in_flight() -> None:
    """Two samples of 7 + 7 bytes beside 50: 78 of 60, 18 short; weights alone fit."""
    pipeline = chain([1, 50, 1], (40, 60), tensor=7, model="max-load", in_flight=2)
    assert "op 'x1' with all that it keeps in memory needs 78 B" in proof(pipeline)
    assert "'b', is 18 B short" in proof(pipeline)
    assert prove_infeasible(pipeline.with_samples_in_flight(0)) is None


def test_a_class_too_large_though_its_ops_fit_alone() -> None:
    """x0 and x2 keep 30 + 30 and each has one tensor of 5: 65 of 60: 5 short."""
    problem = chain([30, 1, 30], (60, 60), tensor=5, together=(0, 2))
    assert proof(problem) == (
        "op 'x0' and op 'x2', which must share a device, need 65 B for their weights and the "
        "inputs and outputs of one of them; the largest device that may run them, 'a', is 5 B short"
    )


def test_a_shared_weight_counts_once() -> None:
    """Two ops share 40 bytes: they fit a device of 50 together, and all devices of 25 + 50."""
    builder = GraphBuilder()
    shared = builder.add_weight(40.0)
    tensor = builder.add_tensor(builder.add_op("x0", "Op", colocation=0, weights=[shared]), 1.0)
    builder.add_op("x1", "Op", inputs=[tensor], colocation=0, weights=[shared])
    problem = replace(chain([1, 1], (25, 50)), graph=builder.build())
    assert prove_infeasible(problem) is None
    assert math.isfinite(brute_force(problem))


def test_ops_left_with_one_device() -> None:
    """Only a runs x0 and x2: 30 + 30 and a tensor of 4 make 64 of 60. x1 fits b."""
    seconds = [[1, INF], [1, 1], [1, INF]]
    problem = chain([30, 1, 30], (60, 60), tensor=4, seconds=seconds)
    assert proof(problem) == (
        "the ops that only 'a' may run keep 60 B in memory, and one of them needs 4 B more for its "
        "inputs and outputs; 'a' is 4 B short"
    )


def test_ops_whose_size_leaves_them_one_device() -> None:
    """Two ops of 40 bytes fit only b, which has 70: 10 short. All devices have 100 for 81."""
    problem = chain([40, 1, 40], (30, 70))
    assert "the ops that only 'b' may run keep 80 B" in proof(problem)
    assert "'b' is 10 B short" in proof(problem)


def test_ops_confined_to_two_devices_of_three() -> None:
    """Three ops of 20 bytes may use a and b, which have 25 + 25: 10 short, however large c is."""
    seconds = [[1, 1, INF]] * 3
    links = tuple(Link(x, y) for x in "abc" for y in "abc" if x != y)
    problem = chain([20] * 3, (25, 25, 900), seconds=seconds, links=links)
    assert "only 'a' and 'b' may run keep 60 B" in proof(problem)
    assert "'a' and 'b' together are 10 B short" in proof(problem)


def test_all_devices_together_too_small() -> None:
    """Four ops of 20 bytes with a tensor of 3 to read and to make: 86 of 45 + 40, 1 short."""
    problem = chain([20] * 4, (45, 40), tensor=3)
    assert proof(problem) == (
        "all ops keep 80 B in memory, and one of them needs 6 B more for its inputs and outputs; "
        "'a' and 'b' together are 1 B short"
    )
    assert prove_infeasible(chain([20] * 4, (46, 40), tensor=3)) is None


def test_no_route_between_two_ops() -> None:
    """x0 on a, x1 on b, and the only link leads back."""
    problem = chain([1, 1], (INF, INF), pins={0: 0, 1: 1}, links=(Link("b", "a"),))
    assert proof(problem) == (
        "no device that may run op 'x0' has a link, or a way through the host, to one that may "
        "run op 'x1'; add a link"
    )
    assert prove_infeasible(replace(problem, pins={0: 0, 1: 0})) is None
    through_host = replace(
        problem,
        cluster=Cluster(problem.cluster.devices, (Link("a", "host"), Link("host", "b"))),
    )
    assert prove_infeasible(through_host) is None


@pytest.mark.parametrize("model", ["event", "max-load"])
def test_no_route_from_or_to_the_host(model: str) -> None:
    """An input that must enter b, an output that must leave b, one link between b and the host."""
    builder = GraphBuilder()
    op = builder.add_op("x0", "Op", inputs=[builder.add_input(1.0)])
    builder.add_tensor(op, 1.0, is_output=True)
    enters = replace(
        chain([1], (INF, INF), links=(Link("b", "host"),), model=model, host="host"),
        graph=builder.build(),
    )
    assert proof(enters) == "no device that may run op 'x0' is reached from the host; add a link"
    leaves = replace(enters, cluster=Cluster(enters.cluster.devices, (Link("host", "b"),)))
    assert proof(leaves) == "no device that may run op 'x0' reaches the host; add a link"


def test_the_explanation_of_fewest_ops_is_chosen() -> None:
    """All of these hold; each is left out once what is shorter no longer does."""
    problem = chain(
        [90, 90, 90, 90],
        (60, 80),
        seconds=[[1, 1], [1, INF], [1, 1], [1, 1]],
        together=(2, 3),
        pins={0: 0, 1: 1, 2: 0, 3: 1},
    )
    assert proof(problem) == "op 'x1' is pinned to 'b', which cannot run it"
    problem = replace(problem, pins={0: 0, 2: 0, 3: 1})
    assert "op 'x2' and op 'x3' must share a device" in proof(problem)
    problem = replace(problem, pins={0: 0})
    assert "op 'x0' with all that it keeps in memory needs 90 B" in proof(problem)
    assert "'a', is 30 B short" in proof(problem)
    problem = _with_memory(problem, (95, 95))
    assert "op 'x2' and op 'x3', which must share a device, need" in proof(problem)
    problem = _with_memory(problem, (95, 180))
    assert "only 'a' may run" in proof(problem)
    assert "'a' is 85 B short" in proof(problem)
    problem = _with_memory(replace(problem, pins={}), (95, 185))
    assert "all ops keep 360 B" in proof(problem)


def _with_memory(problem: Problem, memory: tuple[float, float]) -> Problem:
    devices = tuple(
        replace(device, memory_bytes=size)
        for device, size in zip(problem.cluster.devices, memory, strict=True)
    )
    return replace(problem, cluster=Cluster(devices, BOTH_WAYS, host="a"))


def test_what_the_testing_room_calls_impossible_and_unproven() -> None:
    for objective in ("latency", "training", "throughput"):
        assert prove_infeasible(impossible_problem(objective=objective)) is not None
        unproven = packing_problem(objective=objective)
        assert prove_infeasible(unproven) is None
        assert brute_force(unproven) == INF


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), tight=st.floats(0.05, 0.6), pipeline=st.booleans())
def test_a_proof_means_that_brute_force_finds_nothing(
    seed: int, tight: float, pipeline: bool
) -> None:
    """Random problems whose devices hold a small part of all bytes, some links left out."""
    rng = np.random.default_rng(seed)
    objective = "throughput" if pipeline else "latency"
    problem = random_problem(rng, n_ops=4, n_devices=2 + seed % 2, objective=objective)
    total = float(problem.graph.weight_bytes.sum() + problem.graph.tensor_bytes.sum())
    devices = tuple(
        replace(device, memory_bytes=float(math.ceil(total * tight * rng.uniform(0.8, 1.2))))
        for device in problem.cluster.devices
    )
    links = tuple(link for link in problem.cluster.links if rng.random() < 0.8)
    seconds = np.where(rng.random(problem.costs.seconds.shape) < 0.2, 0, problem.costs.seconds)
    problem = replace(
        problem,
        cluster=Cluster(devices, links),
        costs=CostTable(frozen_floats(np.where(np.isinf(problem.costs.seconds), INF, seconds))),
    )
    if pipeline:
        problem = problem.with_samples_in_flight(seed % 3)
    found = prove_infeasible(problem)
    event("no proof" if found is None else "proof")
    if found is not None:
        assert brute_force(problem) == INF


@pytest.mark.parametrize("shares", [(0.7, 0.3), (0.3333333333, 0.6666666666)])
def test_shares_of_pools_that_add_up_roughly_are_a_whole(shares: tuple[float, float]) -> None:
    """Three bytes on a device of three, of two pools: 3 x 0.7 + 3 x 0.3 is less in floats."""
    builder = GraphBuilder()
    builder.add_op("a", "Op", weights=[builder.add_weight(3.0)])
    pools = dict(zip(("vram", "ram"), shares, strict=True))
    devices = (Device("cpu", pool="ram"), Device("gpu", pool=pools, memory_bytes=3.0))
    cluster = Cluster(devices, (), host="cpu", pools={"vram": 100.0, "ram": 100.0})
    costs = CostTable(frozen_floats(np.array([[INF, 1.0]])))
    problem = Problem(builder.build(), cluster, costs, Grouping.identity(1), objective="latency")
    assert brute_force(problem) == 1.0
    assert prove_infeasible(problem) is None


def test_an_exact_fit_is_not_infeasible() -> None:
    """0.2 resident, 0.3 in and 0.1 out fit into 0.6 as the simulator adds them."""
    builder = GraphBuilder()
    read = builder.add_input(0.3)
    op = builder.add_op("x", "Op", inputs=[read], weights=[builder.add_weight(0.2)])
    builder.add_tensor(op, 0.1, is_output=True)
    links = (Link("a", "host", bandwidth=1.0), Link("host", "a", bandwidth=1.0))
    problem = Problem(
        builder.build(),
        Cluster((Device("a", memory_bytes=0.6),), links, host="host"),
        CostTable(frozen_floats([[1.0]])),
        Grouping.identity(1),
    )
    assert 0.2 + (0.3 + 0.1) > 0.6
    assert math.isfinite(brute_force(problem))
    assert prove_infeasible(problem) is None


def test_a_unit_whose_time_vanishes_in_rounding_has_no_instant() -> None:
    """It starts at 1e6 s and lasts 1e-11 s, so that its tensors never count together."""
    seconds = [[1e6], [1e-11], [1.0]]
    problem = chain([0, 0, 0], (60,), tensor=40, seconds=seconds, links=())
    assert math.isfinite(brute_force(problem))
    assert prove_infeasible(problem) is None


def test_transfers_may_take_so_long_that_the_time_of_a_unit_vanishes() -> None:
    """The input arrives after 1e8 s, so that 1e-9 s are lost in the sum."""
    builder = GraphBuilder()
    given = builder.add_input(40.0)
    builder.add_op("x0", "Op", inputs=[given])
    builder.add_tensor(0, 40.0)
    builder.add_op("x1", "Op", inputs=[1])
    host = Link("host", "a", 1e8), Link("a", "host")
    problem = Problem(
        builder.build(),
        Cluster((Device("a", memory_bytes=60.0),), host, host="host"),
        CostTable(frozen_floats([[1e-9], [1.0]])),
        Grouping.identity(2),
    )
    assert math.isfinite(brute_force(problem))
    assert prove_infeasible(problem) is None


def test_copies_that_occupy_devices_may_take_so_long_too() -> None:
    """x1 copies for 1e12 s, after which the 1e-5 s of x2 are lost: its tensors never meet."""
    builder, reads = GraphBuilder(), list[int]()
    for op, size in enumerate((1.0, 10.0, 10.0)):
        builder.add_op(f"x{op}", "Op", inputs=reads)
        reads = [builder.add_tensor(op, size, is_output=op == 2)]
    devices = tuple(Device(name, memory_bytes=15.0) for name in "ab")
    links = (Link("a", "b", 1e12, occupies="receiver"), Link("b", "host"))
    problem = Problem(
        builder.build(),
        Cluster(devices, links),
        CostTable(frozen_floats(np.full((3, 2), 1e-5))),
        Grouping.identity(3),
        pins={0: 0, 1: 1, 2: 1},
    )
    assert math.isfinite(brute_force(problem))
    assert prove_infeasible(problem) is None
