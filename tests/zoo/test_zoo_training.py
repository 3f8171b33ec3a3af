"""Training steps of all zoo models: the smallest variants, read and executed once."""

from __future__ import annotations

import numpy as np
import pytest
from support.zoo_families import FAMILY_OF

from placewright import zoo
from placewright.core.graph import BACKWARD, UPDATE
from placewright.frameworks.torch.training.step import read_training
from placewright.placers.baselines.expert.placer import family_of
from placewright.zoo.model import training_of

_LARGE = ("inception_v3", "nasnet_a")  # tracing them takes several seconds
_NAMES = [pytest.param(n, marks=pytest.mark.slow if n in _LARGE else ()) for n in zoo.names()]


@pytest.mark.parametrize("name", _NAMES)
def test_the_step_of_a_model_learns_and_updates_every_parameter(name: str) -> None:
    built = training_of(zoo.build(name, variant="tiny"))
    read = read_training(built.module, built.example_inputs, input_names=built.input_names)
    graph, program = read.graph, read.program
    assert program.inputs == built.input_names
    assert family_of(graph) == FAMILY_OF[name]
    assert (graph.op_phases == BACKWARD).any()
    # Every parameter is updated, except tied names and what the loss does not depend on.
    trained = [n for n in program.updates if n.startswith("p_") and not n.endswith("_momentum")]
    distinct = len(list(built.module.parameters()))
    assert distinct - 2 <= len(trained) <= distinct
    classes = graph.op_colocation[graph.op_phases == UPDATE]
    assert (classes >= 0).all()
    state = {key: value.clone() for key, value in program.state.items()}
    losses = []
    for _ in range(2):
        loss, *values = program.module(*state.values(), *program.example_inputs.values())
        losses.append(float(loss))
        state.update(zip(program.updates, values, strict=True))
    assert np.isfinite(losses).all()
    assert losses[0] != losses[1]
