"""Names of options in the messages of the library.

Messages of the library name a field of a request, or an argument, as ``argument `pins` ``, which is
what a caller in Python types. The command line names its option instead.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from placewright.errors import FieldError
from placewright.session.request import words

_OF_COMMANDS = {"changes": "--set", "runs": "--runs", "in_flight": "--in-flight"}


def option_of(field: str) -> str:
    """The option that sets a field: ``--pin`` for ``pins``."""
    if field in _OF_COMMANDS:
        return _OF_COMMANDS[field]
    how = words().get(field)
    word = field if how is None or not how.word else how.word
    return f"--{word.replace('_', '-')}"


def message_of(error: BaseException) -> str:
    """The message of an error, with the option in place of the field."""
    if isinstance(error, FieldError):
        return with_options(f"{option_of(error.field)} {error.fault}")
    return with_options(str(error))


def with_options(text: str) -> str:
    """Replace the arguments that a text names by options."""
    return re.sub(r"argument `(\w+)`", lambda match: option_of(match[1]), text)


def document_with_options(value: Any) -> Any:
    """Replace arguments by options in all texts of a JSON document."""
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
    """Let warnings that the library logs name options."""
    if logging.lastResort is not None:  # the handler that prints warnings if nobody set another
        logging.lastResort.setFormatter(_WithOptions())
