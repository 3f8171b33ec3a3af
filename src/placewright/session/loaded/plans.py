"""Plans that are loaded once and called many times."""

from __future__ import annotations

import math
import threading
import warnings
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from placewright.core.cluster import Device
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.plan import ALL_CORES, PLAN, Plan, device_of
from placewright.core.source import Port
from placewright.errors import (
    InfeasibleError,
    InputError,
    PlacewrightError,
    RuntimeFailure,
    failure_from,
)
from placewright.execution.allocator import give_back_freed_memory
from placewright.execution.direct import DirectRunner, whole_copies
from placewright.execution.inputs import (
    GivenInputs,
    Outputs,
    checked_inputs,
    flattened,
    given_inputs,
    takes_own_tensors,
)
from placewright.execution.members import Members
from placewright.execution.placements import (
    call_runner,
    whole_model_runner,
)
from placewright.execution.processor import usable_cores
from placewright.execution.requests import Execution, numbered, request_numbers
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import HostArray, LoadedModel, SampleServer
from placewright.profiling.stream_calibration import stream_runner
from placewright.session.contenders import (
    exceeded_by_peaks,
    processor_memories,
    whole_model_streams,
    whole_peaks,
    whole_processor,
    why_default_is_not_comparable,
)
from placewright.session.running import changed_device, limited
from placewright.session.streams import LEAST_SAMPLES, contender_to_run, require_streamable
from placewright.simulation.model import Simulator

_CLOSING_SECONDS = 10.0  # to wait for calls that are under way
_MOST_IDLE = 4  # servers that wait for the next stream, one for each number of samples in flight
_DTYPES = {
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "bf16": "float32",  # NumPy has no bfloat16
    "boolean": "bool",
}


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a loaded plan."""

    name: str  # of the model
    shape: tuple[int, ...]  # dimensions; one that is known only at run time counts as 1
    dtype: str  # NumPy's name


class Turns:
    """Serialises the calls that change one state.

    Attributes:
        lock: of the call under way.
        failure: of a call that left state half changed.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failure: BaseException | None = None


