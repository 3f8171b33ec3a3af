"""Protocols of runtimes and models that share one copy of weights or state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.source import ModelSource
from placewright.execution.runtime import LoadedModel


@runtime_checkable
class SharesWeights(Protocol):
    """A runtime in which several devices may read one copy of a weight."""

    def shares_weights(self, devices: Sequence[Device]) -> bool:
        """True if a weight that several of the devices need lies in memory once."""
        ...


@runtime_checkable
class LoadsBeside(Protocol):
    """A runtime that loads one model for several shapes of its inputs."""

    def load_beside(
        self, source: ModelSource, graph: ComputationGraph, first: LoadedModel
    ) -> LoadedModel:
        """Load a model of which `first` is the same with other shapes of its inputs.

        Both have one copy of weights in each memory, and one of the state that stays. Only one of
        them may run at a time, and each continues with the state that the last one left.

        Raises:
            StalePlanError: the graph was read from another model.
        """
        ...


@runtime_checkable
class SharesState(Protocol):
    """A loaded model whose plans can take turns on one copy of their state."""

    def one_state(self) -> AbstractContextManager[None]:
        """Let plans compiled inside change the same tensors of each memory.

        State starts from its initial values. Only one of the plans may run at a time, and each
        continues with the values that the last one left.
        """
        ...
