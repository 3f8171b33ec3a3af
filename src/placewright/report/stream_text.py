"""A played stream as text and as data."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.core.problem import Problem
from placewright.simulation.stream.play import Stream


def stream_data(problem: Problem, stream: Stream) -> dict[str, Any]:
    """As a JSON document; times in the problem's own unit, memory in bytes."""
    latencies = stream.latencies
    return {
        "samples": len(stream.finish),
        "in_flight": stream.in_flight,
        "unit": problem.time_unit,
        "period": stream.steady.period,
        "pattern": stream.steady.pattern,
        "fill": stream.fill,
        "drain": stream.drain,
        "total": float(stream.finish.max()),
        "latency_median": float(np.median(latencies)),
        "latency_95": float(np.quantile(latencies, 0.95)),
        "busy": dict(zip(problem.cluster.device_names, _busy(problem, stream), strict=True)),
        "memory": dict(
            zip(problem.cluster.device_names, stream.memory_peaks.tolist(), strict=True)
        ),
        "segments": len(stream.segments),
    }


def stream_lines(problem: Problem, stream: Stream) -> list[str]:
    """What happens to the samples, a line each."""
    unit, latencies = problem.time_unit, stream.latencies
    steady = "exact" if stream.steady.pattern else "average of the later half"
    seconds = {"s": 1.0, "ms": 1e-3, "us": 1e-6}.get(unit)
    rate = f", {stream.rate / seconds:.4g} samples/s" if seconds else ""
    return [
        f"{len(stream.finish)} samples, at most {stream.in_flight} in flight, "
        f"{len(stream.segments)} segments each",
        f"a sample each {stream.steady.period:.4g} {unit} once the pipeline is full ({steady}"
        f"{rate})",
        f"filled after {stream.fill:.4g} {unit}, drained in {stream.drain:.4g} {unit}, "
        f"{float(stream.finish.max()):.4g} {unit} in all",
        f"latency of a sample: median {float(np.median(latencies)):.4g} {unit}, 95th percentile "
        f"{float(np.quantile(latencies, 0.95)):.4g} {unit}",
    ]


def stream_rows(problem: Problem, stream: Stream) -> list[list[str]]:
    """Each device: the part of the steady period in which it works, and its peak memory in MiB."""
    rows = zip(
        problem.cluster.device_names, _busy(problem, stream), stream.memory_peaks, strict=True
    )
    return [[name, f"{busy:.0%}", f"{peak / 2**20:.2f}"] for name, busy, peak in rows]


def _busy(problem: Problem, stream: Stream) -> list[float]:
    """Part of the steady period in which each device runs segments."""
    seconds = np.zeros(problem.n_devices)
    for segment, tasks in zip(stream.segments, stream.tasks.of_segment, strict=True):
        seconds[segment.device] += stream.tasks.tables.seconds[tasks.compute]
    period = max(stream.steady.period, np.finfo(np.float64).tiny)
    return [float(one) for one in np.minimum(seconds / problem.cluster.replicas / period, 1.0)]
