"""The ONNX Runtime runtime: sessions of sub-models, through ONNX Runtime's Python API.

Options of a device: ``provider`` names the execution provider, ``core`` the processor core on which
the device's worker thread stays, ``intra_op_num_threads`` the number of threads of a session, and
``graph_optimization_level`` is disabled, basic, extended, layout or all, and ``weights`` is packed
or shared. A key with a dot
(``session.intra_op.allow_spinning``) is a session configuration entry; all others are options of
the execution provider.
"""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping, with_whole_classes
from placewright.core.source import ModelSource, Signature
from placewright.errors import InputError, RuntimeFailure, UnknownNameError
from placewright.execution.inputs import (
    ARRAY_DTYPES,
    cannot_compute,
    random_values,
    require_arrays,
    whole_numbers,
    with_fixed_values,
)
from placewright.execution.processor import RAM, stay_on
from placewright.execution.runtime import (
    CompiledSegment,
    HostArray,
    NativeTensor,
    OpSegment,
    PlainCall,
    median_seconds,
    require_signature,
    unit_labels,
    whole_segment,
)
from placewright.frameworks.onnxruntime.devices import (
    CUDA,
    check_options,
    cpu_devices,
    cuda_devices,
    cuda_number,
    cuda_options,
    hardware_text,
    memory_of_sessions,
    onnxruntime_library,
    providers,
    session_of,
    session_options,
)
from placewright.frameworks.onnxruntime.kernels import KernelMap, kernel_microseconds
from placewright.frameworks.onnxruntime.segments import OnnxParts, SubModel
from placewright.frameworks.onnxruntime.state import Staying
from placewright.frameworks.onnxruntime.whole_numbers import NumberReaders
from placewright.frameworks.segment_cache import SegmentCache
from placewright.frameworks.weights_in_file import are_shared, give_back_pages
from placewright.io.content import one_line
from placewright.io.scratch import scratch_folder

_TOLERANCE = 2e-4
_TOLERANCE_OF_DTYPE = {"f16": 3e-2, "bf16": 1e-1, "i8": 2e-2, "u8": 2e-2}
_INPUT_DTYPES = ARRAY_DTYPES | {"bf16"}
_PACKED = ("i2", "u2", "i4", "u4", "f4e2m1")  # several numbers to a byte
_WARM_UP_RUNS, _PROFILED_RUNS = 1, 3
_SCRATCH = "placewright-onnxruntime-"


