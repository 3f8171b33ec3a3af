"""A plan that is loaded once and serves: calls from any thread, streams, until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from placewright.core.plan import Plan
from placewright.core.signature import Port
from placewright.errors import InputError, PlacewrightError, RuntimeFailure
from placewright.execution.direct import DirectRunner, KeepsState
from placewright.execution.freed_memory import give_back_freed_memory
from placewright.execution.inputs import GivenInputs, checked_inputs
from placewright.execution.outputs import Outputs
from placewright.execution.processor import usable_cores
from placewright.execution.requests import Execution
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import HostArray, LoadedModel
from placewright.execution.sample_server import SampleServer
from placewright.session import running
from placewright.session.streaming import (
    call_runner,
    recommended_server,
    require_streamable,
    unsplit_devices,
)

_CLOSING_SECONDS = 10.0  # to wait for calls that are under way
_DTYPES = {
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "bf16": "float32",  # NumPy has no bfloat16
    "boolean": "bool",
}


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a loaded plan.

    Attributes:
        name: as the model gives it.
        shape: dimensions; one that is known only at run time counts as 1.
        dtype: as NumPy calls it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


class LoadedPlan:
    """A plan ready to be called. A context manager; `close` ends it.

    Args:
        plan: what is run, in the way that was recommended when it was measured.
        model: the plan's, loaded by its runtime.
        in_flight: calls under way at most, further ones wait; None is as many as pay.

    Attributes:
        plan: as given.
        inputs, outputs: in the model's own order.

    Raises:
        InputError: the plan cannot be executed.
        RuntimeFailure: the runtime refuses a segment.
    """

    def __init__(self, plan: Plan, model: LoadedModel, *, in_flight: int | None = None) -> None:
        if in_flight is not None and in_flight < 1:
            raise InputError(f"in-flight must be >= 1, got {in_flight}")
        self.plan = plan
        self._dtypes = model.input_dtypes()
        ports = model.signature
        self.inputs = tuple(
            TensorInfo(port.name, port.shape, dtype.name)
            for port, dtype in zip(ports.inputs, self._dtypes, strict=True)
        )
        self.outputs = tuple(map(_output_info, ports.outputs))
        self._one_by_one = isinstance(model, KeepsState) and model.keeps_state
        self._model: LoadedModel | None = model
        self._changed = threading.Condition()
        self._under_way = 0
        self._idle: dict[int | None, list[_Server]] = {}
        self._busy: list[_Server] = []
        with running.limited(plan):
            self._runner = self._made_runner(model, 1 if self._one_by_one else in_flight)

    def __enter__(self) -> LoadedPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, *given: Any, **named: Any) -> Outputs:
        """Run the model once.

        Args:
            given: one array per input in the model's order; or all of them in one list, or in one
                mapping from name to array.
            named: the same by name, where the names are Python's.

        Returns:
            All outputs, by position and by name; they belong to the caller.

        Raises:
            InputError: an input is missing or unknown, or has another shape or type.
            RuntimeFailure: a segment failed, and the message names it; or this is closed.
        """
        return self.run(_inputs(given, named))

    def run(self, inputs: GivenInputs) -> Outputs:
        """As a call with all inputs in one sequence, in the model's order, or mapping by name."""
        with self.in_use() as model:
            values = checked_inputs(model, inputs, self._dtypes)
            return Outputs(model.signature, self._runner.run(values).outputs)

    def stream(
        self,
        samples: Iterable[GivenInputs],
        *,
        in_flight: int | None = None,
        errors: Literal["raise", "yield"] = "raise",
    ) -> Generator[Outputs | RuntimeFailure, None, None]:
        """Run samples that follow each other, several of them in flight.

        Segments and threads stay for the next stream. With F in flight, sample k + F is asked for
        after output k was taken and the next is asked for; outputs that are fed back take F = 1.

        Args:
            samples: inputs of each: an array for a model with one input, a list, or a mapping.
            in_flight: samples taken whose outputs were not, at most; None is as many as pay.
            errors: ``"raise"`` ends with the first sample that fails; ``"yield"`` gives its error
                in place of its outputs and goes on.

        Raises:
            InputError: a sample's inputs are wrong; the message names the sample and the input.
            RuntimeFailure: a sample failed; the message names it and its segment.
        """
        require_stream(self.plan, in_flight, errors)
        wanted = 1 if self._one_by_one else in_flight
        return self._streamed(samples, wanted, keeps_going=errors == "yield")

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
            servers = [one for row in self._idle.values() for one in row] + self._busy
            self._idle.clear()
            self._changed.wait_for(lambda: self._under_way == 0, timeout=_CLOSING_SECONDS)
        for server in servers:  # of streams under way, too: who takes their outputs may never come
            server.stack.close()
        self._runner.close()
        del self._runner, model
        give_back_freed_memory()

    @property
    def is_in_use(self) -> bool:
        """True while a call or a stream is under way."""
        return bool(self._under_way or self._busy)

    @property
    def weight(self) -> float:
        """About how many bytes are held: weights as read and as compiled, tensors of one call."""
        graph = self.plan.problem.graph
        return float(2.0 * graph.weight_bytes.sum() + graph.tensor_bytes.sum())

    @contextmanager
    def in_use(self) -> Iterator[LoadedModel]:
        """The model, which `close` waits for while this is entered.

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
            return call_runner(self.plan, model, in_flight=in_flight)
        at_once = in_flight or max(len(usable_cores()), len(devices))
        return DirectRunner(model, devices, at_once=at_once)

    def _streamed(
        self, samples: Iterable[GivenInputs], in_flight: int | None, *, keeps_going: bool
    ) -> Generator[Outputs | RuntimeFailure, None, None]:
        server, model = self._taken_server(in_flight)
        try:
            for number, answer in enumerate(server.server.outcomes(self._checked(model, samples))):
                if isinstance(answer, Execution):
                    yield Outputs(model.signature, answer.outputs)
                    continue
                self._require_open()
                failure = RuntimeFailure(f"sample {number}: {answer}")
                if not keeps_going:
                    raise failure from answer
                yield failure
        except RuntimeFailure:
            self._require_open()  # says best why
            raise
        else:
            server.is_whole = True
        finally:
            self._given_back(server, in_flight)

    def _checked(
        self, model: LoadedModel, samples: Iterable[GivenInputs]
    ) -> Iterator[list[HostArray]]:
        for number, given in enumerate(samples):
            try:
                yield checked_inputs(model, _inputs((given,), {}), self._dtypes)
            except PlacewrightError as error:
                raise type(error)(f"sample {number}: {error}") from None

    def _taken_server(self, in_flight: int | None) -> tuple[_Server, LoadedModel]:
        """A server that no other stream has; made where none is idle."""
        with self._changed:
            model = self._require_open()
            idle = self._idle.get(in_flight)
            if idle:
                self._busy.append(idle.pop())
                return self._busy[-1], model
        stack = ExitStack()
        with running.limited(self.plan):
            server = _Server(
                recommended_server(self.plan, model, stack, in_flight=in_flight), stack
            )
        with self._changed:
            self._busy.append(server)
        return server, model

    def _given_back(self, server: _Server, in_flight: int | None) -> None:
        """Keep a server whose stream came to its end; others have closed themselves."""
        with self._changed:
            self._busy.remove(server)
            if server.is_whole and self._model is not None:
                server.is_whole = False
                self._idle.setdefault(in_flight, []).append(server)
                return
        server.stack.close()

    def _require_open(self) -> LoadedModel:
        if self._model is None:
            raise RuntimeFailure("this plan was closed; load it again with pw.load")
        return self._model


@dataclass(eq=False)
class _Server:
    """A way to run streams. `is_whole`: its last stream came to its end."""

    server: SampleServer
    stack: ExitStack
    is_whole: bool = False


def require_stream(plan: Plan, in_flight: int | None, errors: str) -> None:
    """Refuse what no stream can be, before anything is loaded.

    Raises:
        InputError: samples cannot follow each other through the plan, or an argument is wrong.
    """
    if errors not in ("raise", "yield"):
        raise InputError(f"errors is 'raise' or 'yield', got '{errors}'")
    if in_flight is not None and in_flight < 1:
        raise InputError(f"in-flight must be >= 1, got {in_flight}")
    require_streamable(plan)


def _inputs(given: tuple[Any, ...], named: Mapping[str, Any]) -> GivenInputs:
    """What was given to a call, as `checked_inputs` takes it."""
    if named:
        if given:
            raise InputError("inputs are given by position or by name, not both")
        return named
    if len(given) == 1 and isinstance(given[0], Mapping | list | tuple | Outputs):
        return given[0]
    return given


def _output_info(port: Port) -> TensorInfo:
    return TensorInfo(port.name, port.shape, _DTYPES.get(port.dtype, port.dtype))
