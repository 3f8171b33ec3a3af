"""The model behind a request: read once, and loaded by its framework once."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.errors import FieldError, InputError
from placewright.execution.inputs import with_values
from placewright.execution.runtime import LoadedModel, Runtime
from placewright.session.found_models import remember_module
from placewright.session.models import Model, load_model, runnable_source
from placewright.session.request import Request
from placewright.session.runtimes import (
    default_runtime,
    module_runtime_name,
    runtime_named,
)


class ModelOfRequest:
    """What a request's model turns out to be.

    Args:
        request: whose module in memory gets a name here.
        fold_constants: False reads the raw graph, constants and parameters as ops.

    Attributes:
        request: with the name of the model, where the model is a module in memory; with the problem
            and the runtime of a plan, where it is one.
    """

    def __init__(self, request: Request, *, fold_constants: bool = True) -> None:
        if isinstance(request.model, Plan):
            plan = request.model
            runtime = request.runtime or plan.runtime
            request = replace(request, model=plan.problem, runtime=runtime)
        if not isinstance(request.model, str | Model | Problem):
            name = remember_module(request.model, request.example_inputs)
            runtime = request.runtime or module_runtime_name()
            request = replace(request, model=name, runtime=runtime)
        self.request = request
        self._fold_constants = fold_constants
        self._loaded: dict[str, LoadedModel] = {}

    @cached_property
    def read(self) -> Model:
        """The graph, its source, and the problem where the model carries one.

        Raises:
            InputError: it cannot be read, or a value does not fit its input.
        """
        found, values = self._read(), self.request.values
        if not values:
            return found
        signature = None if found.source is None else found.source.signature
        if found.problem is not None or found.source is None or signature is None:
            raise FieldError("values", "fixes inputs of a model that is read, not of a problem")
        source = replace(found.source, signature=with_values(signature, values))
        return Model(found.graph, source)

    def _read(self) -> Model:
        given = self.request.model
        if isinstance(given, Model):
            return given
        if isinstance(given, Problem):
            return Model(given.graph, given.source, given)
        assert isinstance(given, str)
        return load_model(
            given,
            objective=self.request.objective,
            shapes=self.request.shapes,
            fold_constants=self._fold_constants,
            runtime=self.request.runtime,
            optimizer=self.request.optimizer,
            colocate_backward=self.request.colocate_backward,
        )

    def loaded(self, runtime: Runtime | str) -> LoadedModel:
        """The model as a runtime executes it, loaded when it is first asked for.

        Raises:
            InputError: there is no model behind the graph.
            StalePlanError: the model has changed since.
        """
        name = runtime if isinstance(runtime, str) else runtime.name
        if name not in self._loaded:
            graph, source = self.read.graph, self.read.source
            if source is None:
                raise InputError("this graph has no model behind it; read the model itself")
            chosen = runtime_named(runtime) if isinstance(runtime, str) else runtime
            self._loaded[name] = chosen.load(runnable_source(source, graph), graph)
        return self._loaded[name]

    def loaded_for(self, problem: Problem) -> LoadedModel:
        """As `loaded`, by the runtime of a problem of this model."""
        return self.loaded(self.request.runtime or default_runtime(problem))
