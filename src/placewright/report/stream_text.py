"""A simulated stream as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from placewright.core.plan import PLAN
from placewright.core.problem import Problem
from placewright.core.quantities import counted, format_bytes, format_duration, value_text
from placewright.report.machine_speed import speed_note
from placewright.simulation.stream.play import Stream


def stream_data(problem: Problem, stream: Stream) -> dict[str, Any]:
    """A stream as a JSON document; times in the problem's unit, memory in bytes."""
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
    """Describe a stream in lines: number of samples, period, fill, drain, latency."""
    unit, latencies = problem.time_unit, stream.latencies
    median, late = (value_text(float(np.quantile(latencies, q)), unit) for q in (0.5, 0.95))
    steady = "exact" if stream.steady.pattern else "average of the later half"
    seconds = {"s": 1.0, "ms": 1e-3, "us": 1e-6}.get(unit)
    rate = f", {stream.rate / seconds:.4g} samples/s" if seconds else ""
    return [
        f"{counted(len(stream.finish), 'sample')}, at most {stream.in_flight} in flight, "
        f"{counted(len(stream.segments), 'segment')} each",
        f"a sample each {value_text(stream.steady.period, unit)} once the pipeline is full "
        f"({steady}{rate})",
        f"filled after {value_text(stream.fill, unit)}, drained in "
        f"{value_text(stream.drain, unit)}, "
        f"{value_text(float(stream.finish.max()), unit)} in all",
        f"latency of a sample: median {median}, 95th percentile {late}",
    ]


def stream_rows(problem: Problem, stream: Stream) -> list[list[str]]:
    """A row per device: busy share of the steady period, and peak memory."""
    rows = zip(
        problem.cluster.device_names, _busy(problem, stream), stream.memory_peaks, strict=True
    )
    return [[name, f"{busy:.0%}", format_bytes(peak)] for name, busy, peak in rows]


def _busy(problem: Problem, stream: Stream) -> list[float]:
    """Share of the steady period in which each device runs segments."""
    seconds = np.zeros(problem.n_devices)
    for segment, tasks in zip(stream.segments, stream.tasks.of_segment, strict=True):
        seconds[segment.device] += stream.tasks.tables.seconds[tasks.compute]
    period = max(stream.steady.period, np.finfo(np.float64).tiny)
    return [float(share) for share in np.minimum(seconds / problem.cluster.replicas / period, 1.0)]


def measured_stream_lines(document: Mapping[str, Any], latency_limit: float) -> list[str]:
    """A measured stream in lines: outputs, rates, contenders beyond the latency limit, memory.

    Args:
        document: as `placewright run --samples N --json` prints it.
        latency_limit: seconds that 95 % of a contender's samples may take; inf is no limit.
    """
    word = "equal" if document["equal"] else "NOT EQUAL"
    contenders, memory = document["contenders"], document["memory"]
    outputs = "other outputs" if document["random_ops"] else "outputs"
    return [
        f"{outputs} of all {document['samples']} samples {word} to the unsplit model's: relative "
        f"error {document['relative_error']:.2g} (tolerance {document['tolerance']:.2g}, worst in "
        f"sample {document['worst_sample']})",
        *random_lines(document["random_ops"]),
        f"{contenders[PLAN]['samples_per_second']:.1f} samples/s measured, "
        f"{document['predicted_samples_per_second']:.1f} predicted (period "
        f"{document['prediction_error']:+.1%}), {document['in_flight']} in flight",
        *(
            f"'{name}' takes {format_duration(row['latency_95'])} for 95 % of the samples, more "
            f"than {format_duration(latency_limit)}"
            for name, row in contenders.items()
            if row["latency_95"] > latency_limit
        ),
        *(f"'{name}' is not comparable: {why}" for name, why in document["not_comparable"].items()),
        *memory_lines(memory),
        document["verdict"],
    ]


