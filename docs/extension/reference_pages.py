"""Sphinx extension that writes pages from the code: commands, placers, Python names, catalogue."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import placewright
from placewright.cli import inspect as commands
from placewright.cli.help import EXAMPLES, default_of, metavar_of, names_of, panels_of
from placewright.placers.registry import placer_class, placer_names
from placewright.profiling.catalogue import listing

_ATTRIBUTES = r"\n\s*Attributes(?: \(.*\))?:\n"  # such as "Attributes (besides those of Base):"
_FILES = """The examples read these files:

- `model.onnx`: a small model with input `x` of shape (1, 4) and output `y` of shape (1, 3);
- `plan.json`: a plan of that model on one device;
- `problem.json`: a stem of 1 s, two branches of 2 s each (`left`, `right`) and a head of 1 s, on
  two equal devices without transfer times; `other.json` is twice as slow;
- `cluster.yaml`: a processor and a GPU with 8 GiB."""
_CODE = re.compile(r"(`[^`]*`|(?<![\w-])--[a-z][\w-]*)")  # code, or an option in a sentence


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the step that writes the pages before Sphinx reads any."""
    app.connect("builder-inited", _write_pages)
    app.connect("missing-reference", _code_of_unknown_name)
    app.connect("autodoc-process-signature", _signature_that_parses)
    return {"parallel_read_safe": True}


def _write_pages(app: Sphinx) -> None:
    reference = Path(app.srcdir) / "reference"
    pages = {f"commands/{name}.md": text for name, text in command_pages()}
    pages |= {f"placers/{name}.md": placer_page(name) for name in placer_names()}
    pages["commands/index.md"] = _index("Commands", [name for name, _ in command_pages()])
    pages["placers/index.md"] = _index("Pages of the placers", placer_names())
    pages["python-names.md"] = python_page()
    pages["catalogue.md"] = catalogue_page()
    for name, text in pages.items():
        path = reference / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != text:  # an unchanged page is not read again
            path.write_text(text)


def _index(title: str, names: Sequence[str]) -> str:
    links = "\n".join(names)
    return f"# {title}\n\n```{{toctree}}\n:maxdepth: 1\n\n{links}\n```\n"


def command_pages() -> Iterator[tuple[str, str]]:
    """Name and Markdown of each command, `bench` with its subcommands on one page."""
    for name, command in sorted(_group().commands.items()):
        parts = [f"# placewright {name}", _description(command)]
        for inner, each in sorted(getattr(command, "commands", {}).items()):
            parts += [f"## placewright {name} {inner}", _description(each)]
            parts.append(_parameters(each, f"{name} {inner}"))
        if not hasattr(command, "commands"):
            parts.append(_parameters(command, name))
        yield name, "\n\n".join(parts) + "\n"


def _group() -> Any:
    from typer.main import get_command

    from placewright.cli.app import all_commands

    return get_command(all_commands())


def _description(command: Any) -> str:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(_escaped(" ".join(part.split())) for part in paragraphs)


def _parameters(command: Any, name: str) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    usage = " ".join([*(metavar_of(each) for each in arguments), "[OPTIONS]"])
    parts = [f"Usage: `placewright {name} {usage}`"]
    for panel, options in panels_of(command, shows_all=True):
        entries = (
            _option(
                names_of(each), "required" if each.required else default_of(each), each.help or ""
            )
            for each in options
        )
        parts.append(f"**{panel}**\n\n{''.join(entries)}".rstrip())
    if examples := EXAMPLES.get(command.name, ()):
        lines = "\n".join(f"placewright {line}" for line in examples)
        parts.append(f"**Examples**\n\n```sh\n{lines}\n```")
    return "\n\n".join(parts)


def _option(name: str, default: str, meaning: str) -> str:
    """An entry of a list of definitions, which fits a narrow screen better than a table."""
    known = f" (default: {_escaped(default)})" if default not in ("", "required") else ""
    known = " (required)" if default == "required" else known
    return f"`{name}`{known}\n: {_escaped(meaning) or 'No description.'}\n\n"


