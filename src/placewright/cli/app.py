"""The application: registers the commands and turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from placewright.cli.help import Application, ListOfCommands
from placewright.cli.options import message_of, option_of, warn_of_options
from placewright.cli.output import (
    drop_results,
    error_line,
    keep_standard_output_for_results,
    open_standard_streams,
)
from placewright.cli.signals import EXIT_INTERRUPTED, forget, leave, received, state, word
from placewright.errors import AnswerError, InputError, PlacewrightError
from placewright.frameworks.registry import path_in, prepare_process
from placewright.session.request import words
from placewright.workers.ray_workers import ADDRESS, ANY, HERE

EXIT_NO, EXIT_WRONG_INPUT, EXIT_BUG = 1, 2, 70
# Options of `graph` and `devices` without a field of a request.
_OPS, _CATALOGUE = "--ops", "--catalogue"
_VALUE = re.compile(rf"{ANY}|{HERE}|{ADDRESS}")  # of --ray

app = Application(
    name="placewright",
    cls=ListOfCommands,
    help="Find a device for each operator of a neural network, prove how good that is, and run it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        sys.stdout.write(f"placewright {version('placewright')}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Find a device for each operator of a neural network, prove how good that is, and run it."""
    del version


def main() -> NoReturn:
    """Run the command line and exit with a code.

    0 is success; 1 a valid input with a negative answer, such as no placement, other outputs or too
    little time; 2 a wrong input; 70 a bug of Placewright; 128 plus its number a signal.
    """
    try:
        code = _run()
        state.is_ending = True
    except KeyboardInterrupt:  # before the command began or after it ended
        state.is_ending = True
        code = _interrupted()
    forget()
    leave(code)
    sys.exit(code)


def _run() -> int:
    prepare_process()  # before anything starts a thread
    open_standard_streams()
    keep_standard_output_for_results()
    warn_of_options()
    all_commands()
    return _exit_code()


def all_commands() -> typer.Typer:
    """The application with every command registered."""
    from placewright.cli import bench, compare, inspect, place, report, run

    for command in (
        *(inspect.devices, inspect.graph, inspect.profile, inspect.placers),
        *(place.place, place.advise, run.simulate, run.run),
        *(report.report, report.explain, report.diff, report.export),
        *(compare.compare, compare.replay, compare.train),
    ):
        app.command()(command)
    app.add_typer(bench.group(), name="bench")
    return app


def with_bare_options(arguments: Sequence[str]) -> list[str]:
    """A copy of the arguments in which options that stand without a value have a default one.

    ``--ray`` becomes ``--ray=auto`` unless ``auto``, ``local`` or an address follows;
    ``--catalogue`` becomes ``--catalogue=*`` unless a word that does not begin with ``-`` follows;
    ``--ops`` becomes ``--ops=*`` if an option, a model of the zoo, an existing path or nothing
    follows. Typer has no options with an optional value.
    """
    bare = {option_of(name): how.bare for name, how in words().items() if how.bare}
    bare |= {_OPS: "*", _CATALOGUE: "*"}
    completed: list[str] = []
    for at, argument in enumerate(arguments):
        if argument == "--":
            return [*completed, *arguments[at:]]
        following = arguments[at + 1] if at + 1 < len(arguments) else ""
        if argument == _OPS:  # a model may follow; names of ops may be longer than those of files
            is_model = following.startswith(("-", "zoo:")) or os.path.exists(path_in(following))
            is_bare = following == "" or is_model
        elif argument == _CATALOGUE:
            is_bare = following == "" or following.startswith("-")
        else:
            is_bare = argument in bare and not _VALUE.fullmatch(following)
        completed.append(f"{argument}={bare[argument]}" if is_bare else argument)
    return completed


def _exit_code() -> int:
    try:
        arguments = with_bare_options(sys.argv[1:])
        result = app(arguments, prog_name="placewright", standalone_mode=False)
        sys.stdout.flush()  # report a full disk here and not when the interpreter ends
    except (typer.Abort, KeyboardInterrupt):
        state.is_ending = True
        return _interrupted()
    except Exception as error:
        state.is_ending = True
        if received() is not None:  # a compiler's callback turns a signal's exception into others
            return _interrupted()
        return _code_of(error)
    if result == EXIT_INTERRUPTED:  # Typer returns this code after Ctrl-C and prints nothing
        state.is_ending = True
        return _interrupted()
    return result if isinstance(result, int) else 0


# Errors of writing without a file's name: standard output is full, or was closed.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def _code_of(error: Exception) -> int:
    """Write one line about an error, and return its exit code; see `main`.

    A command without arguments prints its help instead, and a closed pipe prints nothing. If
    PLACEWRIGHT_TRACEBACK is set, a bug is raised again.
    """
    if isinstance(error, TyperException):
        if type(error).__name__ == "NoArgsIsHelpError":  # Typer does not export this class
            sys.stdout.write(f"{error.format_message().rstrip()}\n")
            return 0
        return _fail(_message_of_typer(error), EXIT_WRONG_INPUT)
    if isinstance(error, PlacewrightError):
        is_no = isinstance(error, AnswerError) and not isinstance(error, InputError)
        return _fail(message_of(error), EXIT_NO if is_no else EXIT_WRONG_INPUT)
    if isinstance(error, BrokenPipeError):
        drop_results()
        return EXIT_NO
    if isinstance(error, MemoryError):
        return _fail(f"there is not enough memory: {error}", EXIT_NO)
    if isinstance(error, OSError):
        drop_results()
        unnamed = "standard output" if error.errno in _OF_OUTPUT else type(error).__name__
        name = error.filename or unnamed
        return _fail(f"{name}: {error.strerror or error}", EXIT_WRONG_INPUT)
    if os.environ.get("PLACEWRIGHT_TRACEBACK"):
        raise error
    return _fail(
        f"internal error: {type(error).__name__}: {error}; this is a bug in placewright, "
        "set PLACEWRIGHT_TRACEBACK=1 to see where",
        EXIT_BUG,
    )


_EXPECTED = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def _message_of_typer(error: TyperException) -> str:
    near = getattr(error, "possibilities", None)  # of an unknown option
    if near:
        return f"{error}; did you mean {' or '.join(sorted(near))}?"
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "MissingParameter" and context is not None:  # nor this one
        what = error.format_message().rstrip(".")
        return f"{what}; `{context.command_path} --help` lists what to give"
    if callable(faults := getattr(error.__cause__, "errors", None)):  # the text is no such number
        fault = faults()[0]
        expected = _EXPECTED.get(str(fault["type"]).partition("_")[0], "another value")
        parameter = getattr(error, "param", None)
        option = "an argument" if parameter is None else parameter.opts[-1]
        return f"{option} expects {expected}, got '{fault['input']}'"
    return error.format_message() if isinstance(error, typer.BadParameter) else str(error)


def _interrupted() -> int:
    code = received() or EXIT_INTERRUPTED
    return _fail(word(), code)


def _fail(message: str, code: int) -> int:
    with contextlib.suppress(OSError, ValueError):  # standard error is closed
        sys.stderr.write(f"{error_line(message)}\n")
        sys.stderr.flush()
    return code
