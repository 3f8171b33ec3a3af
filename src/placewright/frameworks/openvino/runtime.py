"""The OpenVINO runtime: compiled sub-models, through OpenVINO's Python API.

Options of a device are OpenVINO properties. Two are our own: ``device`` names the OpenVINO device
(``cpu:0`` is OpenVINO's ``CPU``), and ``core`` the processor core on which the device's worker
thread stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping, with_whole_classes
from placewright.core.source import ModelSource, Signature
from placewright.errors import InputError, RuntimeFailure
from placewright.execution.inputs import (
    ARRAY_DTYPES,
    cannot_compute,
    random_values,
    require_arrays,
    whole_numbers,
    with_fixed_values,
)
from placewright.execution.processor import stay_on
from placewright.execution.requests import (
    CLOSED,
    Execution,
    Outcome,
    Sample,
    executions,
    in_order,
)
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
from placewright.execution.state_pairs import asked_of
from placewright.frameworks.openvino import devices as openvino_devices
from placewright.frameworks.openvino.devices import (
    compile_options,
    native_device,
    openvino_core,
    openvino_library,
)
from placewright.frameworks.openvino.reader import keep_state_of
from placewright.frameworks.openvino.segments import (
    CutModel,
    KernelMap,
    NodeMap,
    RunningMeans,
    cut,
    host_array,
    number_uses,
    with_inner_outputs,
    with_weights_in_file,
)
from placewright.frameworks.segment_cache import SegmentCache
from placewright.frameworks.weights_in_file import are_shared, give_back_pages

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
        return f"openvino {openvino_library().__version__}"

    def discover(self) -> tuple[Device, ...]:
        """The CPU with all its threads, each core with one thread, every GPU and NPU."""
        return openvino_devices.discovered()

    def unsplit_call(self, path: str, device: Device) -> str:
        """Python that compiles the model for a device with its options, one line."""
        options = dict(sorted(compile_options(device).items()))
        return f"openvino.Core().compile_model({path!r}, {native_device(device)!r}, {options})"

    def completed(self, device: Device) -> Device:
        """Return a device with its fingerprint and, by its name, the options that it leaves open.

        Raises:
            UnknownNameError: OpenVINO has no such device here.
        """
        return openvino_devices.completed(device)

    def shares_weights(self, devices: Sequence[Device]) -> bool:
        """True for processors whose segments read weights that several of them need as read."""
        return all(
            native_device(device) == "CPU" and are_shared(device.options) for device in devices
        )

    def packs_weights(self, device: Device) -> bool:
        """True unless option `weights` of the device is shared."""
        return not are_shared(device.options)

    def transfer_seconds(self, source: Device, destination: Device, size_bytes: int) -> float:
        """Median seconds of a transfer; 0 between CPUs, which share memory.

        It is half of a round trip through an element-wise op on the device that is no CPU. Between
        two such devices tensors pass through the host.
        """
        far = [device for device in (source, destination) if native_device(device) != "CPU"]
        return sum(self._round_trip_seconds(device, size_bytes) / 2 for device in far)

    def _round_trip_seconds(self, device: Device, size_bytes: int) -> float:
        openvino = openvino_library()
        x = openvino.opset13.parameter([1, max(1, size_bytes // 4)], np.float32)
        model = openvino.Model([openvino.opset13.relu(x)], [x])
        try:
            compiled = openvino_core().compile_model(
                model, native_device(device), compile_options(device)
            )
            return median_seconds(compiled.create_infer_request().infer)
        except RuntimeError as error:
            raise RuntimeFailure(
                f"a copy of {size_bytes} B to '{device.name}' and back: {_last_line(error)}"
            ) from None

    def load(self, source: ModelSource, graph: ComputationGraph) -> OpenVinoModel:
        """Read the model behind a graph.

        Raises:
            StalePlanError: the graph was read from another model.
            InputError: the model cannot be read, or has an input of a type that NumPy lacks.
        """
        if source.format != "openvino":
            raise InputError(
                f"the ops of '{source.path}' were read as '{source.format}', which OpenVINO does "
                "not know by these names; place the model again with argument `runtime` openvino"
            )
        model = _model_of(source)
        nodes = NodeMap(model, graph, source)
        signature = require_signature(source)
        require_arrays(source, signature.inputs, ARRAY_DTYPES, "OpenVINO")
        return OpenVinoModel(model, graph, nodes, source, signature)


@dataclass
class OpenVinoModel:
    """A model that OpenVINO has read, as `execution.runtime.LoadedModel` describes it."""

    model: Any
    graph: ComputationGraph
    nodes: NodeMap
    source: ModelSource
    signature: Signature
    _cache: SegmentCache[OpenVinoSegment] = field(init=False)
    _weights: list[HostArray] = field(init=False)

    def __post_init__(self) -> None:
        self._cache = SegmentCache(self.graph)
        self._weights = with_weights_in_file(openvino_library(), self.model)

    @property
    def keeps_state(self) -> bool:
        """True if a node assigns a variable."""
        return "Assign" in self.graph.op_kinds

    def compile(
        self, segments: Sequence[OpSegment], devices: Sequence[Device]
    ) -> list[CompiledSegment]:
        """Compile segments; equal segments on equal options are compiled once.

        Raises:
            RuntimeFailure: OpenVINO refuses a segment; the message names its ops.
        """
        keys = [_key(segment, devices[segment.device]) for segment in segments]
        new = {key: i for i, key in enumerate(keys) if key not in self._cache}
        chosen = [segments[i] for i in new.values()]
        shares = [are_shared(devices[segment.device].options) for segment in chosen]
        parts = cut(openvino_library(), self.model, self.nodes, chosen, shares) if chosen else []
        for key, segment, part in zip(new, chosen, parts, strict=True):
            self._cache.add(key, self._compile(part, segment, devices[segment.device]), segment)
        compiled: list[CompiledSegment] = [self._cache[key] for key in keys]
        self._cache.forget_oldest()
        give_back_pages(self._weights)
        return compiled

    def reference(self, device: Device) -> CompiledSegment:
        """The whole unsplit model on `device`."""
        return self.compile([whole_segment(self.graph)], [device])[0]

    def fused_groups(self, device: Device) -> Grouping:
        """Group the ops that one kernel of `device` computes."""
        kernels = KernelMap(self.graph, self._profiled(device).compiled)
        return with_whole_classes(self.graph, kernels.grouping)

    def profiler(self, device: Device) -> Callable[[], FloatArray]:
        """A function that runs the whole model once, with OpenVINO's own kernel timers."""
        profiled = self._profiled(device)
        timed = profiled.means.warm if native_device(device) == "CPU" else np.asarray
        kernels = KernelMap(self.graph, profiled.compiled)
        instance = profiled.instance()
        arrays = self.signature.ascending(self.random_inputs(np.random.default_rng(0)))
        inputs = [self.from_host(array) for array in arrays]

        def run() -> FloatArray:
            instance.run(inputs)
            return timed(kernels.seconds(instance.request.profiling_info))

        return run

    def unit_labels(self, units: Grouping) -> tuple[str, ...]:
        """A text per unit, equal for units whose ops and connections are equal."""
        ordered = self.model.get_ordered_ops()
        own = [_signature(ordered[at]) for at in self.nodes.node_of_op]
        return unit_labels(self.graph, units, own)

    def random_inputs(self, rng: np.random.Generator) -> list[HostArray]:
        """Random values for all inputs, see `random_values`."""
        drawn = [
            random_values(rng, tuple(port.get_shape()), dtype, self._whole_numbers(port, dtype))
            for port, dtype in zip(self.model.inputs, self.input_dtypes(), strict=True)
        ]
        return with_fixed_values(self.signature, drawn)

    def _whole_numbers(self, port: Any, dtype: np.dtype[Any]) -> Callable[[], range]:
        return lambda: whole_numbers(port, dtype, number_uses)

    def input_dtypes(self) -> list[np.dtype[Any]]:
        """NumPy types of the values of all inputs."""
        return [np.dtype(port.get_element_type().to_dtype()) for port in self.model.inputs]

    def plain(self, device: Device) -> PlainCall:
        """Compile the file with ``compile_model``; the result is called with a list of inputs."""
        return self._plain(_model_of(self.source), device)

    def plain_at_other_levels(self, devices: Sequence[Device]) -> Iterator[PlainCall]:
        """Yield the model with all inner values as outputs, unfused, then at other precisions."""
        model = _model_of(self.source)
        n_outputs = len(model.outputs)
        with suppress(RuntimeError, RuntimeFailure):
            run = self._plain(with_inner_outputs(model), devices[0])
            yield lambda inputs: run(inputs)[:n_outputs]
        of_hint = {d.options.get("INFERENCE_PRECISION_HINT"): d for d in reversed(devices)}
        for device in of_hint.values():
            if device is not devices[0]:
                with suppress(RuntimeFailure):
                    yield self.plain(device)

    def _plain(self, model: Any, device: Device) -> PlainCall:
        compiled = _compiled(model, device, f"'{self.source.path}'")
        types = [port.get_element_type() for port in compiled.outputs]

        def run(inputs: Sequence[HostArray]) -> list[HostArray]:
            # A request of its own has the initial state.
            infer = compiled.create_infer_request().infer if self.keeps_state else compiled
            return list(map(host_array, infer(list(inputs)).to_tuple(), types))

        return run

    def throughput_device(self, device: Device, n_threads: int) -> Device:
        """The processor with OpenVINO's hint for throughput, by which it chooses its streams."""
        options = {k: v for k, v in device.options.items() if k not in ("NUM_STREAMS", "core")}
        hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": str(n_threads)}
        return replace(device, options={**options, **hints})

    def throughput_mode(self, device: Device, in_flight: int | None = None) -> OpenVinoThroughput:
        """The unsplit model with as many requests at a time as OpenVINO finds best."""
        whole = CutModel(self.model, ())
        compiled = self._compile(whole, whole_segment(self.graph), device).compiled
        give_back_pages(self._weights)
        return OpenVinoThroughput(openvino_library(), compiled, in_flight)

    def from_host(self, array: HostArray) -> NativeTensor:
        """Make a tensor that shares the array's memory; a single number is copied."""
        if array.ndim == 0:
            openvino = openvino_library()
            tensor = openvino.Tensor(openvino.Type(array.dtype), openvino.Shape([]))
            tensor.data[...] = array
            return tensor
        # It shares no memory that nobody may write to.
        return openvino_library().Tensor(
            np.require(array, requirements=("C", "W")), shared_memory=True
        )

    def to_host(self, tensor: NativeTensor) -> HostArray:
        """Copy a tensor to an array."""
        return host_array(tensor.data, tensor.get_element_type())

    def worker_setup(self, device: Device) -> Callable[[], None]:
        """Keep the worker of a one-core device on its core, since inference runs in it."""
        return stay_on(device.options.get("core"), device.name)

    def tolerance(self, devices: Sequence[Device]) -> float:
        """The tolerance of the coarsest precision among the devices."""
        hints = [d.options.get("INFERENCE_PRECISION_HINT", "") for d in devices]
        default = _TOLERANCE["bf16"]
        return max(_TOLERANCE.get(hint, default) for hint in hints)

    def _profiled(self, device: Device) -> OpenVinoSegment:
        whole = replace(device, options={**device.options, "PERF_COUNT": "YES"})
        made = self.compile([whole_segment(self.graph)], [whole])[0]
        assert isinstance(made, OpenVinoSegment)
        return made

    def _compile(self, part: CutModel, segment: OpSegment, device: Device) -> OpenVinoSegment:
        shown = ", ".join(self.graph.op_names[op] for op in segment.ops[:4])
        what = f"a segment of {len(segment.ops)} ops ({shown}, ...)"
        compiled = _compiled(part.model, device, what)
        ordered = self.model.get_ordered_ops() if part.weights else ()
        weights = tuple(ordered[at].get_tensor_view() for at in part.weights)
        made = OpenVinoSegment(compiled, weights)
        if weights:
            made.free_input_memory()
        return made


