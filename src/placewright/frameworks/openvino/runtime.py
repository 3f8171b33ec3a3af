"""The OpenVINO runtime: devices, compiled segments, kernels, all through OpenVINO's Python API.

A device's ``options`` are OpenVINO properties. Two of them are our own: ``device`` names the
OpenVINO device (a cluster's ``cpu:0`` is OpenVINO's ``CPU``) and ``core`` the processor core that
the device's worker thread stays on.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.signature import Signature
from placewright.core.source import ModelSource
from placewright.errors import InputError, MissingExtraError, RuntimeFailure, UnknownNameError
from placewright.execution.inputs import cannot_compute, with_fixed_values
from placewright.execution.processor import processor_text, stay_on
from placewright.execution.runtime import (
    CompiledSegment,
    HostArray,
    NativeTensor,
    OpSegment,
    PlainCall,
    random_values,
    require_signature,
    unit_labels,
    whole_segment,
)
from placewright.execution.segment_cache import SegmentCache
from placewright.frameworks.openvino.devices import cpu_devices, native_device
from placewright.frameworks.openvino.kernels import KernelMap
from placewright.frameworks.openvino.segments import NodeMap, cut, with_inner_outputs
from placewright.frameworks.openvino.throughput import OpenVinoThroughput

OWN_OPTIONS = ("device", "core")
_TOLERANCE = {"f32": 2e-4, "f16": 3e-2, "bf16": 1e-1}


@dataclass(frozen=True)
class OpenVinoRuntime:
    """Runs models and segments with OpenVINO."""

    @property
    def name(self) -> str:
        """Name in ``--runtime``."""
        return "openvino"

    @property
    def version(self) -> str:
        """Version of the library."""
        return f"openvino {_openvino().__version__}"

    def discover(self) -> tuple[Device, ...]:
        """The CPU with all its threads, each core with one thread, every GPU and NPU."""
        core = _core()
        found = [
            Device(name=name, kind="gpu" if "GPU" in name else "npu", options={"device": name})
            for name in core.available_devices
            if name.startswith(("GPU", "NPU"))
        ]
        return tuple(self.completed(device) for device in (*cpu_devices(), *found))

    def unsplit_call(self, path: str, device: Device) -> str:
        """One line of Python: the model, compiled for a device as `reference` does it."""
        options = {k: v for k, v in sorted(device.options.items()) if k not in OWN_OPTIONS}
        return f"openvino.Core().compile_model({path!r}, {native_device(device)!r}, {options})"

    def completed(self, device: Device) -> Device:
        """Fill the options that a device leaves open, by its name, and its fingerprint.

        Raises:
            UnknownNameError: OpenVINO has no such device here.
        """
        known = {one.name: one for one in cpu_devices()}
        options = {**(known[device.name].options if device.name in known else {}), **device.options}
        filled = replace(device, options=options)
        available = _core().available_devices
        kinds = [name.partition(".")[0] for name in available]
        is_named = device.name in known or "device" in options or device.kind != "cpu"
        if not is_named or native_device(filled).partition(".")[0] not in kinds:
            others = [name for name in available if name != "CPU"]
            raise UnknownNameError("device", device.name, [*known, *others])
        told = {k: v for k, v in sorted(options.items()) if k != "core"}
        return replace(filled, fingerprint=f"{_hardware(filled)} {told}")

    def transfer_seconds(self, source: Device, destination: Device, size_bytes: int) -> float:
        """Half of a round trip of `size_bytes` through one element-wise op on the device that is
        no CPU (through the host where neither is); 0 between CPUs, which share memory."""
        far = [device for device in (source, destination) if native_device(device) != "CPU"]
        return sum(self._round_trip_seconds(device, size_bytes) / 2 for device in far)

    def _round_trip_seconds(self, device: Device, size_bytes: int) -> float:
        openvino = _openvino()
        x = openvino.opset13.parameter([1, max(1, size_bytes // 4)], np.float32)
        model = openvino.Model([openvino.opset13.relu(x)], [x])
        options = {k: v for k, v in device.options.items() if k not in OWN_OPTIONS}
        compiled = _core().compile_model(model, native_device(device), options)
        request = compiled.create_infer_request()
        seconds = []
        for _ in range(12):
            start = time.perf_counter()
            request.infer()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[2:])

    def load(self, source: ModelSource, graph: ComputationGraph) -> OpenVinoModel:
        """Read the model behind a graph.

        Raises:
            StalePlanError: it is no longer the model that the graph was read from.
            InputError: it cannot be read.
        """
        if source.format != "openvino":
            raise InputError(
                f"the ops of '{source.path}' were read as '{source.format}', which OpenVINO does "
                "not know by these names; place the model again with argument `runtime` openvino"
            )
        model = _model_of(source)
        nodes = NodeMap(model, graph, source)
        return OpenVinoModel(_core(), model, graph, nodes, source, require_signature(source))


@dataclass
class OpenVinoModel:
    """A model that OpenVINO has read. See `execution.runtime.LoadedModel`."""

    core: Any
    model: Any
    graph: ComputationGraph
    nodes: NodeMap
    source: ModelSource
    signature: Signature
    _kept: SegmentCache[OpenVinoSegment] = field(init=False)

    def __post_init__(self) -> None:
        self._kept = SegmentCache(self.graph)

    @property
    def keeps_state(self) -> bool:
        """True where a node assigns a variable."""
        return "Assign" in self.graph.op_kinds

    def compile(
        self, segments: Sequence[OpSegment], devices: Sequence[Device]
    ) -> list[CompiledSegment]:
        """Compile segments, each once: equal ops on equal options are found in memory.

        Raises:
            RuntimeFailure: OpenVINO refuses a segment; the message names its ops.
        """
        keys = [_key(segment, devices[segment.device]) for segment in segments]
        new = {key: i for i, key in enumerate(keys) if key not in self._kept}
        chosen = [segments[i] for i in new.values()]
        parts = cut(_openvino(), self.model, self.nodes, chosen) if chosen else []
        for key, segment, part in zip(new, chosen, parts, strict=True):
            made = self._compile(part, segment, devices[segment.device])
            self._kept.add(key, made, segment)
        found: list[CompiledSegment] = [self._kept[key] for key in keys]
        self._kept.forget_oldest()
        return found

    def reference(self, device: Device) -> CompiledSegment:
        """The whole unsplit model on `device`."""
        return self.compile([whole_segment(self.graph)], [device])[0]

    def fused_groups(self, device: Device) -> Grouping:
        """Which ops OpenVINO executes as one kernel on `device`."""
        profiled = self._profiled(device)
        return KernelMap(self.graph, profiled.compiled).grouping

    def profiler(self, device: Device) -> Callable[[], FloatArray]:
        """A function that runs the whole model once with OpenVINO's own kernel timers."""
        profiled = self._profiled(device)
        kernels = KernelMap(self.graph, profiled.compiled)
        instance = profiled.instance()
        given = self.signature.ascending(self.random_inputs(np.random.default_rng(0)))
        inputs = [self.from_host(array) for array in given]

        def run() -> FloatArray:
            instance.run(inputs)
            return kernels.seconds(instance.request.profiling_info)

        return run

    def unit_labels(self, units: Grouping) -> tuple[str, ...]:
        """Kinds, attributes, shapes and dtypes of a unit's ops, and how they are connected."""
        ordered = self.model.get_ordered_ops()
        own = [_signature(ordered[at]) for at in self.nodes.node_of_op]
        return unit_labels(self.graph, units, own)

    def random_inputs(self, rng: np.random.Generator) -> list[HostArray]:
        """See `random_values`."""
        drawn = [
            random_values(rng, tuple(port.get_shape()), port.get_element_type().to_dtype())
            for port in self.model.inputs
        ]
        return with_fixed_values(self.signature, drawn)

    def input_dtypes(self) -> list[np.dtype[Any]]:
        """NumPy types of the values of all inputs."""
        return [np.dtype(port.get_element_type().to_dtype()) for port in self.model.inputs]

    def plain(self, device: Device) -> PlainCall:
        """``openvino.compile_model`` of the file, called with a list of inputs."""
        return self._plain(_model_of(self.source), device)

    def plain_at_other_levels(self, device: Device) -> Iterator[PlainCall]:
        """The file with all inner values as outputs, so that OpenVINO fuses nothing."""
        model = _model_of(self.source)
        n_outputs = len(model.outputs)
        try:
            run = self._plain(with_inner_outputs(model), device)
        except (RuntimeError, RuntimeFailure):
            return
        yield lambda inputs: run(inputs)[:n_outputs]

    def _plain(self, model: Any, device: Device) -> PlainCall:
        options = {k: v for k, v in device.options.items() if k not in OWN_OPTIONS}
        try:
            compiled = self.core.compile_model(model, native_device(device), options)
        except RuntimeError as error:
            raise RuntimeFailure(
                f"OpenVINO cannot compile '{self.source.path}' for '{device.name}': "
                f"{_last_line(error)}"
            ) from error
        return lambda inputs: [np.array(value) for value in compiled(list(inputs)).to_tuple()]

    def throughput_device(self, device: Device, n_threads: int) -> Device:
        """The processor with OpenVINO's hint for throughput, which chooses the streams."""
        options = {k: v for k, v in device.options.items() if k not in ("NUM_STREAMS", "core")}
        hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": str(n_threads)}
        return replace(device, options={**options, **hints})

    def throughput_mode(self, device: Device, in_flight: int | None = None) -> OpenVinoThroughput:
        """The unsplit model, as many requests at a time as OpenVINO finds best."""
        whole = whole_segment(self.graph)
        model = _model_of(self.source)
        compiled = self._compile(model, whole, device).compiled
        return OpenVinoThroughput(_openvino(), compiled, in_flight)

    def from_host(self, array: HostArray) -> NativeTensor:
        """A tensor that shares the array's memory; a copy of a single number."""
        if array.ndim == 0:
            openvino = _openvino()
            tensor = openvino.Tensor(openvino.Type(array.dtype), openvino.Shape([]))
            tensor.data[...] = array
            return tensor
        return _openvino().Tensor(np.ascontiguousarray(array), shared_memory=True)

    def to_host(self, tensor: NativeTensor) -> HostArray:
        """A copy of a tensor."""
        return np.array(tensor.data)

    def worker_setup(self, device: Device) -> Callable[[], None]:
        """Keep the worker of a one-core device on its core; sync inference computes in it."""
        return stay_on(device.options.get("core"), device.name)

    def tolerance(self, devices: Sequence[Device]) -> float:
        """By the coarsest precision among the devices."""
        hints = [d.options.get("INFERENCE_PRECISION_HINT", "") for d in devices]
        default = _TOLERANCE["bf16"]
        return max(_TOLERANCE.get(hint, default) for hint in hints)

    def _profiled(self, device: Device) -> OpenVinoSegment:
        options = {**device.options, "PERF_COUNT": "YES"}
        whole = Device(device.name, device.kind, options=options)
        made = self.compile([whole_segment(self.graph)], [whole])[0]
        assert isinstance(made, OpenVinoSegment)
        return made

    def _compile(self, part: Any, segment: OpSegment, device: Device) -> OpenVinoSegment:
        options = {k: v for k, v in device.options.items() if k not in OWN_OPTIONS}
        try:
            compiled = self.core.compile_model(part, native_device(device), options)
        except RuntimeError as error:
            shown = ", ".join(self.graph.op_names[op] for op in segment.ops[:4])
            raise RuntimeFailure(
                f"OpenVINO cannot compile a segment of {len(segment.ops)} ops ({shown}, ...) for "
                f"'{device.name}': {_last_line(error)}"
            ) from error
        return OpenVinoSegment(compiled)


