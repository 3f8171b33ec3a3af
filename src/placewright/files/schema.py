"""What all our file formats share: strict pydantic models and errors of one line."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from placewright.errors import FileFormatError, InputError
from placewright.io.opened import shown_name

_SHOWN = 60


class Strict(BaseModel):
    """A model that accepts no unknown keys, so that a typo is an error and not silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], data: Any, path: object, expected_format: str, *others: str) -> M:
    """Parse `data` as `model`.

    Args:
        model: the fields.
        data: as JSON or YAML gave it.
        path: of the file, for errors.
        expected_format: the value of ``format`` that `model` has.
        others: earlier formats that the caller reads too, for errors.

    Raises:
        FileFormatError: another format, or a field that is missing, unknown or wrong; the message
            names the file, the field and the value.
    """
    found = data.get("format") if isinstance(data, dict) else None
    if found != expected_format:
        read = " and ".join(f"'{name}'" for name in (expected_format, *others))
        had = repr(found)[:_SHOWN]
        raise FileFormatError(
            f"file '{shown_name(path)}' has format {had}, this version reads {read}"
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = shown_name(".".join(str(part) for part in first["loc"]))
        what = first["msg"].removeprefix("Value error, ")
        value = repr(first.get("input"))
        cut = value if len(value) <= _SHOWN else value[: _SHOWN - 3] + "..."
        told = what if value in what else f"{what} (got {cut})"
        raise FileFormatError(f"file '{shown_name(path)}': {where}: {told}") from None


def require_order(function: str, path: object, thing: object, kind: type) -> None:
    """Refuse what is no path and thing, such as the two in the other order.

    Raises:
        InputError: naming what the function takes and what it got.
    """
    if isinstance(thing, kind) and isinstance(path, str | os.PathLike):
        return
    what = kind.__name__
    raise InputError(
        f"{function} takes a path and a {what}, in this order; got {type(path).__name__} and "
        f"{type(thing).__name__}"
    )
