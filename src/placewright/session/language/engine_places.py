"""Places of tensors, layers and caches, of a plan and by the engine's own print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.cluster import STREAMED_BY
from placewright.core.graph import ComputationGraph
from placewright.core.plan import Plan
from placewright.core.residency import Kept
from placewright.execution.engine.buffers import compute_buffers
from placewright.execution.engine.micro_batch import EngineLayout
from placewright.execution.engine.printed import HOST, ROUNDING, Printed
from placewright.execution.token_work import RequestedWork, TokenRequest, Works
from placewright.writers.llama_cpp import TENSORS, buffers_of, engine_options, first_of_layers

_CONTEXT_STEP = 256  # tokens to which the engine rounds a context up
_IN_LAYER = re.compile(r"blk\.(\d+)\.(.+?)\.(?:weight|bias)")
_KINDS = ("Experts", "SharedExperts", "FeedForward")  # the last matches tensors of the others, too


@dataclass(frozen=True)
class Memory:
    """Bytes on a device of the engine."""

    # weights, caches: of the plan
    weights: float
    caches: float
    buffers: float  # for activations of the modules there, an estimate
    # printed_weights, printed_caches, printed_buffers: by the engine
    printed_weights: float
    printed_caches: float
    printed_buffers: float


@dataclass(frozen=True)
class Places:
    """The comparison of a plan with the engine's print."""

    faults: tuple[str, ...]  # differences, each one line; empty if there are none
    memory: Mapping[str, Memory]  # buffer of the engine -> bytes
    # layers, moved: numbers of layers, and of tensors away from their layer, that were compared
    layers: int
    moved: int


def rounded(request: TokenRequest) -> TokenRequest:
    """The request with the context and the micro-batch that the engine makes of it."""
    context = -(-request.context // _CONTEXT_STEP) * _CONTEXT_STEP
    return replace(request, context=context, micro_batch=min(request.micro_batch, request.context))


def compared_places(plan: Plan, works: Works, request: TokenRequest, printed: Printed) -> Places:
    """Compare a plan with the log of the engine that ran it."""
    buffers = buffers_of(plan)
    faults = [*_layers(plan, buffers, printed), *_modules(plan, buffers, printed)]
    memory = _memory(plan, works(rounded(request)), buffers, printed)
    for buffer, of in memory.items():
        pairs = {"model": (of.weights, of.printed_weights), "KV": (of.caches, of.printed_caches)}
        for what, (own, engine) in pairs.items():
            allowed = ROUNDING * printed.lines.get((what, buffer), 1) + 1.0
            if abs(own - engine) > allowed:
                faults.append(
                    f"{buffer}: the plan has {own:.0f} bytes of "
                    f"{'weights' if what == 'model' else 'caches'}, the engine {engine:.0f}"
                )
    graph = plan.problem.graph
    layers = sum(kind == "Attention" for kind in graph.op_kinds)
    return Places(tuple(faults), memory, layers, len(printed.moved))


def _layers(plan: Plan, buffers: tuple[str, ...], printed: Printed) -> list[str]:
    """Differences of layers, and of the head."""
    options, graph = engine_options(plan), plan.problem.graph
    cards = dict(
        zip(options.devices, [buffer for buffer in buffers if buffer != HOST], strict=True)
    )
    faults = []
    for op, kind in enumerate(graph.op_kinds):
        if kind != "Attention":
            continue
        own = buffers[int(plan.placement.device_of[op])]
        device = printed.layers.get(int(graph.op_modules[op].split(".")[1]), "nowhere")
        if cards.get(device, device) != own:
            faults.append(f"'{graph.op_names[op]}' is on {own}; the engine has it on {device}")
    head = buffers[int(plan.placement.device_of[graph.op_index["head"]])]
    last = printed.layers.get(max(printed.layers, default=-1), "nowhere")
    found = printed.moved.get("output.weight", cards.get(last, last))
    if found != head:
        faults.append(f"'head' is on {head}; the engine has it on {found}")
    return faults


def _modules(plan: Plan, buffers: tuple[str, ...], printed: Printed) -> list[str]:
    """Differences of modules that lie elsewhere than the attention of their layer."""
    graph, device_of = plan.problem.graph, plan.placement.device_of
    own = {
        graph.op_modules[op]: buffers[int(device_of[op])]
        for op, kind in enumerate(graph.op_kinds)
        if kind == "Attention"
    }
    found: dict[tuple[int, str], set[str]] = {}
    for tensor, buffer in printed.moved.items():
        if (match := _IN_LAYER.fullmatch(tensor)) is not None:
            kind = next((k for k in _KINDS if re.match(TENSORS[k], match[2])), "others")
            found.setdefault((int(match[1]), kind), set()).add(buffer)
    faults = []
    for op, kind in enumerate(graph.op_kinds):
        if kind not in TENSORS:
            continue
        module, at = graph.op_modules[op], buffers[int(device_of[op])]
        printed_at = found.get((int(module.split(".")[1]), kind), {own.get(module, at)})
        if printed_at != {at}:
            where = ", ".join(sorted(printed_at))
            faults.append(f"'{graph.op_names[op]}' is on {at}; the engine has it on {where}")
    return faults


def _memory(
    plan: Plan, work: RequestedWork, buffers: tuple[str, ...], printed: Printed
) -> dict[str, Memory]:
    """Bytes of each buffer, by the plan and by the engine."""
    names = list(dict.fromkeys([*buffers, HOST]))
    label = np.array([names.index(buffers[int(at)]) for at in plan.placement.device_of])
    graph, caches = work.graph, np.asarray(work.caches)
    weights = _weights(graph, label, len(names))
    weights[label[graph.op_index["head"]]] -= work.scratch_bytes
    buffers_there = compute_buffers(work, _layout(plan, buffers))
    kept = np.bincount(label, caches, minlength=len(names))
    return {
        name: Memory(
            float(weights[at] - kept[at]),
            float(kept[at]),
            buffers_there[name],
            printed.weights.get(name, 0.0),
            printed.caches.get(name, 0.0),
            printed.compute.get(name, 0.0),
        )
        for at, name in enumerate(names)
    }


def _layout(plan: Plan, buffers: tuple[str, ...]) -> EngineLayout:
    """Places of modules by which the engine lays out the activations of a plan.

    It pipelines micro-batches if several cards have all layers and the head, and no tensor is moved
    (constructor of `llama_context`).
    """
    options, devices = engine_options(plan), plan.problem.cluster.devices
    cards = [buffer for buffer in buffers if buffer != HOST]
    is_on_cards = options.gpu_layers > len(first_of_layers(plan.problem.graph)) + options.predicting
    moves = bool(options.overrides) or options.cpu_experts > 0
    by = next((each.options[STREAMED_BY] for each in devices if STREAMED_BY in each.options), None)
    copiers = [at for device, at in zip(devices, buffers, strict=True) if device.name == by]
    is_copying = options.is_streaming and bool(copiers) and not copiers[0].startswith("RPC")
    return EngineLayout(
        [buffers[int(at)] for at in plan.placement.device_of],
        cards,
        HOST,
        copiers[0] if is_copying else None,
        is_pipelined=len(cards) > 1 and is_on_cards and not moves,
        is_on_cards=is_on_cards,
    )


def _weights(graph: ComputationGraph, label: IntArray, count: int) -> FloatArray:
    """Bytes of distinct weights and caches of each label."""
    found = np.zeros(count)
    own = Kept(graph.op_weights, graph.weight_bytes).bytes_by_label(label)
    found[: len(own)] = own
    return found
