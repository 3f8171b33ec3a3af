"""Reader of PyTorch modules and ``.pt2`` files: the graph of one inference, by ``torch.export``."""

from __future__ import annotations

import hashlib
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.core.source import NO_TENSOR, ModelSource, Port, Signature
from placewright.errors import InputError, UnknownNameError, optional_library
from placewright.execution.exported_program import (
    EXPORTING,
    OwnClasses,
    plain_results,
    tensor_inputs,
)
from placewright.execution.state_pairs import Pairs, option_of, state_pairs
from placewright.frameworks.torch.pt2.file import load_program, refused_in_one_line
from placewright.frameworks.torch.reading.fx_graph import (
    FxRules,
    add_fx_graph,
    dtype_of,
    shape_of,
    signature_of,
)
from placewright.frameworks.torch.reading.fx_program import (
    FxInterface,
    FxProgram,
    ReadProgram,
    example_of,
    held_tensors,
    inference_program,
    nested,
    tensors_in,
)
from placewright.frameworks.torch.reading.state import colocation_classes, values_in_state
from placewright.io.content import existing_path, one_line

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_LOG = logging.getLogger(__name__)


def read_inference(
    model: torch.nn.Module | Path | str,
    example_inputs: Sequence[torch.Tensor] = (),
    *,
    name: str = "",
    fold_constants: bool = True,
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    state: Mapping[str, str] = MappingProxyType({}),
) -> ReadProgram:
    """Read a module with its example inputs, or a ``.pt2`` file: its graph, source and program.

    Parameters and buffers are weights; tied ones are one weight. Op names are the names of the
    nodes of the exported program without in-place operators.

    Args:
        model: a module in evaluation mode, or the path of a file that ``torch.export.save`` wrote.
        example_inputs: positional inputs of the module; a file holds its own.
        name: what the source calls a module; empty takes its class.
        fold_constants: ops that depend only on weights become weights.
        shapes: fixes open dimensions of a file's program, and changes shapes of a module's example
            inputs; others are those of the example inputs.
        state: output name -> input name of values that stay from call to call.

    Raises:
        InputError: the module cannot be exported, or there is no such file.
        FileFormatError: the file is damaged or wrong, or holds more than data.
        MissingExtraError: torch is not installed.
    """
    with refused_in_one_line(model):
        return _read_program(model, example_inputs, name, fold_constants, shapes, state)


def _read_program(
    model: torch.nn.Module | Path | str,
    example_inputs: Sequence[torch.Tensor],
    name: str,
    fold_constants: bool,
    shapes: Mapping[str, tuple[int, ...]],
    state: Mapping[str, str],
) -> ReadProgram:
    torch = torch_library()
    own = OwnClasses()
    exported = _exported(model, example_inputs, own)
    is_module = not isinstance(model, Path | str)
    if not isinstance(model, Path | str):
        _warn_of_training(model)
    if is_module and (reshaped := _reshaped(exported, example_inputs, shapes)):
        example_inputs, exported = reshaped, _exported(model, reshaped, own)
    original = fixed_program(exported, shapes)
    has_shapes = original is not exported or (is_module and bool(shapes))
    program = functional(original)
    named = FxInterface.of(original)
    pairs = _pairs(program, named, state)
    made = inference_program(program, example_inputs, original, own, pairs)
    graph, signature = _read(program, made, fold_constants, named.without(pairs))
    if isinstance(model, Path | str):
        path, digest = str(model), program_hash(exported)
    else:
        path, digest = name or f"module:{type(model).__name__}", program_hash(program)
    source = ModelSource(
        path=path,
        sha256=digest,
        format="torch",
        shapes=_input_shapes(program),
        reader_version=f"torch {torch.__version__}",
        options={
            **({} if fold_constants else {"fold_constants": "no"}),
            **({"open_dimensions": "yes"} if has_shapes else {}),
            **option_of(state),
        },
        signature=signature,
        state=named.state,
    )
    return ReadProgram(graph, source, made)


def _warn_of_training(model: torch.nn.Module) -> None:
    """Name a part that computes otherwise in training mode."""
    nn = torch_library().nn
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    parts = ((path, part) for path, part in model.named_modules() if isinstance(part, kinds))
    if (path := next((path for path, part in parts if part.training), None)) is not None:
        _LOG.warning(
            "part '%s' of module %s is in training mode, and runs so; call eval() before",
            path,
            type(model).__name__,
        )


