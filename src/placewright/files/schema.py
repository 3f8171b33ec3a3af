"""Shared pieces of our file formats: strict pydantic models and errors of one line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from placewright.errors import FileFormatError, InputError
from placewright.io.opened import shown_name

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHOWN = 60


def _no_truth(value: Any) -> Any:
    """Refuse true and false, which would count as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("cannot be true or false")
    return value


# Numbers in a list or a mapping; those that are a field of their own need no mark.
Int = Annotated[int, BeforeValidator(_no_truth)]
Float = Annotated[float, BeforeValidator(_no_truth)]


class Strict(BaseModel):
    """A document without unknown keys, so that a typo is an error, and without true for 1."""

    example: ClassVar[str] = ""  # an entry as users write it, for errors

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is bool:
            return value
        return _no_truth(value)


M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], data: Any, path: object, expected_format: str, *others: str) -> M:
    """Parse data as a document.

    Args:
        data: value of JSON or YAML.
        others: earlier formats that the caller also reads, for errors.

    Raises:
        FileFormatError: the format is another, or a field is missing, unknown or wrong; the message
            names file, field and value.
    """
    actual = data.get("format") if isinstance(data, dict) else None
    if actual != expected_format:
        read = " and ".join(f"'{name}'" for name in (expected_format, *others))
        has = "no entry `format`" if actual is None else f"format {repr(actual)[:_SHOWN]}"
        raise FileFormatError(f"file '{shown_name(path)}' has {has}; this version reads {read}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = shown_name(".".join(str(part) for part in first["loc"]))
        fault = fault_text(first)
        value = repr(first.get("input"))
        if value not in fault:
            cut = value if len(value) <= _SHOWN else value[: _SHOWN - 3] + "..."
            fault = f"{fault} (got {cut})"
        raise FileFormatError(f"file '{shown_name(path)}': {field}: {fault}") from None


def fault_text(error: ErrorDetails) -> str:
    """An error of pydantic in the words of a user, who knows no classes."""
    if error["type"] == "model_type":
        name = error["ctx"]["class_name"]
        example = next(
            (document.example for document in Strict.__subclasses__() if document.__name__ == name),
            "",
        )
        return (
            f"expected an entry such as {example}" if example else "expected an entry with fields"
        )
    if error["type"] in ("list_type", "dict_type"):
        return (
            "expected a list" if error["type"] == "list_type" else "expected an entry with fields"
        )
    return error["msg"].removeprefix("Value error, ")


def require_order(function: str, path: object, thing: object, kind: type) -> None:
    """Refuse arguments that are not a path and an object, for example in the other order.

    Raises:
        InputError: the message names the expected and the actual types.
    """
    if isinstance(thing, kind) and isinstance(path, str | os.PathLike):
        return
    what = kind.__name__
    raise InputError(
        f"{function} takes a path and a {what}, in this order; got {type(path).__name__} and "
        f"{type(thing).__name__}"
    )
