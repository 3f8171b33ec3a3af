"""Arguments of a PyTorch program: the values that callers give, in the order of its inputs."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from placewright.core.source import Port
from placewright.errors import InputError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Inputs = Sequence[Any] | Mapping[str, Any]
_Found = Iterator[tuple[int | None, Any]]  # position among the inputs, value
_OPEN = object()  # in place of the value of a leaf that no program fixes


@dataclass(frozen=True)
class _Argument:
    """An argument, or a part of one.

    Attributes:
        path: as messages call it: ``batch``, ``batch['mask']``.
        spec: PyTorch's description of its structure.
        places: of each leaf, the position among the inputs; None for a number, and for state.
        fixed: of each leaf, the number, text or None that it always is; `_OPEN` for tensors.
    """

    path: str
    spec: Any
    places: tuple[int | None, ...]
    fixed: tuple[Any, ...]

    @property
    def is_leaf(self) -> bool:
        """True if it is no container."""
        return bool(self.spec.is_leaf())

    @property
    def keys(self) -> tuple[Any, ...] | None:
        """Keys of a dictionary, in the program's order; None for other structures."""
        kind, context = self.spec.type, self.spec.context
        if kind not in (dict, OrderedDict, defaultdict):
            return None
        return tuple(context[1] if kind is defaultdict else context)

    @property
    def n_inputs(self) -> int:
        """Number of inputs in it."""
        return len(self.places) - self.places.count(None)

    @property
    def is_fixed(self) -> bool:
        """True if it holds no tensor."""
        return _OPEN not in self.fixed

    def parts(self) -> list[_Argument]:
        """Its entries, in the program's order."""
        names = range(self.spec.num_children) if self.keys is None else self.keys
        parts, at = [], 0
        for name, child in zip(names, self.spec.children(), strict=True):
            leaves = slice(at, at + child.num_leaves)
            path = f"{self.path}[{name!r}]"
            parts.append(_Argument(path, child, self.places[leaves], self.fixed[leaves]))
            at = leaves.stop
        return parts

    def leaves(self, value: Any) -> _Found:
        """Yield the leaves of a value.

        Raises:
            InputError: it has other keys, another number of entries, or another fixed value.
        """
        if self.is_leaf and self.is_fixed:
            _require_fixed(self.path, self.fixed[0], value)
        if self.is_leaf or (self.n_inputs == 1 and _is_leaf(value)):
            of_input = [place for place in self.places if place is not None]
            yield (of_input[0] if of_input else None), value
        elif self.keys is not None:
            yield from self._of_dictionary(self.keys, value)
        elif self.spec.type in (tuple, list):
            yield from self._of_row(value)
        else:
            yield from self._of_class(value)

    def _of_dictionary(self, keys: tuple[Any, ...], value: Any) -> _Found:
        parts = dict(zip(keys, self.parts(), strict=True))
        needed = [key for key, part in parts.items() if part.n_inputs]
        got = list(value) if isinstance(value, Mapping) else None
        if got is None or any(k not in got for k in needed) or any(k not in parts for k in got):
            told = type(value).__name__ if got is None else _listed(got)
            raise InputError(f"argument {self.path} has the keys {_listed(needed)}, got {told}")
        for key, part in parts.items():
            if key in got:
                yield from part.leaves(value[key])

    def _of_row(self, value: Any) -> _Found:
        parts = self.parts()
        needed = [part for part in parts if part.n_inputs]
        count = len(value) if isinstance(value, list | tuple) else None
        if count not in (len(parts), len(needed)):
            told = type(value).__name__ if count is None else str(count)
            raise InputError(f"argument {self.path} has {len(needed)} entries, got {told}")
        for part, entry in zip(parts if count == len(parts) else needed, value, strict=True):
            yield from part.leaves(entry)

    def _of_class(self, value: Any) -> _Found:
        names = _names_of_entries(self.spec)
        if isinstance(value, Mapping) and len(names) == self.spec.num_children:
            yield from self._of_dictionary(names, value)
            return
        leaves = _leaves(value)
        if len(leaves) != len(self.places):
            raise InputError(
                f"argument {self.path} is a {self.spec.type.__name__} of {len(self.places)} "
                f"values, got {type(value).__name__} of {len(leaves)}"
            )
        entries = _entries(value)
        if len(entries) == self.spec.num_children:  # each may hold a dictionary
            for part, entry in zip(self.parts(), entries, strict=True):
                yield from part.leaves(entry)
            return
        for fixed, leaf in zip(self.fixed, leaves, strict=True):
            if fixed is not _OPEN:
                _require_fixed(self.path, fixed, leaf)
        yield from zip(self.places, leaves, strict=True)