def _reshaped(
    program: ExportedProgram, examples: Any, shapes: Mapping[str, tuple[int, ...]]
) -> Any:
    """Example inputs of other shapes, with the values of the given ones; () if they stay.

    Rows that may be offsets become zeros.

    Raises:
        UnknownNameError: the module has no such input.
    """
    names, values = FxInterface.of(program).input_names, tensors_in(examples)
    for asked in shapes:
        if asked not in names:
            raise UnknownNameError("model input", asked, names)
    wanted = [
        tuple(shapes.get(name, value.shape)) for name, value in zip(names, values, strict=True)
    ]
    if all(shape == value.shape for shape, value in zip(wanted, values, strict=True)):
        return ()
    made = map(_resized, map(_without_offsets, values), wanted)
    pytree = torch_library().utils._pytree
    return pytree.tree_map_only(torch_library().Tensor, lambda _: next(made), examples)


def _resized(value: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """As many of a tensor's own values as a shape needs, in their order.

    Positions and tokens thus stay valid.
    """
    if tuple(shape) == tuple(value.shape):
        return value
    if not value.numel():
        return value.new_zeros(tuple(shape))
    places = torch_library().arange(math.prod(shape)) % value.numel()
    return value.reshape(-1)[places].reshape(tuple(shape))


def _without_offsets(value: torch.Tensor) -> torch.Tensor:
    """Zeros for whole numbers that ascend from 0 in a row, other values as they are.

    Offsets of bags, say, may lead beyond fewer rows, and are none once they are repeated or cut.
    Positions, which count by one, stay.
    """
    kind = value.dtype
    if kind.is_floating_point or kind.is_complex or kind == torch_library().bool:
        return value
    if value.dim() != 1 or value.numel() < 2 or value.is_meta:
        return value
    numbers = value.tolist()
    is_row = numbers[0] == 0 and numbers == sorted(numbers)
    are_positions = numbers == list(range(len(numbers)))
    return value.new_zeros(value.shape) if is_row and not are_positions else value


def _pairs(program: ExportedProgram, named: FxInterface, state: Mapping[str, str]) -> Pairs:
    """Positions (output, input) of values that stay."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    own = FxInterface.of(program)

    def ports(names: Sequence[str], nodes: Sequence[str]) -> list[Port]:
        return [
            Port(name, shape_of(values[node]), dtype_of(values[node]), NO_TENSOR)
            for name, node in zip(names, nodes, strict=True)
        ]

    return state_pairs(
        state, ports(named.input_names, own.inputs), ports(named.output_names, own.outputs)
    )


def _exported(
    model: torch.nn.Module | Path | str, example_inputs: Sequence[torch.Tensor], own: OwnClasses
) -> ExportedProgram:
    torch = torch_library()
    if isinstance(model, Path | str):
        path = existing_path(model)
        status = path.stat()
        return _loaded(path, (status.st_mtime_ns, status.st_size))
    try:
        with EXPORTING, torch.no_grad(), plain_results(model, own):
            return exported_module(model, example_inputs)
    except Exception as error:  # tracing runs the module's own code
        hint = "" if example_inputs else "; give `example_inputs`, one for each argument"
        if "Cache'>" in str(error):
            hint = (
                "; leave the cache out (`model.config.use_cache = False`, or `'use_cache': False` "
                "among example inputs by name), or keep that of a causal language model on the "
                "devices with `placewright.frameworks.torch.decoders.cached_decoder`"
            )
        raise InputError(
            f"module {type(model).__name__} cannot be exported: {export_reason(error)}{hint}"
        ) from error


@lru_cache(maxsize=1)
def _loaded(path: Path, stamp: object) -> ExportedProgram:
    """The program of a file; several shapes of it share the memory of their weights."""
    return load_program(path)


def exported_module(model: torch.nn.Module, examples: Any) -> ExportedProgram:
    """Export a module; example inputs go to the meta device if the module is there.

    Args:
        model: in the mode in which it is traced.
        examples: positional inputs, or a mapping by the names of its arguments, in their order.
    """
    torch = torch_library()
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        tree_map = torch.utils._pytree.tree_map_only
        examples = tree_map(torch.Tensor, lambda tensor: tensor.to("meta"), examples)
    by_name = isinstance(examples, Mapping)
    positional, named = ((), dict(examples)) if by_name else (tuple(examples), {})
    with EXPORTING, _replaced_buffers(model) as replaced:
        exported: ExportedProgram = torch.export.export(model, positional, named)
    lost = replaced.keys() - set(exported.graph_signature.buffers_to_mutate.values())
    if lost:
        raise InputError(
            f"a part of the module replaces buffer '{min(lost)}', which PyTorch's export does not "
            "follow, so that it would keep its first value; change it in place"
        )
    return exported


def export_reason(error: BaseException) -> str:
    """The reason of a failed export in one line; PyTorch's last line may refer to those above."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(lines[0] if lines and "error above" in lines[-1].lower() else error)


@contextmanager
def _replaced_buffers(model: torch.nn.Module) -> Iterator[dict[str, None]]:
    """Collect the paths of buffers to which the module's own code assigns another tensor."""
    import torch

    path_of = {(id(part), name): path for path, part, name in _buffers(model)}
    replaced: dict[str, None] = {}
    plain = torch.nn.Module.__setattr__

    def noted(part: Any, name: str, value: Any) -> None:
        path = path_of.get((id(part), name))
        if path is not None and value is not part._buffers.get(name):
            replaced[path] = None
        plain(part, name, value)

    torch.nn.Module.__setattr__ = noted  # type: ignore[method-assign, assignment]
    try:
        yield replaced
    finally:
        torch.nn.Module.__setattr__ = plain  # type: ignore[method-assign]


def _buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    for prefix, part in model.named_modules():
        for name in part._buffers:
            yield f"{prefix}.{name}" if prefix else name, part, name


def functional(program: ExportedProgram) -> ExportedProgram:
    """Replace the in-place operators of a program.

    Raises:
        InputError: PyTorch cannot do it.
    """
    with EXPORTING, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch about its own code
        try:
            made: ExportedProgram = program.run_decompositions({})
        except AssertionError as error:  # damaged files raise others, which callers handle
            raise InputError(
                "the exported program cannot be made free of in-place operators: PyTorch's "
                f"`run_decompositions` failed ({export_reason(error)}); if two names of the module "
                "hold one buffer that it changes, give that buffer one name"
            ) from error
    return made


def _read(
    program: ExportedProgram, made: FxProgram, fold_constants: bool, named: FxInterface
) -> tuple[ComputationGraph, Signature]:
    """Make the graph, and the signature with the names of an interface."""
    builder = GraphBuilder()
    weights = _program_weights(builder, program)
    for name in made.updates:
        if name not in weights:  # an input that stays
            value = made.state[name]
            weights[name] = builder.add_weight(
                value.numel() * value.element_size(), dtype=dtype_of(value)
            )
    classes = colocation_classes(program.graph, made.updates, made.in_place)
    rules = FxRules(
        weights=weights,
        fold_constants=fold_constants,
        colocation_of=lambda node: classes.get(node.name, -1),
        resident=values_in_state(program.graph, made.updates, made.in_place),
        changing=made.updates,
    )
    ops = add_fx_graph(builder, program.graph, rules)
    for output in made.outputs:
        for tensor in ops.tensors_of.get(output, ()):
            builder.mark_output(tensor)
    signature = signature_of(
        program.graph,
        ops,
        list(zip(named.input_names, made.inputs, strict=True)),
        list(zip(named.output_names, made.outputs, strict=True)),
    )
    return builder.build(), signature


def _program_weights(builder: GraphBuilder, program: ExportedProgram) -> dict[str, int]:
    """Add the program's parameters, buffers and constants; placeholder name -> weight.

    Names of the same memory share one weight; parts of one storage are weights of their own.
    """
    weights: dict[str, int] = {}
    of_memory: dict[tuple[int, int], int] = {}
    for placeholder, tensor in held_tensors(program).items():
        size = tensor.numel() * tensor.element_size()
        is_known = size and tensor.untyped_storage().data_ptr()
        key = (tensor.data_ptr(), size) if is_known else (-1, id(tensor))
        if key not in of_memory:
            of_memory[key] = builder.add_weight(size, dtype=dtype_of(tensor))
        weights[placeholder] = of_memory[key]
    return weights


def _target_text(target: Any) -> str:
    """A target's name; that of a plain function without its address, which no process shares."""
    if isinstance(target, FunctionType):
        return f"{target.__module__}.{target.__qualname__}"
    return str(target)


def program_hash(program: ExportedProgram, *, with_values: bool = True) -> str:
    """SHA-256 of a program's calls with their arguments, of shapes of its inputs, and of weights.

    Files of the same model thus have one hash, whenever they were written. Without values, only
    shapes and types of the weights count.
    """
    digest = hashlib.sha256()
    for part in program.graph_module.modules():  # the program, and bodies of branches and loops
        for node in part.graph.nodes if hasattr(part, "graph") else ():
            text = f"{node.op} {node.name} {_target_text(node.target)} {node.args} {node.kwargs}"
            value: Any = node.meta.get("val") if node.op == "placeholder" else None
            shape = f"{tuple(value.shape)} {value.dtype}" if hasattr(value, "shape") else ""
            digest.update(f"{text} {shape}\n".encode())
    for name, tensor in sorted({**program.constants, **program.state_dict}.items()):
        if hasattr(tensor, "untyped_storage"):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            if tensor.is_meta or not with_values:
                continue
            flat = tensor.detach().cpu().contiguous().view(-1)
            digest.update(flat.view(torch_library().uint8).numpy().data)
    return digest.hexdigest()


def _input_shapes(program: ExportedProgram) -> dict[str, tuple[int, ...]]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return {
        str(name): shape_of(values[name])
        for name in program.graph_signature.user_inputs
        if hasattr(values.get(name), "shape")
    }


def torch_library() -> Any:
    """Import PyTorch.

    Raises:
        MissingExtraError: it is not installed.
    """
    return optional_library("torch", "torch", "reading a PyTorch model")


def _has_open_dimensions(program: ExportedProgram) -> bool:
    """True if a dimension of an input is a symbol."""
    return any(not isinstance(d, int) for value in _inputs(program).values() for d in value.shape)


def fixed_program(
    program: ExportedProgram, shapes: Mapping[str, tuple[int, ...]]
) -> ExportedProgram:
    """Export a program again with one shape of each input, if a dimension is open.

    Args:
        program: as it was loaded; returned if no dimension is open.
        shapes: input name -> dimensions; other inputs keep those of the example inputs.

    Raises:
        InputError: the program does not take these shapes.
    """
    if not _has_open_dimensions(program):
        return program
    import torch

    values = _inputs(program)
    wanted = {name: _shape(name, value, shapes.get(name)) for name, value in values.items()}
    _check_ranges(program, values, wanted)
    positional, named = nested(program, _examples(program, values, wanted))
    try:
        with EXPORTING, torch.no_grad():
            module = program.module(check_guards=False)
            fixed: ExportedProgram = torch.export.export(module, positional, named, strict=False)
    except Exception as error:  # operators raise any type
        listed = ", ".join(f"{name}={list(shape)}" for name, shape in wanted.items())
        raise InputError(
            f"argument `shapes`: the exported PyTorch model does not take {listed}: "
            f"{one_line(error)}"
        ) from error
    return fixed


def _examples(
    program: ExportedProgram, values: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]]
) -> list[torch.Tensor]:
    """Example inputs of the wanted shapes: with the values of those in the file, else made up.

    Once a shape changes, rows that may be offsets become zeros.
    """
    held = tensors_in(program.example_inputs)
    own = dict(zip(values, held, strict=True)) if len(held) == len(values) else {}
    stay = all(tuple(example.shape) == wanted[name] for name, example in own.items())
    made = []
    for name, value in values.items():
        example = own.get(name)
        if example is None or example.dtype != value.dtype:
            example = example_of(wanted[name], value.dtype)
        elif not stay:
            example = _without_offsets(example)
        made.append(_resized(example.detach().to(value.device), wanted[name]))
    return made


