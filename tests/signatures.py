"""The signature of a graph without a model: its tensors in ascending order."""

from __future__ import annotations

import numpy as np

from placewright.core.graph import ComputationGraph
from placewright.core.source import Port, Signature


def ascending_signature(graph: ComputationGraph) -> Signature:
    def ports(word: str, tensors: list[int]) -> tuple[Port, ...]:
        return tuple(
            Port(f"{word} {at}", graph.tensor_shapes[t], graph.tensor_dtypes[t], t)
            for at, t in enumerate(tensors)
        )

    entering = np.flatnonzero(graph.tensor_producers < 0).tolist()
    leaving = np.flatnonzero(graph.tensor_is_output).tolist()
    return Signature(ports("input", entering), ports("output", leaving))