class LoadedPlan:
    """A plan ready to be called, from `placewright.load`. A context manager; `close` ends it.

    >>> import numpy as np
    >>> with pw.load("plan.json") as model:
    ...     outputs = model(x=np.ones((1, 4), np.float32))
    ...     samples = ([np.full((1, 4), at, np.float32)] for at in range(3))
    ...     shapes = [of_sample["y"].shape for of_sample in model.stream(samples)]
    >>> [(tensor.name, tensor.shape) for tensor in model.inputs]
    [('x', (1, 4))]
    >>> outputs[0].shape, shapes
    ((1, 3), [(1, 3), (1, 3), (1, 3)])

    Args:
        plan: to run by the contender that was recommended when the plan was measured.
        model: of the plan, loaded by its runtime.
        in_flight: most calls under way, further calls wait; default the number that is worthwhile.
        turns: lock of plans that share their state; default a lock of its own.

    Attributes:
        plan: as given.
        inputs, outputs: in the model's own order.
        open_inputs: names of the inputs whose values are not fixed.

    Raises:
        InputError: the plan cannot be executed.
        RuntimeFailure: the runtime refuses a segment.
    """

    def __init__(
        self,
        plan: Plan,
        model: LoadedModel,
        *,
        in_flight: int | None = None,
        turns: Turns | None = None,
    ) -> None:
        if in_flight is not None and in_flight < 1:
            raise InputError(f"in-flight must be >= 1, got {in_flight}")
        # A plan serves on other machines, too: outputs are right, but it may not be the fastest.
        if text := changed_device(plan.problem, plan.runtime):
            warnings.warn(text, stacklevel=3)
        self.plan = plan
        self._dtypes = model.input_dtypes()
        ports = model.signature
        self.inputs = tuple(
            TensorInfo(port.name, port.shape, dtype.name)
            for port, dtype in zip(ports.inputs, self._dtypes, strict=True)
        )
        self.outputs = tuple(map(_output_info, ports.outputs))
        self.open_inputs = tuple(port.name for port in ports.inputs if port.value is None)
        self._one_by_one = model.keeps_state
        self._model: LoadedModel | None = model
        self._changed = threading.Condition()
        self._under_way = 0
        self._turns = turns or Turns()
        self._numbers = request_numbers()  # of calls and samples, for random operators
        self._idle: dict[int | None, list[_Server]] = {}
        self._busy: list[_Server] = []
        with limited(plan), numbered(self._numbers):
            self._runner = self._made_runner(model, 1 if self._one_by_one else in_flight)

    def __enter__(self) -> LoadedPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Run the model once.

        Args:
            given: one array per input in the model's order; or all of them in one list, or in one
                mapping from name to array.
            named: the same by name, where the names are Python's; or those after the ones by
                position.

        Returns:
            All outputs as `Outputs`, arrays by position and by name. If the runtime's library gave
            the inputs as tensors of its own: tensors in the structure of the model's own result,
            such as a tuple, dictionary or dataclass. They belong to the caller.

        Raises:
            InputError: an input is missing or unknown, or has another shape or type.
            RuntimeFailure: a segment failed, and the message names it; or this is closed.
        """
        return self.run(given_inputs(given, named, self.open_inputs))

    def run(self, inputs: GivenInputs) -> Any:
        """Run the model once; inputs are a sequence in the model's order, or a mapping by name."""
        with self.in_use() as model:
            inputs, has_tensors = flattened(model, inputs)
            values = checked_inputs(model, inputs, self._dtypes)
            # A training step has checkpoints of its own, to which it goes back after a failure.
            if not self._one_by_one or self.plan.problem.objective == "training":
                return _result(model, self._runner.run(values).outputs, has_tensors)
            with self._turn() as runner:
                return _result(model, self._changing(runner, values), has_tensors)

    def reset(self) -> None:
        """Give all state that the model keeps between calls its initial value.

        Raises:
            RuntimeFailure: this is closed, or an interrupted call has ended its workers.
        """
        with self.in_use(), self._turn() as runner:
            runner.reset_state()
            self._turns.failure = None

    @contextmanager
    def _turn(self) -> Iterator[DirectRunner | ConcurrentRunner]:
        """Wait for other calls that change state; then give the runner for a block."""
        runner = self._runner  # `close` does not wait for ever
        with self._turns.lock:
            self._require_open()
            yield runner

    def _changing(
        self, runner: DirectRunner | ConcurrentRunner, values: Sequence[HostArray]
    ) -> Sequence[HostArray]:
        """Outputs of a call that changes state."""
        if self._turns.failure is not None:
            way = "reset() starts again" if runner.is_open else "load the plan again"
            raise RuntimeFailure(
                f"a call failed half-way ({self._turns.failure!r}), so that the model's "
                f"state is that of no call; {way}"
            )
        try:
            return runner.run(values).outputs
        except BaseException as failure:  # Ctrl-C leaves half a call, too
            self._turns.failure = failure
            raise

    def stream(
        self,
        samples: Iterable[GivenInputs],
        *,
        in_flight: int | None = None,
        errors: Literal["raise", "yield"] = "raise",
    ) -> Generator[Any, None, None]:
        """Run a stream of samples, several in flight; with state, one call after the other.

        Segments and threads stay for the next stream. With F in flight, sample k + F is taken
        after output k was taken and the next is asked for; outputs that are fed back need F = 1.

        Args:
            samples: inputs of each: an array for a model with one input, a list, or a mapping.
            in_flight: samples taken whose outputs were not, at most; None is as many as pay.
            errors: ``"raise"`` ends with the first sample that fails; ``"yield"`` gives its error
                in place of its outputs and goes on.

        Yields:
            Results of each sample, as a call returns them.

        Raises:
            InputError: a sample's inputs are wrong; the message names the sample and the input. The
                results before it come first.
            RuntimeFailure: a sample failed; the message names it and its segment.
        """
        require_stream(self.plan, in_flight, errors)
        if self._one_by_one:
            return self._called(samples, errors == "yield")
        return self._streamed(samples, in_flight, keeps_going=errors == "yield")

    def random_inputs(self) -> list[HostArray]:
        """Valid values for all inputs, the same in every call."""
        with self.in_use() as model:
            return model.random_inputs(np.random.default_rng(0))

    def close(self) -> None:
        """Free everything: threads, compiled segments, the model. Calls under way end before."""
        with self._changed:
            model, self._model = self._model, None
            if model is None:
                return
        with ExitStack() as closing:  # all of it, also if Ctrl-C ends the wait
            closing.callback(give_back_freed_memory)
            closing.callback(delattr, self, "_runner")
            closing.callback(self._runner.close)
            with self._changed:
                servers = [server for row in self._idle.values() for server in row] + self._busy
                self._idle.clear()
                for server in servers:  # also of streams whose outputs nobody may ever take
                    closing.callback(server.stack.close)
                self._changed.wait_for(lambda: self._under_way == 0, timeout=_CLOSING_SECONDS)
                del model

    @property
    def is_open(self) -> bool:
        """True if it can be called: it is not closed, and no interrupt has ended its workers."""
        return self._model is not None and self._runner.is_open

    @property
    def is_in_use(self) -> bool:
        """True while a call or a stream is under way."""
        return bool(self._under_way or self._busy)

    @property
    def weight(self) -> float:
        """Estimated bytes of weights as read and as compiled, and of the tensors of a call."""
        graph = self.plan.problem.graph
        return float(2.0 * graph.weight_bytes.sum() + graph.tensor_bytes.sum())

    @contextmanager
    def in_use(self) -> Iterator[LoadedModel]:
        """Give the model for a block, for which `close` waits.

        Raises:
            RuntimeFailure: it is closed.
        """
        with self._changed:
            model = self._require_open()
            self._under_way += 1
        try:
            yield model
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def _made_runner(
        self, model: LoadedModel, in_flight: int | None
    ) -> DirectRunner | ConcurrentRunner:
        devices = unsplit_devices(self.plan, model)
        if not devices:
            return split_runner(self.plan, model, in_flight=in_flight)
        if self._one_by_one:
            devices = devices[:1]  # each device would have a state of its own
        most = max(len(usable_cores()), len(devices))
        at_once = in_flight or _calls_at_once(self.plan, devices, most)
        return DirectRunner(model, whole_copies(model, devices), at_once=at_once)

    def _called(self, samples: Iterable[GivenInputs], keeps_going: bool) -> Generator[Any]:
        for number, given in enumerate(samples):
            try:
                answer = self.run(given_inputs((given,), {}))
            except PlacewrightError as error:
                self._require_open()
                answer = _of_sample(number, error)
                if not keeps_going or not isinstance(error, RuntimeFailure):
                    raise answer from None
            yield answer

    def _streamed(
        self, samples: Iterable[GivenInputs], in_flight: int | None, *, keeps_going: bool
    ) -> Generator[Any, None, None]:
        server, model = self._taken_server(in_flight)
        tensors: deque[bool] = deque()  # for each sample under way: it came as tensors
        has_failed, wrong = False, list[PlacewrightError]()
        checked = self._checked(model, samples, tensors, wrong)
        if in_flight != 1:
            # The caller may fill the same arrays again while a sample is still under way.
            # In the order that every runtime takes, so that none copies them once more.
            checked = ([np.array(value, order="C") for value in values] for values in checked)
        try:
            for number, answer in enumerate(server.server.outcomes(checked)):
                has_tensors = tensors.popleft()
                if isinstance(answer, Execution):
                    yield _result(model, answer.outputs, has_tensors)
                    continue
                self._require_open()
                has_failed = True
                failure = failure_from(answer, f"sample {number}: {answer}")
                if not keeps_going:
                    raise failure from answer
                yield failure
            server.is_whole = not has_failed  # a failure may have ended some of its workers
            if wrong:
                raise wrong[0]
        except RuntimeFailure:
            self._require_open()  # its message is clearer
            raise
        finally:
            self._given_back(server, in_flight)

    def _checked(
        self,
        model: LoadedModel,
        samples: Iterable[GivenInputs],
        tensors: deque[bool],
        wrong: list[PlacewrightError],
    ) -> Iterator[list[HostArray]]:
        """Values of samples up to a wrong one, whose error is noted for after those before it."""
        for number, given in enumerate(samples):
            try:
                inputs, has_tensors = flattened(model, given_inputs((given,), {}))
                values = checked_inputs(model, inputs, self._dtypes)
            except PlacewrightError as error:
                wrong.append(_of_sample(number, error))
                return
            tensors.append(has_tensors)
            yield values

    def _taken_server(self, in_flight: int | None) -> tuple[_Server, LoadedModel]:
        """Take an idle server, or make one."""
        with self._changed:
            model = self._require_open()
            idle = self._idle.get(in_flight)
            if idle:
                self._busy.append(idle.pop())
                return self._busy[-1], model
        with (
            self.in_use() as model,
            ExitStack() as stack,
            limited(self.plan),
            numbered(self._numbers),
        ):
            made = recommended_server(self.plan, model, stack, in_flight=in_flight)
            with self._changed:
                self._require_open()  # `close` would not end a server that it does not know
                self._busy.append(_Server(made, stack.pop_all()))
                return self._busy[-1], model

    def _given_back(self, server: _Server, in_flight: int | None) -> None:
        """Keep a server for the next stream if its stream came to its end without a failure."""
        leaving: _Server | None = server
        with self._changed:
            self._busy.remove(server)
            if server.is_whole and self._model is not None:
                server.is_whole = False
                idle = [row for row in self._idle.values() if row]
                leaving = idle[0].pop(0) if sum(map(len, idle)) >= _MOST_IDLE else None
                self._idle.setdefault(in_flight, []).append(server)
        if leaving is not None:
            leaving.stack.close()

    def _require_open(self) -> LoadedModel:
        if self._model is None:
            raise RuntimeFailure("this plan was closed; load it again with pw.load")
        return self._model


