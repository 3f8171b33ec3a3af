"""Export plans to other tools: find the model, write it, and let the tool load the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.cluster import Cluster, Device
from placewright.core.plan import Plan
from placewright.core.quantities import counted
from placewright.core.source import NO_TENSOR, ModelSource
from placewright.errors import (
    FieldError,
    InexpressibleError,
    InputError,
    PlacewrightError,
    UnknownNameError,
)
from placewright.execution.framework import CutsFiles
from placewright.execution.placements import served_segments
from placewright.execution.runtime import OpSegment, require_signature, segments_of_units
from placewright.execution.state_pairs import asked_of
from placewright.io.onnx_saved import save_onnx, take_in_data
from placewright.io.scratch import scratch_folder
from placewright.io.written import is_written_through, move_files, write_text, written_place
from placewright.session.language.problem import is_of_tokens, tokens_of
from placewright.session.models import runnable_source
from placewright.simulation.serving import is_in_one_thread
from placewright.writers.card_numbers import numbering_note
from placewright.writers.device_map import (
    card_names,
    device_map,
    is_numbered,
    layer_map,
    main_device,
    require_modules,
    torch_names,
)
from placewright.writers.onnx_layers import (
    OPTION,
    annotated_model,
    assignment_settings,
    designator,
    require_nodes,
    session_providers,
)
from placewright.writers.openvino_affinity import affinity_data, openvino_name, require_ops

_Segments = Sequence[tuple[int, Sequence[int]]]  # device and units of each

PRINTED = ("llama.cpp", "sglang", "vllm")  # formats of one line
_NO_SEGMENTS = (
    "this plan has no segments of .onnx nodes; place an .onnx file for latency with argument "
    "`runtime` onnxruntime"
)


def export(plan: Plan, form: str, path: Path) -> str:
    """Write `plan` at `path` in another tool's format.

    Args:
        form: one of `formats()`.

    Returns:
        One line about how to use the file.

    Raises:
        UnknownNameError: there is no such format.
        ClusterError: a device stands for several.
        InexpressibleError: the format cannot express the plan.
        InputError: the model is missing, or the file cannot be written.
    """
    if form not in _FORMATS:
        raise UnknownNameError("export format", form, formats())
    _require_devices(plan, form)
    return _FORMATS[form].write(plan, path)


def require_target(plan: Plan, target: str | None) -> None:
    """Refuse a plan that its target cannot express.

    Raises:
        InexpressibleError: the message says which part does not fit.
        ClusterError: a device stands for several.
    """
    if target is not None:
        _require_devices(plan, target)
        _FORMATS[target].express(plan)


def require_source(source: ModelSource | None, target: str | None) -> None:
    """Refuse a model whose ops a target has no names for, before it is measured.

    Raises:
        FieldError: the target is for language models.
        InexpressibleError: the model was read otherwise.
    """
    if target is not None:
        _FORMATS[target].check_source(source)


def require_names(cluster: Cluster, target: str | None) -> None:
    """Refuse devices that a target has no name for, or cannot tell apart.

    Raises:
        InexpressibleError: the message names them.
    """
    check = None if target is None else _FORMATS[target].check_names
    if check is not None:
        check(cluster.devices)


def _distinct(target: str, name_of: Callable[[Device], str], devices: Sequence[Device]) -> None:
    """Refuse devices that a target calls by one name.

    Raises:
        InexpressibleError: the message has the name and two of them.
    """
    seen: dict[str, str] = {}
    for device in devices:
        name = name_of(device)
        if name in seen:
            raise InexpressibleError(
                f"target '{target}' has one name, '{name}', for '{seen[name]}' and "
                f"'{device.name}'; leave one of them out (argument `devices`)"
            )
        seen[name] = device.name


def _provider_of(device: Device) -> str:
    """The name of a device without its number, since a session has one provider of a kind."""
    return designator(device).partition(":")[0]


def formats_that_take(plan: Plan) -> tuple[str, ...]:
    """Names of the formats that can express a plan. No file is read, and no tool is asked."""

    def takes(form: str) -> bool:
        try:
            require_target(plan, form)
        except PlacewrightError:
            return False
        return True

    return tuple(form for form in formats() if takes(form))


def _require_devices(plan: Plan, form: str) -> None:
    """Refuse what a format has no device for: replicas, and modes of several processors.

    Raises:
        ClusterError: a device stands for several.
        InexpressibleError: the plan uses such a mode, and the format names physical devices.
    """
    plan.problem.cluster.require_single_devices(f"format '{form}'")
    if is_of_tokens(plan.problem) or _FORMATS[form].check_names is None:
        return
    for at in np.unique(plan.placement.device_of).tolist():
        device = plan.problem.cluster.devices[at]
        if len(device.processors) > 1:
            names = " and ".join(f"'{name}'" for name in device.processors)
            raise InexpressibleError(
                f"device '{device.name}' divides each op between processors {names}, which "
                f"format '{form}' cannot express; place without it"
            )


def formats() -> tuple[str, ...]:
    """Names of all formats."""
    return tuple(_FORMATS)


def _mapped(plan: Plan) -> dict[str, str]:
    return layer_map(plan) if is_of_tokens(plan.problem) else device_map(plan)


def _device_map(plan: Plan, path: Path) -> str:
    from placewright.writers.device_map import why_refused

    source, data = plan.problem.source, _mapped(plan)
    other = "" if source is None else source.other_weights
    note = f"; {other}: load it in a format as small" if other else ""
    refused = why_refused(data, () if source is None else source.state)
    loaded = _trial_note(path, "Accelerate", refused, "accepts the map")
    write_text(path, json.dumps(data, indent=1) + "\n")
    return (
        f"accelerate.dispatch_model(model, device_map=json.load(open({str(path)!r})), "
        f"main_device={main_device(data)!r}){loaded}{note}"
    )


def _openvino_affinity(plan: Plan, path: Path) -> str:
    from placewright.writers.openvino_affinity import why_refused

    data, source = _affinities(plan), require_ops(plan.problem.source)
    file = cache(lambda: str(_model_file(plan)))
    refused = why_refused(file, data)
    loaded = _trial_note(path, "OpenVINO", refused, "compiles it for these devices")
    write_text(path, json.dumps(data, indent=1) + "\n")
    # OpenVINO reads no .pt2 and no zoo model, but the file that was converted from it.
    is_converted = refused is not None and file() != source.path
    read = f"model = core.read_model({file()!r}); " if is_converted else ""
    return (
        f"{read}data = json.load(open({str(path)!r})); apply_affinity(model, data); "
        f"core.compile_model(model, data['device'], data['config']){loaded}{_shapes_note(plan)}"
    )


def _affinities(plan: Plan) -> dict[str, Any]:
    _require_ops_of_file(plan.problem.source)
    return affinity_data(plan)


def _require_ops_of_file(source: ModelSource | None) -> None:
    if asked_of(require_ops(source).options):
        raise InexpressibleError(
            "this plan keeps state (argument `state`) in ops that its model file lacks; place the "
            "model without it for openvino-affinity"
        )


def _onnx_layers(plan: Plan, path: Path) -> str:
    if is_written_through(path):
        raise InputError(f"'{path}' is a device or a pipe, which holds no model; name a file")
    settings, file, target = assignment_settings(plan), _model_file(plan), written_place(path)
    with _written_beside(target) as scratch:
        made, model = scratch / target.name, annotated_model(plan, file, settings)
        take_in_data(model, file)
        save_onnx(model, made)
        loaded = _loaded(plan, [made], {OPTION: settings}, path)
        _move(scratch, target.parent)
    named = session_providers(plan, _library(plan).card_provider)
    cards = f", and the session's providers to {named}" if len(named) > 1 else ""
    return f"set the session option {OPTION} to '{settings}'{cards}{loaded}"


def _onnx_segments(plan: Plan, path: Path) -> str:
    from placewright.writers.onnx_segments import MANIFEST, file_name, manifest_data

    (framework, planned), source = _cutter(plan), _source(plan)
    parts = framework.standalone_parts(source, plan.problem.graph)
    signature = require_signature(source)
    segments, ports, files = _segments_in_files(plan, planned), [], []
    with _written_beside(path) as scratch:
        for index, segment in enumerate(segments):
            made = parts.standalone(segment)
            ports.append(([v.name for v in made.graph.input], [v.name for v in made.graph.output]))
            files.append(scratch / file_name(index))
            save_onnx(made, files[-1])
        loaded = _loaded(plan, files, {}, path)
        values = parts.value_of_tensor
        entering = [(port.name, values[port.tensor]) for port in signature.inputs]
        leaving = [(port.name, values[port.tensor]) for port in signature.outputs]
        data = manifest_data(plan, [s.device for s in segments], ports, entering, leaving)
        (scratch / MANIFEST).write_text(json.dumps(data, indent=1) + "\n")
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"folder '{path}' cannot be made: {error.strerror}") from None
        _move(scratch, path)
    use = f"run {counted(len(segments), 'file')} in the order of {path / MANIFEST}"
    return f"{use}{loaded}{_shapes_note(plan)}"


def _segments_in_files(plan: Plan, planned: _Segments) -> Sequence[OpSegment]:
    """A plan's segments; merged if one thread serves them, as a loaded plan merges them."""
    if is_in_one_thread(plan.problem, plan.placement):
        return served_segments(plan.problem, plan.placement)
    return segments_of_units(plan.problem, planned)


