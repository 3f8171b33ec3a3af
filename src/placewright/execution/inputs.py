"""Inputs as users give them, checked; outputs by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from placewright.core.signature import Port, Signature
from placewright.errors import InputError, UnknownNameError
from placewright.execution.runtime import HostArray, LoadedModel

GivenInputs = Sequence[Any] | Mapping[str, Any]


def checked_inputs(model: LoadedModel, given: GivenInputs) -> list[HostArray]:
    """One array per input in the model's own order.

    Args:
        model: whose signature says what is expected.
        given: one array per input in that order, or name -> array. Where a value is no array but
            numbers in lists, it becomes one of the input's own type.

    Raises:
        InputError: an input is missing or given twice, or its shape or type is another.
        UnknownNameError: the model has no input of that name.
    """
    ports = model.signature.inputs
    if isinstance(given, Mapping):
        values = _by_name(ports, given)
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        if len(given) != len(ports):
            names = ", ".join(port.name for port in ports)
            raise InputError(
                f"the model has {len(ports)} inputs ({names}), got values for {len(given)}"
            )
        values = list(given)
    else:
        raise InputError(
            "inputs are a list with one array per input, or a mapping from name to array; got "
            f"{type(given).__name__}"
        )
    dtypes = model.input_dtypes()
    return [_checked(*one) for one in zip(ports, dtypes, values, strict=True)]


def named_outputs(signature: Signature, outputs: Sequence[HostArray]) -> dict[str, HostArray]:
    """Output name -> value, in the model's own order; one that is given twice stands there once."""
    pairs = zip(signature.outputs, outputs, strict=True)
    return {port.name: value for port, value in pairs}


def _by_name(ports: Sequence[Port], given: Mapping[str, Any]) -> list[Any]:
    # A name of its own goes before another port's second name.
    owner = {name: port for port in ports for name in port.other_names}
    owner |= {port.name: port for port in ports}
    found: dict[str, tuple[str, Any]] = {}
    for name, value in given.items():
        if name not in owner:
            raise UnknownNameError("model input", str(name), [port.name for port in ports])
        port = owner[name]
        if port.name in found:
            first = found[port.name][0]
            raise InputError(f"input '{port.name}' is given twice, as '{first}' and '{name}'")
        found[port.name] = (name, value)
    missing = [port for port in ports if port.name not in found]
    if missing:
        known = ", ".join(found) or "no input"
        raise InputError(
            f"input '{missing[0].name}' {list(missing[0].shape)} has no value; got {known}"
        )
    return [found[port.name][1] for port in ports]


def _checked(port: Port, dtype: np.dtype[Any], value: Any) -> HostArray:
    try:
        array = np.asarray(value)
        if not hasattr(value, "dtype"):
            array = _in_type(array, dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"input '{port.name}': a {type(value).__name__} is no array ({reason}); expected "
            f"{dtype} {list(port.shape)}"
        ) from None
    if array.dtype != dtype or array.shape != port.shape:
        raise InputError(
            f"input '{port.name}' is {array.dtype} {list(array.shape)}, expected {dtype} "
            f"{list(port.shape)}"
        )
    return array


def _in_type(numbers: HostArray, dtype: np.dtype[Any]) -> HostArray:
    """Plain numbers in the input's own type, as they are where it cannot hold them."""
    if numbers.dtype.kind == "f" and dtype.kind != "f":
        return numbers
    converted = numbers.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(converted, numbers):
        return numbers
    return converted
