"""Conversion of PyTorch models to OpenVINO IR files, which OpenVINO then reads."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError, optional_library
from placewright.execution.exported_program import (
    EXPORTING,
    INTERFACE_KEY,
    Interface,
    module_of,
    plain_results,
    tensor_inputs,
)
from placewright.frameworks.conversion import Converter
from placewright.io.content import UniqueNames, one_line

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Graph

_UNNAMED = ("Constant", "Parameter", "Result")


class OpenVinoConverter(Converter):
    """OpenVINO's converter to IR files, with f32 weights; modules pass through ``torch.export``."""

    suffix = ".xml"
    number = 2

    def versions(self) -> tuple[str, ...]:
        """Versions of torch and openvino."""
        return tuple(str(library.__version__) for library in _libraries())

    def of_module(
        self,
        module: torch.nn.Module,
        example_inputs: Sequence[torch.Tensor],
        input_names: Sequence[str],
    ) -> Any:
        """See `Converter.of_module`; nodes that depend only on shapes are folded."""
        torch, _ = _libraries()
        what = f"module {type(module).__name__}"
        try:
            with EXPORTING, torch.no_grad(), plain_results(module):
                program = torch.export.export(module, tuple(example_inputs))
        except Exception as error:  # tracing runs the module's own code
            raise InputError(f"{what} cannot be exported: {one_line(error)}") from error
        return _converted(program, what, input_names)

    def of_program(self, program: ExportedProgram, path: str, input_names: Sequence[str]) -> Any:
        """See `Converter.of_program`."""
        return _converted(program, path, input_names)

    def keep_interface(self, model: Any, interface: Interface) -> None:
        """See `Converter.keep_interface`; `kept_interface` reads it."""
        model.set_rt_info(interface.text(), INTERFACE_KEY)

    def save(self, model: Any, path: Path) -> None:
        """See `Converter.save`."""
        _, openvino = _libraries()
        openvino.save_model(model, str(path), compress_to_fp16=False)


def _converted(program: ExportedProgram, what: str, input_names: Sequence[str]) -> Any:
    """Convert a program to an ``openvino.Model`` with the program's input shapes."""
    _, openvino = _libraries()
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
    from openvino.passes import ConstantFolding, Manager

    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    examples = [values[name] for name in tensor_inputs(program)]
    # An open dimension is a symbol in the program, and open in the model.
    shapes = [[d if isinstance(d, int) else -1 for d in example.shape] for example in examples]
    is_open = any(-1 in shape for shape in shapes)
    try:
        with EXPORTING, _without_warnings():
            decoder = TorchFXPythonDecoder.from_exported_program(program, dynamic_shapes=is_open)
            positions = _each_once(decoder)
            model = openvino.convert_model(decoder)
        if len(model.outputs) < len(positions):
            made = [port.get_node().input_value(0) for port in model.outputs]
            results = [openvino.opset13.result(made[at]) for at in positions]
            model = openvino.Model(results, model.get_parameters(), model.get_friendly_name())
        for number, (port, shape) in enumerate(zip(model.inputs, shapes, strict=True)):
            if input_names:
                port.get_tensor().set_names({input_names[number]})
                port.get_node().set_friendly_name(input_names[number])
            port.get_node().set_partial_shape(openvino.PartialShape(shape))
        model.validate_nodes_and_infer_types()
    except Exception as error:  # the converter raises whatever an operator leads to
        raise InputError(f"{what} cannot be converted: {one_line(error)}") from error
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)
    name_by_module(model, decoder.pt_module.graph)
    return model


def _each_once(decoder: Any) -> list[int]:
    """Remove repeated outputs of a decoder, since the converter takes no value twice.

    Returns:
        For each output its position among the remaining ones.
    """
    nodes = [node for _, node in decoder._outputs]
    first = list(dict.fromkeys(nodes))
    decoder._outputs = [decoder._outputs[nodes.index(node)] for node in first]
    return [first.index(node) for node in nodes]


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress the converter's remarks about PyTorch's own tables."""
    root, nothing = logging.getLogger(), logging.NullHandler()

    def refuse(record: logging.LogRecord) -> bool:
        return False

    root.addFilter(refuse)  # filters records of the root logger itself, not of other loggers
    root.addHandler(nothing)  # without a handler, logging would install one
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeFilter(refuse)
        root.removeHandler(nothing)


def _libraries() -> tuple[Any, Any]:
    what = "converting a PyTorch model"
    torch = optional_library("torch", "torch", what)
    return torch, optional_library("openvino", "openvino", what)


def kept_interface(model: Any) -> Interface | None:
    """Read the interface that `OpenVinoConverter.keep_interface` wrote; None if there is none."""
    if not model.has_rt_info(INTERFACE_KEY):
        return None
    held = model.get_rt_info(INTERFACE_KEY)
    return Interface.of_text(str(getattr(held, "value", held)))


def name_by_module(model: Any, graph: Graph) -> None:
    """Rename the nodes of an ``openvino.Model`` after their modules and types, in place.

    OpenVINO names a node after a call (``linear_12/aten.linear.default/MatMul``), or makes a name
    up. The new names, such as ``encoder.layer.3.output.dense/MatMul``, are unique. Whatever places
    whole layers finds the layers by them.

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
    """Instance id -> module; a node without a call of its own has its first consumer's module."""
    position = {node.get_instance_id(): number for number, node in enumerate(nodes)}
    module_of_node: dict[int, str] = {}
    for node in reversed(nodes):
        call = node.get_friendly_name().split("/")[0]
        consumers = (
            port.get_node().get_instance_id()
            for output in node.outputs()
            for port in output.get_target_inputs()
        )
        nearest = sorted(
            (consumer for consumer in consumers if consumer in module_of_node),
            key=lambda consumer: position[consumer],
        )
        inherited = module_of_node[nearest[0]] if nearest else ""
        module_of_node[node.get_instance_id()] = module_by_call.get(call, inherited)
    return module_of_node
