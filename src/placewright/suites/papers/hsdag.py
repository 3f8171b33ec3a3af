"""HSDAG's experiment: three models, one CPU and one GPU, 500 evaluations (NeurIPS 2024)."""

from __future__ import annotations

from placewright.suites.papers.models import inference_cases, scaled_cases
from placewright.suites.papers.suite import (
    Headline,
    PaperSuite,
    Published,
    Stage,
    equal_budgets,
)

CLUSTER = "cpu+gpu"
MODELS = {"Inception-V3": "inception_v3", "ResNet-50": "resnet50", "BERT": "bert_base/short"}
# Table 2, seconds. The cells of CPU-only and HSDAG agree with the gains in summaries (17.9, 52.1
# and 58.2 %); the others were recalled without such a check.
TABLE = {
    "CPU-only": (0.0128, 0.0160, 0.00638),
    "GPU-only": (0.0120, 0.00781, 0.00275),
    "Placeto": (0.0116, 0.00932, 0.00651),
    "RNN-based": (0.0128, 0.00827, None),
    "HSDAG": (0.0105, 0.00766, 0.00267),
}
CHECKED = ("CPU-only", "HSDAG")
PAPER = "hsdag"
RELEASED = "hsdag-released"
MENDED = "hsdag-corrected"
CASES = inference_cases(MODELS, CLUSTER)
# CPU-only takes as many times GPU-only's seconds as in the paper.
RATIOS = (0.0128 / 0.0120, 0.0160 / 0.00781, 0.00638 / 0.00275)
SCALED = scaled_cases(CASES, RATIOS)
AS_WE_COST = [case.name for case in CASES]
AS_IN_PAPER = [case.name for case in SCALED]
STAND_INS = (
    "*Stand-ins:* models have the paper's names and input sizes, and our converter's graphs. Costs "
    "come from data sheets of the two chips, by which the CPU is slower than in the paper. In "
    "the problems named *CPU scaled* its costs are multiplied by one factor, so that CPU-only over "
    "GPU-only is what the paper has."
)
RULES = (
    "Latency of one inference with batch 1 on a Core i9-12900K and a Flex 170, OpenVINO 2023.3.",
    "25 episodes of 20 placements, each timed: 500 evaluations.",
    "The released code calls a placement that uses one device a failure, so HSDAG can "
    "never answer CPU-only or GPU-only.",
    "Inputs are 1 x 3 x 299 x 299, 1 x 3 x 224 x 224 and, for BERT, a sentence of eight tokens.",
)
STAGES = (
    Stage(
        "Baselines without learning",
        {
            "single:device=cpu": "CPU-only",
            "single:device=gpu": "GPU-only",
            "heft": "a list schedule (not in the paper)",
        },
        500,
        1,
    ),
    Stage(
        "Under the paper's rules",
        {RELEASED: "HSDAG, the public code", PAPER: "HSDAG, the text"},
        500,
    ),
    Stage(
        "Under the paper's rules: its Placeto baseline",
        {"placeto:entropy_weight=1:normalised=false:homogeneous_starts=false": "Placeto"},
        500,
        1,
        AS_WE_COST,
    ),
    Stage(
        "Under the paper's rules: its RNN baseline, 100 episodes of one sample",
        {"seq2seq-hsdag-rnn:homogeneous_starts=false": "RNN-based"},
        100,
        1,
        AS_WE_COST,
    ),
    Stage(
        "Ablations of the paper (its Table 3)",
        {
            f"{PAPER}:without_output_shape=true": "w/o output shape",
            f"{PAPER}:without_node_id=true": "w/o node ID",
            f"{PAPER}:without_degrees=true:without_fractal_dimension=true": (
                "w/o graph structural features"
            ),
        },
        500,
        cases=AS_WE_COST,
    ),
    equal_budgets(MENDED, {"seq2seq-entropy": "", "post": ""}, 500, 3),
)
CLAIMS = (
    "up to 58.2 % over CPU-only and up to 60.24 % over other baselines (abstract)",
    "17.9, 52.1 and 58.2 % over CPU-only for Inception-V3, ResNet and BERT (summaries)",
    "Inception-V3 without output shape, or without node ID: 8.59 % (a summary)",
)
MISSING = (
    "The hardware. Ours are roofline costs from data sheets of the same two chips.",
    "OpenVINO-CPU and OpenVINO-GPU, the library's own choice of devices: it needs the "
    "devices, and the paper's figures were not recovered.",
    "PlacetoOpenVINO.zip, the authors' Placeto: it is not in their repository. Ours is "
    "Placeto's own code's settings.",
    "Graphs of the paper's converter: see the node counts in learned.md.",
    "The other cells of its Table 3, and Table 5 (search times).",
)


def published() -> list[Published]:
    """The known cells of Table 2."""
    return [
        Published(
            case,
            method,
            seconds,
            "recalled" if method in CHECKED else "uncertain",
        )
        for method, row in TABLE.items()
        for case, seconds in zip(AS_IN_PAPER, row, strict=True)
        if seconds is not None
    ]


def hsdag_suite() -> PaperSuite:
    """The suite of HSDAG."""
    return PaperSuite(
        name="hsdag",
        title="A Structure-Aware Framework for Learning Device Placements on Computation Graphs "
        "(Duan et al., NeurIPS 2024)",
        stand_ins=STAND_INS,
        rules=RULES,
        cases=(*CASES, *SCALED),
        baseline="CPU-only",
        stages=STAGES,
        published=published(),
        claims=CLAIMS,
        missing=MISSING,
        headline=Headline(
            figure="time saved over CPU-only",
            stated="Up to 58.2 % less time than CPU-only (abstract)",
            over={"single:device=cpu": "CPU-only"},
            method="HSDAG",
            rules=PAPER,
            mended=MENDED,
            evaluations=500,
            cases=AS_IN_PAPER,
            device="single:device=gpu",
        ),
    )
