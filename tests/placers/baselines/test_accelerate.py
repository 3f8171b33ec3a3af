"""Accelerate's device map on a model of four modules."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator


def layers(modules: tuple[str, ...], memory: float, *, constant: bool = False) -> Problem:
    """A row of ops of 100 weight bytes on two accelerators and a CPU, which is the fastest.

    A constant of 10 bytes, if wanted, is read by all of them.
    """
    builder = GraphBuilder()
    of_all = [builder.add_weight(10.0)] if constant else []
    tensor = None
    for op, module in enumerate(modules):
        inputs = [] if tensor is None else [tensor]
        weights = [builder.add_weight(100.0), *of_all]
        builder.add_op(f"op{op}", "MatMul", inputs=inputs, module=module, weights=weights)
        tensor = builder.add_tensor(op, 1.0, is_output=op == len(modules) - 1)
    devices = (
        Device("cpu"),
        Device("gpu:0", kind="gpu", memory_bytes=memory),
        Device("gpu:1", kind="gpu", memory_bytes=memory),
    )
    names = [device.name for device in devices]
    links = tuple(Link(a, b) for a in names for b in names if a != b)
    costs = CostTable(frozen_floats(np.tile([1.0, 5.0, 5.0], (len(modules), 1))))
    return Problem.of_ops(builder.build(), Cluster(devices, links, host="cpu"), costs)


def device_of(problem: Problem, **settings: str) -> list[int]:
    evaluator = Evaluator(problem)
    placer = make_placer("accelerate", settings)
    solution = placer.place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    return solution.placement.device_of.tolist()


def test_one_device_where_it_fits() -> None:
    """The first accelerator takes everything that fits, however fast the others are."""
    assert device_of(layers(("a", "b", "c", "d"), 1e6)) == [1, 1, 1, 1]


def test_fills_in_order_and_spills_to_the_processor() -> None:
    """Reserved for the largest layer is 100 B of the first device only: the rest follows in order.

    250 B: gpu:0 takes one layer (250 - 100 reserved), gpu:1 two, the CPU what is left.
    """
    assert device_of(layers(("a", "b", "c", "d"), 250.0)) == [1, 2, 2, 0]


def test_a_block_that_may_not_be_split() -> None:
    """With 350 B gpu:0 has room for two layers: block ``b`` (two layers) no longer fits after a."""
    problem = layers(("a", "b.first", "b.second", "c"), 350.0)
    assert device_of(problem) == [1, 1, 2, 2]
    assert device_of(problem, no_split="b")[1:3] == [2, 2]


def test_a_constant_that_many_modules_read_ties_none_of_them() -> None:
    """The library would look for the other readers among modules that it has already placed."""
    problem = layers(("a.x", "a.y", "b.x", "b.y"), 250.0, constant=True)
    assert device_of(problem) == [1, 2, 2, 0]


def test_modules_may_be_called_as_methods_of_a_module_are() -> None:
    named = layers(("half", "double", "type", "float"), 250.0)
    assert device_of(named) == device_of(layers(("a", "b", "c", "d"), 250.0))
