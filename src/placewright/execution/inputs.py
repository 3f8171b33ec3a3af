"""Inputs from users, checked, or drawn at random; and outputs by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, overload, runtime_checkable

import numpy as np

from placewright.core.source import ModelSource, Number, Port, Signature
from placewright.errors import (
    FieldError,
    InputError,
    RuntimeFailure,
    UnknownNameError,
    UnsuitableInputs,
)
from placewright.execution.runtime import HostArray, LoadedModel
from placewright.io.content import one_line
from placewright.io.opened import shown_name

GivenInputs = Sequence[Any] | Mapping[str, Any]
Value = TypeVar("Value")  # a hashable name of a value of the model
ARRAY_DTYPES = frozenset(  # that NumPy has
    ("f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "boolean")
)


@runtime_checkable
class TakesOwnTensors(Protocol):
    """A loaded model whose library has tensors of its own, which NumPy cannot always read."""

    def flattened(self, inputs: GivenInputs) -> tuple[GivenInputs, bool]:
        """Inputs without nesting, and whether any of them is one of the library's tensors."""
        ...

    def array_of(self, value: Any, dtype: str) -> Any:
        """The array of one of the library's tensors; other values as they are.

        Args:
            dtype: of the input, such as ``"bf16"``, whose arrays are float32.
        """
        ...

    def own_result(self, arrays: Sequence[HostArray]) -> Any:
        """The library's tensors in the structure of the model's own result.

        Args:
            arrays: values of all outputs, in the model's order.
        """
        ...


_TAKES_OWN: dict[type[Any], bool] = {}  # class of a model -> whether it is `TakesOwnTensors`


def takes_own_tensors(model: object) -> TypeGuard[TakesOwnTensors]:
    """True if a model has tensors of its own.

    Each call of a plan asks. Python looks at all methods of a protocol each time, so that the
    answer is kept for each class.
    """
    kind = type(model)
    if kind not in _TAKES_OWN:
        _TAKES_OWN[kind] = isinstance(model, TakesOwnTensors)
    return _TAKES_OWN[kind]


def with_values(signature: Signature, values: Mapping[str, tuple[Number, ...]]) -> Signature:
    """Fix values of inputs in a signature.

    Args:
        values: input name -> its numbers in row-major order, or one number for all elements.

    Raises:
        UnknownNameError: the model has no input of that name.
        FieldError: the numbers do not fit the input's shape or type.
    """
    port_of = _port_of(signature.inputs)
    fixed: dict[str, tuple[Number, ...]] = {}
    for name, numbers in values.items():
        if name not in port_of:
            raise UnknownNameError("model input", name, [port.name for port in signature.inputs])
        port = port_of[name]
        size = math.prod(port.shape)
        if len(numbers) not in (1, size):
            wanted = "1" if size == 1 else f"1 or {size}"
            raise FieldError(
                "values",
                f"gives input '{port.name}' {list(port.shape)} {len(numbers)} numbers; "
                f"expected {wanted}",
            )
        wrong = next((number for number in numbers if not _fits(number, port.dtype)), None)
        if wrong is not None:
            raise FieldError("values", f"input '{port.name}' is {port.dtype}, got {wrong}")
        fixed[port.name] = numbers
    return replace(
        signature,
        inputs=tuple(replace(port, value=fixed.get(port.name)) for port in signature.inputs),
    )


_LARGEST = {"f16": 65504.0, "bf16": 3.3895e38, "f32": 3.4029e38}  # finite values of types


def _fits(number: Number, dtype: str) -> bool:
    """True if an element of a type can have a value."""
    if dtype == "boolean":
        return number in (0, 1)
    integer = re.fullmatch(r"([iu])(\d+)", dtype)
    if integer is None:
        return abs(number) <= _LARGEST.get(dtype, math.inf)
    bits = int(integer[2]) - (integer[1] == "i")
    low = -(2**bits) if integer[1] == "i" else 0
    return number == int(number) and low <= number < 2**bits


def with_fixed_values(signature: Signature, drawn: Sequence[HostArray]) -> list[HostArray]:
    """Values of all inputs: fixed values, and drawn values for the others."""
    pairs = zip(signature.inputs, drawn, strict=True)
    return [_fixed(port, array.dtype, array) for port, array in pairs]


