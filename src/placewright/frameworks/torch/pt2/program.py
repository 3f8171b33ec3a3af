"""Check of ``models/model.json`` of a ``.pt2`` file, which describes the program.

PyTorch builds a program from this document. It writes the names of inputs, nodes and arguments into
Python source text and executes that. It looks operators up by name and evaluates texts of symbolic
sizes and of guards. It imports classes and modules that tree specifications name. The checks
follow the schema of PyTorch's serialized programs (``torch/_export/serde/schema.py``, version 8).
They return a new document of the known parts, without notes that no reader of ours needs (stack
traces and the like).

Operators are those of ``operators.yaml``: computations on tensors, and nothing else. PyTorch's
registry also holds operators that read and write files (``aten.from_file``, ``aten.save``), change
storages or share them between processes. A name is refused unless it is listed, or is a `public`
name with `_` (in place) or `_copy` behind it. So new operators of a later PyTorch are refused until
somebody has checked and listed them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

import yaml

from placewright.errors import FileFormatError
from placewright.frameworks.torch.pt2.grammar import (
    DROPPED,
    LONGEST_NAME,
    Check,
    dotted,
    empty,
    expression,
    flag,
    identifier,
    integer,
    mapping,
    one_of,
    optional,
    real,
    record,
    sequence,
    shown,
    symbol,
    text,
    union,
)

_VARIANTS = ("_", "_copy")  # in place (`relu_`), and a copy instead of a view (`permute_copy`)
_VALUES = ("Tensor", "int", "float", "bool", "number", "str", "Device", "Generator")


def listed_operators() -> dict[str, list[str]]:
    """Read ``operators.yaml``: section -> names without their namespace.

    Sections: ``public`` and ``internal`` (both ATen), ``prims``, ``python`` and ``higher_order``.
    """
    file = resources.files("placewright.frameworks.torch.pt2").joinpath("operators.yaml")
    document: dict[str, str] = yaml.safe_load(file.read_text("utf-8"))
    return {kind: names.split() for kind, names in document.items()}


_LISTED = listed_operators()
_OVERLOADED = frozenset(
    [f"torch.ops.aten.{name}{end}" for name in _LISTED["public"] for end in ("", *_VARIANTS)]
    + [f"torch.ops.aten.{name}" for name in _LISTED["internal"]]
    + [f"torch.ops.prims.{name}" for name in _LISTED["prims"]]
)
_PLAIN = frozenset(
    [f"_operator.{name}" for name in _LISTED["python"]]
    + [f"torch.ops.higher_order.{name}" for name in _LISTED["higher_order"]]
)


def is_admitted(target: str) -> bool:
    """True if a file may call `target`, such as ``torch.ops.aten.add.Tensor``.

    Functions of Python (``_operator.getitem``) and higher-order operators only need to be listed.
    An overload of ATen or prims must also be registered and take nothing but values: tensors,
    numbers, texts, dtypes, layouts, devices and generators, but no storage, stream or object.
    """
    if target in _PLAIN:
        return True
    name, _, overload = target.rpartition(".")
    return name in _OVERLOADED and _takes_values(name.removeprefix("torch.ops."), overload)


@cache
def _takes_values(name: str, overload: str) -> bool:
    import torch

    namespace, _, base = name.partition(".")
    try:
        schema = torch._C._get_schema(  # with which a packet's overload is looked up
            f"{namespace}::{base}", "" if overload == "default" else overload
        )
    except RuntimeError:  # no such overload
        return False
    kinds = [re.sub(r"Optional|List|[\[\]]", "", str(entry.type)) for entry in schema.arguments]
    return all(kind in _VALUES for kind in kinds)


_DEEPEST = 20  # branches and loop bodies inside each other
_DEVICES = ("cpu", "cuda", "xpu", "mps", "meta")
_DIALECTS = ("TRAINING", "ATEN")
_STACK = re.compile(r"[\w.@-]*,[\w.@\[\]'-]*,[\w.<>]*")
_CALLED_MODULE = re.compile(r"@\d+$")
_LISTS = ("builtins.tuple", "builtins.list", "torch.fx.immutable_collections.immutable_list")
_MAPPINGS = (
    "builtins.dict",
    "collections.OrderedDict",
    "torch.fx.immutable_collections.immutable_dict",
)


def checked_program(document: Any) -> dict[str, Any]:
    """Check a program; return a new document of its known parts.

    Raises:
        FileFormatError: it holds something that no exported program of ATen operators holds.
    """
    checked: dict[str, Any] = _PROGRAM(document)
    return checked


def checked_tensors(document: Any) -> dict[str, Any]:
    """Check ``model_weights_config.json`` or ``model_constants_config.json``; return a new copy.

    They name the file in the archive that holds each tensor.

    Raises:
        FileFormatError: an entry is no plain tensor, or is stored as a pickle.
    """
    checked: dict[str, Any] = _TENSORS(document)
    return checked


def _target(value: Any) -> str:
    target = text(value)
    if not is_admitted(target):
        raise FileFormatError(
            f"it calls {shown(target)}, which is no ATen operator that only computes; export the "
            "model without it"
        )
    return target


def _argument_name(value: Any) -> str:
    return "" if value == "" else identifier(value)  # positional ones may have none


def _module_path(value: Any) -> str:
    path = text(value)
    return path if path == "" else dotted(_CALLED_MODULE.sub("", path)) and path


def _module_stack(value: Any) -> str:
    stack = text(value)
    for entry in stack.split(";"):
        if stack and not _STACK.fullmatch(entry):
            raise FileFormatError(f"the module stack {shown(entry)} is not made of plain names")
    return stack


def _result_tree(value: Any) -> str:
    """Check the JSON text of a result's nested containers; return it as JSON text.

    Objects of classes become dictionaries of their fields, else PyTorch would import the class that
    the file names.
    """
    try:
        protocol, tree = json.loads(text(value))
    except (ValueError, TypeError, RecursionError):
        return _tree(value)
    return _tree(json.dumps([protocol, _without_classes(tree, 0)]), _key_of_result)


def _without_classes(node: Any, depth: int) -> Any:
    if depth > _DEEPEST or not isinstance(node, dict):
        return node
    children = node.get("children_spec")
    if not isinstance(children, list):
        return node
    made = {**node, "children_spec": [_without_classes(child, depth + 1) for child in children]}
    if node.get("type") in (None, *_LISTS, *_MAPPINGS):
        return made
    try:
        names = json.loads(text(node.get("context")))
    except (ValueError, RecursionError):
        return made
    if isinstance(names, list) and len(names) == 2 and isinstance(names[0], list):
        names = names[0]  # of a dataclass: fields, and those that are None
    if not (isinstance(names, list) and len(names) == len(children)):
        return made
    return {**made, "type": "builtins.dict", "context": json.dumps(names)}


def _tree(value: Any, key: Check = identifier) -> str:
    """Check the JSON text of nested containers; return it as JSON text.

    Args:
        key: check of each key of a dictionary. The default admits identifiers alone, since names of
            keyword arguments become source text.
    """
    try:
        protocol, tree = json.loads(text(value))
    except (ValueError, TypeError, RecursionError):
        raise FileFormatError(f"{shown(value)} is no tree of containers") from None
    if protocol != 1 or isinstance(protocol, bool):
        raise FileFormatError(f"{shown(value)} is a tree of containers of another version")
    return json.dumps([1, _node_of_tree(tree, key)])


def _node_of_tree(value: Any, key: Check) -> dict[str, Any]:
    node = record(
        {
            "type": optional(text),
            "context": optional(text),
            "children_spec": sequence(lambda child: _node_of_tree(child, key)),
        }
    )(value)
    kind, context, children = node["type"], node["context"], node["children_spec"]
    if kind is None or kind in _LISTS:
        if context != (None if kind is None else "null") or (kind is None and children):
            raise FileFormatError(f"{shown(context)} is no part of a tree of containers")
    elif kind in _MAPPINGS:
        keys = _keys(context, key)
        if len(keys) != len(children):
            raise FileFormatError(f"{shown(context)} does not name each part of a tree")
        context = json.dumps(keys)
    else:
        raise FileFormatError(
            f"its inputs or outputs are {shown(kind)}; export a model that takes and returns "
            "tensors, tuples, lists and dictionaries"
        )
    return {"type": kind, "context": context, "children_spec": children}


def _keys(context: Any, key: Check) -> list[str | int]:
    """Parse a dictionary's keys, a JSON list in the text `context`, and check each by `key`."""
    try:
        keys = json.loads(text(context))
    except (ValueError, RecursionError):
        raise FileFormatError(f"{shown(context)} is no list of keys") from None
    found: list[str | int] = sequence(key)(keys)
    return found