def _check_ranges(
    program: ExportedProgram, values: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse shapes that the program does not take: other ranks, ranges, unequal symbols."""
    known: dict[str, int] = {}
    for name, value in values.items():
        shape = wanted[name]
        fault = f"argument `shapes` {name}: the exported PyTorch model takes {list(value.shape)}"
        if len(shape) != len(value.shape):
            raise InputError(f"{fault}, not {list(shape)}")
        for extent, d in zip(shape, value.shape, strict=True):
            if isinstance(d, int):
                if extent != d:
                    raise InputError(f"{fault}, not {list(shape)}")
                continue
            allowed = program.range_constraints.get(d.node.expr)
            if allowed is not None and not allowed.lower <= extent <= allowed.upper:
                raise InputError(
                    f"{fault} with {d} from {allowed.lower} to {allowed.upper}, got {extent}"
                )
            if known.setdefault(str(d), extent) != extent:
                raise InputError(f"{fault} with one {d}, got {known[str(d)]} and {extent}")


def _shape(name: str, value: Any, wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    if wanted is not None:
        return tuple(wanted)
    sizes = [d if isinstance(d, int) else d.node.hint for d in value.shape]
    if None in sizes:
        raise InputError(
            f"input '{name}' takes {list(value.shape)}, and the file has no example of its size; "
            "give one with argument `shapes`"
        )
    example = tuple(map(int, sizes))
    if any(not isinstance(d, int) for d in value.shape):
        _LOG.warning(
            "input '%s' has open dimensions; taking %s of its example (argument `shapes` chooses "
            "others)", name, list(example),
        )  # fmt: skip
    return example


def _inputs(program: ExportedProgram) -> dict[str, Any]:
    """Name of each tensor input -> its example value in the graph."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return {name: values[name] for name in tensor_inputs(program)}
