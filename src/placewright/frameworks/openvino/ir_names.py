"""Names for the nodes of a converted PyTorch model: the module that a node came from, and its type.

OpenVINO names a node after the call that it stands for (``linear_12/aten.linear.default/MatMul``),
or makes a name up. ``encoder.layer.3.output.dense/MatMul`` says where in the model it sits, and
whatever places whole layers finds the layers by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from placewright.execution.exported_program import module_of
from placewright.io.content import UniqueNames

if TYPE_CHECKING:
    from torch.fx import Graph

_UNNAMED = ("Constant", "Parameter", "Result")


def name_by_module(model: Any, graph: Graph) -> None:
    """Rename the nodes of an ``openvino.Model`` in place; names are unique.

    Args:
        model: converted from `graph`.
        graph: whose nodes carry the module stack, as those of ``torch.export`` do.
    """
    module_by_call = {node.name: module_of(node) for node in graph.nodes}
    nodes = [n for n in model.get_ordered_ops() if n.get_type_name() not in _UNNAMED]
    modules = _modules(nodes, module_by_call)
    unique = UniqueNames()
    for node in nodes:
        module, kind = modules[node.get_instance_id()], node.get_type_name()
        node.set_friendly_name(unique(f"{module}/{kind}" if module else kind))


def _modules(nodes: list[Any], module_by_call: Mapping[str, str]) -> dict[int, str]:
    """Instance id -> module; a node that stands for no call has its first consumer's module."""
    position = {node.get_instance_id(): number for number, node in enumerate(nodes)}
    found: dict[int, str] = {}
    for node in reversed(nodes):
        call = node.get_friendly_name().split("/")[0]
        consumers = (
            port.get_node().get_instance_id()
            for output in node.outputs()
            for port in output.get_target_inputs()
        )
        nearest = sorted(
            (consumer for consumer in consumers if consumer in found), key=lambda c: position[c]
        )
        inherited = found[nearest[0]] if nearest else ""
        found[node.get_instance_id()] = module_by_call.get(call, inherited)
    return found