def _fixed(port: Port, dtype: np.dtype[Any], otherwise: Any) -> Any:
    if port.value is None:
        return otherwise
    numbers = np.array(port.value, dtype)
    return (
        np.broadcast_to(numbers.reshape(-1)[0], port.shape).copy()
        if numbers.size == 1
        else (numbers.reshape(port.shape))
    )


# Parts of libraries' messages, in lower case.
_NO_MEMORY = ("out of memory", "failed to allocate", "bad_alloc", "bad allocation")


def require_arrays(
    source: ModelSource, ports: Sequence[Port], known: Collection[str], library: str
) -> None:
    """Refuse inputs or outputs of types that a library cannot exchange with NumPy.

    Args:
        known: types that it can.

    Raises:
        InputError: one has another type.
    """
    if port := next((port for port in ports if port.dtype not in known), None):
        raise InputError(
            f"'{port.name}' of '{source.path}' is {port.dtype}, for which {library}'s Python has "
            "no arrays; make it f32 in the file and convert it inside"
        )


def cannot_compute(library: str, error: Exception | str) -> RuntimeFailure:
    """The error of a run that a library gave up: its inputs do not suit, or memory ran out."""
    reason = one_line(error, 300)
    if any(words in str(error).lower() for words in _NO_MEMORY):
        return RuntimeFailure(f"{library} has no memory left to compute the model: {reason}")
    return UnsuitableInputs(
        f"{library} cannot compute the model with these inputs: {reason}; argument `shapes` gives "
        "inputs other dimensions, argument `values` fixes what they hold"
    )


def checked_inputs(
    model: LoadedModel, inputs: GivenInputs, dtypes: Sequence[np.dtype[Any]] | None = None
) -> list[HostArray]:
    """Check inputs; return one array per input in the model's own order.

    Args:
        inputs: one array per input in that order, or name -> array. A value of numbers in lists
            becomes an array of the input's own type. Inputs with fixed values may be left out.
        dtypes: the model's `input_dtypes`, if they are known; None asks the model for them.

    Raises:
        InputError: an input is missing or given twice, or has another shape or type.
        UnknownNameError: the model has no input of that name.
    """
    ports = model.signature.inputs
    if isinstance(inputs, Mapping):
        values = _by_name(ports, inputs)
    elif isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes):
        open_ports = [port for port in ports if port.value is None]
        if len(inputs) == len(open_ports):
            left = iter(inputs)
            inputs = [None if port.value is not None else next(left) for port in ports]
        if len(inputs) != len(ports):
            names = ", ".join(port.name for port in ports)
            number = "1 input" if len(ports) == 1 else f"{len(ports)} inputs"
            raise InputError(f"the model has {number} ({names}), got values for {len(inputs)}")
        values = list(inputs)
    else:
        raise InputError(
            "inputs are a list with one array per input, or a mapping from name to array; got "
            f"{type(inputs).__name__}"
        )
    if takes_own_tensors(model):
        pairs = zip(ports, values, strict=True)
        values = [_array_of_own(model, port, value) for port, value in pairs]
    dtypes = model.input_dtypes() if dtypes is None else dtypes
    return [_checked(*row) for row in zip(ports, dtypes, values, strict=True)]


def _array_of_own(model: TakesOwnTensors, port: Port, value: Any) -> Any:
    """The array of a tensor of the model's library; without values or sparse, it has none."""
    try:
        return model.array_of(value, port.dtype)
    except (TypeError, NotImplementedError, RuntimeError) as error:  # the library's own
        raise InputError(f"input '{port.name}' has no array: {one_line(error)}") from None


def _port_of(ports: Sequence[Port]) -> dict[str, Port]:
    """Any name of an input -> the input; its own name goes before another's second name."""
    owner = {name: port for port in ports for name in port.other_names}
    return owner | {port.name: port for port in ports}


def named_outputs(signature: Signature, outputs: Sequence[HostArray]) -> dict[str, HostArray]:
    """Output name -> value, in the model's own order; a repeated output is there once."""
    pairs = zip(signature.outputs, outputs, strict=True)
    return {port.name: value for port, value in pairs}


