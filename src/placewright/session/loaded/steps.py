"""Training steps that are loaded once and called batch by batch."""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewright.core.plan import Plan
from placewright.errors import InputError, PlacewrightError, RuntimeFailure
from placewright.execution.allocator import give_back_freed_memory
from placewright.execution.runtime import LoadedModel, StepState, TrainsSteps
from placewright.session.loaded.plans import LoadedPlan, TensorInfo

LearningRate = float | Callable[[int], float]


class LoadedStep:
    """A training step that `placewright.load` made ready, called with one batch after the other.

    Parameters, running averages and optimizer state stay on their devices between the steps. A
    context manager; `close` ends it. The output of the module is its loss:

    >>> import torch
    >>> class Loss(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x).square().mean()
    >>> module, x = Loss(4, 2), torch.ones(3, 4)
    >>> request = {"devices": "cpu", "placer": "single", "calibrate": False, "check": False}
    >>> plan = pw.place(module, example_inputs=(x,), objective="training", **request)
    >>> with pw.load(plan, learning_rate=0.01) as step:
    ...     losses = [step(x) for batch in range(5)]
    ...     step.write_back(module)
    >>> losses[-1] < losses[0], step.steps
    (True, 5)

    Args:
        learning_rate: of all steps, or a function from the number of updates done to that of the
            next; None is the optimizer's own.
        seed: of random operators, such as dropout; a whole number of 64 bits.

    Attributes:
        plan: as given.
        inputs: in the model's own order.

    Raises:
        InputError: the plan cannot be executed, the learning rate is negative, or the seed is no
            such number.
        RuntimeFailure: the runtime refuses a segment.
    """

    def __init__(
        self,
        plan: Plan,
        model: LoadedModel,
        *,
        learning_rate: LearningRate | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, TrainsSteps):
            raise InputError(f"runtime '{plan.runtime}' runs no training steps")
        self.plan = plan
        self._state: StepState | _Numbers
        with model.step_state(_whole_number(seed)) as self._state:
            self._loaded = LoadedPlan(plan, model)
        self.inputs: tuple[TensorInfo, ...] = self._loaded.inputs
        self._schedule: Callable[[int], float] | None = None
        self._failure: BaseException | None = None
        self._lock = threading.RLock()  # a schedule may save or look at the state
        if callable(learning_rate):
            self._schedule = learning_rate
        elif learning_rate is not None:
            try:
                self.learning_rate = learning_rate
            except BaseException:  # nobody else can close what is loaded
                self.close()
                raise

    def __enter__(self) -> LoadedStep:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, *batch: Any, **named: Any) -> float:
        """Do one step: forward, backward, and the update of the parameters.

        Args:
            batch: one array or tensor per input in the model's order; or all of them in one list,
                or in one mapping by name.
            named: the same by name.

        Returns:
            The loss of the batch, before the update.

        Raises:
            InputError: an input is missing or unknown, or has another shape or type.
            RuntimeFailure: a segment failed; the state is then that of no step.
        """
        with self._in_use() as state:
            self._require_whole()
            if self._schedule is not None:
                self.learning_rate = self._schedule(state.updates)
            with self._changing():
                state.begin()
                outputs = self._loaded(*batch, **named)
                state.end()
        return float(outputs[0].reshape(-1)[0])

    @property
    def learning_rate(self) -> float:
        """Of the next step; a schedule sets it anew for each."""
        return self._state.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        try:
            rate = math.nan if isinstance(value, str) else float(value)
        except (TypeError, ValueError):  # a schedule, which `pw.load` takes, or no number at all
            rate = math.nan
        if not 0 <= rate < math.inf:
            raise InputError(f"learning rate must be >= 0 and finite, got {value!r}")
        self._state.learning_rate = rate

    @property
    def steps(self) -> int:
        """Steps done so far, those before a checkpoint included."""
        return self._state.steps

    def state_dict(self) -> dict[str, Any]:
        """Copies of all state as PyTorch tensors.

        Names are ``model.head.weight``, ``optimizer.head.weight.average``, ``steps``, ``seed``
        and ``accumulate``.
        """
        with self._in_use() as state:
            self._require_whole()
            return state.state_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned, also of another plan of the same step.

        Raises:
            InputError: an entry is missing, unknown, or of another shape; nothing has changed.
            RuntimeFailure: this is closed, or an interrupt has ended its workers.
        """
        with self._in_use() as state:
            self._require_workers()
            with self._changing():
                state.load_state_dict(values)
                self._failure = None

    def write_back(self, module: Any) -> None:
        """Copy parameters and buffers into the module that the step was made from.

        Raises:
            InputError: the module lacks one, or has it in another shape or type.
        """
        with self._in_use() as state:
            self._require_whole()
            state.write_back(module)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, a safetensors file with the entries of `state_dict`.

        An earlier file survives every failure.

        Raises:
            InputError: the file cannot be written.
        """
        with self._in_use() as state:
            self._require_whole()
            state.save(Path(path))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint.

        Raises:
            InputError: there is no such file, it is damaged, or it is of another step or optimizer.
            RuntimeFailure: this is closed, or an interrupt has ended its workers.
        """
        with self._in_use() as state:
            self._require_workers()
            with self._changing():
                state.restore(Path(path))
                self._failure = None

    def close(self) -> None:
        """Free everything: threads, compiled segments, state. `steps` can still be read."""
        try:
            self._loaded.close()
        finally:  # also if Ctrl-C ends the wait
            self._state = _Numbers(self._state.steps, self._state.learning_rate)
            give_back_freed_memory()

    @contextmanager
    def _in_use(self) -> Iterator[StepState]:
        """Give the state for a block, for which `close` waits.

        Raises:
            RuntimeFailure: the step is closed.
        """
        with self._lock, self._loaded.in_use():
            state = self._state
            if isinstance(state, _Numbers):  # Ctrl-C ended the wait of `close`
                raise RuntimeFailure("this step was closed; load the plan again")
            yield state

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Remember a failure that leaves the state half changed."""
        try:
            yield
        except BaseException as failure:
            is_refusal = isinstance(failure, PlacewrightError)  # before anything changed
            if isinstance(failure, RuntimeFailure) or not is_refusal:
                self._failure = failure  # Ctrl-C leaves half a step, too
            raise

    def _require_workers(self) -> None:
        """Refuse state for a step that cannot run: a worker that was left may still write."""
        if not self._loaded.is_open:
            raise RuntimeFailure(
                "this step's workers have ended; load the plan again and restore there"
            )

    def _require_whole(self) -> None:
        if self._failure is not None:
            reason = str(self._failure) or type(self._failure).__name__
            is_closed = not (isinstance(self._failure, RuntimeFailure) and self._loaded.is_open)
            way = "load the plan again and restore" if is_closed else "call restore"
            raise RuntimeFailure(f"a step failed half-way ({reason}); {way} or load_state_dict")


@dataclass
class _Numbers:
    """Numbers of a closed step."""

    steps: int
    learning_rate: float


def _whole_number(seed: Any) -> int:
    """The seed as Python's own number."""
    try:
        number = None if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        number = None
    if number is None or not -(2**63) <= number < 2**63:  # a checkpoint holds it in 64 bits
        raise InputError(f"seed must be a whole number of 64 bits, got {seed!r}")
    return number