def _cutter(plan: Plan) -> tuple[CutsFiles, _Segments]:
    """The framework that cuts a plan's model into files, and the plan's segments.

    Raises:
        InexpressibleError: the plan has no segments, or its framework cuts no files.
    """
    framework = _require_cuts(plan.problem.source)
    if plan.segments is None:
        raise InexpressibleError(_NO_SEGMENTS)
    return framework, plan.segments


def _require_cuts(source: ModelSource | None) -> CutsFiles:
    from placewright.frameworks.registry import framework_of

    framework = None if source is None else framework_of(source)
    if source is None or not isinstance(framework, CutsFiles):
        raise InexpressibleError(_NO_SEGMENTS)
    outputs = source.signature.outputs if source.signature else ()
    constant = [port.name for port in outputs if port.tensor == NO_TENSOR]
    if constant:
        raise InexpressibleError(
            f"output '{constant[0]}' depends on no input, so that no segment makes it; take it "
            "from the model itself, or export the plan as onnx-layers"
        )
    if asked_of(source.options):
        raise InexpressibleError(
            "this plan keeps state (argument `state`), which files of its segments do not; place "
            "the model without it, or export the plan as onnx-layers"
        )
    return framework


def _write_line(form: str, plan: Plan, path: Path) -> str:
    line = printed(plan, form)
    write_text(path, f"{line}\n")
    return line


