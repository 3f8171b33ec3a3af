"""Commands: their options from the fields of a request, and one wrapper around each of them.

The wrapper refuses outputs without a folder or in place of inputs, runs the command in an isolated
process, repeats it for each size, and makes the `Request`, in this order.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from placewright.cli.help import help_all
from placewright.cli.isolate import ISOLATION, in_isolation
from placewright.cli.options import message_of, option_of, with_options
from placewright.cli.output import print_json, print_line, print_table
from placewright.cli.overwriting import check_outputs, outputs_of
from placewright.session.request import Request, request_of, words

if TYPE_CHECKING:
    from placewright.core.plan import Plan


def for_each_size(run: Callable[..., None], given: dict[str, Any]) -> None:
    """Run a command once for each size of `shapes`.

    The files of `output` and `report_file` get the size behind their names. A size without a plan
    does not end the others; Ctrl-C, after which a plan holds the incumbent, does.

    Args:
        given: its parameters, `shapes`, `output`, `report_file` and `as_json` among them.
    """
    from placewright.session.parsing import each_size, is_several

    texts = given["shapes"] or []
    if any(map(is_several, texts)):
        _run_each(run, given, each_size(texts))
    else:
        run(**given)


def _run_each(
    run: Callable[..., None], given: dict[str, Any], sizes: list[tuple[str, list[str]]]
) -> None:
    from placewright.cli.overwriting import files_behind, refuse_overwriting
    from placewright.errors import AnswerError, InputError, PlacewrightError
    from placewright.files.plan_file import read_plan
    from placewright.session.parsing import labelled

    names = [name for name in ("output", "report_file") if given[name] is not None]
    files = [{name: labelled(Path(given[name]), label) for name in names} for label, _ in sizes]
    read = files_behind(Path(given["model"]))
    refuse_overwriting([path for row in files for path in row.values()], read)
    as_json: bool = given["as_json"]
    failure: PlacewrightError | None = None
    documents: dict[str, Any] = {}
    rows = []
    for (label, texts), written in zip(sizes, files, strict=True):
        shown = io.StringIO()
        if not as_json:
            print_line(f"{label}:")
        hidden = contextlib.redirect_stdout(shown) if as_json else contextlib.nullcontext()
        try:
            with hidden:
                run(**{**given, "shapes": texts, **written})
            documents[label] = json.loads(shown.getvalue()) if as_json else None
            plan = read_plan(written["output"])
            rows.append([label, *_row(plan, written["output"])])
            if plan.placer.is_interrupted:
                break
        except (AnswerError, InputError) as error:  # one size does not end the others
            failure = failure if isinstance(failure, InputError) else error
            documents[label] = {"error": message_of(error)}
            rows.append([label, "-", message_of(error), "-"])
    if as_json:
        print_json({"plans": documents})
    else:
        print_table("One plan for each size", ["size", "takes", "verdict", "plan"], rows)
    if failure is not None:
        raise failure


def _row(plan: Plan, path: Path) -> list[str]:
    from placewright.core.quantities import value_text
    from placewright.report.verdict import verdict_lines

    return [value_text(plan.value, plan.problem.value_unit), verdict_lines(plan)[0], str(path)]


MODEL = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model file, hf:PATH, zoo:NAME, or a saved problem or plan."
    ),
]
LANGUAGE_MODEL = Annotated[
    str, typer.Argument(metavar="MODEL", help="A language model: its file, or hf:PATH.")
]
Command = Callable[..., None]


def command(
    *names: str,
    model: Any = MODEL,
    isolates: bool = False,
    each_size: bool = False,
    helps: Mapping[str, str] | None = None,
    **defaults: Any,
) -> Callable[[Command], Command]:
    """Give a function the options of a request's fields; it is called with the `Request`.

    The function's first parameter takes the request. Its own options follow those of the fields.

    Args:
        names: fields that are options; without any, all that can be said in words.
        model: annotation of the argument MODEL; None for a command that has none, or names its
            models in another way. Its request lacks the model.
        isolates: it has ``--isolate``.
        each_size: it runs once for each size that ``--shape`` gives.
        helps: help of fields that mean something else in this command.
        defaults: of fields that have another default in this command, as options or fixed.
    """
    chosen = {name: how for name, how in words().items() if name in names or not names}
    declared = {item.name: item for item in fields(Request)}
    told = {**{name: how.help for name, how in chosen.items()}, **(helps or {})}
    options = [
        _keyword(
            name,
            _annotation(name, declared[name], how.kind, with_options(told[name])),
            defaults[name] if name in defaults else _default(declared[name]),
        )
        for name, how in chosen.items()
    ]
    fixed = {name: value for name, value in defaults.items() if name not in chosen}
    arguments = [] if model is None else [_keyword("model", model, inspect.Parameter.empty)]

    def derived(function: Command) -> Command:
        taken, *own = _parameters(function)

        def run(**given: Any) -> None:
            said = fixed | {name: given[name] for name in chosen}
            rest = {parameter.name: given[parameter.name] for parameter in own}
            function(**{taken.name: request_of(given.get("model"), said)}, **rest)

        parameters = [*arguments, *options, *own]
        return _wrapped(function, run, parameters, isolates=isolates, each_size=each_size)

    return derived


def plain_command(function: Command) -> Command:
    """Make a command of a function that takes no request."""
    return _wrapped(function, function, _parameters(function))


def _wrapped(
    function: Command,
    run: Command,
    parameters: Sequence[inspect.Parameter],
    *,
    isolates: bool = False,
    each_size: bool = False,
) -> Command:
    """The wrapper of a command.

    Args:
        run: is called with the values of `parameters`.
        isolates, each_size: see `command`.
    """
    outputs = outputs_of(function)
    added = [_keyword(name, *option) for name, option in ISOLATION.items()] if isolates else []

    @wraps(function)
    def wrapper(*, help_all: bool = False, **given: Any) -> None:
        del help_all  # whose callback has ended the command
        check_outputs(outputs, given)
        if isolates:
            given = in_isolation(outputs, given)
        if each_size:
            for_each_size(run, given)
        else:
            run(**given)

    whole = [*parameters, *added, help_all()]
    wrapper.__signature__ = inspect.Signature(whole)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in whole}
    wrapper.is_wrapped = True  # type: ignore[attr-defined]
    del wrapper.__dict__["__wrapped__"]
    return wrapper


def _parameters(function: Command) -> list[inspect.Parameter]:
    """The parameters of a function by keyword, with annotations that are no texts."""
    hints = get_type_hints(function, include_extras=True)
    return [
        _keyword(parameter.name, hints[parameter.name], parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _default(field: Field[Any]) -> Any:
    """The default of an option; a container that is empty by default stands for no option.

    A number behind a text is a number of seconds.
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
        raise TypeError(f"field '{name}' of a request has kind {kind}, which is no option")
    return Annotated[
        known | None if _default(field) is None else known, typer.Option(flag, help=help)
    ]