@dataclass
class OpenVinoSegment:
    """A compiled sub-model, and the weights that are its last inputs."""

    compiled: Any
    weights: tuple[NativeTensor, ...] = ()
    means: RunningMeans = field(default_factory=RunningMeans)

    def instance(self) -> OpenVinoInstance:
        """Make an infer request."""
        return OpenVinoInstance(self._request(), self.compiled)

    def free_input_memory(self) -> None:
        """Infer once on ones: until then OpenVINO has memory of its own for each weight."""
        request = self._request()
        with suppress(RuntimeError, TypeError):  # if ones do not fit, the first run does it
            for index in range(len(self.compiled.inputs) - len(self.weights)):
                request.get_input_tensor(index).data[...] = 1
            request.infer()
            self.means.runs += 1

    def _request(self) -> Any:
        request = self.compiled.create_infer_request()
        first = len(self.compiled.inputs) - len(self.weights)
        for index, weight in enumerate(self.weights, start=first):
            request.set_input_tensor(index, weight)
        return request


class OpenVinoInstance:
    """An infer request, whose inputs are set again only if their memory changes."""

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

    def reset_state(self) -> None:
        """See `execution.runtime.SegmentInstance`."""
        self.request.reset_state()

    def _fetch(self) -> list[NativeTensor]:
        return [self.request.get_output_tensor(index) for index in range(self._n_outputs)]