@dataclass(frozen=True)
class OnnxRuntime:
    """Runs models and segments with ONNX Runtime."""

    @property
    def name(self) -> str:
        """Name in ``--runtime``."""
        return "onnxruntime"

    @property
    def version(self) -> str:
        """Version of the library."""
        return f"onnxruntime {onnxruntime_library().__version__}"

    def discover(self) -> tuple[Device, ...]:
        """The CPU with all its threads, each core with one thread, every CUDA device."""
        devices = list(cpu_devices())
        if CUDA in onnxruntime_library().get_available_providers():
            devices += [
                Device(
                    f"cuda:{number}",
                    "gpu",
                    memory_bytes=cuda.memory_bytes,
                    pool=RAM if cuda.is_integrated else None,
                    options=cuda_options(str(number)),
                )
                for number, cuda in enumerate(cuda_devices())
            ]
        return tuple(self.completed(device) for device in devices)

    def unsplit_call(self, path: str, device: Device) -> str:
        """Python that makes a session of the model on a device's provider, one line."""
        return f"onnxruntime.InferenceSession({path!r}, providers={providers(device)!r})"

    def completed(self, device: Device) -> Device:
        """Return a device with its fingerprint and, by its name, the options that it leaves open.

        Raises:
            UnknownNameError: there is no such device, provider or option here.
            InputError: the value of an option is wrong.
        """
        known = {cpu.name: cpu for cpu in cpu_devices()}
        options = {**(known[device.name].options if device.name in known else {}), **device.options}
        is_open = "provider" not in options  # else a device of the provider may have any name
        is_card = is_open or (options["provider"] == CUDA and "device_id" not in options)
        if is_card and re.fullmatch("cuda:.*" if is_open else r"cuda:\d+", device.name):
            options = {**cuda_options(cuda_number(device.name)), **options}
        available = onnxruntime_library().get_available_providers()
        provider = options.get("provider")
        if provider is None:
            raise UnknownNameError("device", device.name, [*known, *available])
        if provider not in available:
            raise UnknownNameError("execution provider", provider, available)
        check_options(options, device.name)
        settings = {k: v for k, v in sorted(options.items()) if k not in ("core", "device_id")}
        return replace(device, options=options, fingerprint=f"{hardware_text(options)} {settings}")

    def shares_weights(self, devices: Sequence[Device]) -> bool:
        """True if all devices are processors with option `weights` shared: one copy serves all."""
        return all(
            memory_of_sessions(device)[0] == "cpu" and are_shared(device.options)
            for device in devices
        )

    def packs_weights(self, device: Device) -> bool:
        """True unless option `weights` of the device is shared."""
        return not are_shared(device.options)

    def transfer_seconds(self, source: Device, destination: Device, size_bytes: int) -> float:
        """Median seconds of a copy from one memory to the other; 0 between CPUs."""
        seconds = 0.0
        array = np.zeros(max(1, size_bytes // 4), dtype=np.float32)
        for device, is_source in ((source, True), (destination, False)):
            kind, number = memory_of_sessions(device)
            if kind != "cpu":
                held = onnxruntime_library().OrtValue.ortvalue_from_numpy(array, kind, number)
                copy = held.numpy if is_source else lambda v=held: v.update_inplace(array)
                seconds += median_seconds(copy)
        return seconds

    def load(self, source: ModelSource, graph: ComputationGraph) -> OnnxModel:
        """Read the model behind a graph.

        Raises:
            StalePlanError: the graph was read from another model.
            InputError: the model is no ONNX model, was not read as one, or has an input or output
                of a type that ONNX Runtime cannot exchange with NumPy.
        """
        onnxruntime_library()
        if source.format != "onnx":
            raise InputError(
                f"ONNX Runtime runs .onnx models; '{source.path}' was read as "
                f"'{source.format}'; give an .onnx file, or argument `runtime` openvino"
            )
        signature = require_signature(source)
        packed = [port for port in signature.outputs if port.dtype in _PACKED]
        require_arrays(source, [*signature.inputs, *packed], _INPUT_DTYPES, "ONNX Runtime")
        parts = OnnxParts(Path(source.path), graph, source)
        return OnnxModel(graph, parts, source, signature)


@dataclass
class OnnxModel:
    """A model of which sessions run parts, as `execution.runtime.LoadedModel` describes it."""

    graph: ComputationGraph
    parts: OnnxParts
    source: ModelSource
    signature: Signature
    _kernels: dict[tuple[object, ...], KernelMap] = field(default_factory=dict)
    _shared: dict[str, Any] = field(default_factory=dict)
    _cache: SegmentCache[OnnxSegment] = field(init=False)

    def __post_init__(self) -> None:
        self._cache = SegmentCache(self.graph)

    @property
    def keeps_state(self) -> bool:
        """True if a run makes values that the next one reads."""
        return bool(self.parts.kept.values)

    def compile(
        self, segments: Sequence[OpSegment], devices: Sequence[Device]
    ) -> list[CompiledSegment]:
        """Make a session for each segment; equal segments on equal options share one.

        Raises:
            RuntimeFailure: ONNX Runtime refuses a segment; the message names its ops.
        """
        compiled: list[CompiledSegment] = []
        for segment in segments:
            device = devices[segment.device]
            key = _key(segment, device)
            if key not in self._cache:
                self._cache.add(key, self._compile(segment, device), segment)
            compiled.append(self._cache[key])
        self._cache.forget_oldest()
        give_back_pages(self.parts.shared_arrays.values())
        return compiled

    def reference(self, device: Device) -> CompiledSegment:
        """The whole unsplit model on `device`."""
        return self.compile([whole_segment(self.graph)], [device])[0]

    def fused_groups(self, device: Device) -> Grouping:
        """Group ops that one kernel computes, or between which a value passes that is no tensor."""
        inside = self.parts.with_values_inside(self._kernel_map(device).grouping)
        return with_whole_classes(self.graph, inside)

    def profiler(self, device: Device) -> Callable[[], FloatArray]:
        """A function that runs the whole model with ONNX Runtime's own profiler.

        A session's profile can only be read when the session ends. So each call makes a session,
        warms it up and takes the median of each kernel over a few runs.
        """
        kernels = self._kernel_map(device)
        whole = whole_segment(self.graph)
        part = self.parts.cut(whole, is_sharing=are_shared(device.options))
        arrays = self.signature.ascending(self.random_inputs(np.random.default_rng(0)))
        inputs = [self.from_host(array) for array in arrays]
        plain = self.reference(device).instance()

        def run() -> FloatArray:
            seconds = profiled()
            plain.run(inputs)  # the next timed run then finds its caches as after a plain run
            return seconds

        def profiled() -> FloatArray:
            with scratch_folder(Path(tempfile.gettempdir()), _SCRATCH) as folder:
                options = self._session_options(part, device)
                options.enable_profiling = True
                options.profile_file_prefix = str(Path(folder) / "profile")
                session = self._session(part, options, whole, device)
                instance = self._segment(session, part, whole, device).instance()
                for _ in range(_WARM_UP_RUNS + _PROFILED_RUNS):
                    instance.run(inputs)
                written = Path(session.end_profiling())
                return kernels.seconds(kernel_microseconds(written, _PROFILED_RUNS))

        return run

    def unit_labels(self, units: Grouping) -> tuple[str, ...]:
        """A text per unit, equal for units whose ops and connections are equal."""
        own = [self.parts.signature(op) for op in range(self.graph.n_ops)]
        return unit_labels(self.graph, units, own)

    def random_inputs(self, rng: np.random.Generator) -> list[HostArray]:
        """Random values for all inputs, see `random_values`."""
        values: list[HostArray] = []
        for port, dtype in zip(self.signature.inputs, self.input_dtypes(), strict=True):
            value = self.parts.value_of_tensor[port.tensor]
            shape = self.parts.static_shape(value)
            assert shape is not None, "readers fix the shapes of all inputs"
            values.append(random_values(rng, shape, dtype, self._whole_numbers(value, dtype)))
        return with_fixed_values(self.signature, values)

    def _whole_numbers(self, value: str, dtype: np.dtype[Any]) -> Callable[[], range]:
        return lambda: whole_numbers(value, dtype, NumberReaders(self.parts))

    def input_dtypes(self) -> list[np.dtype[Any]]:
        """NumPy types of the values of all inputs."""
        to_dtype = self.parts.onnx.helper.tensor_dtype_to_np_dtype
        values = [self.parts.value_of_tensor[port.tensor] for port in self.signature.inputs]
        return [np.dtype(to_dtype(self.parts.element_type(value))) for value in values]

    def plain(self, device: Device) -> PlainCall:
        """Make a session of the file, which is fed by the names of its inputs."""
        return self._plain(device, session_options(device))

    def plain_at_other_levels(self, devices: Sequence[Device]) -> Iterator[PlainCall]:
        """Yield a session with basic optimizations, then one without any; skip one that fails."""
        levels = onnxruntime_library().GraphOptimizationLevel
        for level in (levels.ORT_ENABLE_BASIC, levels.ORT_DISABLE_ALL):
            options = session_options(devices[0])
            options.graph_optimization_level = level
            with suppress(RuntimeFailure):
                yield self._plain(devices[0], options)

    def _plain(self, device: Device, options: Any) -> PlainCall:
        try:
            session = session_of(self.source.path, options, device)
        except Exception as error:  # ONNX Runtime has a class of its own for each status
            raise RuntimeFailure(
                f"ONNX Runtime cannot make a session of '{self.source.path}' for "
                f"'{device.name}': {one_line(error, 300)}"
            ) from error
        kept = self.parts.kept
        inputs = [port.name for port in session.get_inputs() if port.name not in kept.inputs]
        outputs = [
            port.name for at, port in enumerate(session.get_outputs()) if at not in kept.outputs
        ]
        initial = {one.read: initial_value(self._port(one.made, one.read)) for one in kept.values}

        def run(values: Sequence[HostArray]) -> list[HostArray]:
            feeds = initial | dict(zip(inputs, map(self.from_host, values), strict=True))
            return [self.to_host(v) for v in session.run_with_ort_values(outputs, feeds)]

        return run

    def from_host(self, array: HostArray) -> NativeTensor:
        """Make an ``OrtValue`` that shares the array's memory."""
        values = onnxruntime_library().OrtValue
        array = np.ascontiguousarray(array).reshape(array.shape)
        if array.dtype.name == "bfloat16":
            kind = self.parts.onnx.TensorProto.BFLOAT16
            return values.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), kind)
        return values.ortvalue_from_numpy(array)

    def to_host(self, tensor: NativeTensor) -> HostArray:
        """Copy a value to an array; bfloat16 becomes float32.

        Raises:
            RuntimeFailure: the value is bfloat16 in the memory of an accelerator.
        """
        if tensor.data_type() == "tensor(bfloat16)":
            import ctypes

            if (memory := tensor.device_name()) != "cpu":  # its address is none of this process
                raise RuntimeFailure(
                    f"ONNX Runtime cannot hand over bfloat16 values in the memory of {memory}; let "
                    "the model cast its outputs to float32"
                )
            size = 2 * math.prod(tensor.shape())
            halves = np.frombuffer(ctypes.string_at(tensor.data_ptr(), size), dtype=np.uint16)
            widened = (halves.astype(np.uint32) << 16).view(np.float32)
            return widened.reshape(tensor.shape())
        return np.array(tensor.numpy())

    def worker_setup(self, device: Device) -> Callable[[], None]:
        """Keep the worker of a one-core device on its core; its sessions compute in it."""
        return stay_on(device.options.get("core"), device.name)

    def tolerance(self, devices: Sequence[Device]) -> float:
        """The tolerance of the coarsest element type; devices compute in the model's own types."""
        kinds = dict.fromkeys(self.graph.tensor_dtypes)
        return max([_TOLERANCE, *(_TOLERANCE_OF_DTYPE.get(kind, 0.0) for kind in kinds)])

    def _compile(self, segment: OpSegment, device: Device) -> OnnxSegment:
        part = self.parts.cut(segment, is_sharing=are_shared(device.options))
        session = self._session(part, self._session_options(part, device), segment, device)
        return self._segment(session, part, segment, device)

    def _segment(
        self, session: Any, part: SubModel, segment: OpSegment, device: Device
    ) -> OnnxSegment:
        values = [self.parts.value_of_tensor[tensor] for tensor in segment.outputs]
        ports = list(map(self._port, part.outputs, values))
        state = [(kept, self._port(kept.made, kept.read)) for kept in part.state]
        given = [(name, self._shared_value(name)) for name in part.given]
        return OnnxSegment(session, part.inputs, ports, device, state, given)

    def _port(self, name: str, value: str) -> SessionPort:
        """An output with the type of a value."""
        return SessionPort(name, self.parts.element_type(value), self.parts.static_shape(value))

    def _session(self, part: SubModel, options: Any, segment: OpSegment, device: Device) -> Any:
        try:
            return session_of(part.content, options, device)
        except Exception as error:  # ONNX Runtime has a class of its own for each status
            # A branch that is never taken with these shapes may not fit them.
            with contextlib.suppress(Exception):
                return session_of(self.parts.without_shapes(part.content), options, device)
            shown = ", ".join(self.graph.op_names[op] for op in segment.ops[:4])
            raise RuntimeFailure(
                f"ONNX Runtime cannot make a session of {len(segment.ops)} ops ({shown}, ...) for "
                f"'{device.name}': {one_line(error, 300)}"
            ) from error

    def _session_options(self, part: SubModel, device: Device) -> Any:
        options = session_options(device)
        values = [self._shared_value(name) for name in part.shared]
        if values:
            options.add_external_initializers(list(part.shared), values)
        return options

    def _shared_value(self, name: str) -> Any:
        if name not in self._shared:
            array = self.parts.shared_arrays[name]
            self._shared[name] = onnxruntime_library().OrtValue.ortvalue_from_numpy(array)
        return self._shared[name]

    def _kernel_map(self, device: Device) -> KernelMap:
        whole = whole_segment(self.graph)
        key = _key(whole, device)
        if key not in self._kernels:
            part = self.parts.cut(whole, is_sharing=are_shared(device.options))
            with scratch_folder(Path(tempfile.gettempdir()), _SCRATCH) as folder:
                file = Path(folder) / "optimized.onnx"
                options = self._session_options(part, device)
                options.optimized_model_filepath = str(file)
                entry = "session.optimized_model_external_initializers_file_name"
                options.add_session_config_entry(entry, "optimized.bin")
                self._session(part, options, whole, device)
                nodes = self.parts.onnx.load(str(file), load_external_data=False).graph.node
            self._kernels[key] = KernelMap(self.graph, nodes, self.parts.op_of_value)
        return self._kernels[key]


