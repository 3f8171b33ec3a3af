"""Options whose value may be left out, which Typer does not know: ``--ray`` is ``--ray=auto``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from placewright.cli.wording import option_of
from placewright.session.request import words
from placewright.workers.address import ADDRESS, ANY, HERE

_OPS = "--ops"  # of `graph`
_VALUE = re.compile(rf"{ANY}|{HERE}|{ADDRESS}")


def with_bare_options(arguments: Sequence[str]) -> list[str]:
    """The words of a command line with the values that were left out.

    What follows such an option is its value where it looks like one.
    """
    bare = {option_of(name): how.bare for name, how in words().items() if how.bare}
    bare[_OPS] = "*"
    found: list[str] = []
    for at, word in enumerate(arguments):
        if word == "--":
            return [*found, *arguments[at:]]
        following = arguments[at + 1] if at + 1 < len(arguments) else ""
        if word == _OPS:  # a model may follow
            missing = following.startswith(("-", "zoo:")) or Path(following).exists()
        else:
            missing = word in bare and not _VALUE.fullmatch(following)
        found.append(f"{word}={bare[word]}" if missing else word)
    return found
