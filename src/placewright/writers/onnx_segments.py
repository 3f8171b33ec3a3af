"""A plan as a folder: an ``.onnx`` file per segment, and a list of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from placewright.core.plan import Plan

FORMAT = "placewright.onnx-segments/1"
MANIFEST = "segments.json"


def file_name(index: int) -> str:
    """File name of the segment at `index` in execution order."""
    return f"segment-{index:04d}.onnx"


def is_own_name(name: str) -> bool:
    """True if an export writes files with this name."""
    return name == MANIFEST or re.fullmatch(r"segment-\d+\.onnx(\.data)?", name) is not None


def manifest_data(
    plan: Plan,
    devices: Sequence[int],
    ports: Sequence[tuple[Sequence[str], Sequence[str]]],
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """The list of segments as plain data.

    Args:
        plan: a plan with segments.
        devices: of each segment, in the order of execution.
        ports: names of the values that enter and leave each segment, in that order.
        inputs: (name, value) of the model's inputs, in its own order.
        outputs: (name, value) of the model's outputs, in its own order.

    Returns:
        ``inputs`` and ``outputs`` are values in the model's own order; ``input_names`` and
        ``output_names`` are the names for users, which are equal for an ``.onnx`` model.
        ``segments`` are in an order in which they can run, with ``file``, ``device``, ``inputs``
        and ``outputs``. They can also run concurrently, each device in this order.
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
            for index, (device, (entering, leaving)) in enumerate(zip(devices, ports, strict=True))
        ],
    }
