"""Conversion of PyTorch models to OpenVINO IR files, which OpenVINO then reads."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError, MissingExtraError
from placewright.execution.exported_program import (
    INTERFACE_KEY,
    Interface,
    ProgramFile,
    module_of,
    plain_results,
    tensor_inputs,
)
from placewright.frameworks.file_reader import converted_file
from placewright.io.content import UniqueNames, content_hash, one_line

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Graph

_CONVERSION = 2  # increase it if the same model would be converted to another file
_INTERFACE = "interface 1"  # change it if the interface of a .pt2 file would be written otherwise
_UNNAMED = ("Constant", "Parameter", "Result")


def openvino_model_of(
    module: torch.nn.Module, example_inputs: Sequence[torch.Tensor], input_names: Sequence[str] = ()
) -> Any:
    """Convert a module through ``torch.export``.

    Input shapes are those of the examples. Nodes that depend only on shapes are folded.

    Args:
        module: in evaluation mode.
        example_inputs: positional inputs.
        input_names: names of the inputs in the result; empty keeps those of ``forward``.

    Returns:
        An ``openvino.Model``.

    Raises:
        InputError: the module cannot be exported or converted.
        MissingExtraError: torch or openvino is not installed.
    """
    torch, _ = _libraries()
    try:
        with torch.no_grad(), plain_results(module):
            program = torch.export.export(module, tuple(example_inputs))
    except Exception as error:  # tracing runs the module's own code
        raise InputError(
            f"module {type(module).__name__} cannot be exported: {one_line(error)}"
        ) from error
    return _converted(program, f"module {type(module).__name__}", input_names)


def openvino_file_of(
    name: str,
    module: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    input_names: Sequence[str] = (),
    *,
    version: str = "",
    folder: Path | None = None,
) -> Path:
    """Convert a module to an IR file with f32 weights, once; later calls return the same file.

    The file's name holds a hash of `name`, `version`, the example inputs' shapes and the versions
    of torch and openvino: a change of any of them makes another file.

    Args:
        name: of the model.
        module: in evaluation mode.
        example_inputs: positional inputs.
        input_names: names of the inputs.
        version: of whatever determines architecture and weights.
        folder: of the files; None is ``placewright/models`` in the user's cache folder.

    Raises:
        InputError: the module cannot be converted, or the file cannot be written.
        MissingExtraError: torch or openvino is not installed.
    """
    shapes = [tuple(example.shape) for example in example_inputs]
    return _file(
        name,
        [version, shapes],
        lambda: openvino_model_of(module, example_inputs, input_names),
        folder,
    )


def openvino_file_of_program(held: ProgramFile, *, folder: Path | None = None) -> Path:
    """Convert a program in a file to an IR file, once; later calls find it by content.

    Raises:
        InputError: it cannot be read or converted, or the result not written.
        FileFormatError: the file is damaged, or holds more than data.
        MissingExtraError: torch or openvino is not installed.
    """
    digest = content_hash(held.path.parent, [held.path])

    def convert() -> Any:
        program, interface = held.load(held.path)
        model = _converted(program, str(held.path), interface.inputs)
        keep_interface(model, interface)
        return model

    return _file(held.path.stem, [digest, _INTERFACE], convert, folder)


def _converted(program: ExportedProgram, what: str, input_names: Sequence[str] = ()) -> Any:
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
        with _without_warnings():
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


def _file(name: str, key: Sequence[object], make: Callable[[], Any], folder: Path | None) -> Path:
    torch, openvino = _libraries()

    def save(model: Any, path: Path) -> None:
        openvino.save_model(model, str(path), compress_to_fp16=False)

    versions = (torch.__version__, openvino.__version__)
    return converted_file(name, (_CONVERSION, *key, *versions), ".xml", make, save, folder)


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
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "converting a PyTorch model") from None
    try:
        import openvino
    except ImportError:
        raise MissingExtraError("openvino", "openvino", "converting a PyTorch model") from None
    return torch, openvino


def keep_interface(model: Any, interface: Interface) -> None:
    """Write the interface of a PyTorch program into the ``openvino.Model`` made of it."""
    model.set_rt_info(interface.text(), INTERFACE_KEY)


def kept_interface(model: Any) -> Interface | None:
    """Read the interface that `keep_interface` wrote; None if there is none."""
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