def _model_of(source: ModelSource) -> Any:
    """Read the ``openvino.Model`` of a source, with the source's shapes.

    Raises:
        InputError: the model cannot be read.
    """
    try:
        model = openvino_core().read_model(source.path)
        shapes = {
            port: openvino_library().PartialShape(list(shape))
            for port in model.inputs
            for name, shape in source.shapes.items()
            if name in port.get_names() or name == port.get_node().get_friendly_name()
        }
        if any(list(p.get_partial_shape()) != list(s) for p, s in shapes.items()):
            model.reshape(shapes)
        keep_state_of(model, asked_of(source.options))
    except RuntimeError as error:
        raise InputError(f"OpenVINO cannot read '{source.path}': {_last_line(error)}") from None
    return model


def _compiled(model: Any, device: Device, what: str) -> Any:
    """Compile a model for a device with its options.

    Raises:
        RuntimeFailure: OpenVINO refuses it; the message names it by `what`.
    """
    try:
        return openvino_core().compile_model(model, native_device(device), compile_options(device))
    except RuntimeError as error:
        raise RuntimeFailure(
            f"OpenVINO cannot compile {what} for '{device.name}': {_last_line(error)}"
        ) from error


def _key(segment: OpSegment, device: Device) -> tuple[object, ...]:
    # The core is part of the key, because requests of a one-stream model wait for each other.
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


