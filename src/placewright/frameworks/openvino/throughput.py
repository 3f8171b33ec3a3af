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
    """The unsplit model, compiled with the hint ``THROUGHPUT``. A context manager, as a runner is.

    Args:
        compiled: with the hint.
        in_flight: most samples that are taken and not yet fetched; None is twice the number that
            OpenVINO finds best, of which half are under way.
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
        """Number of OpenVINO's requests: samples finish in groups of so many."""
        return self.in_flight

    def close(self, timeout: float = 10.0) -> None:
        """Do nothing: requests under way end by themselves."""

    def run_many(self, samples: Sequence[Sample]) -> list[Execution]:
        """Execute samples; answers in their order.

        Raises:
            RuntimeFailure: OpenVINO reports that a request failed.
        """
        return executions(self.outcomes(samples))

    def outcomes(self, samples: Iterable[Sample]) -> Iterator[Outcome]:
        """Execute samples as they come; yield their executions or failures in order."""
        done = SimpleQueue[tuple[Any, _Done]]()
        free = list(self._free)

        def wait() -> tuple[int, Outcome]:
            request, answer = done.get()
            free.append(request)
            return answer.number, _outcome(_checked(request, answer))

        yield from in_order(
            iter(samples),
            lambda number, sample: self._start(free.pop(), number, sample, done),
            wait,
            in_flight=self.in_flight,
            window=self._window,
        )

    def _start(
        self, request: Any, number: int, sample: Sample, done: SimpleQueue[tuple[Any, _Done]]
    ) -> None:
        start = time.perf_counter()
        for at, value in enumerate(sample):
            array = np.ascontiguousarray(value)
            tensor = self._openvino.Tensor(array, shared_memory=array.ndim > 0)
            request.set_input_tensor(at, tensor)

        def ended(sample: Any) -> None:
            """Fetch the outputs, in a thread of OpenVINO's; `sample` keeps the inputs alive."""
            end = time.perf_counter()
            try:
                outputs = tuple(
                    np.array(request.get_output_tensor(at).data) for at in range(self._n_outputs)
                )
                done.put((request, _Done(number, outputs, start, end)))
            except BaseException as error:  # the thread that waits for this sample raises it
                done.put((request, _Done(number, (), start, end, str(error) or repr(error))))

        request.set_callback(ended, sample)
        request.start_async(share_inputs=True)


def _checked(request: Any, done: _Done) -> _Done:
    """Add the failure of a request, which OpenVINO reports when one waits for it."""
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