def measured_stream_table(
    document: Mapping[str, Any],
) -> tuple[tuple[str, ...], list[list[str]]]:
    """Columns and rows of the contenders of a measured stream; see `measured_stream_lines`."""
    columns = ("contender", "predicted", "samples/s", "spread", "latency", "95th percentile")
    rows = []
    for name, row in document["contenders"].items():
        predicted, rate = row["predicted_samples_per_second"], row["samples_per_second"]
        rows.append(
            [
                name,
                "-" if predicted is None else f"{predicted:.1f}",
                f"{rate:.1f}",
                f"{row['iqr'] * rate:.1%}",
                format_duration(row["latency_median"]),
                format_duration(row["latency_95"]),
            ]
        )
    return columns, rows


def memory_lines(memory: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Device -> measured and predicted peak bytes, in lines; none for a device without a peak."""
    return [
        f"peak memory of '{name}': measured {format_bytes(row['measured'])}, predicted "
        f"{format_bytes(row['predicted'])} ({row['predicted'] / row['measured'] - 1.0:+.1%})"
        for name, row in memory.items()
        if row["measured"] > 0
    ]


def random_lines(names: Sequence[str]) -> list[str]:
    """A line for each output that cannot be compared."""
    return [
        f"the output of '{name}' could not be compared: runs of the unsplit model itself differ"
        for name in names
    ]


def run_lines(document: Mapping[str, Any], comparison: str) -> list[str]:
    """The lines that `placewright run` prints.

    Args:
        comparison: the error of the outputs beside its tolerance, in words.
    """
    word = "equal" if document["equal"] else "NOT EQUAL"
    fault = "" if document["best_single_device_is_legal"] else " (breaks a limit or a pin)"
    seconds, predicted = (document[f"best_single_device_{of}"] for of in ("measured", "predicted"))
    refusal = document["best_single_device_refusal"]
    alone = f"cannot run the whole model: {refusal}" if refusal else format_duration(seconds)
    note = ""
    if None not in (seconds, predicted):
        alone += f", predicted {format_duration(predicted)} ({predicted / seconds - 1.0:+.1%})"
        note = speed_note(document["changed_devices"])
    return [
        f"{_compared(document)} {word} to the unsplit model: {comparison}",
        *random_lines(document["random_ops"]),
        f"measured {format_duration(document['measured'])}{_spread(document)}, predicted "
        f"{format_duration(document['predicted'])} ({document['prediction_error']:+.1%})",
        f"best single device '{document['best_single_device']}'{fault}: {alone}",
        *filter(None, [document["verdict"], note]),
        *memory_lines(document["memory"]),
        *document["advice"],
    ]


def _spread(document: Mapping[str, Any]) -> str:
    """The number of runs behind a median, and how far they scatter, in brackets."""
    runs = document["runs"]
    if runs is None:
        return ""
    share = document["measured_iqr"] / document["measured"]
    return f" ({counted(runs, 'run')}{f', quartiles {share:.1%} apart' if runs > 1 else ''})"


def _compared(document: Mapping[str, Any]) -> str:
    """The outputs that were compared, in words."""
    if document["random_ops"]:
        return "other outputs"
    updated = document["updated_tensors"]
    return f"loss and {counted(updated, 'updated tensor')}" if updated else "outputs"


def run_verdict(device: str, ratio: tuple[float, float, float], *, is_split: bool) -> str:
    """One sentence: a measured plan against the best single device.

    Args:
        ratio: the plan's seconds over that device's, with the ends of its 95 % interval.
        is_split: the plan uses several devices.
    """
    share, low, high = ratio
    alone = f"'{device}' alone"
    measured = f"of its time (95 % interval {low:.2f} to {high:.2f})"
    if low > 1.0:
        advice = "slower, do not split" if is_split else "slower"
        again = "place again with the check on the hardware for a plan that holds it"
        return f"{advice}: use {alone}; the plan takes {share:.2f} {measured}; {again}"
    if high < 1.0:
        return f"faster than {alone}: the plan takes {share:.2f} {measured}"
    return f"as fast as {alone} within noise: the plan takes {share:.2f} {measured}"