@dataclass
class OpenVinoSegment:
    """A compiled sub-model."""

    compiled: Any

    def instance(self) -> OpenVinoInstance:
        """An infer request of its own."""
        return OpenVinoInstance(self.compiled.create_infer_request(), self.compiled)


class OpenVinoInstance:
    """One infer request. Inputs and outputs are set once where their memory stays the same."""

    def __init__(self, request: Any, compiled: Any) -> None:
        self.request = request
        self._bound: list[NativeTensor] = [None] * len(compiled.inputs)
        self._n_outputs = len(compiled.outputs)
        static = all(port.get_partial_shape().is_static for port in compiled.outputs)
        self._outputs: list[NativeTensor] | None = self._fetch() if static else None
        # The class's own `infer` dispatches on the kind of input; everything is bound already.
        self._infer = super(type(request), request).infer  # type: ignore[misc]

    def run(self, inputs: Sequence[NativeTensor]) -> Sequence[NativeTensor]:
        """Infer in the calling thread."""
        for index, tensor in enumerate(inputs):
            if tensor is not self._bound[index]:
                self.request.set_input_tensor(index, tensor)
                self._bound[index] = tensor
        try:
            self._infer({}, share_outputs=True, decode_strings=False)
        except RuntimeError as error:
            raise cannot_compute("OpenVINO", error) from error
        return self._fetch() if self._outputs is None else self._outputs

    def _fetch(self) -> list[NativeTensor]:
        return [self.request.get_output_tensor(index) for index in range(self._n_outputs)]


