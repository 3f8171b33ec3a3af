"""An executed plan as text: outputs, seconds, the best single device, memory, advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placewright.core.quantities import format_duration
from placewright.report.machine_speed import speed_note
from placewright.report.stream_text import memory_lines


def run_lines(document: Mapping[str, Any], comparison: str) -> list[str]:
    """The lines that `placewright run` prints.

    Args:
        comparison: the error of the outputs beside its tolerance, in words.
    """
    word = "equal" if document["equal"] else "NOT EQUAL"
    fault = "" if document["best_single_device_is_legal"] else " (breaks a limit or a pin)"
    seconds, predicted = (document[f"best_single_device_{of}"] for of in ("measured", "predicted"))
    alone, note = format_duration(seconds), ""
    if predicted is not None:
        alone += f", predicted {format_duration(predicted)} ({predicted / seconds - 1.0:+.1%})"
        note = speed_note(document["changed_devices"])
    return [
        f"{_compared(document)} {word} to the unsplit model: {comparison}",
        *(
            f"the output of '{name}' is random: two runs of the unsplit model differ, so that it "
            "was not compared"
            for name in document["random_ops"]
        ),
        f"measured {format_duration(document['measured'])}, predicted "
        f"{format_duration(document['predicted'])} ({document['prediction_error']:+.1%})",
        f"best single device '{document['best_single_device']}'{fault}: {alone}",
        *filter(None, [document["verdict"], note]),
        *memory_lines(document["memory"]),
        *document["advice"],
    ]


def _compared(document: Mapping[str, Any]) -> str:
    """The outputs that were compared, in words."""
    if document["random_ops"]:
        return "other outputs"
    updated = document["updated_tensors"]
    return f"loss and {updated} updated tensors" if updated else "outputs"


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
