"""A plan of a language model as text: speed, proof, places and memory, and what an engine ran."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.cluster import Cluster
from placewright.core.graph import ComputationGraph
from placewright.core.plan import Plan, scope_of_proof
from placewright.core.quantities import format_bytes, format_duration, plain_number

_LAYER = "layers."


@dataclass(frozen=True)
class Speed:
    """Speed of a phase."""

    rate: float  # tokens per second
    seconds: float  # of all its tokens
    # tokens per second between which nine of ten measured speeds lie; None if unknown
    range: tuple[float, float] | None = None

    @property
    def text(self) -> str:
        """The range, with the rate by data sheets; the rate alone if it was measured."""
        if self.range is None:
            return f"{plain_number(self.rate)} tokens/s"
        least, most = map(plain_number, self.range)
        return f"{least} to {most} tokens/s ({plain_number(self.rate)} by data sheets)"


def speed_lines(phases: Mapping[str, Speed]) -> list[str]:
    """A line with the speed of each phase.

    >>> speed_lines({"decode": Speed(12.4, 10.3, (9.8, 15.1))})
    ['decode 9.8 to 15.1 tokens/s (12.4 by data sheets), 10.3 s']
    """
    parts = [
        f"{phase} {speed.text}, {format_duration(speed.seconds)}"
        for phase, speed in phases.items()
        if speed.rate > 0
    ]
    return ["; ".join(parts)] if parts else []


def proof_line(plan: Plan) -> str:
    """The value with its bound and gap."""
    if not (plan.lower_bound > 0 and math.isfinite(plan.gap)):
        return f"together {format_duration(plan.value)}; no bound is proven"
    none = f"by these costs no placement{scope_of_proof(plan)} takes less than"
    return (
        f"together {format_duration(plan.value)}; {none} {format_duration(plan.lower_bound)} "
        f"(gap {plan.gap:.2%})"
    )


def memory_lines(plan: Plan, caches: Mapping[str, float], devices: Collection[str]) -> list[str]:
    """For each device: bytes with limit and cache, and the modules that lie there.

    A pool has a line of its own if modules of several columns lie there.

    Args:
        caches: device -> bytes of keys, values and states among them.
        devices: that are no columns of others; one of them without modules has a line, too.
    """
    problem, device_of = plan.problem, plan.placement.device_of
    graph, cluster = problem.graph, problem.cluster
    lines = []
    for device, limit in enumerate(cluster.memory_bytes.tolist()):
        ops = np.flatnonzero(device_of == device).tolist()
        name = cluster.device_names[device]
        if not ops:
            lines += [f"  {name}: nothing"] * (name in devices)
            continue
        room = "" if math.isinf(limit) else f" of {format_bytes(limit)}"
        cache = caches.get(name, 0.0)
        of_cache = f", {format_bytes(cache)} of it cache" if cache else ""
        lines.append(f"  {name}: {format_bytes(plan.memory[name])}{room}{of_cache}")
        lines += [f"    {text}" for text in _modules(graph, ops)]
    peaks = np.array([plan.memory[name] for name in cluster.device_names])
    for pool, size, limit in zip(
        cluster.shared_pools, cluster.pooled(peaks), cluster.pool_bytes, strict=True
    ):
        holders = [device.name for device in cluster.devices if pool in device.pool_shares]
        used = [name for name in holders if plan.memory[name] > 0]
        if len(used) > 1:
            both = " and ".join(used)
            lines.append(f"  {both}: {format_bytes(float(size))} of {format_bytes(float(limit))}")
    return lines


def _modules(graph: ComputationGraph, ops: Iterable[int]) -> list[str]:
    """Modules by kind, with ranges of their layers."""
    layers: dict[str, list[int]] = {}
    others = []
    for op in ops:
        name = graph.op_names[op]
        if name.startswith(_LAYER):
            _, number, part = name.split(".", 2)
            layers.setdefault(part, []).append(int(number))
        else:
            others.append(name)
    lines = [
        f"{part} of {'layers' if len(numbers) > 1 else 'layer'} {ranges(numbers)}"
        for part, numbers in layers.items()
    ]
    return [*lines, ", ".join(others)] if others else lines


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def engine_lines(document: Mapping[str, Any]) -> list[str]:
    """The lines that `placewright run --engine` prints."""
    return [
        *_place_lines(document),
        *_token_lines(document),
        *_speed_lines(document),
        *(f"  {name}: not measured; {why}" for name, why in document["left_out"].items()),
        document["verdict"],
    ]


def _place_lines(document: Mapping[str, Any]) -> list[str]:
    faults = document["place_faults"]
    compared = (
        f"{document['layers']} layers, {document['moved_tensors']} moved tensors and the bytes of "
        f"{len(document['memory'])} memories"
    )
    head = (
        f"the engine ({document['engine']}) has {compared} where the plan has them"
        if not faults
        else f"NOT where the plan has them, of {compared}:"
    )
    lines = [head, *(f"  {fault}" for fault in faults)]
    for name, memory in document["memory"].items():
        lines.append(
            f"  {name}: {format_bytes(memory['printed_weights'])} of weights, "
            f"{format_bytes(memory['printed_caches'])} of caches, "
            f"{format_bytes(memory['printed_buffers'])} of buffers "
            f"(estimated {format_bytes(memory['buffers'])})"
        )
    return lines


def _token_lines(document: Mapping[str, Any]) -> list[str]:
    rows = document["equal_tokens"]
    if not rows:
        return ["the context is too short to compare tokens"]
    lengths = ", ".join(str(row["letters"]) for row in rows)
    different = [row for row in rows if row["equal"] < row["compared"]]
    if not different:
        counts = ", ".join(dict.fromkeys(str(row["compared"]) for row in rows))
        return [f"{counts} tokens equal those of the unsplit model, behind {lengths} letters each"]
    parts = ", ".join(
        f"the first {row['equal']} of {row['compared']} behind {row['letters']} letters are equal"
        for row in different
    )
    return [f"tokens are NOT EQUAL to those of the unsplit model: {parts}"]


def _speed_lines(document: Mapping[str, Any]) -> list[str]:
    request = document["request"]
    lines = [
        f"prompt of {request['prompt']} tokens, {request['generate']} generated; medians of "
        "interleaved runs:"
    ]
    for name, phases in document["contenders"].items():
        parts = [_phase_text(phase, row) for phase, row in phases.items()]
        total = sum(row["median"] for row in phases.values())
        lines.append(f"  {name}: {', '.join(parts)}; together {format_duration(total)}")
    return lines


def _phase_text(phase: str, row: Mapping[str, Any]) -> str:
    text = f"{phase} {row['tokens_per_second']:.3g} tokens/s"
    predicted = row["predicted"]
    if predicted is None:
        return text
    return f"{text} (predicted {predicted / row['median'] - 1.0:+.0%} of the time)"


def rate_rows(cluster: Cluster) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the measured rates of an engine's devices."""
    columns = ["device", "format", "Gop/s at 1 row", "Gop/s at most rows", "rows"]
    rows = [
        [
            device.name,
            name,
            f"{1e-9 / table[0]:.3g}",
            f"{1e-9 / table[-1]:.3g}",
            f"{sheet.tokens.rows[-1]:.0f}",
        ]
        for device in cluster.devices
        if (sheet := device.data_sheet) is not None and sheet.tokens is not None
        for name, table in sheet.tokens.products.items()
    ]
    return columns, rows
