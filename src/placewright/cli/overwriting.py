"""Around every command: before it starts, what it writes must not be what it reads.

A parameter that names an output says so with `Writes` in its annotation. All other values that
name something on the disk are taken for what the command reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer


def _nothing_else(path: Path) -> Iterable[Path]:
    return ()


@dataclass(frozen=True)
class Writes:
    """Marks a parameter as a path that the command writes.

    Attributes:
        also: further files that are written when the path is.
    """

    also: Callable[[Path], Iterable[Path]] = _nothing_else


def protect_inputs(app: typer.Typer) -> None:
    """Let every command of `app` refuse to write over what it reads."""
    for group in app.registered_groups:
        if group.typer_instance is not None:
            protect_inputs(group.typer_instance)
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _protected(command.callback)


def _protected(command: Callable[..., Any]) -> Callable[..., Any]:
    outputs = outputs_of(command)
    if not outputs:
        return command

    @wraps(command)
    def call(**given: Any) -> Any:
        from placewright.files.overwriting import refuse_overwriting
        from placewright.session.companions import files_behind

        written = [
            file for name, marker in outputs.items() for file in written_by(marker, given[name])
        ]
        values = [value for name, value in given.items() if name not in outputs]
        named = [path for value in values for path in paths_in(value)]
        refuse_overwriting(written, (file for path in named for file in files_behind(path)))
        return command(**given)

    return call


def outputs_of(command: Callable[..., Any]) -> dict[str, Writes]:
    """Parameter of a command -> how it says that it is written."""
    hints = get_type_hints(command, include_extras=True)
    return {
        name: marker
        for name, hint in hints.items()
        for marker in get_args(hint)
        if isinstance(marker, Writes)
    }


def written_by(marker: Writes, value: Any) -> list[Path]:
    """The files that a parameter with this value writes, its own first."""
    return [file for path in paths_in(value) for file in (path, *marker.also(path))]


def paths_in(value: Any) -> Iterator[Path]:
    """A path; or a text, its parts between commas, or what stands behind a ``=`` in it."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from paths_in(entry)
    elif isinstance(value, str) and value:
        for part in dict.fromkeys((value, *re.split("[,=]", value))):
            if part and "\0" not in part and len(part) < 4096:
                yield Path(part)
