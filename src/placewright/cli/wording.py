"""What the library says of fields, said of options.

Messages of the library name a field of a request, or an argument, as ``argument `pins` ``, which is
what a caller in Python types. The command line tells its option instead.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from placewright.errors import FieldError
from placewright.session.request import words

_OF_COMMANDS = {"changes": "--set", "runs": "--runs", "in_flight": "--in-flight"}


def option_of(field: str) -> str:
    """The option behind a field: ``--pin`` of ``pins``."""
    if field in _OF_COMMANDS:
        return _OF_COMMANDS[field]
    how = words().get(field)
    word = field if how is None or not how.word else how.word
    return f"--{word.replace('_', '-')}"


def message_of(error: BaseException) -> str:
    """An error as the command line tells it: with the option in place of the field."""
    if isinstance(error, FieldError):
        return with_options(f"{option_of(error.field)} {error.fault}")
    return with_options(str(error))


def with_options(text: str) -> str:
    """A text of the library with options in place of arguments."""
    return re.sub(r"argument `(\w+)`", lambda found: option_of(found[1]), text)


def document_with_options(value: Any) -> Any:
    """A JSON document, with options in all its texts."""
    if isinstance(value, str):
        return with_options(value)
    if isinstance(value, dict):
        return {key: document_with_options(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [document_with_options(item) for item in value]
    return value


class _WithOptions(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return with_options(super().format(record))


def warn_of_options() -> None:
    """Let warnings that the library logs name options, too."""
    if logging.lastResort is not None:  # what prints them, as nobody else asked for them
        logging.lastResort.setFormatter(_WithOptions())
