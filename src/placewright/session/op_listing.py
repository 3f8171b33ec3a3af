"""The ops of a model, with their seconds where they were measured: which one takes longest?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.op_patterns import matching
from placewright.profiling.last_measured import UnitTimes, last_measured
from placewright.profiling.profile import model_identity
from placewright.profiling.store import CostStore
from placewright.session.models import Model


@dataclass(frozen=True)
class ListedOp:
    """One op of a listing.

    Attributes:
        name, kind: of the op.
        unit: the number of its unit; None where units are not known.
        flops, weight_bytes: of the op.
        shapes: of its outputs.
        seconds: of its whole unit on each device, in the unit of time of the model's problem;
            None where a device cannot run it.
    """

    name: str
    kind: str
    unit: int | None
    flops: float
    weight_bytes: float
    shapes: tuple[tuple[int, ...], ...]
    seconds: dict[str, float | None]


@dataclass(frozen=True)
class OpListing:
    """Ops of a model, the slowest first where they were measured, else as the model lists them.

    Attributes:
        ops: those that were asked for.
        devices: whose seconds are known.
        time_unit: of the seconds.
    """

    ops: tuple[ListedOp, ...]
    devices: tuple[str, ...]
    time_unit: str = "s"

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "unit": self.time_unit,
            "devices": list(self.devices),
            "ops": [{**vars(op), "shapes": [list(shape) for shape in op.shapes]}
                    for op in self.ops],
        }  # fmt: skip


def listed_ops(model: Model, pattern: str) -> OpListing:
    """Ops that fit a pattern.

    Seconds are those of the problem, or of the latest measurement of the model on this machine.
    The slowest are those on the device that runs the whole model fastest.

    Args:
        model: what was read.
        pattern: a name, or one with ``*``, ``?`` and ``[...]``.

    Raises:
        GraphError: no op fits it; the message lists near names.
    """
    graph, problem = model.graph, model.problem
    chosen = matching(graph, pattern)
    times = UnitTimes.of(problem) if problem is not None else _kept(model)
    seconds = None if times is None else times.seconds[times.units.group_of]  # (ops, devices)
    if times is not None and seconds is not None:
        finite = np.where(np.isfinite(times.seconds), times.seconds, 0.0)
        runs_all = np.isfinite(times.seconds).all(axis=0)
        total = np.where(runs_all, finite.sum(axis=0), np.inf)
        fastest = int(np.argmin(total))
        slow = np.where(np.isfinite(seconds[:, fastest]), seconds[:, fastest], np.inf)
        chosen = sorted(chosen, key=lambda op: (-slow[op], int(times.units.group_of[op]), op))
    devices = () if times is None else times.devices
    weights = graph.op_weight_bytes
    return OpListing(
        tuple(
            ListedOp(
                graph.op_names[op],
                graph.op_kinds[op],
                None if times is None else int(times.units.group_of[op]),
                float(graph.op_flops[op]),
                float(weights[op]),
                tuple(graph.tensor_shapes[tensor] for tensor in graph.op_outputs.row(op)),
                {}
                if seconds is None
                else {
                    name: float(value) if np.isfinite(value) else None
                    for name, value in zip(devices, seconds[op], strict=True)
                },
            )
            for op in chosen
        ),
        devices,
        "s" if problem is None else problem.time_unit,
    )


def _kept(model: Model) -> UnitTimes | None:
    if model.source is None:
        return None
    return last_measured(CostStore(), model_identity(model.graph, model.source), model.graph.n_ops)
