#!/usr/bin/env python3
"""Measure PyTorch placements on this machine's GPUs (or on any devices) and record everything.

Discovers the devices, profiles every zoo model, runs split placements beside the unsplit model,
measures how far predictions are off, and compares the chosen placement with single devices, whole
layers in order and accelerate's map, without and with a memory limit on the first device. The
folder then holds one problem file per model (the cost file), ``record.json`` with machine and
versions, and ``table.md`` for the documents. It is written after every step: what is there already
is not measured again, and what failed is told, does not end the rest, and is tried by the next run.

    python scripts/measure_cuda.py                                  # cpu and every GPU
    python scripts/measure_cuda.py --devices cpu:0,cpu:1 --models rnnlm/tiny --budget 5s
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/ is not installed

from benchmarks.hardware_record import RecordRequest, record_hardware
from placewright.errors import PlacewrightError


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", help="default: cpu and every accelerator")
    parser.add_argument("--models", help="zoo models, NAME or NAME/VARIANT; default: all")
    parser.add_argument("--objective", default="training", choices=("training", "latency"))
    parser.add_argument("--placements", type=int, default=20, help="of the accuracy table")
    parser.add_argument("--accuracy-models", default="bert_base,inception_v3,resnet50")
    parser.add_argument("--budget", default="60s", help="of each search")
    parser.add_argument("--memory", help="limit of the first device, for example 2GiB; default: "
                        "half of what the whole model takes there")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, default=Path("cuda-record"))
    given = parser.parse_args(arguments)
    try:
        request = RecordRequest.of_texts(
            devices=given.devices,
            models=given.models,
            objective=given.objective,
            placements=given.placements,
            accuracy_models=given.accuracy_models,
            budget=given.budget,
            memory=given.memory,
            folder=given.output,
        )
        known = record_hardware(request, lambda text: sys.stderr.write(f"{text}\n"))
    except PlacewrightError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{given.output / 'table.md'}\n")
    failures = [name for name, entry in known["models"].items() if entry.get("failures")]
    if failures:
        sys.stderr.write(f"run it again for what failed: {', '.join(failures)}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
