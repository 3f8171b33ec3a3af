"""Comparison of a placement's outputs with those of the unsplit model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.quantities import counted
from placewright.core.source import NO_TENSOR
from placewright.execution.output_check import JudgedOutput, OutputCheck, relative_error
from placewright.execution.placements import served_segments
from placewright.execution.requests import Execution
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import (
    HostArray,
    LoadedModel,
    OpSegment,
    graph_outputs,
    whole_segment,
)

_SMALL = 1 / 16  # of the largest element of a state: smaller ones are rounded like one of this


@dataclass(frozen=True)
class Comparison:
    """The output with the largest error relative to its tolerance, against the unsplit model."""

    # largest difference, relative to the largest magnitude of the tensor, or of its slices of
    # similar scale; for state that a step updates, relative to the largest change
    error: float
    tolerance: float  # error that the precision, or `scatter`, explains
    worst: str  # name of the output, inner op or state tensor with the largest error
    # number of parameters and other tensors of state that the step changed and that were compared,
    # too; 0 for inference
    n_updated: int = 0
    # ops whose outputs differ between runs of the unsplit model itself, in every value if only
    # between other levels, so that they cannot be compared; `error` is that of the others
    random: tuple[str, ...] = ()
    # difference between the unsplit model at other optimization levels; 0 if the precision explains
    # the error
    scatter: float = 0.0
    part: str = ""  # slices of the output with the error, if its slices differ widely in scale
    disputed: int = 0  # values of all outputs that were left out, see `JudgedOutput`

    @property
    def equal(self) -> bool:
        """True if the error is within the tolerance."""
        return self.error <= self.tolerance

    @property
    def excess(self) -> float:
        """Error over tolerance: above 1 for a mismatch."""
        return JudgedOutput(self.error, self.tolerance).excess

    @property
    def text(self) -> str:
        """The error with its tolerance, the reason of the tolerance, and the place of the error."""
        where = f"worst at '{self.worst}'" + (f", {self.part}" if self.part and self.error else "")
        levels = f", other optimization levels differ by {self.scatter:.2g}" if self.scatter else ""
        if self.disputed:
            levels += f", other levels leave {counted(self.disputed, 'value')} open"
        return f"relative error {self.error:.2g} (tolerance {self.tolerance:.2g}{levels}, {where})"


def compare_outputs(
    problem: Problem,
    placement: Placement,
    model: LoadedModel,
    *,
    inputs: Sequence[HostArray] | None = None,
    boundaries: bool = False,
) -> Comparison:
    """Compare the outputs of a placement with those of the unsplit model in its own library.

    The library reads the model's file, and takes and returns values in the model's own order. So
    the comparison finds errors in our graph and in the order of its tensors. Updates of parameters
    and of the optimizer's state, which only the graph of a training step has, are compared with the
    unsplit graph.

    Args:
        placement: complete.
        inputs: values of all inputs, in the model's own order; default random values.
        boundaries: also compare every tensor that leaves a segment with the unsplit graph's.

    Raises:
        RuntimeFailure: a segment, or the library with the whole model, fails.
    """
    values = model.random_inputs(np.random.default_rng(0)) if inputs is None else inputs
    segments = served_segments(problem, placement)
    devices = problem.cluster.devices
    used = [segment.device for segment in segments]
    check = OutputCheck(model, devices, levels_of=devices_used(devices, used))
    execution, before, state, eps = _split_values(model, segments, devices, values)
    names = output_names(problem.graph, model)
    judged = check.judged(values, execution.outputs, check.plain(values))
    random = tuple(
        dict.fromkeys(
            name for name, output in zip(names, judged, strict=True) if not output.is_compared
        )
    )
    judged = [replace(o, error=0.0, disputed=0) if o.random else o for o in judged]
    inner = sorted({t: None for s in segments for t in s.outputs}) if boundaries else []
    expected_state: dict[str, HostArray] = {}
    if inner or before:
        wanted = inner or graph_outputs(problem.graph)
        expected, expected_state = reference_values(model, devices[0], values, wanted)
        names += [_maker(problem.graph, tensor) for tensor in inner]
        errors = [relative_error(execution.tensors[t], expected[t]) for t in inner]
        names += list(expected_state)
        errors += [
            update_error(before[name], state[name], value, eps.get(name))
            if name in state
            else float("inf")
            for name, value in expected_state.items()
        ]
        judged += [JudgedOutput(error, check.tolerance) for error in errors]
    worst, name = max(
        zip(judged, names, strict=True), key=lambda pair: (pair[0].excess, pair[0].error)
    )
    return Comparison(
        worst.error,
        worst.tolerance,
        name,
        len(expected_state),
        random,
        worst.scatter,
        worst.part,
        sum(output.disputed for output in judged),
    )


def devices_used(devices: Sequence[Device], used: ArrayLike) -> list[Device]:
    """The first device, on which the unsplit model runs, and all that a placement uses."""
    return [devices[0], *(devices[at] for at in np.unique(used).tolist())]


def output_names(graph: ComputationGraph, model: LoadedModel) -> list[str]:
    """Names of a model's outputs in its own order; an op's for an output without a name."""
    return [port.name or _maker(graph, port.tensor) for port in model.signature.outputs]


def _maker(graph: ComputationGraph, tensor: int) -> str:
    """Name of the op that makes a tensor."""
    if tensor == NO_TENSOR:
        return "a constant"
    op = int(graph.tensor_producers[tensor])
    return graph.op_names[op] if op >= 0 else "an input"


def _split_values(
    model: LoadedModel,
    segments: Sequence[OpSegment],
    devices: Sequence[Device],
    inputs: Sequence[HostArray],
) -> tuple[Execution, dict[str, HostArray], dict[str, HostArray], dict[str, float]]:
    """Run a split once.

    Returns:
        The execution with tensors, the state before and after, and the precision of state that was
        widened.
    """
    with ConcurrentRunner(model, segments, devices) as runner:
        before = runner.state_values()
        execution = runner.run(inputs, keep_tensors=True)
        return execution, before, runner.state_values(), runner.state_eps()


def reference_values(
    model: LoadedModel, device: Device, inputs: Sequence[HostArray], tensors: Sequence[int]
) -> tuple[dict[int, HostArray], dict[str, HostArray]]:
    """Run the unsplit model once on one device.

    Returns:
        Values of `tensors`, which are not graph inputs, and the state after the run.
    """
    whole = whole_segment(model.graph, tensors)
    with ConcurrentRunner(model, [whole], [device]) as runner:
        values = dict(runner.run(inputs, keep_tensors=True).tensors)
        return values, runner.state_values()


def update_error(
    before: HostArray, after: HostArray, expected: HostArray, eps: float | None = None
) -> float:
    """Relative error of a change: largest difference, less rounding, over the largest change.

    A step moves a parameter by a small part of its size. Relative to the parameter, a missing
    update would look like rounding.

    Args:
        eps: distance from 1 to the next number in the type of the state; default that of the type
            of `expected`.
    """
    error = relative_error(after, expected)
    if error == 0.0 or not np.isfinite(error) or before.shape != expected.shape:
        return error
    known = np.isfinite(expected)  # inf may stay, as in a mask
    moved, begun = known & np.isfinite(before), known & ~np.isfinite(before)
    errors = []
    if moved.any():
        own = float(np.finfo(expected.dtype).eps) if eps is None else eps
        errors.append(_change_error(before[moved], after[moved], expected[moved], own))
    if begun.any():  # such as a running maximum, which begins at -inf
        errors.append(relative_error(after[begun], expected[begun]))
    return max(errors, default=error)


def _change_error(before: HostArray, after: HostArray, expected: HostArray, eps: float) -> float:
    kind = np.result_type(expected.dtype, np.float64)  # complex numbers stay complex
    old, mine, other = (value.astype(kind) for value in (before, after, expected))
    # A new value is rounded to its own precision, which is coarse for a small change. Each has its
    # own rounding: that of the largest would hide a missing update of all small ones. Much smaller
    # changes of small ones are sums whose terms cancel, such as of a bias before a normalisation.
    sizes = np.maximum(np.abs(old), np.abs(other))
    rounding = 2.0 * eps * np.maximum(sizes, _SMALL * sizes.max())
    largest = float((np.abs(mine - other) - rounding).max())
    change = float(np.abs(other - old).max())
    return max(0.0, largest) / max(change, float(rounding.max()), 1e-300)
