"""Calls of several shapes that share one placement, such as a prompt and the tokens after it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placewright.core.source import ModelSource

OPTION = "calls"  # of a source


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
    return {OPTION: json.dumps(rows)} if rows else {}


def calls_of(source: ModelSource | None) -> tuple[Call, ...]:
    """The calls that a source's problem is made for; empty if it has one shape."""
    rows = [] if source is None else json.loads(source.options.get(OPTION, "[]"))
    return tuple(
        Call(float(times), {name: tuple(shape) for name, shape in shapes.items()})
        for times, shapes in rows
    )


def calls_text(calls: Sequence[Call]) -> str:
    """The calls in words, separated by semicolons."""
    return "; ".join(map(str, calls))
