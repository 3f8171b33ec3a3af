"""The application: registers the commands, turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from placewright.cli.output import (
    drop_results,
    error_line,
    keep_standard_output_for_results,
    open_standard_streams,
)
from placewright.cli.overwriting import protect_inputs
from placewright.errors import AnswerError, InputError, PlacewrightError
from placewright.frameworks.registry import prepare_process

EXIT_NO, EXIT_WRONG_INPUT, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 70, 130

app = typer.Typer(
    name="placewright",
    help="Decide which device runs each operator of a neural network, prove it, run it.",
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
    """Decide which device runs each operator of a neural network, prove it, run it."""
    del version


def main() -> NoReturn:
    """Run the command line and exit: 0 done, 1 the answer is no, 2 the input is wrong."""
    prepare_process()  # before anything starts a thread
    open_standard_streams()
    keep_standard_output_for_results()
    from placewright.cli import bench, compare, explain, export, inspect, place, report, run, train

    for module in (inspect, place, run, report, explain, export, compare, train, bench):
        module.register(app)
    protect_inputs(app)
    sys.exit(_exit_code())


def _exit_code() -> int:
    try:
        result = app(standalone_mode=False)
        sys.stdout.flush()  # a disk that is full is told here, not when the interpreter ends
    except typer.Abort:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # Typer keeps this class to itself
            sys.stdout.write(f"{error.format_message().rstrip()}\n")
            return 0
        text = error.format_message() if isinstance(error, typer.BadParameter) else str(error)
        return _fail(text, EXIT_WRONG_INPUT)
    except (InputError, AnswerError, PlacewrightError) as error:
        return _fail(str(error), EXIT_NO if isinstance(error, AnswerError) else EXIT_WRONG_INPUT)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        drop_results()
        return EXIT_NO
    except MemoryError as error:
        return _fail(f"there is not enough memory: {error}", EXIT_NO)
    except OSError as error:
        drop_results()
        name = error.filename or "standard output"
        return _fail(f"{name}: {error.strerror or error}", EXIT_WRONG_INPUT)
    except Exception as error:
        if os.environ.get("PLACEWRIGHT_TRACEBACK"):
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error}; this is a bug in placewright, "
            "set PLACEWRIGHT_TRACEBACK=1 to see where",
            EXIT_BUG,
        )
    if result == EXIT_INTERRUPTED:  # what Typer makes of Ctrl-C, without a word
        return _fail("interrupted", EXIT_INTERRUPTED)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    with contextlib.suppress(OSError, ValueError):  # nobody listens
        sys.stderr.write(f"{error_line(message)}\n")
        sys.stderr.flush()
    return code
