"""Plans for calls of several shapes, loaded once: the shapes of the inputs choose the segments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from placewright.core.calls import Call
from placewright.core.plan import Plan
from placewright.errors import InputError
from placewright.execution.inputs import GivenInputs, flattened, given_inputs
from placewright.execution.runtime import HostArray
from placewright.session.call_mix import models_of_calls
from placewright.session.loaded_plans import LoadedPlan, TensorInfo, Turns

Shapes = dict[str, tuple[int, ...]]


class LoadedCalls:
    """A plan for calls of several shapes, ready to be called. A context manager; `close` ends it.

    Weights are in each memory once, and so is state that stays: each call continues with the state
    that the call before left, whatever its shape. Calls take turns.

    Attributes:
        plan: as given.

    Raises:
        InputError: the plan cannot be executed, or its runtime loads one shape only.
        StalePlanError: the model has changed.
        RuntimeFailure: the runtime refuses a segment.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._turns = Turns()
        with ExitStack() as stack:
            self._loaded = [
                stack.enter_context(LoadedPlan(one, model, in_flight=1, turns=self._turns))
                for one, model in models_of_calls(plan)
            ]
            self._open = stack.pop_all()

    def __enter__(self) -> LoadedCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def inputs(self) -> tuple[tuple[TensorInfo, ...], ...]:
        """The inputs of each call, in the model's own order."""
        return tuple(loaded.inputs for loaded in self._loaded)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Run the model once with inputs of one of the shapes; see `LoadedPlan.__call__`.

        Raises:
            InputError: no call has such shapes; the message lists them.
            RuntimeFailure: a segment failed, or this is closed.
        """
        return self.run(given_inputs(given, named))

    def run(self, inputs: GivenInputs) -> Any:
        """Run the model once; inputs are a sequence in the model's order, or a mapping by name."""
        return self._chosen(inputs).run(inputs)

    def random_inputs(self) -> list[HostArray]:
        """Valid values for all inputs of the first call, the same in every call."""
        return self._loaded[0].random_inputs()

    def reset(self) -> None:
        """Give all state that the model keeps between calls its initial value.

        Raises:
            RuntimeFailure: this is closed.
        """
        for loaded in self._loaded:
            loaded.reset()

    def close(self) -> None:
        """Free everything: threads, segments, the models. Calls under way end before."""
        self._open.close()

    def _chosen(self, inputs: GivenInputs) -> LoadedPlan:
        first = self._loaded[0]
        with first.in_use() as model:
            flat, _ = flattened(model, inputs)
        names = [port.name for port in first.inputs]
        if isinstance(flat, Mapping):
            found = {name: np.shape(flat[name]) for name in names if name in flat}
        else:
            found = dict(zip(names, map(np.shape, flat), strict=False))
        if len(found) < len(names):
            return first  # its check names the missing input
        for loaded in self._loaded:
            if all(found[port.name] == port.shape for port in loaded.inputs):
                return loaded
        known = " or ".join(_text({port.name: port.shape for port in row}) for row in self.inputs)
        raise InputError(
            f"no call of this plan has inputs {_text(found)}; it has {known}. Divide the inputs "
            "into such calls, or place again with argument `calls`"
        )


def _text(shapes: Shapes) -> str:
    return str(Call(1, shapes)).removeprefix("1 x ")
