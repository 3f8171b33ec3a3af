"""Interface of a runtime, with which plans are profiled and executed; segments of a graph.

A tensor that passes between segments is the runtime's own object (`NativeTensor`). Only `to_host`
and `from_host` convert it to a NumPy array and back.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.source import ModelSource, Signature
from placewright.errors import GraphError, InputError, StalePlanError

NativeTensor = Any
HostArray = NDArray[Any]
PlainCall = Callable[[Sequence[HostArray]], list[HostArray]]


@dataclass(frozen=True)
class OpSegment:
    """Ops of one device that run as one compiled call.

    Attributes:
        device: index in the cluster.
        ops: ops of the graph, in an order in which they can execute.
        inputs: tensors that enter, graph inputs included, ascending, without repetition.
        outputs: tensors that leave for other segments or for the host, ascending.
    """

    device: int
    ops: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class SegmentInstance(Protocol):
    """An executable copy of a compiled segment, with buffers of its own."""

    def run(self, inputs: Sequence[NativeTensor]) -> Sequence[NativeTensor]:
        """Compute the segment's outputs; they stay valid until the next call of `run`.

        A list of inputs may be emptied, so that each input is freed after its last use.
        """
        ...

    def reset_state(self) -> None:
        """Give all state that lasts from one run to the next its initial value."""
        ...


class CompiledSegment(Protocol):
    """A segment compiled for one device."""

    def instance(self) -> SegmentInstance:
        """Make a copy with buffers of its own; two copies may run at the same time."""
        ...


class LoadedModel(Protocol):
    """A model that a runtime has read, with the graph to which plans refer.

    `Runtime.load` makes it. It compiles any number of segments and caches them by content. Values
    of all inputs or outputs are in the order of `signature`, the model's own; tensors of a segment
    are ascending.
    """

    graph: ComputationGraph
    signature: Signature

    @property
    def keeps_state(self) -> bool:
        """True if a run depends on the runs before it."""
        ...

    def compile(
        self, segments: Sequence[OpSegment], devices: Sequence[Device]
    ) -> list[CompiledSegment]:
        """Compile segments; ``segments[i].device`` indexes `devices`.

        Raises:
            RuntimeFailure: the runtime refuses a segment; the message names its ops.
        """
        ...

    def reference(self, device: Device) -> CompiledSegment:
        """Compile the whole unsplit graph.

        It takes the graph inputs and returns all tensors that ops make for the host, both in
        ascending order of tensors.
        """
        ...

    def fused_groups(self, device: Device) -> Grouping:
        """Group the ops that one kernel of `device` computes, shape (n_ops,)."""
        ...

    def profiler(self, device: Device) -> Callable[[], FloatArray]:
        """A function that runs the model once on `device` and times each kernel in its place.

        A call returns seconds of each op, shape (n_ops,). A kernel's seconds are at one op of its
        group, and the others have 0. Ops that the device cannot run have inf.
        """
        ...

    def unit_labels(self, units: Grouping) -> tuple[str, ...]:
        """A text per unit, equal for units that compute the same on the same shapes."""
        ...

    def plain(self, device: Device) -> PlainCall:
        """The model as its own library runs it, without our graph: the reference for outputs.

        The model is read again from its file and called as its users call it. It keeps its memory
        until the function is dropped.

        Raises:
            RuntimeFailure: the library refuses the model.
        """
        ...

    def input_dtypes(self) -> list[np.dtype[Any]]:
        """NumPy types of the values of all inputs."""
        ...

    def random_inputs(self, rng: np.random.Generator) -> list[HostArray]:
        """Valid values for all inputs."""
        ...

    def from_host(self, array: HostArray) -> NativeTensor:
        """Convert a host array to the runtime's tensor, with shared memory if possible."""
        ...

    def to_host(self, tensor: NativeTensor) -> HostArray:
        """Copy the runtime's tensor to a host array."""
        ...

    def worker_setup(self, device: Device) -> Callable[[], None]:
        """A function that the worker thread of `device` calls once before its first segment."""
        ...

    def tolerance(self, devices: Sequence[Device]) -> float:
        """Largest relative error (to an output's largest magnitude) that precision explains."""
        ...


