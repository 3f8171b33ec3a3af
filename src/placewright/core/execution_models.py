"""Execution models, each with its parameters: they define the value of a placement.

The classes that implement them are in `simulation/` (`simulation.behaviours` has the list). Names
are for files, the command line and messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from placewright.errors import InputError

Dispatch = Literal["rank", "fifo"]
DISPATCH_RULES: tuple[Dispatch, ...] = get_args(Dispatch)


@dataclass(frozen=True)
class Event:
    """Makespan of a simulated run: ops run when they are ready, tensors wait for channels."""

    name: ClassVar[str] = "event"
    memory_counts: ClassVar[str] = "peak"

    # the ready unit that a device begins if the placement has no order: ``"rank"``, that of highest
    # upward rank, or ``"fifo"``, that which became ready first; of equals the lowest index
    dispatch: Dispatch = "rank"

    def __post_init__(self) -> None:
        if self.dispatch not in DISPATCH_RULES:
            raise InputError(
                f"dispatch of execution model 'event' is {' or '.join(DISPATCH_RULES)}, got "
                f"{self.dispatch!r}"
            )


@dataclass(frozen=True)
class MaxLoad:
    """Time per sample of a full pipeline: the largest load of a device or shared channel."""

    name: ClassVar[str] = "max-load"

    # samples whose tensors a device keeps at the same time, >= 0; 0 counts weights only
    samples_in_flight: int = 1
    # the value is max forward + max backward (Tarnawski's ``diffmaxima``)
    split_phases: bool = False

    def __post_init__(self) -> None:
        if self.samples_in_flight < 0:
            raise InputError(f"samples in flight must be >= 0, got {self.samples_in_flight}")

    @property
    def memory_counts(self) -> str:
        """Parts of a device's memory that are counted, for messages."""
        samples = self.samples_in_flight
        if samples == 0:
            return "weights only"
        return f"weights and {samples} {'sample' if samples == 1 else 'samples'} in flight"


@dataclass(frozen=True)
class Subgraph:
    """Latency of atomic contiguous pieces, as Tarnawski's ``greedy.cpp`` counts it."""

    name: ClassVar[str] = "subgraph"
    memory_counts: ClassVar[str] = "weights only"


@dataclass(frozen=True)
class SubgraphIP:
    """Latency with at most q pieces per accelerator that wait for each other (Tarnawski et al.)."""

    name: ClassVar[str] = "subgraph-ip"
    memory_counts: ClassVar[str] = "weights only"

    per_accelerator: int = 1  # q, >= 1

    def __post_init__(self) -> None:
        if self.per_accelerator < 1:
            raise InputError(f"subgraphs per accelerator must be >= 1, got {self.per_accelerator}")


@dataclass(frozen=True)
class Placeto:
    """Runtime by the event simulator published with Placeto (Addanki et al., NeurIPS 2019)."""

    name: ClassVar[str] = "placeto"
    memory_counts: ClassVar[str] = "peak"


@dataclass(frozen=True)
class Sequential:
    """Sum of the seconds of all ops and messages: nothing runs at the same time."""

    name: ClassVar[str] = "sequential"
    memory_counts: ClassVar[str] = "resident bytes"

    # messages in which a tensor crosses a link, >= 1, each with the latency. A graph that stands
    # for many passes through a model has a message for each pass
    messages: int = 1

    def __post_init__(self) -> None:
        if self.messages < 1:
            raise InputError(f"messages of a tensor must be >= 1, got {self.messages}")


EVENT = Event()
ExecutionModel = Event | MaxLoad | Subgraph | SubgraphIP | Placeto | Sequential
ModelName = Literal["event", "max-load", "subgraph", "subgraph-ip", "placeto", "sequential"]
EXECUTION_MODELS: tuple[type[ExecutionModel], ...] = get_args(ExecutionModel)


def default_model(objective: str, samples_in_flight: int = 1) -> Event | MaxLoad:
    """The execution model of an objective, if a request names none."""
    return MaxLoad(samples_in_flight) if objective == "throughput" else EVENT


def splits_phases(model: ExecutionModel) -> bool:
    """True if the value adds the largest forward and the largest backward load."""
    return isinstance(model, MaxLoad) and model.split_phases
