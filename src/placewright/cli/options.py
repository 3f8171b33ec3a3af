"""Arguments and options that mean the same in every command and are not fields of a request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli.overwriting import Writes

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
    engine: str | None,
    folder: Path | None,
    servers: str | None,
    others: Mapping[str, object],
) -> bool:
    """True if an engine is asked for.

    Args:
        folder, servers: options that need an engine.
        others: options that mean nothing with an engine -> their values; None was not given.

    Raises:
        UnknownNameError: there is no such engine.
        InputError: options contradict each other.
    """
    from placewright.errors import InputError, UnknownNameError
    from placewright.execution.engine.programs import ENGINE

    if engine is None:
        if folder is not None or servers is not None:
            option = "--servers" if folder is None else "--engine-folder"
            raise InputError(f"{option} is of an engine; give --engine {ENGINE}, too")
        return False
    if engine != ENGINE:
        raise UnknownNameError("engine", engine, (ENGINE,))
    given = [option for option, value in others.items() if value is not None]
    if given:
        raise InputError(f"{given[0]} means nothing with --engine; leave it out")
    return True


def addresses_of(servers: str | None) -> list[str]:
    """The addresses of `--servers`."""
    return [] if servers is None else [part.strip() for part in servers.split(",")]