@dataclass(frozen=True)
class SessionPort:
    """An output of a session: its name, ONNX element type, and dimensions if they are known."""

    name: str
    element_type: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class OnnxSegment:
    """A session with the names of its inputs and its outputs."""

    session: Any
    inputs: tuple[str, ...]
    outputs: list[SessionPort]
    device: Device
    state: list[tuple[Staying, SessionPort]]
    given: list[tuple[str, NativeTensor]]  # names and values of weights that are inputs

    def instance(self) -> OnnxInstance:
        """Make a binding with output buffers of its own."""
        return OnnxInstance(self)


class OnnxInstance:
    """A binding of a session: tensors pass between sessions without copies.

    On a processor an input is bound again only if it is another value. Outputs whose shape is known
    are bound once.
    """

    def __init__(self, segment: OnnxSegment) -> None:
        self._segment = segment
        self._binding = segment.session.io_binding()
        self._run: Callable[[Any], None] = segment.session.run_with_iobinding
        self._bound: list[NativeTensor] = [None] * len(segment.inputs)
        self._memory = memory_of_sessions(segment.device)
        self._state = [_State(kept, port, self._memory) for kept, port in segment.state]
        for state in self._state:
            state.bind(self._binding)
        for name, weight in segment.given:
            self._binding.bind_ortvalue_input(name, weight)
        self._is_static = all(port.shape is not None for port in segment.outputs)
        self._outputs: list[NativeTensor] = []
        if self._is_static:
            self._outputs = [_buffer(port, self._memory) for port in segment.outputs]
            for port, value in zip(segment.outputs, self._outputs, strict=True):
                self._binding.bind_ortvalue_output(port.name, value)

    def run(self, inputs: Sequence[NativeTensor]) -> Sequence[NativeTensor]:
        """Compute in the calling thread, which also copies values from other memories.

        Raises:
            RuntimeFailure: the values do not suit the model.
        """
        for index, (name, value) in enumerate(zip(self._segment.inputs, inputs, strict=True)):
            is_new = value is not self._bound[index]
            # A value of another memory is copied as it is bound, and two GPUs have the same name.
            is_copied = value.device_name() != "cpu" or self._memory[0] != "cpu"
            if is_new or is_copied:
                self._binding.bind_ortvalue_input(name, value)
                self._bound[index] = value
        if not self._is_static:
            for port in self._segment.outputs:
                self._binding.bind_output(port.name, *self._memory)
        try:
            self._run(self._binding)
        except Exception as error:  # ONNX Runtime has a class of its own for each status
            raise cannot_compute("ONNX Runtime", _innermost(error)) from error
        for state in self._state:
            state.go_on(self._binding)
        if self._is_static:
            return self._outputs
        return list(self._binding.get_outputs())[len(self._state) :]

    def reset_state(self) -> None:
        """See `execution.runtime.SegmentInstance`."""
        for state in self._state:
            state.reset()