def _require_fixed(path: str, fixed: Any, value: Any) -> None:
    """Refuse a value other than the one that was compiled into the program."""
    try:
        is_same = bool(value == fixed or (value != value and fixed != fixed))  # NaN is not itself
    except (RuntimeError, TypeError, ValueError):  # of a tensor or an array
        is_same = False
    if not is_same:
        is_plain = value is None or isinstance(value, bool | int | float | str)
        got = repr(value) if is_plain else f"a {type(value).__name__}"
        raise InputError(
            f"argument {path} always is {fixed!r} here, as in the example inputs; got {got}: "
            "place the module again with example inputs that have it"
        )


@dataclass(frozen=True)
class Arguments:
    """Arguments of a program, nested ones included.

    Attributes:
        every: those that hold an input, or a fixed value; not those that hold state only.
    """

    every: tuple[_Argument, ...] = ()

    @cached_property
    def rows(self) -> tuple[_Argument, ...]:
        """The arguments that hold at least one input."""
        return tuple(row for row in self.every if row.n_inputs)

    @cached_property
    def has_nested(self) -> bool:
        """True if an argument holds others."""
        return not all(row.is_leaf for row in self.rows)

    @classmethod
    def of(cls, program: ExportedProgram, staying: Collection[int] = ()) -> Arguments:
        """The arguments of an exported program.

        Args:
            staying: positions of tensors that stay from call to call, and are no inputs.

        Raises:
            InputError: an input is a number that changes.
        """
        from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument

        specs = program.graph_signature.input_specs
        given = [spec.arg for spec in specs if spec.kind == InputKind.USER_INPUT]
        if changing := [
            x.name for x in given if not isinstance(x, TensorArgument | ConstantArgument)
        ]:
            raise InputError(
                f"input '{changing[0]}' is a number that changes from call to call; export the "
                "model with that number fixed"
            )
        tensors = [at for at, one in enumerate(given) if isinstance(one, TensorArgument)]
        inputs = [leaf for at, leaf in enumerate(tensors) if at not in staying]
        position = {leaf: at for at, leaf in enumerate(inputs)}
        places = tuple(map(position.get, range(len(given))))
        fixed = tuple(x.value if isinstance(x, ConstantArgument) else _OPEN for x in given)
        positional, named = program.call_spec.in_spec.children()
        first = positional.num_leaves
        whole = [*_Argument("", positional, places[:first], fixed[:first]).parts()]
        whole += _Argument("", named, places[first:], fixed[first:]).parts()
        called = program.module_call_graph[0].signature
        names = (called.forward_arg_names if called else None) or _without_names(positional, named)
        rows = (replace(one, path=name) for name, one in zip(names, whole, strict=True))
        return cls(tuple(row for row in rows if row.n_inputs or row.is_fixed))

    def flattened(self, inputs: Inputs, ports: Sequence[Port]) -> tuple[Inputs, bool]:
        """Inputs without nesting, and whether tensors of PyTorch are among them.

        Args:
            inputs: arguments of the module, in its order or by name; or its inputs themselves.
            ports: the inputs.

        Raises:
            InputError: a dictionary has other keys than the module's, or a number or text is
                another than that of the program.
        """
        import torch

        if not isinstance(inputs, Mapping | list | tuple):
            return inputs, False  # `checked_inputs` refuses them
        if len(self.every) > len(self.rows):
            inputs = self._without_fixed(inputs)
        is_tensor = torch.Tensor
        if not self.has_nested:  # the usual call, which is to cost little
            given = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
            if given and all(isinstance(value, is_tensor) for value in given):
                return inputs, True
        if isinstance(inputs, Mapping):
            values: Sequence[Any] = list(inputs.values())
            found: Inputs = self._by_name(inputs, ports) if self.has_nested else inputs
        else:
            values = inputs
            found = (self._in_order(inputs, ports) if self.has_nested else None) or [
                part for value in inputs for part in _tensors(value) or [value]
            ]
        return found, any(isinstance(x, is_tensor) for value in values for x in _leaves(value))

    def _without_fixed(self, inputs: Inputs) -> Inputs:
        """Inputs without the arguments that hold no tensor, which are compared and left out."""
        if isinstance(inputs, Mapping):
            fixed = {row.path: row for row in self.every if not row.n_inputs}
            pairs = [(fixed[name], value) for name, value in inputs.items() if name in fixed]
            left: Inputs = {name: value for name, value in inputs.items() if name not in fixed}
        else:
            n_flat = sum(row.n_inputs for row in self.rows)
            if len(inputs) == n_flat > len(self.rows) and all(map(_is_leaf, inputs)):
                return inputs  # those of the arguments, one by one
            behind = self.every[len(inputs) :]
            if len(inputs) in (0, len(self.rows)) or any(row.n_inputs for row in behind):
                return inputs
            named = list(zip(self.every, inputs, strict=False))
            if len(named) < len(inputs):
                return inputs  # too many, which `checked_inputs` refuses
            pairs = [(row, value) for row, value in named if not row.n_inputs]
            left = [value for row, value in named if row.n_inputs]
        for row, value in pairs:
            list(row.leaves(value))  # compares them
        return left

    def _in_order(self, given: Sequence[Any], ports: Sequence[Port]) -> Inputs | None:
        """Values of all inputs from those of the arguments; None if they are no arguments."""
        rows = self.rows
        if len(rows) != len(given):  # an argument with a fixed value may be left out
            left = [
                row
                for row in rows
                if any(p is not None and ports[p].value is None for p in row.places)
            ]
            rows = tuple(left) if len(left) == len(given) else rows
        if len(rows) == 1 and rows[0].spec.type in (tuple, list) and not all(map(_is_leaf, given)):
            parts = [part for part in rows[0].parts() if part.n_inputs]
            rows = tuple(parts) if len(parts) == len(given) else rows
        if len(rows) != len(given) or any(
            row.n_inputs > 1 and _is_leaf(value) for row, value in zip(rows, given, strict=True)
        ):
            return None
        values: list[Any] = [None] * len(ports)
        for row, value in zip(rows, given, strict=True):
            for place, leaf in row.leaves(value):
                if place is not None:
                    values[place] = leaf
        return values

    def _by_name(self, given: Mapping[str, Any], ports: Sequence[Port]) -> Inputs:
        """Values by the names of inputs, from those of inputs or of arguments."""
        known = {name for port in ports for name in port.names}
        of_name = {row.path: row for row in self.rows if row.path not in known}
        if len(self.rows) == 1 and self.rows[0].keys is not None and not known.issuperset(given):
            alone, first = self.rows[0], next(iter(given.values()), None)
            if list(given) != [alone.path] or not isinstance(first, Mapping):
                return self._in_order([given], ports) or given
        named: dict[str, Any] = {}
        for name, value in given.items():
            if name not in of_name:
                named[name] = value
                continue
            for place, leaf in of_name[name].leaves(value):
                if place is not None:
                    named[ports[place].name] = leaf
        return named


