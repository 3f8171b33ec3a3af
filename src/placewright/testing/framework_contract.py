"""Contracts of every framework and of every runtime.

Implementers call `check_framework`, or `check_runtime` alone, in tests of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from placewright.core.cluster import Device
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import OBJECTIVES
from placewright.core.source import ModelSource
from placewright.errors import StalePlanError, UnknownNameError
from placewright.execution.framework import Find, Framework, ReadOptions, found_path
from placewright.execution.output_check import relative_error
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import (
    HostArray,
    LoadedModel,
    MovesTensors,
    NativeTensor,
    OpSegment,
    PlainCall,
    Runtime,
    graph_inputs,
    moved_from_host,
    segments_of_ops,
)


def check_framework(framework: Framework, path: Path, *, find: Find = found_path) -> None:
    """Check all promises of a declaration and of its runtime, on one model.

    Args:
        framework: to be checked.
        path: of a model that it reads by itself; it needs an output that its inputs change.
        find: tells what a name means.

    Raises:
        AssertionError: the framework breaks the contract; the message says how.
    """
    check_declaration(framework)
    assert path.suffix.lower() in framework.suffixes, f"'{path}' is none of {framework.suffixes}"
    graph, source = framework.read(str(path), find, ReadOptions())
    check_source(framework, source, path)
    assert _same(framework.again(source, find), graph), "read again, it is another graph"
    check_runtime(framework.runtime(find), framework.runnable(source, find), graph)


def check_declaration(framework: Framework) -> None:
    """Check the form of a declaration, and that importing it imports nothing heavy."""
    assert framework.name, "a framework has a name"
    assert framework.library, "the library has a name"
    assert framework.extra, "an extra installs it"
    assert framework.formats, "it knows the ops of one format of sources at least"
    assert callable(framework.small_model), "it makes a small model for what cuts cost"
    unknown = [objective for objective in framework.objectives if objective not in OBJECTIVES]
    assert not unknown, f"no objectives: {unknown}"
    for suffix in framework.suffixes:
        assert suffix.startswith("."), f"'{suffix}' is no suffix"
        assert suffix == suffix.lower(), f"'{suffix}' is not in small letters"
    heavy = _imported_with(type(framework).__module__)
    assert not heavy, f"importing the declaration imports {', '.join(heavy)}"


def check_source(framework: Framework, source: ModelSource, path: Path) -> None:
    """Check that a source leads back to the framework and to the model."""
    assert source.format in framework.formats, f"'{source.format}' is none of its formats"
    assert source.path == str(path), "the source has the model's path"
    assert source.sha256, "the source has a hash"
    assert source.reader_version, "the source tells the version of the library that read it"
    assert source.signature is not None, "the source tells inputs and outputs"


def _same(read: tuple[ComputationGraph, ModelSource], graph: ComputationGraph) -> bool:
    found, _ = read
    return (found.op_names, found.op_kinds) == (graph.op_names, graph.op_kinds)


def _imported_with(module: str) -> Sequence[str]:
    """Foreign packages that importing a module imports, in a process of its own."""
    own = ["placewright", module.partition(".")[0]]
    code = (
        f"import sys, placewright\nbefore = set(sys.modules)\nimport {module}\n"
        "found = {name.partition('.')[0] for name in sys.modules.keys() - before}\n"
        f"print(*sorted(found - sys.stdlib_module_names - set({own!r})))"
    )
    folders = [*map(str, sys.path), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{module} can be imported alone: {done.stderr[-500:]}"
    return done.stdout.split()


def check_runtime(
    runtime: Runtime,
    source: ModelSource,
    graph: ComputationGraph,
    devices: Sequence[Device] | None = None,
    *,
    n_splits: int = 6,
) -> None:
    """Check all promises of the interface `Runtime`, on one model.

    Args:
        runtime: to be checked.
        source: of a model that the runtime can run; it needs an output that its inputs change.
        graph: of that model.
        devices: to run on, at least one; None takes the first two that do not share a core.
        n_splits: random splits to execute.

    Raises:
        AssertionError: the runtime breaks the contract; the message says how.
    """
    chosen = list(devices) if devices is not None else _two_devices(runtime)
    check_discovery(runtime)
    model = runtime.load(source, graph)
    assert model.graph is graph, "a loaded model keeps the graph that it was loaded for"
    assert isinstance(model.keeps_state, bool), "a model keeps state or does not"
    model.reference(chosen[0]).instance().reset_state()
    check_refuses_another_model(runtime, source, graph)
    check_host_values(model)
    check_profiling(model, chosen[0])
    rng = np.random.default_rng(0)
    plain = model.plain(chosen[0])
    for number in range(n_splits):
        segments = random_segments(graph, len(chosen), rng, ops=number or 1)
        check_split(model, chosen, segments, plain)
    check_requests_stay_apart(model, chosen)
    check_instances_stay_apart(model, chosen[0])


def check_discovery(runtime: Runtime) -> None:
    """Check names, fingerprints, completion and the refusal of unknown devices."""
    assert runtime.name, "a runtime has a name"
    assert runtime.version, "a runtime has a version"
    found = runtime.discover()
    names = [device.name for device in found]
    assert found, "there is at least one device"
    assert len(set(names)) == len(names), f"device names repeat: {names}"
    for device in found:
        assert device.fingerprint, f"'{device.name}' has no fingerprint"
        assert runtime.completed(device) == device, f"'{device.name}' changes when completed"
        shares = runtime.shares_weights([device])
        assert isinstance(shares, bool), f"'{device.name}' shares weights or does not"
        seconds = runtime.transfer_seconds(device, device, 4096)
        assert seconds >= 0.0, f"a tensor takes {seconds} s from '{device.name}' to itself"
    message = ""
    try:
        runtime.completed(Device("warp drive", "other"))
    except UnknownNameError as error:
        message = str(error)
    assert "warp drive" in message, "an unknown device is refused by name"


def check_refuses_another_model(
    runtime: Runtime, source: ModelSource, graph: ComputationGraph
) -> None:
    """Check that a graph with ops of another model is refused before anything runs."""
    kinds = ("NoSuchKind", *graph.op_kinds[1:])
    try:
        runtime.load(source, replace(graph, op_kinds=kinds))
    except StalePlanError:
        return
    raise AssertionError("a graph of another model was accepted")


def check_host_values(model: LoadedModel) -> None:
    """Check that random inputs are repeatable, and unchanged after `from_host` and `to_host`.

    Values may be in memory that cannot be written to.
    """
    shapes = [model.graph.tensor_shapes[tensor] for tensor in graph_inputs(model.graph)]
    first = model.random_inputs(np.random.default_rng(3))
    again = model.random_inputs(np.random.default_rng(3))
    assert [value.shape for value in first] == shapes, "inputs have the graph's shapes"
    for value, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(value, same, "equal generators give equal inputs")
        value.setflags(write=False)
        back = model.to_host(model.from_host(value))
        np.testing.assert_array_equal(value, back, "a value survives the way there and back")


def check_profiling(model: LoadedModel, device: Device) -> None:
    """Check that kernels are a partition, seconds are finite, and labels match units."""
    graph = model.graph
    fused = model.fused_groups(device)
    assert fused.group_of.shape == (graph.n_ops,), "every op is in a group"
    seconds = model.profiler(device)()
    assert seconds.shape == (graph.n_ops,), "one value per op"
    assert np.isfinite(seconds).all(), "seconds are finite"
    assert (seconds >= 0).all(), "seconds are >= 0"
    assert seconds.sum() > 0, "something takes time"
    labels = model.unit_labels(Grouping.identity(graph.n_ops))
    assert len(labels) == graph.n_ops, "one label per unit"
    kind_of = dict(zip(labels, graph.op_kinds, strict=True))
    equal = all(kind_of[x] == kind for x, kind in zip(labels, graph.op_kinds, strict=True))
    assert equal, "ops of different kinds have different labels"


def check_split(
    model: LoadedModel,
    devices: Sequence[Device],
    segments: Sequence[OpSegment],
    plain: PlainCall | None = None,
) -> None:
    """Check that a split gives the outputs of the model's own library, within the tolerance.

    The library takes and returns values in the model's own order and does not use our graph. So the
    check fails if the graph was read wrongly, or if its inputs or outputs are in another order.

    Args:
        model: loaded.
        devices: that the segments index.
        segments: all ops.
        plain: default ``model.plain(devices[0])``.

    Raises:
        AssertionError: an output differs, or there are more or fewer.
    """
    inputs = model.random_inputs(np.random.default_rng(1))
    expected = (model.plain(devices[0]) if plain is None else plain)(inputs)
    with ConcurrentRunner(model, segments, devices) as runner:
        found = runner.run(inputs).outputs
    ports = model.signature.outputs
    counts = f"{len(found)} outputs, the library gives {len(expected)}, the signature {len(ports)}"
    assert len(found) == len(expected) == len(ports), counts
    tolerance = model.tolerance(devices)
    for port, mine, other in zip(ports, found, expected, strict=True):
        error = relative_error(mine, other)
        assert error <= tolerance, (
            f"output '{port.name}' in {len(segments)} segments: error {error:.3g} > {tolerance:.3g}"
        )


def check_requests_stay_apart(model: LoadedModel, devices: Sequence[Device]) -> None:
    """Check that requests in flight do not disturb each other, and that inputs matter."""
    rng = np.random.default_rng(2)
    requests = [model.random_inputs(rng) for _ in range(4)]
    segments = random_segments(model.graph, len(devices), rng, ops=2)
    with ConcurrentRunner(model, segments, devices, in_flight=3) as runner:
        together = [execution.outputs for execution in runner.run_many(requests)]
        alone = [runner.run(request).outputs for request in requests]
    for mine, other in zip(together, alone, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_array_equal(a, b, "requests in flight disturb each other")
    pairs = zip(together[0], together[1], strict=True)
    assert not all(np.array_equal(a, b) for a, b in pairs), "inputs change no output"


def check_instances_stay_apart(model: LoadedModel, device: Device) -> None:
    """Check that the outputs of one instance do not change while another runs."""
    rng = np.random.default_rng(4)
    compiled = model.reference(device)
    first, second = compiled.instance(), compiled.instance()
    ascending = model.signature.ascending
    values = [moved_from_host(model, ascending(model.random_inputs(rng)), device) for _ in range(2)]

    def at_host(tensor: NativeTensor) -> HostArray:
        if isinstance(model, MovesTensors):
            tensor = model.move(tensor, device, None)
        return model.to_host(tensor)

    mine = first.run(values[0])
    before = [at_host(value) for value in mine]
    second.run(values[1])
    for value, kept in zip(mine, before, strict=True):
        np.testing.assert_array_equal(at_host(value), kept, "instances share buffers")


def random_segments(
    graph: ComputationGraph, n_devices: int, rng: np.random.Generator, *, ops: int = 1
) -> tuple[OpSegment, ...]:
    """Cut the topological order into segments of `ops` ops on average, on random devices."""
    order = graph.topological_order.tolist()
    parts: list[tuple[int, list[int]]] = []
    for op in order:
        if not parts or rng.random() < 1.0 / ops:
            parts.append((int(rng.integers(n_devices)), []))
        parts[-1][1].append(op)
    return segments_of_ops(graph, parts)


def _two_devices(runtime: Runtime) -> list[Device]:
    found = runtime.discover()
    single = [device for device in found if device.name.startswith("cpu:")]
    return list(single[:2] or found[:1])
