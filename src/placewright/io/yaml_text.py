"""Foreign YAML: a few kilobytes can stand for gigabytes, so the size is counted first.

An alias stands for the whole node of its anchor: nine lines of nine aliases stand for 9^9 nodes.
The parser's events give the number of nodes before any node is created.
"""

from __future__ import annotations

from typing import Any

import yaml

from placewright.errors import FileFormatError
from placewright.io.opened import shown_name

_MAX_NODES = 1_000_000
_DEEPEST = 100
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING = (yaml.SequenceStartEvent, yaml.MappingStartEvent)
_CLOSING = (yaml.SequenceEndEvent, yaml.MappingEndEvent)


def yaml_value(text: str, path: object) -> Any:
    """The value of a YAML text.

    Raises:
        FileFormatError: it is not YAML, or its aliases stand for too many nodes.
    """
    try:
        _require_bounded(text)
        value = yaml.load(text, Loader=_LOADER)  # a safe loader creates plain data only
        _require_plain(value)
        return value
    except FileFormatError as error:
        raise FileFormatError(f"file '{shown_name(str(path))}': {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError, TypeError) as error:
        line = " ".join(str(error).replace(' in "<unicode string>",', " at").split())
        raise FileFormatError(f"file '{shown_name(str(path))}' is not valid YAML: {line}") from None


def _require_bounded(text: str) -> None:
    """Refuse aliases that stand for more than a million nodes, and deep nesting."""
    sizes: dict[str, int] = {}  # anchor -> nodes
    open_nodes: list[tuple[str | None, int]] = []  # anchor, nodes before it
    total = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise FileFormatError(
                    f"alias '{shown_name(event.anchor)}' stands for what holds it"
                )
            total += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, _OPENING):
            open_nodes.append((event.anchor, total))
            sizes.pop(event.anchor or "", None)
            total += 1
            if len(open_nodes) > _DEEPEST:
                raise FileFormatError(f"it is nested more than {_DEEPEST} levels deep")
        elif isinstance(event, _CLOSING):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = total - before
        if total > _MAX_NODES:
            raise FileFormatError(f"it stands for more than {_MAX_NODES} values; write them out")


def _require_plain(value: Any) -> None:
    """Refuse integers of more than 64 bits and texts that cannot be printed."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _require_plain(key)
            _require_plain(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            _require_plain(entry)
    elif isinstance(value, str):
        if not value.isprintable() and any(letter in value for letter in "\0\r\n"):
            raise FileFormatError(f"the text '{shown_name(value)}' has more than one line")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise FileFormatError("an integer in it has more than 64 bits")