def _without_names(positional: Any, named: Any) -> list[str]:
    """Names for the arguments of a program that keeps none."""
    return [*map(str, range(positional.num_children)), *named.context]


def _names_of_entries(spec: Any) -> tuple[Any, ...]:
    """Names of the entries of a class, in the program's order; empty if PyTorch keeps none."""
    names = getattr(spec.context, "_fields", spec.context)  # a named tuple's class is its context
    if isinstance(names, list | tuple) and names and isinstance(names[0], list):
        names = names[0]  # of a dataclass, before the names of fields that are None
    is_row = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if is_row else ()


def _entries(value: Any) -> list[Any]:
    """Entries that a value holds directly, as PyTorch lists them."""
    from torch.utils._pytree import tree_leaves

    return list(tree_leaves(value, is_leaf=lambda part: part is not value))


def _listed(keys: Sequence[Any]) -> str:
    return ", ".join(map(repr, keys)) or "none"


def _is_leaf(value: Any) -> bool:
    from torch.utils._pytree import tree_is_leaf

    return not isinstance(value, Mapping) and bool(tree_is_leaf(value))


def _leaves(value: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    if isinstance(value, Mapping):  # of any class, such as a tokenizer's result
        return [leaf for entry in value.values() for leaf in _leaves(entry)]
    return list(tree_leaves(value))


def _tensors(value: Any) -> list[Any]:
    """Tensors in nested lists; a dictionary has no order here, and is refused as no array."""
    import torch

    if isinstance(value, Mapping):
        return []
    return [leaf for leaf in _leaves(value) if isinstance(leaf, torch.Tensor)]