def _model_of(source: ModelSource) -> Any:
    """The ``openvino.Model`` of a source with its shapes.

    Raises:
        InputError: it cannot be read.
    """
    try:
        model = _core().read_model(source.path)
        shapes = {
            port: _openvino().PartialShape(list(shape))
            for port in model.inputs
            for name, shape in source.shapes.items()
            if name in port.get_names() or name == port.get_node().get_friendly_name()
        }
        if any(list(p.get_partial_shape()) != list(s) for p, s in shapes.items()):
            model.reshape(shapes)
    except RuntimeError as error:
        raise InputError(f"OpenVINO cannot read '{source.path}': {_last_line(error)}") from None
    return model


def _hardware(device: Device) -> str:
    """What tells one processor from another, not which of several equal ones it is."""
    if native_device(device) != "CPU":
        try:
            return str(_core().get_property(native_device(device), "FULL_DEVICE_NAME"))
        except RuntimeError:
            return native_device(device)
    return processor_text(device.options.get("core"))


def _key(segment: OpSegment, device: Device) -> tuple[object, ...]:
    # A core's own compiled model: requests of one that has one stream wait for each other.
    options = tuple(sorted(device.options.items()))
    ops = tuple(sorted(segment.ops))
    return (ops, segment.inputs, segment.outputs, native_device(device), options)


def _signature(node: Any) -> object:
    attributes = {k: str(v) for k, v in sorted(node.get_attributes().items())}
    ports = [(str(p.get_partial_shape()), p.get_element_type().get_type_name()) for p in
             [*node.inputs(), *node.outputs()]]  # fmt: skip
    return (node.get_type_name(), sorted(attributes.items()), ports)


def _last_line(error: RuntimeError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


@functools.cache
def _core() -> Any:
    """The one ``openvino.Core`` of this process, which stays.

    The CPU's plugin gives the thread that loads it another stack for signals and takes that back
    when the last model of its core goes. Where cores come and go in any order, a stack that is gone
    is left behind, and Ctrl-C ends the process without a word.
    """
    return _openvino().Core()


def _openvino() -> Any:
    try:
        import openvino
        import openvino.opset13
    except ImportError:
        raise MissingExtraError("openvino", "openvino", "the OpenVINO runtime") from None
    return openvino
