"""Where the published workloads are, and tables measured with the authors' programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = (
    Path(
        os.environ.get("PLACEWRIGHT_WORKLOADS", Path(__file__).parents[3] / "shared" / "workloads")
    )
    / "tarnawski"
)

needs_workloads = pytest.mark.skipif(
    not (FOLDER / "throughput").is_dir(),
    reason=f"the workloads of Tarnawski et al. are not in {FOLDER}; "
    "set PLACEWRIGHT_WORKLOADS to the folder that holds 'tarnawski'",
)

# workload: (DP contiguous, number of ideals, PipeDream or None, best legal value of the table);
# ms, measured with the authors' dp.cpp (the last column also with a MILP of theirs).
THROUGHPUT: dict[str, tuple[float, int, float | None, float]] = {
    "LayerGraphs/bert24_inference": (17.7899, 30, 17.7899, 17.71),
    "LayerGraphs/bert24_training": (41.7458, 30, None, 39.80),
    "LayerGraphs/gnmt_inference": (32.9107, 17914, 33.0311, 31.69),
    "LayerGraphs/gnmt_training": (107.004, 17914, None, 89.09),
    "LayerGraphs/resnet50_inference": (33.7747, 242, 39.3981, 33.44),
    "LayerGraphs/resnet50_training": (78.6318, 242, 83.6744, 76.67),
    "OperatorGraphs/bert_l-3_inference": (27.9186, 1428, None, 21.91),
    "OperatorGraphs/bert_l-3_training": (65.3031, 2774, None, 54.21),
    "OperatorGraphs/bert_l-6_inference": (29.5795, 1923, None, 28.33),
    "OperatorGraphs/bert_l-6_training": (72.865, 3776, None, 71.64),
    "OperatorGraphs/bert_l-12_inference": (147.478, 2906, None, 147.48),
    "OperatorGraphs/bert_L-12_training": (437.998, 2938, None, 438.00),
    "OperatorGraphs/resnet50_inference": (124.349, 241, None, 124.35),
    "OperatorGraphs/resnet50_training": (255.194, 258, None, 255.19),
}

# workload: (all on CPUs, greedy, best column that keeps memory); ms, `subgraph` model.
LATENCY: dict[str, tuple[float, float, float]] = {
    "LayerGraphs/bert24_inference": (924.06, 100.22, 100.22),
    "LayerGraphs/gnmt_inference": (1824.35, 268.50, 244.33),
    "LayerGraphs/inceptionv3_inference": (1952.77, 2485.24, 1952.77),
    "LayerGraphs/resnet50_inference": (1874.55, 4197.06, 1443.79),
    "OperatorGraphs/bert_l-3_inference": (1099.93, 416.20, 414.44),
    "OperatorGraphs/bert_l-6_inference": (1724.79, 494.14, 444.02),
    "OperatorGraphs/bert_l-12_inference": (14016.84, 867.84, 867.84),
    "OperatorGraphs/resnet50_inference": (6666.67, 839.54, 839.54),
}

# workload: (one accelerator, whether that keeps its memory, expert or None); ms, `max-load` model.
GIVEN_THROUGHPUT: dict[str, tuple[float, bool, float | None]] = {
    "LayerGraphs/bert24_inference": (92.41, True, 20.08),
    "LayerGraphs/bert24_training": (217.81, True, 49.40),
    "LayerGraphs/gnmt_inference": (182.56, True, 46.21),
    "LayerGraphs/gnmt_training": (520.45, True, 137.15),
    "LayerGraphs/inceptionv3_inference": (310.97, True, 102.48),
    "LayerGraphs/inceptionv3_training": (710.74, False, 213.65),
    "LayerGraphs/resnet50_inference": (201.45, False, 43.92),
    "LayerGraphs/resnet50_training": (462.38, False, 112.11),
    "OperatorGraphs/bert_l-3_inference": (49.35, True, None),
    "OperatorGraphs/bert_l-3_training": (122.99, True, None),
    "OperatorGraphs/bert_l-6_inference": (77.46, True, None),
    "OperatorGraphs/bert_l-6_training": (192.92, True, None),
    "OperatorGraphs/bert_l-12_inference": (642.78, True, None),
    "OperatorGraphs/bert_L-12_training": (1891.74, False, None),
    "OperatorGraphs/resnet50_inference": (325.13, True, None),
    "OperatorGraphs/resnet50_training": (684.89, True, None),
}

# workload: expert, made for 6 accelerators of 16 GiB; ms, `subgraph` model. All of them break the
# memory or the number of accelerators of the workload, which the published program only reports.
EXPERT_LATENCY = {
    "LayerGraphs/bert24_inference": 111.94,
    "LayerGraphs/gnmt_inference": 293.40,
    "LayerGraphs/inceptionv3_inference": 865.52,
    "LayerGraphs/resnet50_inference": 1014.93,
}


def expert_file(name: str) -> Path:
    """Where a layer graph's expert split is; of two training graphs only inference has one."""
    stem = name.split("/")[1]
    own = FOLDER / "experts" / f"{stem}_expert.json"
    return own if own.exists() else Path(str(own).replace("training", "inference"))