@dataclass(frozen=True)
class _Done:
    number: int
    outputs: tuple[HostArray, ...]
    start: float
    end: float
    error: str = ""


class OpenVinoThroughput:
    """Runs the unsplit model, compiled with the hint ``THROUGHPUT``, as a runner runs a split.

    Args:
        compiled: with the hint.
        in_flight: most samples that are taken and not yet yielded; default twice the number of
            requests that OpenVINO recommends, of which half are under way.
    """

    def __init__(self, openvino: Any, compiled: Any, in_flight: int | None = None) -> None:
        self._openvino, self._compiled = openvino, compiled
        best = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self.in_flight = best if in_flight is None else min(best, in_flight)
        self._window = 2 * best if in_flight is None else in_flight
        self._free = [compiled.create_infer_request() for _ in range(self.in_flight)]
        self._n_outputs = len(compiled.outputs)

    def __enter__(self) -> OpenVinoThroughput:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def burst(self) -> int:
        """Number of samples that finish together: one per request."""
        return self.in_flight

    def close(self, timeout: float = 10.0) -> None:
        """Let go of the requests and of the inputs that they keep; they end by themselves."""
        for request in self._free:
            with suppress(RuntimeError):
                request.set_callback(_nothing, None)
        self._free.clear()

    def run_many(self, samples: Sequence[Sample]) -> list[Execution]:
        """Execute samples; return their executions in order.

        Raises:
            RuntimeFailure: OpenVINO reports that a request failed.
        """
        with closing(self.outcomes(samples)) as outcomes:  # a failure ends them
            return executions(outcomes)

    def outcomes(self, samples: Iterable[Sample]) -> Generator[Outcome, None, None]:
        """Execute samples as they come; yield their executions or failures in order.

        If the caller stops early, or a sample is refused, requests under way are waited for.
        """
        if not self._free:
            raise RuntimeFailure(CLOSED)
        done = SimpleQueue[tuple[Any, _Done]]()
        free = list(self._free)
        count = len(free)

        under_way: dict[int, tuple[Any, float]] = {}  # number of a sample -> request, start

        def wait() -> tuple[int, Outcome]:
            request, answer = _next_done(done, under_way)
            del under_way[answer.number]
            free.append(request)
            return answer.number, _outcome(request, answer)

        def start(number: int, sample: Sample) -> None:
            began = time.perf_counter()
            self._start(free[-1], number, sample, done)
            under_way[number] = free.pop(), began  # a request that was not started is never done

        try:
            yield from in_order(
                iter(samples), start, wait, in_flight=self.in_flight, window=self._window
            )
        finally:
            while len(free) < count:
                wait()

    def _start(
        self, request: Any, number: int, sample: Sample, done: SimpleQueue[tuple[Any, _Done]]
    ) -> None:
        start = time.perf_counter()
        # An array that OpenVINO cannot share, such as a transposed one, is copied here. The request
        # knows only its memory.
        arrays = [np.require(value, requirements=("C", "W")) for value in sample]
        for at, array in enumerate(arrays):
            tensor = self._openvino.Tensor(array, shared_memory=array.ndim > 0)
            request.set_input_tensor(at, tensor)

        def fetch(_: Sample) -> None:
            """Fetch the outputs, in a thread of OpenVINO's; its argument keeps the inputs alive."""
            end = time.perf_counter()
            try:
                tensors = map(request.get_output_tensor, range(self._n_outputs))
                outputs = tuple(host_array(t.data, t.get_element_type()) for t in tensors)
                done.put((request, _Done(number, outputs, start, end)))
            except BaseException as error:  # the thread that waits for this sample raises it
                done.put((request, _Done(number, (), start, end, str(error) or repr(error))))

        request.set_callback(fetch, arrays)
        request.start_async(share_inputs=True)


_LOOKS_EVERY = 1.0  # seconds, for requests that failed


def _nothing(_: object) -> None:
    pass


def _next_done(
    done: SimpleQueue[tuple[Any, _Done]], under_way: Mapping[int, tuple[Any, float]]
) -> tuple[Any, _Done]:
    """The next request that is done. OpenVINO calls nothing back for one that failed."""
    while True:
        try:
            return done.get(timeout=_LOOKS_EVERY)
        except Empty:
            pass
        for number, (request, began) in under_way.items():
            try:
                request.wait_for(0)
            except RuntimeError as error:
                end = time.perf_counter()
                return request, _Done(number, (), began, end, _last_line(error))


def _outcome(request: Any, done: _Done) -> Outcome:
    """The execution or failure of a request, which OpenVINO reports only to `wait`."""
    reason = done.error
    try:
        request.wait()
    except RuntimeError as error:
        reason = _last_line(error)
    if reason:
        return RuntimeFailure(f"the unsplit model in OpenVINO's throughput mode: {reason}")
    seconds = done.end - done.start
    return Execution(done.outputs, {}, seconds, ((0.0, seconds),), done.start)
