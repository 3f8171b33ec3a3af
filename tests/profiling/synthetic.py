"""A runtime whose devices take exactly the seconds that a test says; no hardware is involved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from signatures import ascending_signature

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.source import ModelSource, Signature

SOURCE = ModelSource("chain", "0" * 64, "synthetic")


def chain(n_ops: int) -> ComputationGraph:
    builder = GraphBuilder()
    tensor = builder.add_input(4)
    for number in range(n_ops):
        op = builder.add_op(f"op {number}", "Add", inputs=[tensor])
        tensor = builder.add_tensor(op, 4, is_output=number == n_ops - 1)
    return builder.build()


@dataclass
class Idle:
    """A segment that does nothing."""

    def instance(self) -> Idle:
        return self

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return []


@dataclass
class SyntheticModel:
    graph: ComputationGraph
    seconds: dict[str, Sequence[float]]  # fingerprint -> seconds of each op
    profiled: list[str] = field(default_factory=list)
    fail_after: int | None = None

    @property
    def signature(self) -> Signature:
        return ascending_signature(self.graph)

    def fused_groups(self, device: Device) -> Grouping:
        return Grouping.identity(self.graph.n_ops)

    def unit_labels(self, units: Grouping) -> tuple[str, ...]:
        return tuple(f"unit {group}" for group in range(units.n_groups))

    def reference(self, device: Device) -> Idle:
        return Idle()

    def random_inputs(self, rng: np.random.Generator) -> list[Any]:
        return [np.zeros(1)]

    def from_host(self, array: Any) -> Any:
        return array

    def worker_setup(self, device: Device) -> Callable[[], None]:
        return lambda: None

    def profiler(self, device: Device) -> Callable[[], Any]:
        def run() -> Any:
            if self.fail_after is not None and len(self.profiled) >= self.fail_after:
                raise KeyboardInterrupt
            self.profiled.append(device.name)
            return np.array(self.seconds[device.fingerprint])

        return run


@dataclass
class SyntheticRuntime:
    devices: tuple[Device, ...]
    name: str = "synthetic"
    version: str = "1"

    def discover(self) -> tuple[Device, ...]:
        return self.devices

    def completed(self, device: Device) -> Device:
        return replace(device, fingerprint=device.fingerprint or device.name)

    def load(self, source: ModelSource, graph: ComputationGraph) -> Any:
        raise AssertionError("tests give the model")

    def shares_weights(self, devices: Sequence[Device]) -> bool:
        return False

    def transfer_seconds(self, source: Device, destination: Device, size_bytes: int) -> float:
        return 0.0
