"""Functions that take fields of a request show them in their signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar, cast

from placewright.session.request import Request, refuse_unknown

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_fields(*names: str) -> Callable[[Function], Function]:
    """Let a function with ``**said`` show the request's fields, and refuse what is none.

    Args:
        names: of the fields; none are all but the model.
    """

    def changed(function: Function) -> Function:
        own = [
            one
            for one in inspect.signature(function).parameters.values()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        taken = {one.name for one in own} | {"model"}
        shown = [one for one in fields(Request) if one.name in names or not names]
        shown = [one for one in shown if one.name not in taken]
        allowed = [one.name for one in shown]

        @wraps(function)
        def call(*arguments: Any, **said: Any) -> Any:
            refuse_unknown(function.__name__, said, [*taken, *allowed])
            return function(*arguments, **said)

        added = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default={} if one.default is MISSING else one.default,
                annotation=one.type,
            )
            for one in shown
        ]
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*own, *added], return_annotation=inspect.signature(function).return_annotation
        )
        return cast(Function, call)

    return changed
