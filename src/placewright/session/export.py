"""Plans to the formats of other tools: resolve the model, call the writer, put it on the disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewright.core.plan import Plan
from placewright.core.signature import NO_TENSOR
from placewright.core.source import ModelSource
from placewright.errors import InexpressibleError, InputError, UnknownNameError
from placewright.files.text import write_text
from placewright.io.scratch import scratch_folder
from placewright.io.written import move_files
from placewright.session.models import runnable_source

_LARGEST_MESSAGE = 1 << 30  # bytes; a protocol buffer ends at 2 GiB


def export(plan: Plan, form: str, path: Path) -> str:
    """Write `plan` at `path` in another tool's format.

    Args:
        plan: to be exported.
        form: one of `formats()`.
        path: of the file to write; of a folder for ``onnx-segments``.

    Returns:
        How to use what was written, one line.

    Raises:
        UnknownNameError: there is no such format.
        ClusterError: a device stands for several.
        InexpressibleError: the format cannot say what the plan does.
        InputError: the model is missing, or the file cannot be written.
    """
    if form not in _WRITERS:
        raise UnknownNameError("export format", form, formats())
    plan.problem.cluster.require_single_devices(f"format '{form}'")
    return _WRITERS[form](plan, path)


def formats() -> tuple[str, ...]:
    """Names of all formats."""
    return tuple(_WRITERS)


def _device_map(plan: Plan, path: Path) -> str:
    from placewright.writers.device_map import device_map

    data, source = device_map(plan), plan.problem.source
    if "" not in data and source is not None and source.signature is None:
        # An earlier version's file does not tell the parameters that no op reads.
        data = device_map(replace(plan, problem=replace(plan.problem, source=_source(plan))))
    write_text(path, json.dumps(data, indent=1) + "\n")
    return f"accelerate.dispatch_model(model, device_map=json.load(open('{path}')))"


def _openvino_affinity(plan: Plan, path: Path) -> str:
    from placewright.writers.openvino_affinity import affinity_data

    data = affinity_data(plan)
    write_text(path, json.dumps(data, indent=1) + "\n")
    return f"apply_affinity(model, json.load(open('{path}'))), then compile for {data['device']}"


def _onnx_layers(plan: Plan, path: Path) -> str:
    from placewright.writers.onnx_layers import OPTION, annotated_model, assignment_settings

    settings = assignment_settings(plan)
    _save_onnx(annotated_model(plan, _model_file(plan)), path, _model_file(plan).parent)
    return f"set the session option {OPTION} to '{settings}'"


def _onnx_segments(plan: Plan, path: Path) -> str:
    from placewright.execution.framework import CutsFiles
    from placewright.execution.runtime import require_signature, segments_of_units
    from placewright.frameworks.registry import framework_of
    from placewright.writers.onnx_segments import MANIFEST, file_name, manifest_data

    problem = plan.problem
    framework = None if problem.source is None else framework_of(problem.source)
    if plan.segments is None or not isinstance(framework, CutsFiles):
        raise InexpressibleError(
            "this plan has no segments of .onnx nodes; place an .onnx file for latency with "
            "argument `runtime` onnxruntime"
        )
    source = _source(plan)
    parts = framework.standalone_parts(source, problem.graph)
    signature = require_signature(source)
    constant = [port.name for port in signature.outputs if port.tensor == NO_TENSOR]
    if constant:
        raise InexpressibleError(
            f"output '{constant[0]}' depends on no input, so that no segment makes it; take it "
            "from the model itself, or export the plan as onnx-layers"
        )
    segments = segments_of_units(problem, plan.segments)
    ports = []
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"folder '{path}' cannot be made: {error.strerror}") from None
    for index, segment in enumerate(segments):
        made = parts.standalone(segment)
        ports.append(([v.name for v in made.graph.input], [v.name for v in made.graph.output]))
        _save_onnx(made, path / file_name(index), path)
    values = parts.value_of_tensor
    entering = [(port.name, values[port.tensor]) for port in signature.inputs]
    leaving = [(port.name, values[port.tensor]) for port in signature.outputs]
    data = manifest_data(plan, ports, entering, leaving)
    write_text(path / MANIFEST, json.dumps(data, indent=1) + "\n")
    return f"run the {len(segments)} files in the order of {path / MANIFEST}"


def _source(plan: Plan) -> ModelSource:
    assert plan.problem.source is not None, "writers have checked it"
    return runnable_source(plan.problem.source, plan.problem.graph)


def _model_file(plan: Plan) -> Path:
    return Path(_source(plan).path)


def _save_onnx(model: Any, path: Path, data_folder: Path) -> None:
    """Write a model whole or not at all; what lies outside of it is brought along."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_model

    load_external_data_for_model(model, str(data_folder))
    size = sum(len(held.raw_data) for held in model.graph.initializer)
    data = f"{path.name}.data"
    try:
        with scratch_folder(path.parent, f".{path.name}.") as scratch:
            made = scratch / path.name
            onnx.save(
                model, str(made), save_as_external_data=size > _LARGEST_MESSAGE, location=data
            )
            # The data comes first: whoever finds the model finds it.
            both = [file for file in (made.with_name(data), made) if file.exists()]
            move_files({file: path.with_name(file.name) for file in both})
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"file '{path}' cannot be written: {reason}") from None


_WRITERS: Mapping[str, Callable[[Plan, Path], str]] = {
    "device-map": _device_map,
    "onnx-layers": _onnx_layers,
    "onnx-segments": _onnx_segments,
    "openvino-affinity": _openvino_affinity,
}