class Runtime(Protocol):
    """A library that executes segments."""

    @property
    def name(self) -> str:
        """Name in ``--runtime``."""
        ...

    @property
    def version(self) -> str:
        """Version of the library; part of every cost's key."""
        ...

    def discover(self) -> tuple[Device, ...]:
        """All devices that the runtime can use here, overlapping ones included."""
        ...

    def completed(self, device: Device) -> Device:
        """Add options and fingerprint to a device of a cluster file."""
        ...

    def load(self, source: ModelSource, graph: ComputationGraph) -> LoadedModel:
        """Read the model behind a graph.

        Raises:
            StalePlanError: the graph was read from another model.
            InputError: the model cannot be read.
        """
        ...

    def unsplit_call(self, path: str, device: Device) -> str:
        """Python that opens the model at `path` on a device without this package, one line."""
        ...

    def shares_weights(self, devices: Sequence[Device]) -> bool:
        """True if a weight that several of the devices need lies in memory once."""
        ...

    def transfer_seconds(self, source: Device, destination: Device, size_bytes: int) -> float:
        """Median seconds of a transfer of `size_bytes` between devices; 0 within one memory."""
        ...


@runtime_checkable
class RunsOpByOp(Protocol):
    """A runtime whose library fuses nothing; `profiling.units.light_ops_joined` forms its units."""

    def keeps_inner_tensors(self, devices: Sequence[Device]) -> bool:
        """True if tensors inside a group take memory of their own, as between two groups."""
        ...


@runtime_checkable
class MovesTensors(Protocol):
    """A loaded model whose devices have memories of their own.

    The runner keeps a tensor once per device that reads it, and drops it after its last reader
    there. With other models all devices share one memory, and tensors stay until the next request.
    """

    def has_own_memory(self, device: Device) -> bool:
        """False if a device computes in the host's memory, so that nothing moves there."""
        ...

    def move(
        self, tensor: NativeTensor, source: Device | None, destination: Device | None
    ) -> NativeTensor:
        """Start a tensor's transfer to another memory; None stands for the host's.

        The worker that made the tensor calls it (for graph inputs the host's own thread). It must
        not block: the segment that reads the tensor waits for it.
        """
        ...

    def arrived(self, tensor: NativeTensor) -> None:
        """Wait until a tensor that was moved to the host is there."""
        ...


def moved_from_host(
    model: LoadedModel, arrays: Sequence[HostArray], device: Device
) -> list[NativeTensor]:
    """The runtime's own tensors of host arrays, on their way to the memory of a device."""
    values = [model.from_host(array) for array in arrays]
    if isinstance(model, MovesTensors):
        return [model.move(value, None, device) for value in values]
    return values


@runtime_checkable
class RunsAsynchronously(Protocol):
    """An instance whose `run` may return before its device is done."""

    def settled_span(self) -> tuple[float, float]:
        """Wait for the last run; return its start and end in ``time.perf_counter`` seconds."""
        ...


@runtime_checkable
class ChangesCallers(Protocol):
    """A loaded model whose workers change settings of the whole process."""

    def restore_caller(self) -> None:
        """Apply the calling thread's own settings to the process again."""
        ...


@runtime_checkable
class CompilesAtFirstRun(Protocol):
    """A compiled segment whose library makes code at the first run, which may take minutes."""

    @property
    def first_run_seconds(self) -> float:
        """Seconds that the first run may take beyond others; 0 if no code is made then."""
        ...


@runtime_checkable
class ChangesState(Protocol):
    """A compiled segment that changes parameters or other state as it runs."""

    def state_values(self) -> Mapping[str, HostArray]:
        """Name -> present value of the state that this segment changes."""
        ...


@runtime_checkable
class WidensState(Protocol):
    """A compiled segment that changes state of types that NumPy lacks."""

    def state_eps(self) -> Mapping[str, float]:
        """Name -> distance from 1 to the next number, for state whose values are widened."""
        ...


