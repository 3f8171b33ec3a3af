"""OpenVINO's throughput mode: asynchronous requests on as many streams as it chooses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import numpy as np

from placewright.errors import RuntimeFailure
from placewright.execution.requests import Execution, Outcome, Sample, executions, in_order
from placewright.execution.runtime import HostArray


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
        """Do nothing; a runner must be closed, but here requests end by themselves."""

    def run_many(self, samples: Sequence[Sample]) -> list[Execution]:
        """Execute samples; return their executions in order.

        Raises:
            RuntimeFailure: OpenVINO reports that a request failed.
        """
        return executions(self.outcomes(samples))

    def outcomes(self, samples: Iterable[Sample]) -> Iterator[Outcome]:
        """Execute samples as they come; yield their executions or failures in order.

        If the caller stops early, or a sample is refused, requests under way are waited for.
        """
        done = SimpleQueue[tuple[Any, _Done]]()
        free = list(self._free)

        def wait() -> tuple[int, Outcome]:
            request, answer = done.get()
            free.append(request)
            return answer.number, _outcome(_checked(request, answer))

        def start(number: int, sample: Sample) -> None:
            self._start(free[-1], number, sample, done)
            free.pop()  # not before: a request that was not started is never done

        try:
            yield from in_order(
                iter(samples), start, wait, in_flight=self.in_flight, window=self._window
            )
        finally:
            while len(free) < len(self._free):
                wait()

    def _start(
        self, request: Any, number: int, sample: Sample, done: SimpleQueue[tuple[Any, _Done]]
    ) -> None:
        start = time.perf_counter()
        for at, value in enumerate(sample):
            array = np.ascontiguousarray(value)
            tensor = self._openvino.Tensor(array, shared_memory=array.ndim > 0)
            request.set_input_tensor(at, tensor)

        def fetch(_: Sample) -> None:
            """Fetch the outputs, in a thread of OpenVINO's; its argument keeps the inputs alive."""
            end = time.perf_counter()
            try:
                outputs = tuple(
                    np.array(request.get_output_tensor(at).data) for at in range(self._n_outputs)
                )
                done.put((request, _Done(number, outputs, start, end)))
            except BaseException as error:  # the thread that waits for this sample raises it
                done.put((request, _Done(number, (), start, end, str(error) or repr(error))))

        request.set_callback(fetch, sample)
        request.start_async(share_inputs=True)


def _checked(request: Any, done: _Done) -> _Done:
    """Add the failure of a request, which OpenVINO reports only to `wait`."""
    try:
        request.wait()
    except RuntimeError as error:
        return replace(done, error=str(error).strip().splitlines()[-1])
    return done


def _outcome(done: _Done) -> Outcome:
    if done.error:
        return RuntimeFailure(f"the unsplit model in OpenVINO's throughput mode: {done.error}")
    seconds = done.end - done.start
    return Execution(done.outputs, {}, seconds, ((0.0, seconds),), done.start)