def _key_of_result(value: Any) -> str | int:
    """Check a dictionary's key in a result, a printable text or an integer, and return it."""
    if not isinstance(value, str):
        return integer(value)
    if not (len(value) <= LONGEST_NAME and value.isprintable()):
        raise FileFormatError(f"the key {shown(value)} of a result is no printable name")
    return value


def _graph(value: Any, depth: int = 0) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise FileFormatError(f"its branches and loops are nested more than {_DEEPEST} deep")
    checked: dict[str, Any] = _graph_check(depth)(value)
    return checked


_DEVICE = record({"type": one_of(*_DEVICES)}, {"index": optional(integer)})
_TENSOR_NAME = record({"name": identifier})
_EXPRESSION = record(
    {"expr_str": expression},
    {"hint": optional(union({"as_int": integer, "as_bool": flag, "as_float": real}))},
)
_SIZE = union({"as_expr": _EXPRESSION, "as_int": integer})


def _tensor(size: Check) -> Check:
    """Make the check of a tensor's record (type, sizes, device and so on).

    Args:
        size: check of each size and stride, and of the storage offset.
    """
    return record(
        {
            "dtype": integer,
            "sizes": sequence(size),
            "requires_grad": flag,
            "device": _DEVICE,
            "strides": sequence(size),
            "storage_offset": size,
            "layout": integer,
        }
    )


