"""``--isolate``: the command runs in a process that reaches no network and no other files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from placewright.cli.overwriting import Writes, files_behind, paths_in, written_by

Isolate = Annotated[
    bool,
    typer.Option(
        "--isolate",
        help="Read and run the model in a process without network, with limits (Linux).",
    ),
]
IsolationLimits = Annotated[
    str | None,
    typer.Option(
        "--isolation-limits", help="With --isolate: set limits such as memory=8GiB,cpu=1h."
    ),
]
# Parameter -> annotation and default.
ISOLATION = {"isolate": (Isolate, False), "isolation_limits": (IsolationLimits, None)}
_within: dict[str, Path] = {}
_is_within: list[bool] = []


def within_isolation(outputs: Mapping[str, Path]) -> None:
    """Let this process be the isolated one.

    Args:
        outputs: parameter of the command -> the file that it writes in this process.
    """
    _is_within[:] = [True]
    _within.clear()
    _within.update(outputs)


def in_isolation(outputs: Mapping[str, Writes], given: dict[str, Any]) -> dict[str, Any]:
    """The parameters with which a command runs in this process; ends it if another process ran it.

    Args:
        outputs: parameter of the command -> its mark.
        given: its parameters with those of `ISOLATION`.

    Raises:
        InputError: limits are given without isolation, or the command cannot be isolated.
        typer.Exit: an isolated process ran the command.
    """
    own = {name: value for name, value in given.items() if name not in ISOLATION}
    if _is_within:
        return {**own, **_within}
    if given["isolate"]:
        raise typer.Exit(_isolated(outputs, own, given["isolation_limits"]))
    _refuse_limits(given["isolation_limits"])
    return own


def _refuse_limits(limits: str | None) -> None:
    from placewright.errors import InputError

    if limits is not None:
        raise InputError("--isolation-limits needs --isolate")


def _isolated(outputs: Mapping[str, Writes], given: Mapping[str, Any], limits: str | None) -> int:
    from placewright.cli.signals import answer
    from placewright.errors import InputError
    from placewright.isolation.command import IsolatedCommand, run_isolated

    if given.get("compiled"):
        raise InputError("--compile starts a compiler, which --isolate forbids; leave out one")
    if given.get("engine") is not None:
        raise InputError("--engine starts programs, which --isolate forbids; leave out one")
    if given.get("workers") is not None or given.get("ray") is not None:
        option = "--workers" if given.get("ray") is None else "--ray"
        raise InputError(f"{option} starts processes, which --isolate forbids; leave out one")
    if given.get("report_file") is not None:
        raise InputError(
            "--report writes a page with scripts, which an isolated process may not; make it of "
            "the plan: placewright report PLAN"
        )
    written = {
        name: [
            file for path in _for_each_size(given[name], given) for file in written_by(marker, path)
        ]
        for name, marker in outputs.items()
        if given[name] is not None
    }
    read = {name: value for name, value in given.items() if name not in written}
    asked = IsolatedCommand(
        words=sys.argv[1:],
        outputs=written,
        readable=_readable(read),
        model=str(given.get("model", given.get("plan_file"))),
        limits=_limits(limits),
        prints_json=bool(given.get("as_json")),
    )
    try:
        code = run_isolated(asked)
    except InputError:
        answer()  # the process has answered a signal, if one arrived: this error came later
        raise
    answer()
    return code


def _for_each_size(path: Path, given: Mapping[str, Any]) -> list[Path]:
    """The file of a parameter, and those of each size if the command runs once for each."""
    from placewright.session.parsing import each_size, is_several, labelled

    texts = given.get("shapes") or []
    labels = [label for label, _ in each_size(texts)] if any(map(is_several, texts)) else []
    return [path, *(labelled(path, label) for label in labels)]


def _readable(read: Mapping[str, Any]) -> list[Path]:
    """The files that the command line names, and their folders.

    Folders are included, since a library may look for further files beside a model. Files behind
    the named ones open no other folder, for the author of a stranger's plan chose them.

    Raises:
        InputError: a plan, a problem or a graph refers to a file outside these folders.
    """
    from placewright.errors import InputError
    from placewright.io.opened import shown_name

    named = [path for value in read.values() for path in paths_in(value) if os.path.exists(path)]
    folders = [folder for path in named for folder in _folders_of(path)]
    behind = {file: path for path in named for file in files_behind(path)}
    is_inside = {file: any(map(file.resolve().is_relative_to, folders)) for file in behind}
    # A relative name may stand for two files; the one in a named folder is read.
    inside = {file.name for file in behind if is_inside[file]}
    for file, path in behind.items():
        if is_inside[file] or file == path or file.name in inside or path.is_dir():
            continue
        if remedy := _remedy(path, file, read):
            raise InputError(
                f"'{shown_name(path)}' refers to '{shown_name(file)}', outside the folders that "
                f"--isolate lets it read; {remedy}"
            )
    return list(dict.fromkeys([*(path.resolve() for path in named), *folders]))


def _remedy(path: Path, file: Path, read: Mapping[str, Any]) -> str:
    """Advice on a file outside the folders of a command; "" if it is a model that is not read."""
    from placewright.io.opened import shown_name

    if path.suffix.lower() != ".json":
        return "copy it there"  # a file of weights that is a link
    if file.suffix.lower() == ".json" and "model_file" in read:
        return "copy it to the folder of the plan and place again"
    if "model_file" in read:
        return "" if read["model_file"] is not None else "give the plan's model as --model FILE"
    return f"give the model in place of '{shown_name(path)}'"


def _folders_of(path: Path) -> Iterator[Path]:
    """Yield the folder that a named path opens, and the files of its cache of Hugging Face.

    Such a cache has links in ``snapshots/REVISION`` to files in ``blobs``.
    """
    if not (path.is_dir() or path.is_file()):
        return  # a pipe or a device
    folder = (path if path.is_dir() else path.parent).resolve()
    yield folder
    for parent in folder.parents:
        model = parent.parent
        is_cache = parent.name == "snapshots" and model.name.startswith("models--")
        if is_cache and not (model / "blobs").is_symlink():
            yield model / "blobs"


def _limits(text: str | None) -> Any:
    from dataclasses import replace

    from placewright.core.quantities import parse_bytes, parse_seconds
    from placewright.errors import InputError
    from placewright.isolation.confined import Limits

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
                "--isolation-limits takes any of memory=SIZE, cpu=TIME and files=SIZE, between "
                f"commas, got '{part}'"
            )
        value = parsers[name.strip()](amount)
        if not 1.0 <= value < 2.0**62:
            raise InputError(
                f"--isolation-limits {part}: expected a limit of 1 or more, and below 2^62"
            )
        found = replace(found, **{name.strip(): value})
    return found
