"""Runners of placements, of the unsplit model on one device, and of one copy of it per device."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from queue import SimpleQueue
from typing import Protocol, runtime_checkable

import numpy as np

from placewright.core.arrays import FloatArray, frozen_floats
from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.errors import RuntimeFailure
from placewright.execution.direct import DirectRunner, split_copy, whole_copies
from placewright.execution.requests import (
    Execution,
    Outcome,
    Sample,
    executions,
    in_order,
    request_numbers,
)
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import (
    LoadedModel,
    OpSegment,
    Runtime,
    segments_of_units,
    whole_segment,
)
from placewright.simulation.segments import Segment, merged_in_turn
from placewright.simulation.serving import is_in_one_thread, timeline_segments


@runtime_checkable
class PacksWeights(Protocol):
    """A runtime whose segments may each hold a copy of a weight."""

    def packs_weights(self, device: Device) -> bool:
        """True if every segment on the device packs the weights that it reads for itself."""
        ...


@runtime_checkable
class LoadsBeside(Protocol):
    """A runtime that loads one model for several shapes of its inputs."""

    def load_beside(
        self, source: ModelSource, graph: ComputationGraph, first: LoadedModel
    ) -> LoadedModel:
        """Load a model of which `first` is the same with other shapes of its inputs.

        They share one copy of the weights in each memory, and one of the state that stays. Only one
        of them may run at a time, and each continues with the state that the last one left.

        Raises:
            StalePlanError: the graph was read from another model.
        """
        ...


@runtime_checkable
class SharesState(Protocol):
    """A loaded model whose plans can take turns on one copy of their state."""

    def one_state(self) -> AbstractContextManager[None]:
        """Let plans compiled inside change the same tensors of each memory.

        State starts from its initial values. Only one of the plans may run at a time, and each
        continues with the values that the last one left.
        """
        ...


def bytes_of_further_copies(
    problem: Problem, segments: Iterable[tuple[int, Sequence[int]]], runtime: Runtime
) -> FloatArray:
    """Bytes of the copies of weights beyond those that memory counts, shape (n_devices,).

    Memory counts a weight once per device. Of a weight that several segments of a device read,
    each packs a copy if the runtime shares none.

    Args:
        segments: device and units of each.
    """
    weights, sizes = problem.unit_graph.op_weights, problem.unit_graph.weight_bytes
    devices = problem.cluster.devices
    copies = np.zeros((len(devices), len(sizes)))
    for device, units in segments:
        if isinstance(runtime, PacksWeights) and runtime.packs_weights(devices[device]):
            read = [weights.row(int(unit)) for unit in units]
            copies[device, np.unique(np.concatenate(read))] += 1.0
    return frozen_floats(np.maximum(copies - 1.0, 0.0) @ sizes)


def placement_segments(problem: Problem, placement: Placement) -> tuple[OpSegment, ...]:
    """Segments of a placement for a runtime: exactly those of the simulator.

    Raises:
        ClusterError: a device stands for several.
        InfeasibleError: memory, a limit on segments or the order forbids the placement.
    """
    return _op_segments(problem, timeline_segments(problem, placement))


def served_segments(problem: Problem, placement: Placement) -> tuple[OpSegment, ...]:
    """Segments that serve single calls of a placement, see `call_runner`.

    Raises:
        ClusterError: a device stands for several.
        InfeasibleError: memory, a limit on segments or the order forbids the placement.
    """
    return _served(problem, placement)[0]


def _served(problem: Problem, placement: Placement) -> tuple[tuple[OpSegment, ...], bool]:
    """Segments that serve single calls, and whether the caller's thread runs them."""
    segments = timeline_segments(problem, placement)
    in_one_thread = is_in_one_thread(problem, placement)
    if in_one_thread:
        segments = merged_in_turn(problem, segments)
    return _op_segments(problem, segments), in_one_thread


def _op_segments(problem: Problem, segments: Iterable[Segment]) -> tuple[OpSegment, ...]:
    problem.cluster.require_single_devices("a runtime")
    return segments_of_units(problem, [(s.device, [int(u) for u in s.units]) for s in segments])


def call_runner(
    problem: Problem, placement: Placement, model: LoadedModel, *, at_once: int = 1
) -> DirectRunner | ConcurrentRunner:
    """Make the runner of a placement's single calls, as a loaded plan serves them.

    It runs in the caller's thread if `is_in_one_thread`. A call then needs no other thread, and to
    wake one can take longer than a small segment. Successive segments of one device are merged.

    Args:
        problem: of the placement.
        placement: of its units.
        model: loaded by the runtime.
        at_once: most calls under way.
    """
    (segments, in_one_thread), devices = _served(problem, placement), problem.cluster.devices
    if in_one_thread:
        return DirectRunner(model, [split_copy(model, segments, devices)], at_once=at_once)
    return ConcurrentRunner(model, segments, devices, in_flight=at_once)