_SIZE_ARGUMENT = union({"as_name": identifier, "as_int": integer})
_REAL_ARGUMENT = union({"as_name": identifier, "as_float": real})
_FLAG_ARGUMENT = union({"as_name": identifier, "as_bool": flag})
_MAYBE_TENSOR = union({"as_tensor": _TENSOR_NAME, "as_none": flag})
_ARGUMENTS: dict[str, Check] = {
    "as_none": flag,
    "as_tensor": _TENSOR_NAME,
    "as_tensors": sequence(_TENSOR_NAME),
    "as_int": integer,
    "as_ints": sequence(integer),
    "as_float": real,
    "as_floats": sequence(real),
    "as_string": text,  # written into source text as a literal
    "as_strings": sequence(text),
    "as_sym_int": _SIZE_ARGUMENT,
    "as_sym_ints": sequence(_SIZE_ARGUMENT),
    "as_scalar_type": integer,
    "as_memory_format": integer,
    "as_layout": integer,
    "as_device": _DEVICE,
    "as_bool": flag,
    "as_bools": sequence(flag),
    "as_sym_bool": _FLAG_ARGUMENT,
    "as_sym_bools": sequence(_FLAG_ARGUMENT),
    "as_optional_tensors": sequence(_MAYBE_TENSOR),
    "as_optional_tensor": _MAYBE_TENSOR,
    "as_sym_float": _REAL_ARGUMENT,
    "as_sym_floats": sequence(_REAL_ARGUMENT),
    "as_complex": record({"real": real, "imag": real}),
}
_ARGUMENT = union(_ARGUMENTS)
_NOTES = {
    "nn_module_stack": _module_stack,
    **dict.fromkeys(("stack_trace", "source_fn_stack", "torch_fn", "custom", "from_node"), DROPPED),
}


