"""Command-line options from the fields of a request: one declaration makes both."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from placewright.cli.wording import option_of, with_options
from placewright.session.request import Request, request_of, words

MODEL = Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or zoo:NAME.")]


def takes_request(
    *names: str, model: Any = MODEL, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a request's fields; it is called with the `Request`.

    The command's first parameter takes the request. Its own options follow those of the fields.

    Args:
        names: of the fields that are options; none are all that can be said in words.
        model: annotation of the argument MODEL; None for a command that has none, or names its
            models in another way. Its request lacks the model.
        defaults: of fields, where the command has others.
    """
    chosen = {name: how for name, how in words().items() if name in names or not names}
    declared = {one.name: one for one in fields(Request)}
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults[name] if name in defaults else _default(declared[name]),
            annotation=_annotation(name, declared[name], how.kind, with_options(how.help)),
        )
        for name, how in chosen.items()
    ]
    first = [inspect.Parameter("model", inspect.Parameter.KEYWORD_ONLY, annotation=model)]
    first = [] if model is None else first

    def derived(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        taken, *own = inspect.signature(command).parameters.values()
        kept = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name])
            for one in own
        ]
        of_request = {one.name for one in options}

        @wraps(command)
        def call(**given: Any) -> None:
            said = {name: value for name, value in given.items() if name in of_request}
            rest = {one.name: given[one.name] for one in kept}
            command(**{taken.name: request_of(given.get("model"), said)}, **rest)

        parameters = [*first, *options, *kept]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        del call.__dict__["__wrapped__"]
        return call

    return derived


def _default(field: Field[Any]) -> Any:
    """Of an option; a container that is empty by default stands for no option.

    A number behind a text is one of seconds.
    """
    if field.default is MISSING or field.default == ():
        return None
    if isinstance(field.default, float) and field.metadata["said"].kind is str:
        return f"{field.default:g}s"
    return field.default


def _annotation(name: str, field: Field[Any], kind: type, help: str) -> Any:
    flag = option_of(name)
    if kind is bool:
        is_on_by_default = _default(field) is None
        flags = f"{flag}/--no-{flag[2:]}" if is_on_by_default else flag
        return Annotated[bool | None if is_on_by_default else bool, typer.Option(flags, help=help)]
    known: Any = list[str] if kind is list else kind
    if kind not in (str, int, list, Path):
        raise TypeError(f"field '{name}' of a request is said as {kind}, which is no option")
    return Annotated[
        known | None if _default(field) is None else known, typer.Option(flag, help=help)
    ]