class _State:
    """A value that stays: read from one buffer and made in another, unless one serves both."""

    def __init__(self, kept: Staying, port: SessionPort, memory: tuple[str, int]) -> None:
        self._kept, self._port, self._memory = kept, port, memory
        self._read = initial_value(port, memory)
        self._made = self._read if kept.in_place else initial_value(port, memory)

    def bind(self, binding: Any) -> None:
        """Tell a session where the values are."""
        binding.bind_ortvalue_input(self._kept.read, self._read)
        binding.bind_ortvalue_output(self._kept.made, self._made)

    def go_on(self, binding: Any) -> None:
        """Let the next run read what the last one has made."""
        if not self._kept.in_place:
            self._read, self._made = self._made, self._read
            self.bind(binding)

    def reset(self) -> None:
        """Go back to the initial value."""
        set_to_zero(self._read, self._port, self._memory)


def initial_value(port: SessionPort, memory: tuple[str, int] = ("cpu", 0)) -> NativeTensor:
    """A value of zeros."""
    value = _buffer(port, memory)
    set_to_zero(value, port, memory)
    return value


def set_to_zero(value: NativeTensor, port: SessionPort, memory: tuple[str, int]) -> None:
    """Fill a value with zeros."""
    if memory[0] == "cpu":
        import ctypes

        ctypes.memset(value.data_ptr(), 0, value.tensor_size_in_bytes())
    else:
        value.update_inplace(np.zeros(port.shape or (), value.numpy().dtype))


def _buffer(port: SessionPort, memory: tuple[str, int]) -> NativeTensor:
    return onnxruntime_library().OrtValue.ortvalue_from_shape_and_type(
        list(port.shape or ()), port.element_type, *memory
    )


def _key(segment: OpSegment, device: Device) -> tuple[object, ...]:
    # The core of the worker does not change the session.
    options = tuple(sorted((k, v) for k, v in device.options.items() if k != "core"))
    return (tuple(sorted(segment.ops)), segment.inputs, segment.outputs, options)


def _innermost(error: Exception) -> str:
    """ONNX Runtime's last message with its node; operators with bodies repeat those inside."""
    nodes, _, reason = str(error).rpartition("Status Message:")
    return f"{nodes.rpartition('while running ')[2].strip()} {reason.strip()}".strip()
