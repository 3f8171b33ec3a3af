"""The graph of a model that OpenVINO holds in memory."""

from __future__ import annotations

from typing import Any

from placewright.core.graph import ComputationGraph
from placewright.frameworks.openvino.reader import read_operators


def graph_of_openvino_model(
    model: Any, *, fold_constants: bool = True, names_are_stored: bool = False
) -> tuple[ComputationGraph, dict[str, str]]:
    """The graph, and op name -> native name if they differ."""
    operators = read_operators(
        model, fold_constants=fold_constants, names_are_stored=names_are_stored
    )
    return operators.builder.build(), operators.native_names
