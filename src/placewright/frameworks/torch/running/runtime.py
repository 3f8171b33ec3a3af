"""The PyTorch runtime: segments of a functional graph on processor cores and accelerators.

Options of a device: ``device`` is PyTorch's name of it, ``threads`` the number of threads that an
operator may use on the processor, ``core`` the core on which the worker of a one-core device stays,
and ``compile`` is ``inductor`` if segments go through ``torch.compile``.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.source import ModelSource, Signature
from placewright.errors import InputError, MissingExtraError
from placewright.execution.allocator import give_back_freed_memory
from placewright.execution.inputs import GivenInputs, with_fixed_values
from placewright.execution.runtime import (
    CompiledSegment,
    HostArray,
    LoadedModel,
    NativeTensor,
    OpSegment,
    PlainCall,
    require_signature,
    unit_labels,
    whole_segment,
)
from placewright.frameworks.torch.reading.fx_program import FxProgram, memory_of

try:
    import torch
except ImportError:
    raise MissingExtraError("torch", "torch", "the PyTorch runtime") from None

from placewright.execution.allocator import keep_freed_memory
from placewright.frameworks.torch.running import devices as torch_devices
from placewright.frameworks.torch.running.devices import (
    PreparedCaller,
    native_device,
    worker_setup,
)
from placewright.frameworks.torch.running.functions import (
    Draws,
    SegmentFunction,
    segment_function,
)
from placewright.frameworks.torch.running.instances import (
    Arriving,
    DeviceState,
    Lane,
    TorchSegment,
    moved,
    on_host,
)
from placewright.frameworks.torch.running.memory import (
    bytes_beside_outputs,
    peaks_in_use,
)
from placewright.frameworks.torch.running.nodes import NodeMap, signature_of
from placewright.frameworks.torch.running.profile import OpTimer, copy_seconds
from placewright.frameworks.torch.running.script import without_optimization
from placewright.frameworks.torch.running.segments import (
    copied_tensors,
    planned_writes,
    segment_module,
)
from placewright.frameworks.torch.running.step_state import TorchStepState

# Functions of segments and the names of the state that they take. A program keeps its own between
# the calls of `pw.run`, which load a model each: generating code again takes longer than a run.
_Functions = dict[tuple[object, ...], tuple[SegmentFunction, tuple[str, ...]]]
_FUNCTIONS: WeakKeyDictionary[FxProgram, _Functions] = WeakKeyDictionary()

_TOLERANCE = {"f32": 2e-4, "f64": 2e-4, "f16": 3e-2, "bf16": 1e-1}
_ACCELERATOR_TOLERANCE = 1e-2  # convolutions may use 10-bit mantissas (TF32) there
_KEPT_FUNCTIONS = 4_000  # about 300 KiB each
_FLAG_VALUES = 2  # so few distinct values are flags, not numbers


def _require_values(program: FxProgram, source: ModelSource) -> None:
    """Refuse a module on the meta device.

    Raises:
        InputError: a parameter has no values.
    """
    for name, value in program.state.items():
        if value.is_meta:
            raise InputError(
                f"model '{source.path}' cannot run: '{name}' is on the meta device and has no "
                "values; load its weights, or place it with described devices "
                "(devices='catalogue:2gpu')"
            )


def no_program(source: ModelSource) -> FxProgram:
    """Refuse to load: the reader of a runtime that was made without one.

    Raises:
        InputError: always.
    """
    raise InputError(f"model '{source.path}' needs a reader: TorchRuntime(load_program)")


@dataclass(frozen=True)
class TorchRuntime:
    """Runs models and training steps with PyTorch."""

    load_program: Callable[[ModelSource], FxProgram] = no_program  # reads the program of a source

    @property
    def name(self) -> str:
        """Name in ``--runtime``."""
        return "torch"

    @property
    def version(self) -> str:
        """Version of the library."""
        return f"torch {torch.__version__}"

    def versions(self) -> Mapping[str, str]:
        """Versions of PyTorch, CUDA and cuDNN."""
        return torch_devices.versions()

    def discover(self) -> tuple[Device, ...]:
        """The processor, each of its cores, and every accelerator."""
        return torch_devices.discovered()

    def unsplit_call(self, path: str, device: Device) -> str:
        """Python that loads the exported program as a module on a device, one line."""
        name = str(torch_devices.native_device(device))
        module = f"torch.export.load({path!r}).module().to({name!r})"
        return f"torch.compile({module})" if torch_devices.is_compiled(device) else module

    def completed(self, device: Device) -> Device:
        """Return a device with its fingerprint and, by its name, the options that it leaves open.

        Raises:
            UnknownNameError: PyTorch has no such device here.
        """
        return torch_devices.completed(device)

    def keeps_inner_tensors(self, devices: Sequence[Device]) -> bool:
        """True unless a device compiles its segments, which fuses their ops."""
        return not any(map(torch_devices.is_compiled, devices))

    def shares_weights(self, devices: Sequence[Device]) -> bool:
        """True for the processor and its cores: their segments read the model's own tensors."""
        return all(native_device(device).type == "cpu" for device in devices)

    def transfer_seconds(self, source: Device, destination: Device, size_bytes: int) -> float:
        """Median seconds of a copy between two memories; 0 between cores, which share one."""
        return copy_seconds(native_device(source), native_device(destination), size_bytes)

    def load(self, source: ModelSource, graph: ComputationGraph) -> TorchModel:
        """Read the model behind a graph.

        Raises:
            StalePlanError: the graph was read from another model.
            InputError: the model cannot be read.
        """
        keep_freed_memory()
        program = self.load_program(source)
        _require_values(program, source)
        nodes = NodeMap(program, graph, source)
        return TorchModel(program, graph, nodes, require_signature(source))

    def load_beside(
        self, source: ModelSource, graph: ComputationGraph, first: LoadedModel
    ) -> TorchModel:
        """See `execution.placements.LoadsBeside`."""
        assert isinstance(first, TorchModel)
        program = self.load_program(source)
        shared = replace(program, state=_values_of(first.program, program))
        made = TorchModel(shared, graph, NodeMap(shared, graph, source), require_signature(source))
        made._shared = first._shared = {} if first._shared is None else first._shared
        made._on_device = first._on_device
        return made