@dataclass(eq=False)
class _Server:
    """A server that streams of samples take in turn."""

    server: SampleServer
    stack: ExitStack  # closes it
    is_whole: bool = False  # its last stream came to its end without a failure


def _of_sample(number: int, error: PlacewrightError) -> PlacewrightError:
    """Put the number of a sample before the message of an error, of whatever class."""
    error.args = (f"sample {number}: {error}",)
    return error


def require_stream(plan: Plan, in_flight: int | None, errors: str) -> None:
    """Refuse wrong arguments of a stream, before anything is loaded.

    Raises:
        InputError: samples cannot follow each other through the plan, or an argument is wrong.
    """
    if errors not in ("raise", "yield"):
        raise InputError(f"errors is 'raise' or 'yield', got '{errors}'")
    if in_flight is not None and in_flight < 1:
        raise InputError(f"in-flight must be >= 1, got {in_flight}")
    require_streamable(plan)


def _result(model: LoadedModel, outputs: Sequence[HostArray], has_tensors: bool) -> Any:
    """Outputs as arrays, or as the model's own result if its inputs were tensors."""
    if has_tensors and takes_own_tensors(model):
        return model.own_result(outputs)
    return Outputs(model.signature, outputs)


def _output_info(port: Port) -> TensorInfo:
    return TensorInfo(port.name, port.shape, _DTYPES.get(port.dtype, port.dtype))


