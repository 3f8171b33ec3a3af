"""Messages of violations show bytes with units."""

from __future__ import annotations

import re

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, ExecutionModel, MaxLoad, Placeto, Sequential
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.event.model import EventModel
from placewright.simulation.layout import problem_arrays
from placewright.simulation.legality import NO_ORDER
from placewright.simulation.model import Simulator
from placewright.testing.problems import impossible_problem


def test_bytes_in_a_message_have_units() -> None:
    """Op 'large' keeps 100 B and op 'small' 10 B on a device of 60 B."""
    violation = Simulator(impossible_problem()).violation(Placement.on_one_device(2, 0))
    assert violation is not None
    assert violation.excess == 51.0  # with the tensor of 1 B between them
    assert re.search(r"needs 111 B and has 60 B: 51 B short", violation.message)


def chain_to_the_host() -> Problem:
    """Four ops in a chain whose outputs all go to the host `cpu`, to which there is no link."""
    builder = GraphBuilder()
    tensors: list[int] = []
    for number in range(4):
        op = builder.add_op(f"op{number}", "Op", inputs=tensors[-1:])
        tensors.append(builder.add_tensor(op, 8.0, is_output=True))
    cluster = Cluster((Device("cpu"), Device("gpu")), (), host="cpu")
    return Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(np.ones((4, 2)))))


@pytest.mark.parametrize("model", [EVENT, MaxLoad(), Sequential(), Placeto()])
def test_only_a_placement_that_keeps_every_constraint_is_explained(model: ExecutionModel) -> None:
    simulator = Simulator(chain_to_the_host().under(model))
    with pytest.raises(InfeasibleError, match="on device 7, which is unknown"):
        simulator.explain(Placement.of([7] * 4))
    with pytest.raises(InputError, match="needs 4 devices, got 1"):
        simulator.explain(Placement.of([0]))
    if not isinstance(model, Placeto):  # whose bus reaches every device
        with pytest.raises(InfeasibleError, match="no link to a device that needs it"):
            simulator.explain(Placement.of([1] * 4))


def test_a_play_that_ends_with_a_fault_counts_no_bytes() -> None:
    problem = chain_to_the_host()
    model = EventModel(problem, problem_arrays(problem))
    recording = model.record(Placement.of([1] * 4).device_of, NO_ORDER)
    assert recording.memory_peaks.tolist() == [0.0, 0.0]


def test_loads_are_of_devices_that_there_are() -> None:
    simulator = Simulator(chain_to_the_host())
    with pytest.raises(InfeasibleError, match="on device 7, which is unknown"):
        simulator.loads(np.full(4, 7))
    with pytest.raises(InputError, match="needs 4 devices, got 1"):
        simulator.loads(np.zeros(1, dtype=np.int64))