def _values_of(first: FxProgram, program: FxProgram) -> dict[str, torch.Tensor]:
    """The state of a program, with tensors of the first one if they are the same or stay.

    Raises:
        InputError: state that stays has another shape or type.
    """
    of_memory = {memory_of(value): value for value in first.state.values()}
    held = {}
    for name, value in program.state.items():
        own = first.state.get(name) if name in program.updates else None
        if own is not None and (own.shape, own.dtype) != (value.shape, value.dtype):
            raise InputError(
                f"state '{name}' is {own.dtype} {list(own.shape)} in the first call and "
                f"{value.dtype} {list(value.shape)} in another, but all calls share one state; "
                "place again with one shape of it"
            )
        held[name] = of_memory.get(memory_of(value), value) if own is None else own
    return held


@dataclass
class TorchModel:
    """A model that PyTorch has read, as `execution.runtime.LoadedModel` describes it."""

    program: FxProgram
    graph: ComputationGraph
    nodes: NodeMap
    signature: Signature
    _functions: _Functions = field(init=False)
    _lanes: dict[torch.device, Lane] = field(default_factory=dict)
    _on_device: dict[tuple[int, torch.device], tuple[Any, Any]] = field(default_factory=dict)
    _shared: dict[torch.device, dict[int, torch.Tensor]] | None = None
    _draws: Draws | None = None

    def __post_init__(self) -> None:
        self._functions = _FUNCTIONS.setdefault(self.program, {})

    def compile(
        self, segments: Sequence[OpSegment], devices: Sequence[Device]
    ) -> list[CompiledSegment]:
        """Make segments executable; segments of one call share the state that they change.

        Raises:
            RuntimeFailure: ops on several devices share a parameter that changes.
            InputError: option ``compile`` needs a compiler that is not installed.
        """
        give_back_freed_memory()  # small pieces of one plan would not fit the tensors of the next
        writes = planned_writes(self.nodes, segments, devices)
        copies = copied_tensors(self.nodes, segments)
        states: dict[int, DeviceState] = {}
        made: list[CompiledSegment] = []
        for number, segment in enumerate(segments):
            device = devices[segment.device]
            native, mode = native_device(device), torch_devices.compile_mode(device)
            ops = tuple(segment.ops)
            key = (self.graph.op_names, ops, segment.inputs, segment.outputs, writes[number],
                   copies[number], native, mode)  # fmt: skip
            if key not in self._functions:
                part = segment_module(self.nodes, segment, native, writes[number], copies[number])
                self._functions[key] = (segment_function(part, mode), part.state)
            function, state = self._functions[key]
            if segment.device not in states:
                states[segment.device] = self._state(native, self._changing)
            made.append(
                TorchSegment(
                    function,
                    states[segment.device],
                    state,
                    writes[number],
                    len(segment.outputs),
                    torch_devices.n_threads(device),
                    self.lane_of(device),
                )
            )
        while len(self._functions) > _KEPT_FUNCTIONS:
            del self._functions[next(iter(self._functions))]
        for lane in dict.fromkeys(self.lane_of(devices[number]) for number in states):
            if lane is not None:
                # State is copied on the default queue, for which the lane's queues do not wait.
                lane.module.synchronize(lane.device)
        return made

    @contextlib.contextmanager
    def one_state(self) -> Iterator[None]:
        """See `execution.placements.SharesState`."""
        self._shared = {}
        try:
            yield
        finally:
            self._shared = None

    @contextlib.contextmanager
    def step_state(self, seed: int) -> Iterator[TorchStepState]:
        """See `execution.runtime.TrainsSteps`."""
        self._draws = Draws(seed, 0)
        try:
            with self.one_state():
                assert self._shared is not None
                constants, draws = self.nodes.constants, self._draws
                yield TorchStepState(self.program, constants, self._shared, draws, self._lanes)
        finally:
            self._draws = None

    def reference(self, device: Device) -> CompiledSegment:
        """The whole unsplit model on `device`."""
        return self.compile([whole_segment(self.graph)], [device])[0]

    def lane_of(self, device: Device | None) -> Lane | None:
        """Queues of an accelerator; None for the processor and the host."""
        native = torch.device("cpu") if device is None else native_device(device)
        if native.type == "cpu":
            return None
        if native not in self._lanes:
            self._lanes[native] = Lane(native)
        return self._lanes[native]

    def fused_groups(self, device: Device) -> Grouping:
        """Every op by itself: eager execution fuses nothing."""
        return Grouping.identity(self.graph.n_ops)

    def profiler(self, device: Device) -> Callable[[], FloatArray]:
        """A function that runs the model once and times each op in its place.

        The overhead of a call is measured with a call that does nothing, and subtracted. State
        changes only where an op writes in place, in a copy of its own.
        """
        inputs, native = self._drawn_inputs(), native_device(device)
        timer = OpTimer(self.nodes, native, self.lane_of(device), torch_devices.n_threads(device))
        state = self._state(native, self.nodes.in_place.values())
        return lambda: timer.seconds(inputs, state)

    def op_working_bytes(self, device: Device) -> FloatArray:
        """Working space of each op, such as inputs of a convolution in its kernel's layout."""
        inputs = self._drawn_inputs()
        native, lane = native_device(device), self.lane_of(device)
        timer = OpTimer(self.nodes, native, lane, torch_devices.n_threads(device))
        with without_optimization():
            state = self._state(native, self.nodes.in_place.values())
            return bytes_beside_outputs(timer, inputs, state)

    def unit_labels(self, units: Grouping) -> tuple[str, ...]:
        """A text per unit, equal for units whose ops and connections are equal."""
        own = [signature_of(node) for node in self.nodes.node_of_op]
        return unit_labels(self.graph, units, own)

    def random_inputs(self, rng: np.random.Generator) -> list[HostArray]:
        """Standard normal values; integers and flags are drawn from the example's own values.

        An input whose example has at most two distinct values holds flags. Floats that are all zero
        are none, and come from [0, 1), since they may be whole numbers or under a root. A row of
        integers in ascending order stays as it is, as offsets of bags and positions must.
        """
        values = []
        for example in self._examples():
            flat = example.reshape(-1)
            if np.issubdtype(example.dtype, np.integer) and _is_ascending(example):
                values.append(example.copy())
                continue
            few = flat.size > _FLAG_VALUES and flat.any() and len(np.unique(flat)) <= _FLAG_VALUES
            if np.issubdtype(example.dtype, np.floating) and not few and np.isfinite(flat).all():
                shape = example.shape
                drawn = rng.standard_normal(shape) if flat.any() else rng.random(shape)
                values.append(drawn.astype(example.dtype))
            else:
                values.append(rng.choice(flat, example.shape).astype(example.dtype))
        return with_fixed_values(self.signature, values)

    def input_dtypes(self) -> list[np.dtype[Any]]:
        """NumPy types of the values of all inputs; float32 for bfloat16, which NumPy lacks."""
        return [example.dtype for example in self._examples()]

    def plain(self, device: Device) -> PlainCall:
        """The exported program's own module, on the processor, with the device's threads.

        Of an accelerator, with all threads of the processor.
        """
        on_processor = native_device(device).type == "cpu"
        threads = torch_devices.n_threads(device) if on_processor else torch.get_num_threads()
        kinds = [self.program.example_inputs[name].dtype for name in self.program.inputs]

        def run(values: Sequence[HostArray]) -> list[HostArray]:
            pairs = zip(values, kinds, strict=True)
            # A module may write into its inputs.
            tensors = [self.from_host(value).to(kind, copy=True) for value, kind in pairs]
            # The caller's autocast is none of the model's own types.
            with torch_devices.limited_threads(threads), torch.autocast("cpu", enabled=False):
                outputs = self.program.plain(tensors)
            return [np.array(_host_array(value)) for value in outputs]

        return run

    def plain_at_other_levels(self, devices: Sequence[Device]) -> Iterator[PlainCall]:
        """Yield the same module without oneDNN's kernels."""
        yield torch.backends.mkldnn.flags(enabled=False)(self.plain(devices[0]))

    def _drawn_inputs(self) -> list[NativeTensor]:
        """Random values of all graph inputs, always the same, in ascending order of tensors."""
        arrays = self.signature.ascending(self.random_inputs(np.random.default_rng(0)))
        return [self.from_host(array) for array in arrays]

    def _examples(self) -> list[HostArray]:
        """Example values of all inputs, in the model's own order."""
        return [_host_array(self.program.example_inputs[name]) for name in self.program.inputs]

    def from_host(self, array: HostArray) -> NativeTensor:
        """Make a tensor that shares the array's memory, or that of a copy."""
        flags = array.flags
        # A reversed dimension of size 1 counts as contiguous, and PyTorch refuses its stride.
        if not (flags.c_contiguous and flags.writeable) or min(array.strides, default=0) < 0:
            array = np.array(array, order="C")
        return torch.from_numpy(array)

    def flattened(self, inputs: GivenInputs) -> tuple[GivenInputs, bool]:
        """See `execution.inputs.TakesOwnTensors`."""
        return self.program.arguments.flattened(inputs, self.signature.inputs)

    def own_result(self, arrays: Sequence[HostArray]) -> Any:
        """See `execution.inputs.TakesOwnTensors`."""
        pairs = zip(arrays, self.signature.outputs, strict=True)
        tensors = ((torch.from_numpy(array), port.dtype) for array, port in pairs)
        return self.program.result(
            [tensor.to(torch.bfloat16) if dtype == "bf16" else tensor for tensor, dtype in tensors]
        )

    def array_of(self, value: Any, dtype: str) -> Any:
        """See `execution.inputs.TakesOwnTensors`."""
        if not isinstance(value, torch.Tensor):
            return value
        if value.dtype == torch.bfloat16 and dtype != "bf16":
            return value  # which is refused, as any other type that the input does not have
        return _host_array(value)

    def to_host(self, tensor: NativeTensor) -> HostArray:
        """Copy a tensor to an array; bfloat16, which NumPy lacks, becomes float32."""
        return np.array(_host_array(on_host(tensor)))

    def has_own_memory(self, device: Device) -> bool:
        """See `execution.runtime.MovesTensors`; cores share the host's memory."""
        return self.lane_of(device) is not None

    def move(
        self, tensor: NativeTensor, source: Device | None, destination: Device | None
    ) -> NativeTensor:
        """See `execution.runtime.MovesTensors`."""
        return moved(tensor, self.lane_of(source), self.lane_of(destination))

    def arrived(self, tensor: NativeTensor) -> None:
        """Wait until a tensor is in the processor's memory."""
        if isinstance(tensor, Arriving):
            on_host(tensor)

    def worker_setup(self, device: Device) -> Callable[[], None]:
        """A function that keeps the worker on its core and sets its number of threads."""
        return worker_setup(device)

    def restore_caller(self) -> None:
        """See `execution.runtime.ChangesCallers`: MKL has one number of threads for all."""
        torch.set_num_threads(torch.get_num_threads())

    def prepared(self, device: Device) -> AbstractContextManager[None]:
        """See `execution.direct.PreparesCallers`."""
        return PreparedCaller(device)

    @property
    def keeps_state(self) -> bool:
        """True if a run writes parameters or buffers."""
        return bool(self.nodes.updates)

    def memory_peaks(self, segments: Sequence[OpSegment], devices: Sequence[Device]) -> FloatArray:
        """Largest bytes in use at one time on each device, see `peaks_in_use`."""
        return self._peaks(segments, devices, None)

    def stream_memory_peaks(
        self,
        segments: Sequence[OpSegment],
        devices: Sequence[Device],
        schedule: Sequence[tuple[int, int]],
    ) -> FloatArray:
        """Largest bytes in use at one time on each device while samples follow each other."""
        return self._peaks(segments, devices, schedule)

    def _peaks(
        self,
        segments: Sequence[OpSegment],
        devices: Sequence[Device],
        schedule: Sequence[tuple[int, int]] | None,
    ) -> FloatArray:
        compiled = [
            segment
            for segment in self.compile(segments, devices)
            if isinstance(segment, TorchSegment)
        ]
        inputs = self._drawn_inputs()
        readers = self.nodes.direct_readers(name for segment in compiled for name in segment.names)
        return peaks_in_use(self.graph, segments, devices, compiled, inputs, readers, schedule)

    def tolerance(self, devices: Sequence[Device]) -> float:
        """The tolerance of the coarsest precision in the graph; accelerators round more."""
        dtypes = [dtype for dtype in self.graph.tensor_dtypes if dtype in _TOLERANCE]
        coarsest = max((_TOLERANCE[dtype] for dtype in dtypes), default=_TOLERANCE["f32"])
        if any(native_device(device).type != "cpu" for device in devices):
            return max(coarsest, _ACCELERATOR_TOLERANCE)
        return coarsest

    def _state(self, device: torch.device, changing: Collection[str]) -> DeviceState:
        copies = {} if self._shared is None else self._shared.setdefault(device, {})
        constants = self.nodes.constants
        return DeviceState(
            device,
            constants,
            lambda name: self._constant(name, device),
            changing,
            () if self.program.step is None else self.program.step.paths,
            copies=copies,
            draws=self._draws or Draws(),
        )

    @property
    def _changing(self) -> Collection[str]:
        """State that a step changes, and numbers that it is told."""
        step = self.program.step
        return self.nodes.updates if step is None else {*self.nodes.updates, *step.scalars.values()}

    def _constant(self, name: str, device: torch.device) -> torch.Tensor:
        value: torch.Tensor = self.nodes.constants[name]
        if isinstance(value, torch.nn.Module):  # body of a branch or a loop
            return self._body(value, device)
        if value.device == device:
            return value
        key = (id(value), device)
        if key not in self._on_device:
            self._on_device[key] = (value, value.to(device))
        copied: torch.Tensor = self._on_device[key][1]
        return copied

    def _body(self, body: torch.nn.Module, device: torch.device) -> Any:
        """Body of a branch or a loop, with its own constants on `device`."""
        if device.type == "cpu":
            return body
        key = (id(body), device)
        if key not in self._on_device:
            self._on_device[key] = (body, copy.deepcopy(body).to(device))
        return self._on_device[key][1]


def _is_ascending(array: HostArray) -> bool:
    return array.ndim == 1 and bool((array[1:] >= array[:-1]).all())


def _host_array(tensor: torch.Tensor) -> HostArray:
    try:
        return tensor.numpy()
    except (RuntimeError, TypeError):  # it has a gradient, is elsewhere, or of an unknown type
        pass
    held = tensor.detach().cpu().resolve_conj().resolve_neg()  # bits that NumPy does not know
    return (held.float() if held.dtype == torch.bfloat16 else held).numpy()