def _by_name(ports: Sequence[Port], inputs: Mapping[str, Any]) -> list[Any]:
    owner = _port_of(ports)
    by_port: dict[str, tuple[str, Any]] = {}
    for name, value in inputs.items():
        if name not in owner:
            raise UnknownNameError("model input", str(name), [port.name for port in ports])
        port = owner[name]
        if port.name in by_port:
            first = by_port[port.name][0]
            raise InputError(f"input '{port.name}' is given twice, as '{first}' and '{name}'")
        by_port[port.name] = (name, value)
    missing = [port for port in ports if port.name not in by_port and port.value is None]
    if missing:
        known = ", ".join(by_port) or "no input"
        raise InputError(
            f"input '{missing[0].name}' {list(missing[0].shape)} has no value; got {known}"
        )
    return [by_port[port.name][1] if port.name in by_port else None for port in ports]


def _checked(port: Port, dtype: np.dtype[Any], value: Any) -> HostArray:
    fixed = _fixed(port, dtype, None)
    value = fixed if value is None and fixed is not None else value
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
    if fixed is not None and not np.array_equal(array, fixed):
        shown = ",".join(map(str, port.value or ()))
        raise InputError(f"input '{port.name}' always is {shown} here, as argument `values` said")
    return array


def _in_type(numbers: HostArray, dtype: np.dtype[Any]) -> HostArray:
    """Convert plain numbers to the input's own type, if it can hold them."""
    if numbers.dtype.kind == "f" and dtype.kind != "f":
        return numbers
    if dtype.kind == "f" and numbers.dtype.kind not in "biuf":  # None would be taken as nan
        return numbers
    with np.errstate(over="ignore"):  # a number that becomes infinite is refused
        converted = numbers.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(converted, numbers):
        return numbers
    if dtype.kind == "f" and not np.array_equal(np.isfinite(converted), np.isfinite(numbers)):
        return numbers
    return converted


class Outputs(Sequence[HostArray]):
    """All outputs of a model in its own order: ``outputs[0]``, ``outputs["scores"]``.

    Args:
        values: of all outputs.
    """

    def __init__(self, signature: Signature, values: Sequence[HostArray]) -> None:
        self._signature, self._values = signature, tuple(values)

    @overload
    def __getitem__(self, key: int | str) -> HostArray: ...

    @overload
    def __getitem__(self, key: slice) -> Sequence[HostArray]: ...

    def __getitem__(self, key: int | str | slice) -> HostArray | Sequence[HostArray]:
        if not isinstance(key, str):
            return self._values[key]
        ports = self._signature.outputs
        for at, port in enumerate(ports):
            if port.name == key:
                return self._values[at]
        for at, port in enumerate(ports):  # its own name goes before another's second name
            if key in port.other_names:
                return self._values[at]
        raise UnknownNameError("model output", key, [port.name for port in ports])

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        """True for the name of an output, and for an array that is one of the values."""
        if not isinstance(key, str):
            return any(value is key for value in self._values)
        return any(key in (port.name, *port.other_names) for port in self._signature.outputs)

    def __repr__(self) -> str:
        rows = [
            f"{name}: {value.dtype} {list(value.shape)}" for name, value in self.by_name.items()
        ]
        return f"Outputs({', '.join(rows)})"

    @property
    def by_name(self) -> dict[str, HostArray]:
        """Output name -> value; a repeated output is there once."""
        return named_outputs(self._signature, self._values)


_ALL_IN_ONE = (list, tuple, Outputs, Mapping)  # hold the values of all inputs


