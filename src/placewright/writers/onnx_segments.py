"""A plan as a folder of ``.onnx`` files, one per segment, and the list that says how they run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from placewright.core.plan import Plan

FORMAT = "placewright.onnx-segments/1"
MANIFEST = "segments.json"


def file_name(index: int) -> str:
    """Of the segment at `index` in execution order."""
    return f"segment-{index:04d}.onnx"


def is_own_name(name: str) -> bool:
    """Whether a file in a folder of segments is one that an export writes there."""
    return name == MANIFEST or re.fullmatch(r"segment-\d+\.onnx(\.data)?", name) is not None


def manifest_data(
    plan: Plan,
    ports: Sequence[tuple[Sequence[str], Sequence[str]]],
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """The list of segments as plain data.

    Args:
        plan: with segments.
        ports: names of the values that enter and leave each segment, in the plan's order.
        inputs: of the whole model in its own order, each (name, value).
        outputs: of the whole model in its own order, each (name, value).

    Returns:
        ``inputs`` and ``outputs`` are values in the model's own order, ``input_names`` and
        ``output_names`` what the model's users call them (the same, where the model is the
        ``.onnx`` file itself);
        ``segments`` in an order in which they can run, each with its ``file``, ``device``,
        ``inputs`` and ``outputs``: run one after the other, or each device's own part at once.
    """
    names = plan.problem.cluster.device_names
    source = plan.problem.source
    return {
        "format": FORMAT,
        "model": {"source": source.path, "sha256": source.sha256} if source else None,
        "inputs": [value for _, value in inputs],
        "outputs": [value for _, value in outputs],
        "input_names": [name for name, _ in inputs],
        "output_names": [name for name, _ in outputs],
        "segments": [
            {
                "file": file_name(index),
                "device": names[device],
                "inputs": list(entering),
                "outputs": list(leaving),
            }
            for index, ((device, _), (entering, leaving)) in enumerate(
                zip(plan.segments or (), ports, strict=True)
            )
        ],
    }
