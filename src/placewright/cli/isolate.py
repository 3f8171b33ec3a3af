"""``--isolate``: the command runs in a process that reaches no network and no other files."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from placewright.cli.overwriting import outputs_of, paths_in, written_by

Isolate = Annotated[
    bool,
    typer.Option(
        "--isolate",
        help="Read and run the model in a process without network, with limits (Linux).",
    ),
]
IsolationLimits = Annotated[
    str | None,
    typer.Option("--isolation-limits", help="With --isolate: such as memory=8GiB,cpu=1h."),
]
_OPTIONS = {"isolate": (Isolate, False), "isolation_limits": (IsolationLimits, None)}
_within: dict[str, Path] = {}
_is_within: list[bool] = []


def within_isolation(outputs: Mapping[str, Path]) -> None:
    """This process is the isolated one.

    Args:
        outputs: parameter of the command -> the file that it writes here.
    """
    _is_within[:] = [True]
    _within.clear()
    _within.update(outputs)


def may_isolate(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--isolate``: it is then run in a process of its own."""
    own = inspect.signature(command).parameters.values()
    hints = get_type_hints(command, include_extras=True)
    kept = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own
    ]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (annotation, default) in _OPTIONS.items()
    ]

    @wraps(command)
    def call(*, isolate: bool, isolation_limits: str | None, **given: Any) -> None:
        if _is_within:
            command(**{**given, **_within})
        elif isolate:
            raise typer.Exit(_isolated(command, given, isolation_limits))
        else:
            _refuse_limits(isolation_limits)
            command(**given)

    parameters = [*kept, *added]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    del call.__dict__["__wrapped__"]
    return call


def _refuse_limits(limits: str | None) -> None:
    from placewright.errors import InputError

    if limits is not None:
        raise InputError("--isolation-limits needs --isolate")


def _isolated(command: Callable[..., None], given: Mapping[str, Any], limits: str | None) -> int:
    from placewright.errors import InputError
    from placewright.isolation.command import IsolatedCommand, run_isolated

    if given.get("compiled"):
        raise InputError("--compile starts a compiler, which --isolate forbids; leave out one")
    if given.get("workers") is not None or given.get("ray") is not None:
        option = "--workers" if given.get("ray") is None else "--ray"
        raise InputError(f"{option} starts processes, which --isolate forbids; leave out one")
    if given.get("report_file") is not None:
        raise InputError(
            "--report writes a page with scripts, which an isolated process may not; make it of "
            "the plan: placewright report PLAN"
        )
    outputs = {
        name: written_by(marker, given[name])
        for name, marker in outputs_of(command).items()
        if given[name] is not None
    }
    read = [value for name, value in given.items() if name not in outputs]
    return run_isolated(
        IsolatedCommand(
            words=sys.argv[1:],
            outputs=outputs,
            readable=list(dict.fromkeys(_readable(read))),
            model=str(given.get("model", given.get("plan_file"))),
            limits=_limits(limits),
        )
    )


def _readable(values: Iterable[Any]) -> Iterator[Path]:
    """What the command line names, and the folders of the files behind it.

    A model's own check tells which files of its folder it refers to; a library may look for others
    beside it.
    """
    from placewright.session.companions import files_behind

    for value in values:
        for path in paths_in(value):
            for file in files_behind(path):
                yield file.resolve()
                if file.is_file():
                    yield file.parent.resolve()


def _limits(text: str | None) -> Any:
    from dataclasses import replace

    from placewright.errors import InputError
    from placewright.files.quantities import parse_bytes, parse_seconds
    from placewright.isolation.limits import Limits

    found = Limits.usual()
    parsers: dict[str, Callable[[str], float]] = {
        "memory": parse_bytes, "cpu": parse_seconds, "files": parse_bytes,
    }  # fmt: skip
    for part in (text or "").split(","):
        name, is_given, amount = part.partition("=")
        if not part.strip() and text is None:
            continue
        if name.strip() not in parsers or not is_given:
            raise InputError(
                f"--isolation-limits is memory=SIZE, cpu=TIME and files=SIZE, got '{part}'"
            )
        value = parsers[name.strip()](amount)
        if not 1.0 <= value < 2.0**62:
            raise InputError(f"--isolation-limits {part}: expected a limit of 1 or more")
        found = replace(found, **{name.strip(): value})
    return found