def given_inputs(
    given: tuple[Any, ...], named: Mapping[str, Any], open_inputs: Sequence[str] = ()
) -> GivenInputs:
    """The inputs of a call, as `checked_inputs` takes them.

    Args:
        given: by position.
        named: by name. With both, those by position are the first ones.
        open_inputs: names of the inputs whose values are not fixed, in the model's order.

    Raises:
        InputError: an input is given by position and by name, or there are too many.
    """
    if not named:
        if len(given) == 1 and isinstance(given[0], _ALL_IN_ONE):
            return given[0]
        return given
    if not given:
        return named
    if any(isinstance(value, _ALL_IN_ONE) for value in given):
        raise InputError("inputs in a list or a dictionary are given by position or name, not both")
    # A name of no input may be that of an argument, of which `flattened` knows more.
    if len(given) + len(set(named) & set(open_inputs)) > len(open_inputs):
        raise InputError(
            f"the model has {len(open_inputs)} inputs ({', '.join(open_inputs)}), got "
            f"{len(given)} by position and {len(named)} by name"
        )
    first = dict(zip(open_inputs, given, strict=False))
    if twice := [name for name in named if name in first]:
        raise InputError(f"input '{twice[0]}' is given by position and by name")
    return {**first, **named}


def flattened(model: LoadedModel, inputs: GivenInputs) -> tuple[GivenInputs, bool]:
    """Inputs without nesting, and whether tensors of the runtime's library are among them."""
    return model.flattened(inputs) if takes_own_tensors(model) else (inputs, False)


_FLAGS = range(2)
# Small types hold pixels, bytes and quantized numbers, which fill the type.
_MOST_BYTES = 1


@dataclass(frozen=True)
class Use(Generic[Value]):
    """A reader of whole numbers: its table, and the values that it passes on."""

    # Numbers from this one on are no index of the reader's table; None without a table.
    table_size: int | None = None
    passed_to: tuple[Value, ...] = ()  # values that hold the same numbers


def size_compared(numbers: HostArray | None) -> int | None:
    """The size of the table that a comparison with 0, 1, 2, ... makes; None for one number."""
    if numbers is None or numbers.size < 2 or not np.issubdtype(numbers.dtype, np.integer):
        return None
    return int(numbers.max()) + 1


def whole_numbers(
    value: Value, dtype: np.dtype[Any], uses_of: Callable[[Value], Iterable[Use[Value] | None]]
) -> range:
    """Find the whole numbers that a model takes at an input.

    An index of tables is drawn from the smallest of them. A type of one byte is drawn whole if no
    table is read. Everything else, and everything that reaches an unknown reader, is 0 or 1.

    Args:
        value: the input.
        dtype: an integer type.
        uses_of: the readers of a value; None stands for a reader of which nothing is known.
    """
    seen, left = {value}, [value]
    sizes: list[int] = []
    while left:
        for use in uses_of(left.pop()):
            if use is None:
                return _FLAGS
            if use.table_size is not None:
                sizes.append(use.table_size)
            left += [passed for passed in use.passed_to if passed not in seen]
            seen.update(use.passed_to)
    limits = np.iinfo(dtype)
    if sizes:
        return range(max(1, min(*sizes, int(limits.max) + 1)))
    if dtype.itemsize <= _MOST_BYTES:
        return range(int(limits.min), int(limits.max) + 1)
    return _FLAGS


def random_values(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    numbers: Callable[[], range] = lambda: _FLAGS,
) -> HostArray:
    """Draw standard normal values, whole numbers of a range, true, or a text.

    Args:
        shape: dimensions of the result.
        dtype: its type.
        numbers: the whole numbers that suit an integer type, see `whole_numbers`.
    """
    if dtype == np.bool_:
        return np.ones(shape, dtype)
    if np.issubdtype(dtype, np.integer):
        suitable = numbers()
        return rng.integers(suitable.start, suitable.stop, shape).astype(dtype)
    if dtype == np.object_:
        return np.full(shape, "text", dtype)
    return rng.standard_normal(shape).astype(dtype)


def require_numeric_ports(source: ModelSource) -> None:
    """Refuse models whose inputs are no numbers, or that have no outputs to compare.

    Raises:
        InputError: an input or output holds texts, or there is no output.
    """
    if source.signature is None:
        return
    path, outputs = shown_name(source.path), source.signature.outputs
    for port in (*source.signature.inputs, *outputs):
        if port.dtype == "string":
            raise InputError(
                f"model '{path}': '{shown_name(port.name)}' holds texts; only numbers can be "
                "measured and compared"
            )
    if not outputs:
        raise InputError(f"model '{path}' has no outputs, so that a run of it gives nothing")