def _escaped(text: str) -> str:
    """Text in Markdown; options are code, since their dashes would become one long dash."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([|*_<>\[\]{}$])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [code if code.startswith("`") else f"`{code}`" for code in parts[1::2]]
    return "".join(parts)


def placer_page(name: str) -> str:
    """Markdown of one placer: paper, idea, options with defaults, departures from the paper."""
    placer = placer_class(name)
    module = importlib.import_module(placer.__module__)
    objectives = ", ".join(placer.objectives)
    parts = [
        f"# {name}",
        f"Paper: {placer.paper}. Objectives: {objectives}. "
        f"{'Learns while it searches.' if placer.needs_training else ''}".rstrip(),
        _rst(inspect.cleandoc(module.__doc__ or "")),
        _rst(_summary_of(placer)),
        "## Options",
        _option_table(name, placer),
    ]
    return "\n\n".join(parts) + "\n"


def _summary_of(placer: type[Any]) -> str:
    return re.split(_ATTRIBUTES, inspect.cleandoc(placer.__doc__ or ""))[0].strip()


def _option_table(name: str, placer: type[Any]) -> str:
    meanings = attribute_descriptions(placer)
    fields = dataclasses.fields(placer)
    if not fields:
        return "None."
    first = fields[0].name
    given = f"Set an option with `--set-placer {first}=VALUE`, or with "
    given += f"`--placers {name}:{first}=VALUE`."
    entries = (
        _option(f"{one.name}={one.default}", "", meanings.get(one.name, "")) for one in fields
    )
    return f"{given}\n\n{''.join(entries)}".rstrip()


def attribute_descriptions(documented: type[Any]) -> dict[str, str]:
    """Name and text of each entry below ``Attributes:`` of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(documented.__mro__):
        parts = re.split(_ATTRIBUTES, inspect.cleandoc(base.__doc__ or ""))
        below = parts[1] if len(parts) > 1 else ""
        entries = re.findall(r"^    (\w+(?:, \w+)*): ((?:.*\n?)(?:^     +.*\n?)*)", below, re.M)
        found |= {
            name: " ".join(text.split()) for names, text in entries for name in names.split(", ")
        }
    return found


def python_page() -> str:
    """Markdown with the documentation of every public name."""
    parts = ["# Names in Python", "Everything here is in `import placewright as pw`.", _FILES]
    for name in placewright.__all__:
        value = getattr(placewright, name)
        if isinstance(value, str):
            continue
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        kind = "autoexception" if kind == "autoclass" and issubclass(value, Exception) else kind
        path = f"placewright.{name}"
        members = "   :members:\n" if kind == "autoclass" else ""
        parts.append(f"## {name}\n\n" + _directive(f".. {kind}:: {path}\n{members}"))
    return "\n\n".join(parts) + "\n"


_ABOUT_CATALOGUE = """`placewright devices --catalogue` prints this list, and
`placewright devices --catalogue rtx` a part of it.
[Costs without hardware](../how-to/costs-without-hardware.md) explains the rates."""


def catalogue_page() -> str:
    """Markdown of all devices, links and clusters of the catalogue."""
    found = listing()
    clusters = (commands.cluster_row(*cluster) for cluster in found.clusters.items())
    parts = [
        "# Catalogue of devices",
        _ABOUT_CATALOGUE,
        *map(_escaped, commands.HOW_TO_NAME),
        "## Devices",
        _table(commands.DEVICE_COLUMNS, map(commands.device_row, found.devices)),
        "## Links",
        _table(commands.LINK_COLUMNS, map(commands.link_row, found.links)),
        "## Clusters",
        _table(commands.CLUSTER_COLUMNS, clusters),
    ]
    return "\n\n".join(parts) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is code."""
    lines = [columns, ["---"] * len(columns), *([f"`{row[0]}`", *row[1:]] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _directive(text: str) -> str:
    return f"```{{eval-rst}}\n{text}```"


def _rst(text: str) -> str:
    return _directive(f"{_with_spaced_lists(text)}\n") if text else ""


def _with_spaced_lists(text: str) -> str:
    """Put blank lines around lists, which docstrings leave out and reStructuredText wants."""
    lines: list[str] = []
    bullet = -1  # indentation of the list that is open
    for line in text.split("\n"):
        depth = len(line) - len(line.lstrip())
        begins = re.match(r"\s*\* ", line) is not None and bullet < 0
        ends = bullet >= 0 and line.strip() != "" and depth < bullet
        if begins or ends:
            lines.append("")
            bullet = depth if begins else -1
        lines.append(line)
    return "\n".join(lines)


def _signature_that_parses(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, result: Any
) -> tuple[str | None, Any]:
    """Write `...` for the default that a factory makes: Sphinx shows the rest as raw text else."""
    del app, what, name, value, options
    return signature and re.sub(r" ?= ?<factory>", " = ...", signature), result


def _code_of_unknown_name(app: Sphinx, env: Any, node: Any, content: Any) -> Any:
    """Show a type that has no page of its own as plain code."""
    del app, env
    return content if node.get("reftype") in ("class", "obj", "data", "exc", "func") else None