def unsplit_devices(plan: Plan, model: LoadedModel) -> tuple[Device, ...]:
    """Devices that each run single calls of the unsplit model; none if a split runs them.

    The model stays whole if that was recommended when the plan was measured, or if the placement
    uses one device only.
    """
    problem = plan.problem
    if problem.objective == "training":
        return ()
    simulator, name = Simulator(problem), PLAN
    if plan.measured is not None:
        name = plan.measured.recommendation
    if contender_to_run(plan) != PLAN:
        devices = whole_model_streams(plan, model).devices
        if name in devices:
            return devices[name]
    if name == ALL_CORES and why_default_is_not_comparable(problem, simulator) is None:
        whole = whole_processor(plan)
        if whole is not None:
            return (whole,)
    used = np.unique(plan.placement.device_of).tolist()
    index = device_of(name, problem.cluster.device_names)
    if index is not None:
        alone = Placement.on_one_device(problem.n_units, index)
        used = [index] if simulator.violation(alone) is None else used
    return Members.of([problem.cluster.devices[used[0]]]).devices if len(used) == 1 else ()


def _calls_at_once(plan: Plan, devices: Sequence[Device], most: int) -> int:
    """Calls of the unsplit model, 1 to `most`, for which memory has room at a time.

    Args:
        devices: from `unsplit_devices`; a call takes the one with the fewest under way.
    """
    problem = plan.problem
    if not np.isfinite(problem.cluster.memory_limits).any():
        return most
    names = {device.name for device in devices}
    used = [
        index
        for index, device in enumerate(problem.cluster.devices)
        if names.intersection(member.name for member in Members.of([device]).devices)
    ]
    places, copies = [used], len(devices)
    if not used:  # the whole processor, or its cores
        places, copies = [[index] for index in processor_memories(problem)], 1
    simulator = Simulator(problem)
    peaks = [whole_peaks(simulator, place) for place in places]

    def is_too_many(calls: int) -> bool:
        each = math.ceil(calls / copies)
        return any(exceeded_by_peaks(problem, whole, each) for whole in peaks)

    return 1 + bisect_left(range(2, most + 1), True, key=is_too_many)