def whole_call_runner(model: LoadedModel, device: Device) -> DirectRunner:
    """Make the runner of single calls of the unsplit model, as a loaded plan serves them.

    It runs in the caller's thread: to wake another one can take longer than a small model.
    """
    return DirectRunner(model, whole_copies(model, [device]), at_once=1)


def whole_model_runner(
    model: LoadedModel, device: Device, *, in_flight: int = 1
) -> ConcurrentRunner:
    """Make a runner of the unsplit model on one device: a baseline and a reference."""
    whole, compiled = [whole_segment(model.graph)], [model.reference(device)]
    return ConcurrentRunner(model, whole, [device], in_flight=in_flight, compiled=compiled)


def taking_turns(model: LoadedModel) -> AbstractContextManager[None]:
    """Let runners made inside take turns; they share one copy of state if the runtime can."""
    return model.one_state() if isinstance(model, SharesState) else nullcontext()


class CopyPerDevice:
    """Streams samples through several runners at once. A context manager, as a runner is.

    Args:
        runners: of the unsplit model, each on one device; this object closes them.
        in_flight: most samples that are taken and not yet fetched. None is 2n + 2 for n runners, of
            which n + 1 are under way: a fast copy goes on while the answer of a slow one, which
            must be fetched first, is not ready.
    """

    def __init__(self, runners: Sequence[ConcurrentRunner], *, in_flight: int | None = None):
        self._runners, self._draws = tuple(runners), request_numbers()
        self.in_flight = len(self._runners) + 1 if in_flight is None else in_flight
        self._window = 2 * self.in_flight if in_flight is None else in_flight
        if self.in_flight < 1:
            raise ValueError(f"in_flight must be >= 1, got {in_flight}")

    def __enter__(self) -> CopyPerDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def burst(self) -> int:
        """Number of copies: samples finish in groups of so many."""
        return len(self._runners)

    def close(self, timeout: float = 10.0) -> None:
        """End all runners after their present segments.

        Args:
            timeout: seconds to wait for all of them together.
        """
        for runner in self._runners:
            runner.stop()
        deadline = time.monotonic() + timeout
        for runner in self._runners:
            runner.close(max(0.0, deadline - time.monotonic()))

    def run_many(self, samples: Sequence[Sample]) -> list[Execution]:
        """Execute samples; answers in their order.

        Raises:
            RuntimeFailure: a copy failed; the message names it.
        """
        return executions(self.outcomes(samples))

    def outcomes(self, samples: Iterable[Sample]) -> Iterator[Outcome]:
        """Execute samples as they come; yield their executions or failures in order.

        Samples are taken as `ConcurrentRunner.outcomes` takes them. Leaving the loop early closes
        the runners.
        """
        waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
        done: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        threads = [
            threading.Thread(
                target=_serve, args=(runner, self._runners, waiting, done), daemon=True
            )
            for runner in self._runners
        ]
        for thread in threads:
            thread.start()
        try:
            yield from in_order(
                iter(samples),
                lambda number, sample: waiting.put(
                    (number, next(self._draws), sample, time.perf_counter())
                ),
                done.get,
                in_flight=self.in_flight,
                window=self._window,
            )
        except BaseException as error:
            # Samples under way must not outlive the caller, who may not want to wait.
            self.close(1.0 if isinstance(error, KeyboardInterrupt) else 10.0)
            raise
        finally:
            for _ in threads:
                waiting.put(None)


_Waiting = tuple[int, int, Sample, float]  # number, draw, values, and when it entered


def _serve(
    runner: ConcurrentRunner,
    runners: Sequence[ConcurrentRunner],
    waiting: SimpleQueue[_Waiting | None],
    done: SimpleQueue[tuple[int, Outcome]],
) -> None:
    """Run samples on one device until None comes, or until only others can run them."""
    while runner.is_open or not any(other.is_open for other in runners):
        if (item := waiting.get()) is None:
            break
        number, draw, sample, entered = item
        try:
            result = next(iter(list(runner.outcomes([sample], iter([draw])))))
            if isinstance(result, Execution):
                result = _since(entered, result)
        except BaseException as error:  # goes to the thread that waits for this sample
            result = error if isinstance(error, RuntimeFailure) else RuntimeFailure(str(error))
        done.put((number, result))


def _since(entered: float, result: Execution) -> Execution:
    """Count the wait for a free copy, as a runner with several requests in flight counts it."""
    wait = result.start - entered
    spans = tuple((begin + wait, end + wait) for begin, end in result.spans)
    return replace(result, start=entered, seconds=result.seconds + wait, spans=spans)