def _graph_check(depth: int) -> Check:
    body = record({"name": identifier, "graph": lambda graph: _graph(graph, depth + 1)})
    argument = union({**_ARGUMENTS, "as_graph": body})
    named = record({"name": _argument_name, "arg": argument}, {"kind": optional(integer)})
    node = record(
        {
            "target": _target,
            "inputs": sequence(named),
            "outputs": sequence(_ARGUMENT),
            "metadata": record({}, _NOTES),
        },
        {"is_hop_single_tensor_return": optional(flag), "name": optional(identifier)},
    )
    return record(
        {
            "inputs": sequence(_ARGUMENT),
            "outputs": sequence(_ARGUMENT),
            "nodes": sequence(node),
            "tensor_values": mapping(identifier, _tensor(_SIZE)),
            "sym_int_values": mapping(identifier, _SIZE),
            "sym_bool_values": mapping(
                identifier, union({"as_expr": _EXPRESSION, "as_bool": flag})
            ),
        },
        {
            "is_single_tensor_return": flag,
            "custom_obj_values": empty("brings objects of other packages"),
            "sym_float_values": mapping(
                identifier, union({"as_expr": _EXPRESSION, "as_float": real})
            ),
        },
    )


_CONSTANT = union(
    {"as_none": flag, "as_int": integer, "as_float": real, "as_string": text, "as_bool": flag}
)
_INPUT = union(
    {
        "user_input": record({"arg": _ARGUMENT}),
        "parameter": record({"arg": _TENSOR_NAME, "parameter_name": dotted}),
        "buffer": record({"arg": _TENSOR_NAME, "buffer_name": dotted, "persistent": flag}),
        "tensor_constant": record({"arg": _TENSOR_NAME, "tensor_constant_name": dotted}),
        "constant_input": record({"name": identifier, "value": _CONSTANT}),
    }
)
_OUTPUT = union(
    {
        "user_output": record({"arg": _ARGUMENT}),
        "loss_output": record({"arg": _TENSOR_NAME}),
        "buffer_mutation": record({"arg": _TENSOR_NAME, "buffer_name": dotted}),
        "parameter_mutation": record({"arg": _TENSOR_NAME, "parameter_name": dotted}),
        "gradient_to_parameter": record({"arg": _TENSOR_NAME, "parameter_name": dotted}),
        "gradient_to_user_input": record({"arg": _TENSOR_NAME, "user_input_name": identifier}),
        "user_input_mutation": record({"arg": _TENSOR_NAME, "user_input_name": identifier}),
    }
)
_CALL = record(
    {
        "inputs": sequence(_ARGUMENT),
        "outputs": sequence(_ARGUMENT),
        "in_spec": _tree,
        "out_spec": _result_tree,
    },
    {"forward_arg_names": optional(sequence(identifier))},
)
_PROGRAM = record(
    {
        "graph_module": record(
            {
                "graph": _graph,
                "signature": record(
                    {"input_specs": sequence(_INPUT), "output_specs": sequence(_OUTPUT)}
                ),
                "module_call_graph": sequence(
                    record({"fqn": _module_path}, {"signature": optional(_CALL)})
                ),
            },
            {
                "metadata": lambda _: {},
                "treespec_namedtuple_fields": empty(
                    "takes or returns named tuples; export a model that takes and returns tensors"
                ),
            },
        ),
        "opset_version": mapping(identifier, integer),
        "range_constraints": mapping(
            symbol, record({"min_val": optional(integer), "max_val": optional(integer)})
        ),
        "schema_version": record({"major": integer, "minor": integer}),
    },
    {
        "verifiers": sequence(one_of(*_DIALECTS)),
        "torch_version": DROPPED,
        "guards_code": empty("brings code for its guards; export with static shapes"),
    },
)


def _is_tensor_file(value: Any) -> str:
    path = text(value)
    if not re.fullmatch(r"(weight|tensor)_\d{1,9}", path):
        raise FileFormatError(f"it names {shown(path)}, which is no tensor")
    return path


def _stored(value: Any) -> bool:
    if flag(value):
        raise FileFormatError("a tensor is stored as a pickle: it is not made of tensors alone")
    return False


_TENSORS = record(
    {
        "config": mapping(
            dotted,
            record(
                {
                    "path_name": _is_tensor_file,
                    "is_param": flag,
                    "use_pickle": _stored,
                    "tensor_meta": _tensor(union({"as_int": integer})),
                }
            ),
        )
    }
)
