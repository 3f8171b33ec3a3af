"""State that stays, as variables of an ``openvino.Model``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from placewright.core.source import NO_TENSOR, Port
from placewright.execution.exported_program import Interface
from placewright.execution.state_pairs import state_pairs
from placewright.frameworks.openvino.devices import openvino_library
from placewright.frameworks.openvino.flops import static_shape
from placewright.io.content import UniqueNames

# Kinds of ops whose outputs may lie in the memory of their inputs.
_VIEWS = ("Convert", "Reshape", "Squeeze", "Unsqueeze", "Split", "VariadicSplit", "Slice",
          "StridedSlice")  # fmt: skip


def keep_state(model: Any, asked: Mapping[str, str], named: Interface) -> Interface:
    """Turn pairs of outputs and inputs into variables that start at zero, in place.

    Args:
        model: an ``openvino.Model`` with static shapes.
        asked: output name -> input name, as `execution.state_pairs.state_pairs` takes them.
        named: names of all inputs and outputs.

    Returns:
        The names of the inputs and outputs that are left.

    Raises:
        UnknownNameError: there is no such input or output.
        FieldError: a pair does not fit together.
    """
    opset = openvino_library().opset13
    pairs = state_pairs(
        asked, _ports(named.inputs, model.inputs), _ports(named.outputs, model.outputs)
    )
    ends = [(model.outputs[o].get_node(), model.inputs[i].get_node()) for o, i in pairs]
    variable_name = UniqueNames()
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ReadValue":  # the model has variables of its own
            variable_name(node.get_variable_id())
    for (output, at), (result, parameter) in zip(pairs, ends, strict=True):
        kind, shape = parameter.get_element_type(), list(parameter.get_partial_shape().to_shape())
        start = opset.constant(np.zeros(shape, kind.to_dtype()))
        variable = variable_name(f"state{at}")
        read = opset.read_value(start, variable, kind, shape)
        read.set_friendly_name(f"{named.inputs[at]}/ReadValue")
        parameter.output(0).replace(read.output(0))
        made = result.input_value(0)
        # `assign` takes the first output of a node.
        last = opset.convert(made, kind.to_string()) if made.get_index() else made.get_node()
        assign = opset.assign(last, variable)
        assign.set_friendly_name(f"{named.outputs[output]}/Assign")
        model.add_sinks([assign])
        model.remove_result(result)
        model.remove_parameter(parameter)
    copy_inputs(sink for sink in model.get_sinks() if sink.get_type_name() == "Assign")
    gone, kept = {output for output, _ in pairs}, {at for _, at in pairs}
    return Interface(
        tuple(name for at, name in enumerate(named.inputs) if at not in kept),
        tuple(name for at, name in enumerate(named.outputs) if at not in gone),
        named.state,
    )


def copy_inputs(assigns: Iterable[Any]) -> None:
    """Let assignments take copies of what is an input of the model, in place.

    OpenVINO 2026.4 gives readers of a variable wrong values if an input is assigned to it as it is.

    Args:
        assigns: nodes of kind ``Assign``.
    """
    opset = openvino_library().opset13
    for assign in assigns:
        made = assign.input_value(0)
        node = made.get_node()
        while node.get_type_name() in _VIEWS:
            node = node.input_value(0).get_node()
        if node.get_type_name() == "Parameter":
            is_truth = made.get_element_type().get_type_name() == "boolean"
            copy = (opset.logical_or if is_truth else opset.maximum)(made, made)
            copy.set_friendly_name(f"{assign.get_friendly_name()}/copy")
            assign.input(0).replace_source_output(copy.output(0))


def _ports(names: tuple[str, ...], ports: Any) -> list[Port]:
    return [
        Port(
            name,
            static_shape(port.get_partial_shape()),
            port.get_element_type().get_type_name(),
            NO_TENSOR,
        )
        for name, port in zip(names, ports, strict=True)
    ]