def split_runner(
    plan: Plan, model: LoadedModel, *, in_flight: int | None
) -> DirectRunner | ConcurrentRunner:
    """Make the runner of a split plan's single calls; `in_flight` as in `LoadedPlan`."""
    problem, placement, devices = plan.problem, plan.placement, plan.problem.cluster.devices
    if problem.objective == "training":
        return call_runner(problem, placement, model)
    allowed = in_flight or _in_flight(plan)
    groups = any(device.replicas > 1 for device in devices)
    if not isinstance(problem.execution_model, Event) or groups:
        return stream_runner(problem, placement, model, in_flight=allowed)
    return call_runner(problem, placement, model, at_once=allowed)


def _in_flight(plan: Plan) -> int:
    """Number of samples in flight that is worthwhile; 1 if no more fit, or no stream is played."""
    if plan.in_flight is not None:
        return plan.in_flight
    try:
        return Simulator(plan.problem).stream(plan.placement, samples=LEAST_SAMPLES).in_flight
    except (InfeasibleError, InputError):
        return 1


def recommended_server(
    plan: Plan, model: LoadedModel, stack: ExitStack, *, in_flight: int | None = None
) -> SampleServer:
    """Make the server of a plan's streams, by the recommended contender; `stack` closes it.

    Raises:
        InfeasibleError: so many samples do not fit into a device's memory.
    """
    allowed = in_flight or plan.in_flight
    name = contender_to_run(plan)
    if name != PLAN:
        whole = whole_model_streams(plan, model)
        if name in whole.devices:
            return whole.contender(name, plan.problem, model).open(stack, in_flight)
    elsewhere = [] if name != PLAN else unsplit_devices(plan, model)
    if len(elsewhere) == 1 and _devices_used(plan) != list(elsewhere):
        allowed = allowed or _calls_at_once(plan, elsewhere, 2)
        runner = whole_model_runner(model, elsewhere[0], in_flight=allowed)
        return stack.enter_context(runner)
    if allowed is None:
        played = Simulator(plan.problem).stream(plan.placement, samples=LEAST_SAMPLES)
        allowed = played.in_flight
    runner = stream_runner(plan.problem, plan.placement, model, in_flight=allowed)
    return stack.enter_context(runner)


def _devices_used(plan: Plan) -> list[Device]:
    devices = plan.problem.cluster.devices
    return [devices[index] for index in np.unique(plan.placement.device_of).tolist()]