def printed(plan: Plan, form: str) -> str:
    """Express `plan` in a format that is one line, which needs no file.

    Raises:
        FieldError: the format needs a file.
        InexpressibleError: the format cannot express the plan.
    """
    from placewright.writers import layer_partition, llama_cpp

    if is_of_tokens(plan.problem):
        tokens_of(plan.problem)  # refuses bad numbers in a file that we did not write
    if form not in PRINTED:
        raise FieldError("output", f"is needed: '{form}' is written to a file")
    if form == "llama.cpp":
        return llama_cpp.command_line(plan)
    return layer_partition.command_line(plan, form)


def numbering(plan: Plan, form: str) -> str | None:
    """Explain in one line how an export of a language model numbers cards; None if it has none."""
    from placewright.writers.llama_cpp import NAME, engine_names

    if not is_of_tokens(plan.problem):
        return None
    devices = plan.problem.cluster.devices
    if form == "device-map":
        cards = [device for device in devices if device.kind == "gpu"]
        return numbering_note(cards, card_names(cards), is_numbered)
    cards = [
        device
        for device in devices
        if device.pool is None and (device.kind == "gpu" or NAME in device.options)
    ]
    return numbering_note(cards, engine_names(cards), lambda card: bool(card.options.get(NAME)))


def _shapes_note(plan: Plan) -> str:
    """Note about fixed input shapes; empty if the export has none."""
    source = plan.problem.source
    shapes = {} if source is None else source.shapes
    if not shapes:
        return ""
    listed = ", ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())
    return f"; inputs are fixed to {listed}: argument `shapes` of a new plan changes them"