class StepState(Protocol):
    """State of a training step that is loaded, on all its devices.

    Attributes:
        learning_rate: of the next step.
    """

    learning_rate: float

    @property
    def steps(self) -> int:
        """Steps done so far."""
        ...

    @property
    def updates(self) -> int:
        """Updates of the parameters done so far."""
        ...

    def begin(self) -> None:
        """Tell the devices the numbers of the next step."""
        ...

    def end(self) -> None:
        """Count a step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Copies of all state, tensors of the library, by name."""
        ...

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises:
            InputError: an entry is missing, unknown, or of another shape.
        """
        ...

    def write_back(self, module: Any) -> None:
        """Copy parameters and buffers into the module that the step was made from.

        Raises:
            InputError: the module lacks one.
        """
        ...

    def save(self, path: Path) -> None:
        """Write a checkpoint; an earlier file survives every failure.

        Raises:
            InputError: the file cannot be written.
        """
        ...

    def restore(self, path: Path) -> None:
        """Take over a checkpoint.

        Raises:
            InputError: there is no such file, it is damaged, or of another step.
        """
        ...


@runtime_checkable
class TrainsSteps(Protocol):
    """A loaded model whose steps continue from each other."""

    def step_state(self, seed: int) -> AbstractContextManager[StepState]:
        """Give the state of a plan that is compiled inside.

        Args:
            seed: of random operators.
        """
        ...


@runtime_checkable
class MeasuresMemory(Protocol):
    """A loaded model whose allocators report the memory that a split, or an op, needs."""

    def memory_peaks(self, segments: Sequence[OpSegment], devices: Sequence[Device]) -> FloatArray:
        """Run a split; return the largest bytes in use on each device, shape (n_devices,)."""
        ...

    def op_working_bytes(self, device: Device) -> FloatArray:
        """Bytes of working space of each op, shape (n_ops,)."""
        ...


def graph_inputs(graph: ComputationGraph) -> tuple[int, ...]:
    """Tensors that the host provides, in ascending order."""
    return tuple(np.flatnonzero(graph.tensor_producers < 0).tolist())


def graph_outputs(graph: ComputationGraph) -> tuple[int, ...]:
    """Tensors that end at the host, in ascending order."""
    return tuple(np.flatnonzero(graph.tensor_is_output).tolist())


def whole_segment(graph: ComputationGraph, outputs: Sequence[int] | None = None) -> OpSegment:
    """Make a segment of all ops of a graph on the first device.

    Args:
        graph: the ops.
        outputs: tensors that leave it, ascending; None is all graph outputs. Outputs that are also
            graph inputs need no segment.
    """
    order = tuple(graph.topological_order.tolist())
    wanted = graph_outputs(graph) if outputs is None else outputs
    made = tuple(tensor for tensor in wanted if graph.tensor_producers[tensor] >= 0)
    return OpSegment(0, order, graph_inputs(graph), made)


def median_seconds(action: Callable[[], object]) -> float:
    """Median seconds of ten runs of an action, after two runs that warm up."""
    seconds = []
    for _ in range(12):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def require_folded(source: ModelSource) -> None:
    """Refuse the source of a model that was read with its constants as ops.

    Raises:
        InputError: always for such a source.
    """
    if source.options.get("fold_constants") == "no":
        raise InputError(
            f"model '{source.path}' was read with its constants as ops, which is for looking "
            "at it only; read it with constants folded to profile or run it"
        )


def require_same_kind(source: ModelSource, name: str, kind: str, present: str | None) -> None:
    """Check that the node behind an op still has the op's kind.

    Args:
        source: of the model.
        name: of the op.
        kind: of the op, when the graph was read.
        present: kind of the node in the model now; None if there is no such node.

    Raises:
        StalePlanError: the kinds differ.
    """
    if present != kind:
        raise StalePlanError(
            f"model '{source.path}' has changed: op '{name}' was a {kind}, now there is "
            f"{present or 'nothing'}; profile and place again"
        )


def require_signature(source: ModelSource) -> Signature:
    """Return the signature of a source.

    Raises:
        InputError: the source has none.
    """
    if source.signature is None:
        raise InputError(
            f"the source of model '{source.path}' has no order of inputs and outputs; read the "
            "model again"
        )
    return source.signature


def unit_labels(
    graph: ComputationGraph, units: Grouping, signatures: Sequence[object]
) -> tuple[str, ...]:
    """Texts that are equal for units whose ops are equal and equally connected, shape (n_units,).

    Args:
        graph: the ops.
        units: groups of ops.
        signatures: of each op, shape (n_ops,); their `repr` tells all but its flops and weights.
    """
    kinds = graph.weight_dtypes or ("",) * len(graph.weight_bytes)
    weights = list(zip(graph.weight_bytes.tolist(), kinds, strict=True))
    labels = []
    for group in range(units.n_groups):
        ops = units.members.row(group).tolist()
        place = {op: at for at, op in enumerate(ops)}
        makers = [graph.tensor_producers[graph.op_inputs.row(op)].tolist() for op in ops]
        wires = [[place.get(maker, -1) for maker in row] for row in makers]
        work = [(signatures[op], float(graph.op_flops[op])) for op in ops]
        kept = [[weights[weight] for weight in graph.op_weights.row(op).tolist()] for op in ops]
        labels.append(hashlib.sha256(repr((work, kept, wires)).encode()).hexdigest())
    return tuple(labels)


def segments_of_ops(
    graph: ComputationGraph, parts: Iterable[tuple[int, Sequence[int]]]
) -> tuple[OpSegment, ...]:
    """Make segments from (device, ops) pairs that cover each op once.

    Raises:
        GraphError: an op is in no part or in two.
    """
    listed = [(device, [int(op) for op in ops]) for device, ops in parts]
    part_of = np.full(graph.n_ops, -1, dtype=np.int64)
    for index, (_, ops) in enumerate(listed):
        for op in ops:
            if part_of[op] >= 0:
                raise GraphError(f"op '{graph.op_names[op]}' is in two segments")
            part_of[op] = index
    if len(missing := np.flatnonzero(part_of < 0)):
        raise GraphError(f"op '{graph.op_names[int(missing[0])]}' is in no segment")
    inputs: list[list[int]] = [[] for _ in listed]
    outputs: list[list[int]] = [[] for _ in listed]
    for tensor in range(graph.n_tensors):
        producer = int(graph.tensor_producers[tensor])
        home = int(part_of[producer]) if producer >= 0 else -1
        readers = np.unique(part_of[graph.tensor_consumers.row(tensor)]).tolist()
        elsewhere = [part for part in readers if part != home]
        for part in elsewhere:
            inputs[part].append(tensor)
        if home >= 0 and (elsewhere or graph.tensor_is_output[tensor]):
            outputs[home].append(tensor)
    return tuple(
        OpSegment(device, tuple(ops), tuple(inputs[index]), tuple(outputs[index]))
        for index, (device, ops) in enumerate(listed)
    )


def segments_of_units(
    problem: Problem, parts: Iterable[tuple[int, Sequence[int]]]
) -> tuple[OpSegment, ...]:
    """Make segments from (device, units) pairs, as plans store them."""
    graph, members = problem.graph, problem.units.members
    position = np.empty(graph.n_ops, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.n_ops)
    of_ops: list[tuple[int, Sequence[int]]] = []
    for device, units in parts:
        ops: list[int] = []
        for unit in units:
            row = members.row(int(unit))
            ops += row[np.argsort(position[row])].tolist()
        of_ops.append((device, ops))
    return segments_of_ops(graph, of_ops)


class SampleServer(Protocol):
    """A runner of the model for streams of samples; `close` ends it."""

    @property
    def burst(self) -> int:
        """Number of samples, >= 1, after which the pattern of their ends repeats."""
        ...

    def outcomes(self, samples: Iterable[Sequence[HostArray]]) -> Iterator[Any]:
        """Execute samples as they come; yield their executions or failures in order."""
        ...

    def close(self, timeout: float = 10.0) -> None:
        """End all samples under way, after at most `timeout` seconds."""
        ...


@runtime_checkable
class MeasuresStreamMemory(Protocol):
    """A loaded model whose allocators report the memory that a stream needs."""

    def stream_memory_peaks(
        self,
        segments: Sequence[OpSegment],
        devices: Sequence[Device],
        schedule: Sequence[tuple[int, int]],
    ) -> FloatArray:
        """Run samples in the order of a schedule, serially.

        Args:
            segments: of one sample.
            devices: ``segments[i].device`` indexes it.
            schedule: (sample, segment) in the order in which they begin; segment -1 means that the
                sample is done.

        Returns:
            Largest bytes in use at one time, shape (n_devices,).
        """
        ...


@runtime_checkable
class HasThroughputMode(Protocol):
    """A loaded model whose library has a mode of its own for streams of samples."""

    def throughput_device(self, device: Device, n_threads: int) -> Device:
        """The processor with options of the mode on so many cores."""
        ...

    def throughput_mode(self, device: Device, in_flight: int | None = None) -> SampleServer:
        """The unsplit model in that mode.

        Args:
            device: from `throughput_device`.
            in_flight: most samples that are taken and not yet fetched; None is as many as pay.

        Raises:
            RuntimeFailure: the library refuses the model.
        """
        ...
