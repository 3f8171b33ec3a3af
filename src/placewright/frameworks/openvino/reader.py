"""Reader of models through OpenVINO's front-ends: IR, ONNX, TensorFlow, TensorFlow Lite.

There is one op per node of OpenVINO's own graph. Constants, and nodes that depend only on
constants, fold into the weights of the ops that read them: a constant that several ops read is one
shared weight. A node that reads only a fixed shape is such a constant too, and nodes that only it
reads are no ops.

Integers of 4 or 8 bits are stored with a scale and sometimes a zero point. OpenVINO's CPU plugin
keeps the integers if its kernels can multiply them. Else it unpacks them to f32 when it compiles.
The rules follow its compiled models (2026.0, x86-64), with which
``tests/frameworks/openvino/test_openvino_weights.py`` compares them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.core.source import (
    NO_TENSOR,
    ModelSource,
    Port,
    Signature,
    distinct,
    numbered_position,
)
from placewright.errors import (
    FileFormatError,
    GraphError,
    InputError,
)
from placewright.execution.exported_program import Interface
from placewright.execution.state_pairs import option_of
from placewright.frameworks.input_shapes import StatedInput, fixed_shapes
from placewright.frameworks.openvino.conversion import kept_interface
from placewright.frameworks.openvino.devices import openvino_library
from placewright.frameworks.openvino.flops import bodies_of, flops_of, static_shape
from placewright.frameworks.openvino.model_files import checked_files
from placewright.frameworks.openvino.state import keep_state
from placewright.io.content import UniqueNames, content_hash, existing_path, one_line
from placewright.io.model_parts import onnx_symbols

_UNPACKS = ("Multiply", "Subtract", "Convert", "Reshape", "Transpose")
_KEEPS_PACKED = ("MatMul", "Gather")  # their kernels unpack while they read
_MULTIPLIES_INTEGERS = ("MatMul", "Convolution", "GroupConvolution")  # of integers by integers
_PASSES_INTEGERS = (*_UNPACKS, "Relu", "MaxPool", "Squeeze", "Unsqueeze", "Split", "VariadicSplit")
_LONGEST_CHAIN = 16
_ACTIVATIONS, _DATA, _WEIGHTS = 0, 0, 1  # inputs
_MOST_LEVELS = 256
_HALF = "f16"  # the plugin computes in f32, and converts such weights when it compiles
_QUANTIZED = "i8"  # what a `FakeQuantize` of weights becomes


def port_bytes(port: Any) -> float:
    """Bytes of an output: packed types such as i4 count their bits."""
    bits = port.get_element_type().bitwidth
    return float(math.ceil(math.prod(static_shape(port.get_partial_shape())) * bits / 8))


def kept_weight(value: Any) -> tuple[float, str]:
    """Bytes that stay in memory for a constant, and their dtype.

    Args:
        value: an ``openvino.Output`` of a folded node, which at least one op reads.
    """
    unpacked = port_bytes(value), str(value.get_element_type().get_type_name())
    if unpacked[1] == _HALF:
        unpacked = 2.0 * unpacked[0], "f32"
    readers = [(target.get_node(), target.get_index()) for target in value.get_target_inputs()]
    source, others = _packed(value)
    if source is None:
        return unpacked
    if source.get_node().get_type_name() == "Constant":
        is_kept = all(_keeps(source, *reader) for reader in readers)
        dtype = str(source.get_element_type().get_type_name())
        return (port_bytes(source) + others, dtype) if is_kept else unpacked
    is_kept = all(_takes_integers(*reader) for reader in readers)
    elements = float(math.prod(static_shape(value.get_partial_shape())))
    return (elements, _QUANTIZED) if is_kept else unpacked


def _packed(value: Any) -> tuple[Any | None, float]:
    """The integers behind a decompression, and the bytes of its scales and zero points.

    A ``FakeQuantize`` of weights becomes integers of 8 bits when the model is compiled.
    """
    others = 0.0
    for _ in range(_LONGEST_CHAIN):
        node = value.get_node()
        kind = node.get_type_name()
        if kind == "Constant":
            element = value.get_element_type()
            return (value, others) if element.is_integral() and element.bitwidth <= 8 else (None, 0)
        if kind == "FakeQuantize":
            is_small = int(node.get_attributes()["levels"]) <= _MOST_LEVELS
            return (value if is_small else None), 0.0
        if kind not in _UNPACKS:
            break
        if kind in ("Multiply", "Subtract"):
            others += port_bytes(node.input_value(1))
        value = node.input_value(0)
    return None, 0.0


def _keeps(source: Any, reader: Any, index: int) -> bool:
    """True if `reader` computes with the integers of `source`, its input `index`."""
    kind = reader.get_type_name()
    if kind in _KEEPS_PACKED:
        return index == (_DATA if kind == "Gather" else _WEIGHTS)
    return source.get_element_type().bitwidth == 8 and _takes_integers(reader, index)


def _takes_integers(reader: Any, index: int) -> bool:
    """True if `reader` multiplies quantized activations by its weights, its input `index`."""
    if reader.get_type_name() not in _MULTIPLIES_INTEGERS or index != _WEIGHTS:
        return False
    value = reader.input_value(_ACTIVATIONS)
    for _ in range(_LONGEST_CHAIN):
        node = value.get_node()
        if node.get_type_name() == "FakeQuantize":
            return int(node.get_attributes()["levels"]) <= _MOST_LEVELS
        if node.get_type_name() not in _PASSES_INTEGERS:
            return False
        value = node.input_value(0)
    return False


# Beginnings of a front-end's line that names unknown operators.
_OF_OPERATORS = re.compile(r"operat|translat|convert", re.IGNORECASE)
_UNKNOWN_OPERATORS = ("Conversion is failed for", "No conversion rule found for")
_NEVER_FOLDED = ("Parameter", "Result", "ReadValue", "Assign")
_NO_SHAPES: Mapping[str, tuple[int, ...]] = {}
_NO_STATE: Mapping[str, str] = {}
_NO_SYMBOLS: Mapping[str, tuple[str, ...]] = {}
_WHAT = "reading this model"  # needs OpenVINO
_NUMBERED = re.compile(r"(.+?)(?:_[0-9]+)+")


def read_openvino(
    path: Path | str,
    *,
    shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
    fold_constants: bool = True,
    state: Mapping[str, str] = _NO_STATE,
) -> tuple[ComputationGraph, ModelSource]:
    """Read a model file through OpenVINO.

    Args:
        path: ``.xml``, ``.onnx``, ``.pb``, ``.tflite`` or a SavedModel folder.
        shapes: dimensions to fix; see `frameworks.input_shapes.fixed_shapes`.
        fold_constants: False gives the raw graph with one op per constant, parameter and result.
        state: output name -> input name of values that stay from call to call.

    Returns:
        The graph, and its source with the shapes of all inputs.

    Raises:
        InputError: there is no such file, the shapes do not fit, or an open one is missing.
        UnknownNameError: `shapes` names an input that the model lacks.
        FileFormatError: the file has another format than its suffix, is damaged, or refers
            outside its folder.
        MissingExtraError: openvino is not installed.
    """
    file = existing_path(path)
    files = checked_files(file)
    openvino = openvino_library(_WHAT)
    try:
        model = openvino.Core().read_model(str(file))
        symbols = onnx_symbols(file) if file.suffix.lower() == ".onnx" else _NO_SYMBOLS
        fix_shapes(model, shapes, symbols)
        all_shapes = {_names_of(p)[0]: static_shape(p.get_partial_shape()) for p in model.inputs}
        interface = keep_state_of(model, state)
        is_stored = file.suffix.lower() == ".xml"
        reading = read_operators(model, fold_constants=fold_constants, names_are_stored=is_stored)
        graph = reading.builder.build()
        signature = reading.signature(model) if fold_constants else None
    except RuntimeError as error:
        reason = _reason(error)
        if file.suffix.lower() == ".onnx" and reason.startswith(_UNKNOWN_OPERATORS):
            reason += "; argument `runtime` onnxruntime may know these operators"
        if file.suffix.lower() == ".tflite" and _OF_OPERATORS.search(reason):
            reason += "; converted to ONNX, argument `runtime` onnxruntime may run it"
        if file.is_symlink() and "outside the base directory" in reason:
            reason = "it follows no links to data files; argument `runtime` onnxruntime does"
        raise FileFormatError(f"OpenVINO cannot read '{path}': {reason}") from None
    except UnicodeDecodeError:
        raise FileFormatError(f"'{path}' is damaged: a name in it is not UTF-8 text") from None
    except MemoryError:
        raise FileFormatError(
            f"'{path}' does not fit into the memory of this machine, or is damaged"
        ) from None
    except (ArithmeticError, IndexError, KeyError, TypeError) as error:
        raise FileFormatError(f"'{path}' is damaged: {one_line(error)}") from None
    except GraphError as error:
        raise GraphError(f"'{path}': {error}") from None
    root = file if file.is_dir() else file.parent
    source = ModelSource(
        path=str(path),
        sha256=content_hash(root, files),
        format="openvino",
        shapes=all_shapes,
        reader_version=f"openvino {openvino.__version__}",
        native_names=reading.native_names,
        options={**({} if fold_constants else {"fold_constants": "no"}), **option_of(state)},
        signature=signature,
    )
    return graph, source if interface is None else interface.applied_to(source)


def keep_state_of(model: Any, state: Mapping[str, str]) -> Interface | None:
    """Turn outputs and inputs into variables, in place; return the interface of a converted file.

    Raises:
        UnknownNameError: there is no such input or output.
        FieldError: a pair does not fit together.
    """
    interface = kept_interface(model)
    if not state:
        return interface
    counts = (len(model.inputs), len(model.outputs))
    fits = interface is not None and (len(interface.inputs), len(interface.outputs)) == counts
    if interface is not None and fits:
        return keep_state(model, state, interface)
    inputs = tuple(_names_of(port)[0] for port in model.inputs)
    outputs = tuple(_names_of(port)[0] for port in model.outputs)
    keep_state(model, state, Interface(inputs, outputs, ()))
    return None


def read_operators(
    model: Any, *, fold_constants: bool = True, names_are_stored: bool = False
) -> Operators:
    """Read the operators of an ``openvino.Model`` with static input shapes.

    An op has the friendly name of its node. A name that OpenVINO made up from the node's type and a
    running number differs from one reading to the next. Such an op is called by its type and its
    position in ``model.get_ordered_ops()``, and its native name is ``"#<position>"``.

    Args:
        model: an ``openvino.Model``.
        fold_constants: False gives the raw graph.
        names_are_stored: True for a model read from an IR file, whose names never change.

    Raises:
        GraphError: every output of the model is constant.
    """
    folded = folded_nodes(model.get_ordered_ops()) if fold_constants else frozenset()
    reading = Operators(model, folded, fold_constants, names_are_stored)
    for position, node in enumerate(reading.nodes):
        reading.add(position, node)
    if not reading.op_of:
        raise GraphError("the model has no operator that depends on an input")
    return reading


def fix_shapes(
    model: Any,
    shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
    symbols: Mapping[str, tuple[str, ...]] = _NO_SYMBOLS,
) -> None:
    """Give every input of an ``openvino.Model`` a static shape, in place.

    Args:
        model: an ``openvino.Model``.
        shapes: see `frameworks.input_shapes.fixed_shapes`.
        symbols: input name -> symbols of its dimensions, which OpenVINO does not keep.

    Raises:
        UnknownNameError: `shapes` names an input that the model lacks.
        InputError: a shape does not fit the model, or an open one is missing.
    """
    stated_inputs = [_stated(port, symbols) for port in model.inputs]
    wanted = fixed_shapes(stated_inputs, shapes)
    fixed: dict[Any, Any] = {}
    asked: list[str] = []
    changed = False
    for port, stated, dimensions in zip(model.inputs, stated_inputs, wanted, strict=True):
        partial = port.get_partial_shape()
        changed |= partial.is_dynamic or tuple(partial.to_shape()) != dimensions
        fixed[port] = openvino_library(_WHAT).PartialShape(list(dimensions))
        asked.append(f"{stated.name}={list(dimensions)}")
    if changed:
        try:
            model.reshape(fixed)
        except RuntimeError as error:
            raise InputError(
                f"the model cannot take the input shapes {', '.join(asked)}: {_reason(error)}; "
                "choose others with argument `shapes`"
            ) from None


def _stated(port: Any, symbols: Mapping[str, tuple[str, ...]]) -> StatedInput:
    names, partial = tuple(_names_of(port)), port.get_partial_shape()
    if partial.rank.is_dynamic:
        return StatedInput(names, None)
    known = next((symbols[name] for name in names if name in symbols), ())
    extents = static_shape(partial)  # of an open dimension the upper bound, or 1
    dimensions = [
        extents[at]
        if dimension.is_static or extents[at] != 1
        else (known[at] if at < len(known) else "")
        for at, dimension in enumerate(partial)
    ]
    return StatedInput(names, tuple(dimensions))


def folded_nodes(nodes: Sequence[Any]) -> frozenset[int]:
    """Instance ids of the nodes that become no ops.

    These are constants, nodes whose inputs are all constant (a decompression, a reshape), fixed
    shapes, and nodes that only such a shape reads. OpenVINO computes them when it compiles.

    Args:
        nodes: of a model, in topological order.
    """
    folded: dict[int, None] = {}
    for node in nodes:
        kind = node.get_type_name()
        makers = [value.get_node().get_instance_id() for value in node.input_values()]
        if kind in _NEVER_FOLDED or _draws(node):
            continue
        is_known = bool(makers) and all(maker in folded for maker in makers)
        if kind == "Constant" or is_fixed_shape(node) or is_known:
            folded[node.get_instance_id()] = None
    for node in reversed(nodes):
        if node.get_type_name() in _NEVER_FOLDED:
            continue
        targets = [target for port in node.outputs() for target in port.get_target_inputs()]
        if targets and all(target.get_node().get_instance_id() in folded for target in targets):
            folded[node.get_instance_id()] = None
    return frozenset(folded)


def _draws(node: Any) -> bool:
    """True if a node, or one in its bodies, draws random numbers."""
    if node.get_type_name().startswith(("Random", "Multinomial")):
        return True
    return any(_draws(inner) for body in bodies_of(node) for inner in body.get_ordered_ops())


def op_positions(nodes: Sequence[Any]) -> list[int]:
    """Positions of the nodes that become ops, among all nodes in topological order."""
    folded = folded_nodes(nodes)
    return [
        at
        for at, node in enumerate(nodes)
        if node.get_instance_id() not in folded
        and node.get_type_name() not in ("Parameter", "Result")
    ]


def is_fixed_shape(node: Any) -> bool:
    """True if a node reads a shape that does not depend on data."""
    return node.get_type_name() == "ShapeOf" and bool(node.get_input_partial_shape(0).is_static)


class Operators:
    """Operators, tensors and weights of a model, added node by node in topological order.

    Attributes:
        builder: of the graph.
        native_names: op name -> native name if they differ.
    """

    def __init__(
        self, model: Any, folded: frozenset[int], fold_constants: bool, names_are_stored: bool
    ) -> None:
        self.builder = GraphBuilder()
        self.nodes = model.get_ordered_ops()
        self.fold = fold_constants
        self.names_are_stored = names_are_stored
        self.op_of: dict[int, int] = {}  # instance id -> op
        self.native_names: dict[str, str] = {}
        self._constant = folded  # instance ids; membership only
        self._tensors: dict[tuple[int, int], int] = {}  # (instance id, port) -> tensor
        self._weights: dict[tuple[int, int], int] = {}
        self._variables: dict[str, int] = {}
        self._name = UniqueNames()

    def add(self, position: int, node: Any) -> None:
        """Add a node, its output tensors and the weights that it reads."""
        kind, identity = node.get_type_name(), node.get_instance_id()
        if identity in self._constant:
            return
        if self.fold and kind == "Parameter":
            self._add_tensors(node, -1)
        elif self.fold and kind == "Result":
            self._mark_output(node.input_value(0))
        else:
            self.op_of[identity] = self._add_op(position, node, kind)
            self._add_tensors(node, self.op_of[identity])

    def signature(self, model: Any) -> Signature:
        """Inputs and outputs in the order of the model."""
        return Signature(
            distinct(self._port(port, port) for port in model.inputs),
            distinct(self._port(port, port.get_node().input_value(0)) for port in model.outputs),
        )

    def _port(self, port: Any, value: Any) -> Port:
        names, result = _names_of(port), port.get_node().get_friendly_name()
        # TensorFlow names a tensor after every operation that passes it on; the result's name wins.
        name, *others = [result, *names] if result in port.get_names() else names
        # TensorFlow's tensors are named after an operation and a number; users leave out 0.
        others += [known.removesuffix(":0") for known in (name, *others) if known.endswith(":0")]
        key = (value.get_node().get_instance_id(), value.get_index())
        return Port(
            name,
            static_shape(port.get_partial_shape()),
            port.get_element_type().get_type_name(),
            self._tensors.get(key, NO_TENSOR),
            tuple(other for other in dict.fromkeys(others) if other != name),
        )

    def _add_op(self, position: int, node: Any, kind: str) -> int:
        friendly = node.get_friendly_name()
        made_up = looks_made_up(friendly, kind) and not self.names_are_stored
        name = self._name(f"{kind}_{position}" if made_up else friendly, kind)
        if made_up or name != friendly or numbered_position(name) is not None:
            self.native_names[name] = f"#{position}"
        inputs, weights = [], []
        for value in node.input_values():
            key = (value.get_node().get_instance_id(), value.get_index())
            if key[0] in self._constant:
                weights.append(self._weight(key, value))
            else:
                inputs.append(self._tensors[key])
        weights += self._weights_inside(node)
        return self.builder.add_op(
            name,
            kind,
            inputs=inputs,
            flops=flops_of(node),
            module=name.rpartition("/")[0],
            colocation=self._variable_of(node, kind),
            weights=weights,
        )

    def _weight(self, key: tuple[int, int], value: Any) -> int:
        if key not in self._weights:
            size, dtype = kept_weight(value)
            self._weights[key] = self.builder.add_weight(size, dtype=dtype)
        return self._weights[key]

    def _weights_inside(self, node: Any) -> list[int]:
        """Make weights of the constants in a loop's body or in both branches of a choice.

        Those in half precision are one, which the plugin keeps as f32; all others are another.
        """
        held = list(_constants_in(bodies_of(node)))
        halves = 2.0 * sum(size for size, dtype in held if dtype == _HALF)
        others = float(sum(size for size, dtype in held if dtype != _HALF))
        made = [(others, ""), (halves, "f32")]
        return [self.builder.add_weight(size, dtype=dtype) for size, dtype in made if size]

    def _variable_of(self, node: Any, kind: str) -> int:
        """Colocation class of a variable: it is read and assigned on one device."""
        if kind not in ("ReadValue", "Assign"):
            return -1
        return self._variables.setdefault(node.get_variable_id(), len(self._variables))

    def _add_tensors(self, node: Any, op: int) -> None:
        for port in node.outputs():
            if not port.get_target_inputs() and op >= 0:
                continue  # an output without readers moves nowhere
            shape = static_shape(port.get_partial_shape())
            dtype = port.get_element_type().get_type_name()
            size = port_bytes(port)
            self._tensors[node.get_instance_id(), port.get_index()] = (
                self.builder.add_input(size, shape=shape, dtype=dtype)
                if op < 0
                else self.builder.add_tensor(op, size, shape=shape, dtype=dtype)
            )

    def _mark_output(self, value: Any) -> None:
        key = (value.get_node().get_instance_id(), value.get_index())
        if key[0] not in self._constant:
            self.builder.mark_output(self._tensors[key])


def looks_made_up(name: str, kind: str) -> bool:
    """True if OpenVINO made a name up: a type and a number.

    The type may be that of a node which this node replaced: what remains of a transposed ``Add`` is
    called ``Transpose_389``. A second number distinguishes the name from an equal name in the file
    (``Concat_166_1``).
    """
    parts = _NUMBERED.fullmatch(name)
    if parts is None:
        return False
    return parts[1] == kind or parts[1].lower() in _operator_names()


@cache
def _operator_names() -> frozenset[str]:
    """Types of all operators that OpenVINO has, in lower case."""
    openvino = openvino_library(_WHAT)
    opsets = [getattr(openvino, name) for name in dir(openvino) if name.startswith("opset")]
    return frozenset(name.replace("_", "").lower() for opset in opsets for name in dir(opset))


def _constants_in(bodies: Sequence[Any]) -> Iterator[tuple[float, str]]:
    """Yield bytes and dtype of each constant in bodies and in the bodies inside them."""
    for node in (node for body in bodies for node in body.get_ordered_ops()):
        if node.get_type_name() == "Constant":
            value = node.output(0)
            yield port_bytes(value), str(value.get_element_type().get_type_name())
        yield from _constants_in(bodies_of(node))


def _names_of(port: Any) -> list[str]:
    """Names of an input or output; the first, which users see, is its shortest tensor name."""
    tensor_names = sorted(port.get_names(), key=lambda name: (len(name), name))
    friendly = port.get_node().get_friendly_name()
    return list(dict.fromkeys([*tensor_names, friendly]))


def _reason(error: RuntimeError) -> str:
    """OpenVINO's message without the places in its sources."""
    lines = [line for line in str(error).splitlines() if not line.startswith("Exception from")]
    return one_line("\n".join(lines)).removeprefix("-- ")