def _library(plan: Plan) -> CutsFiles:
    """The framework that runs ONNX models."""
    from placewright.frameworks.registry import framework_of

    source = plan.problem.source
    framework = None if source is None else framework_of(source)
    assert isinstance(framework, CutsFiles), "the writers have checked it"
    return framework


def _loaded(plan: Plan, files: Sequence[Path], entries: Mapping[str, str], path: Path) -> str:
    """Let the library that runs ONNX models load written files; return its `_trial_note`."""
    framework = _library(plan)
    for file in files:
        reason = framework.why_refused(file, entries)
        note = _trial_note(path, framework.library, reason, "loads it on the CPU", file.name)
    return note


def _trial_note(path: Path, tool: str, reason: str | None, done: str, what: str = "it") -> str:
    """Note that a tool was tried on an export before it was written, or why it was not.

    Args:
        reason: error of the tool, "" if it accepts the export, None if the tool or a device of the
            plan is missing.
        done: what the tool does with the export, such as "accepts the map".
        what: name of the refused file.

    Raises:
        InexpressibleError: the tool refuses the export.
    """
    if reason:
        raise InexpressibleError(f"'{path}' was not written: {tool} refuses {what}: {reason}")
    if reason is None:
        return f" (not tried: {tool} or a device of the plan is not here)"
    return f" (tried here: {tool} {done})"


def _source(plan: Plan) -> ModelSource:
    assert plan.problem.source is not None, "writers have checked it"
    return runnable_source(plan.problem.source, plan.problem.graph)


def _model_file(plan: Plan) -> Path:
    return Path(_source(plan).path)


@contextmanager
def _written_beside(path: Path) -> Iterator[Path]:
    """Make a temporary folder beside `path` for files that the tool loads before they are moved.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with scratch_folder(path.parent, f".{path.name}.") as scratch:
            yield scratch
    except OSError as error:
        raise InputError(f"file '{path}' cannot be written: {error.strerror or error}") from None


def _move(scratch: Path, folder: Path) -> None:
    """Move all files to `folder`, data first, so that no model is ever without its data."""
    files = sorted(scratch.iterdir(), key=lambda file: (file.suffix != ".data", file.name))
    move_files({file: folder / file.name for file in files})


def _refuse_models_without_tokens(form: str, source: ModelSource | None) -> None:
    raise FieldError("target", f"{form}: is for language models, which this model is not")


@dataclass(frozen=True)
class _Format:
    """Functions that express and write plans in a format of another tool.

    Attributes:
        write: writes a plan at a path, and returns a line about how to use the file.
        express: what `write` does without a file; it raises if the format cannot express the plan.
        check_source: raises if the ops of a model have no names there.
        check_names: raises if the tool cannot tell devices apart; None if it names none.
    """

    write: Callable[[Plan, Path], str]
    express: Callable[[Plan], object]
    check_source: Callable[[ModelSource | None], object]
    check_names: Callable[[Sequence[Device]], object] | None = None


def _of_one_line(form: str) -> _Format:
    return _Format(
        write=partial(_write_line, form),
        express=partial(printed, form=form),
        check_source=partial(_refuse_models_without_tokens, form),
    )


_FORMATS: Mapping[str, _Format] = {
    "device-map": _Format(_device_map, _mapped, require_modules, torch_names),
    "llama.cpp": _of_one_line("llama.cpp"),
    "onnx-layers": _Format(
        write=_onnx_layers,
        express=assignment_settings,
        check_source=require_nodes,
        check_names=partial(_distinct, "onnx-layers", _provider_of),
    ),
    "onnx-segments": _Format(_onnx_segments, _cutter, _require_cuts),
    "openvino-affinity": _Format(
        write=_openvino_affinity,
        express=_affinities,
        check_source=_require_ops_of_file,
        check_names=partial(_distinct, "openvino-affinity", openvino_name),
    ),
    "sglang": _of_one_line("sglang"),
    "vllm": _of_one_line("vllm"),
}
