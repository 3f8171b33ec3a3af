"""What the value of a placement consists of, as its execution model has it."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.core.arrays import FloatArray
from placewright.simulation.timeline import Timeline


@dataclass(frozen=True)
class Explanation:
    """What an execution model tells of one placement; what it does not have is None.

    Attributes:
        timeline: all that happens.
        loads: of devices, then channels, in seconds, shape (n_phases, n).
        broken: what makes the value inf where devices, order and memory are in order.
    """

    timeline: Timeline | None = None
    loads: FloatArray | None = None
    broken: str | None = None
