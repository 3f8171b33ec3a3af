"""The model behind a graph, with what is needed to find its ops in the model again.

Inputs and outputs of a model, in the model's own order and by its own names.

A graph keeps tensors in a topological order. Users, and the library that a model was made for,
speak of the first input and of the output ``"scores"``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from placewright.errors import InputError

# option of a language model: the devices of its request, as the file of a cluster has them
CLUSTER = "cluster"
# option: layers behind those of the graph that predict further tokens, which engines leave out
PREDICTING = "predicting_layers"
_MOST_DIGITS = 9  # of a node's position
STORED = "stored_weights"  # option: format of a model's own weights, if others are counted


@dataclass(frozen=True)
class ModelSource:
    """The model behind a graph; plans store it and runtimes use it.

    Attributes:
        path: file or folder, or ``"zoo:NAME"``.
        sha256: hash of the content (of the model file and what it refers to).
        format: of the ops' names; one framework declares that it knows them.
        shapes: input name -> the dimensions that were fixed.
        reader_version: version of the library that read it.
        native_names: op name -> the name that the runtime knows the op by, where they differ.
        options: reader options that change the graph, for example ``{"fold_constants": "no"}``.
        signature: inputs and outputs in the model's own order; None where no runtime can run the
            model, and in files of versions that did not store it.
        state: paths of all parameters and buffers of the PyTorch module that the model was made
            from, those that no op reads among them; empty where there is none.
    """

    path: str
    sha256: str
    format: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reader_version: str = ""
    native_names: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    signature: Signature | None = None
    state: tuple[str, ...] = ()

    @property
    def other_weights(self) -> str:
        """The fact that a plan counts weights in another format than the model's own, or ""."""
        if STORED not in self.options:
            return ""
        name = self.path.removeprefix("hf:")
        return (
            f"the plan counts weights as {self.options.get('weights')}, and {name} has "
            f"{self.options[STORED]}"
        )

    def native_name(self, op_name: str) -> str:
        """The name by which the runtime knows an op."""
        return self.native_names.get(op_name, op_name)


def numbered_position(native: str) -> int | None:
    """The position in a native name ``"#12"``; None for a name of the model's own."""
    digits = native.removeprefix("#")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
    return int(digits) if is_number and digits != native else None


def name_of_copy(output: str) -> str:
    """The name of a node, and of its value, that was added to copy an output which no node makes.

    Such a node is part of a graph, so that state stays, and of no file.
    """
    return f"{output}/kept"


NO_TENSOR = -1
Number = int | float
Value = TypeVar("Value")


@dataclass(frozen=True)
class Port:
    """One input or output."""

    name: str  # unique among the inputs, and among the outputs that are different tensors
    shape: tuple[int, ...]  # dimensions; one that is known only at run time counts as 1
    dtype: str  # as in `ComputationGraph.tensor_dtypes`; "" where unknown
    tensor: int  # of the graph; `NO_TENSOR` for an output that depends on no input
    other_names: tuple[str, ...] = ()  # by which the model's library knows it, too
    # of an input that always has the same: its numbers in row-major order, or one number for all of
    # them. None for one that users give
    value: tuple[Number, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the port, its own first."""
        return (self.name, *self.other_names)


@dataclass(frozen=True)
class Signature:
    """All inputs and all outputs of a model, each in the model's own order.

    An output may stand there twice, may be an input, and may depend on no input.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @cached_property
    def by_tensor(self) -> tuple[int, ...]:
        """Positions of the inputs in ascending order of their tensors."""
        return tuple(sorted(range(len(self.inputs)), key=lambda at: self.inputs[at].tensor))

    @cached_property
    def values(self) -> dict[str, tuple[Number, ...]]:
        """Input name -> the numbers that it always has."""
        return {port.name: port.value for port in self.inputs if port.value is not None}

    def ascending(self, values: Sequence[Value]) -> list[Value]:
        """Values of all inputs in the model's order -> in ascending order of their tensors."""
        return [values[at] for at in self.by_tensor]


def distinct(ports: Iterable[Port]) -> tuple[Port, ...]:
    """Ports with unique names: a number follows a name that another tensor's port has already."""
    taken: dict[str, int] = {}
    ports_so_far = []
    for port in ports:
        name, number = port.name, 1
        while name in taken and (taken[name] != port.tensor or port.tensor == NO_TENSOR):
            number += 1
            name = f"{port.name}#{number}"
        taken[name] = port.tensor
        ports_so_far.append(replace(port, name=name))
    return tuple(ports_so_far)


_CALLS = "calls"  # of a source


@dataclass(frozen=True)
class Call:
    """Calls of a model with inputs of one shape.

    >>> str(Call(300, {"token": (1, 1)}))
    '300 x token [1, 1]'
    """

    times: float  # how often, > 0, relative to the other calls of the mix
    # input name -> dimensions; other inputs have those of the example inputs
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items())
        return f"{self.times:g} x {shapes or 'the example inputs'}"


def calls_option(calls: Sequence[Call]) -> dict[str, str]:
    """The calls as an option of a source."""
    rows = [[call.times, {name: list(row) for name, row in call.shapes.items()}] for call in calls]
    return {_CALLS: json.dumps(rows)} if rows else {}


def _times(raw: Any) -> float:
    times = float(raw)
    if not 0 < times < math.inf:
        raise ValueError
    return times


def _dimensions(raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, list) or not all(type(size) is int and size >= 0 for size in raw):
        raise ValueError
    return tuple(raw)


def calls_of(source: ModelSource | None) -> tuple[Call, ...]:
    """The calls that a source's problem is made for; empty if it has one shape.

    Raises:
        InputError: somebody else wrote them.
    """
    text = "[]" if source is None else source.options.get(_CALLS, "[]")
    try:
        return tuple(
            Call(_times(times), {name: _dimensions(shape) for name, shape in shapes.items()})
            for times, shapes in json.loads(text)
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError(
            "the calls of the model in this problem are no list of calls; place it again"
        ) from None


def calls_text(calls: Sequence[Call]) -> str:
    """The calls in words, separated by semicolons."""
    return "; ".join(map(str, calls))
