"""Arguments and options that mean the same in every command, and names of options in messages.

Messages of the library name a field of a request, or an argument, as ``argument `pins` ``, which is
what a caller in Python types. The command line names its option instead.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from placewright.cli.overwriting import Writes
from placewright.errors import FieldError, InputError, UnknownNameError
from placewright.session.request import Request, words

_OF_COMMANDS = {"changes": "--set", "runs": "--runs", "in_flight": "--in-flight"}


def option_of(field: str) -> str:
    """The option that sets a field: ``--pin`` for ``pins``."""
    if field in _OF_COMMANDS:
        return _OF_COMMANDS[field]
    how = words().get(field)
    word = field if how is None or not how.word else how.word
    return f"--{word.replace('_', '-')}"


def message_of(error: BaseException) -> str:
    """The message of an error, with the option in place of the field."""
    if isinstance(error, FieldError):
        return with_options(f"{option_of(error.field)} {error.fault}")
    return with_options(str(error))


def with_options(text: str) -> str:
    """Replace the arguments that a text names by options."""
    return re.sub(r"argument `(\w+)`", lambda match: option_of(match[1]), text)


def document_with_options(value: Any) -> Any:
    """Replace arguments by options in all texts of a JSON document."""
    if isinstance(value, str):
        return with_options(value)
    if isinstance(value, dict):
        return {key: document_with_options(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [document_with_options(item) for item in value]
    return value


class _WithOptions(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return with_options(super().format(record))


def warn_of_options() -> None:
    """Let warnings that the library logs name options."""
    if logging.lastResort is not None:  # the handler that prints warnings if nobody set another
        logging.lastResort.setFormatter(_WithOptions())


PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json.")]
Searched = Annotated[
    bool,
    typer.Option("--searched", help="Take the searched placement if the plan recommends another."),
]
ModelOfPlan = Annotated[
    Path | None,
    typer.Option("--model", help="Read the plan's model from this file, if it has moved."),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write to this file."), Writes()
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress on standard error.")]
EngineName = Annotated[
    str | None,
    typer.Option("--engine", help="Let this engine of language models do it: llama.cpp."),
]
EngineFolder = Annotated[
    Path | None,
    typer.Option("--engine-folder", help="Take the engine's programs from this folder."),
]
EngineServers = Annotated[
    str | None,
    typer.Option(
        "--servers", help="Take these RPC servers, host:port, as the cards, in their order."
    ),
]


def engine_asked(
    engine: str | None, of_engine: Mapping[str, object], others: Mapping[str, object]
) -> bool:
    """True if an engine is asked for.

    Args:
        of_engine: options that need an engine -> their values; None was not given.
        others: likewise, options that mean nothing with an engine.

    Raises:
        UnknownNameError: there is no such engine.
        InputError: options contradict each other.
    """
    from placewright.execution.engine.programs import ENGINE

    if engine is None:
        if (option := first_given(of_engine)) is not None:
            raise InputError(f"{option} is of an engine; give --engine {ENGINE}, too")
        return False
    if engine != ENGINE:
        raise UnknownNameError("engine", engine, (ENGINE,))
    if (option := first_given(others)) is not None:
        raise InputError(f"{option} means nothing with --engine; leave it out")
    return True


def given_fields(request: Request, *, besides: Collection[str] = ()) -> dict[str, object]:
    """Option of each field -> its value, None if that is the default.

    Args:
        besides: fields to leave out.
    """
    usual = Request(request.model)
    values = {name: getattr(request, name) for name in words() if name not in besides}
    return {
        option_of(name): None if value == getattr(usual, name) else value
        for name, value in values.items()
    }


def first_given(options: Mapping[str, object]) -> str | None:
    """The first option with a value; None if none was given."""
    return next((option for option, value in options.items() if value is not None), None)


def addresses_of(servers: str | None) -> list[str]:
    """The addresses of `--servers`."""
    return [] if servers is None else [part.strip() for part in servers.split(",")]
