"""The experiment of the hierarchical model: training steps on 2, 4 and 8 K40 (ICLR 2018)."""

from __future__ import annotations

from placewright.suites.papers.mirhoseini2017 import BASELINES
from placewright.suites.papers.models import training_cases
from placewright.suites.papers.suite import (
    Headline,
    PaperSuite,
    Stage,
    equal_budgets,
    recalled_cells,
)

EVALUATIONS = 500
PAPER = "hierarchical:homogeneous_starts=false"
MENDED = "hierarchical-mi"
METHODS = ("1 CPU", "1 GPU", "expert", "Scotch", "MinCut", "HDP")
# Its table, seconds of a step; None ran out of memory or was left out.
TABLE = {
    ("Inception-V3", "2gpu"): (0.61, 0.15, 0.15, 0.93, 0.82, 0.13),
    ("ResNet-152", "2gpu"): (None, 1.18, 1.18, 6.27, 2.92, 1.18),
    ("RNNLM-2", "2gpu"): (6.89, 1.57, 1.57, 5.62, 5.21, 1.57),
    ("NMT", "2gpu"): (6.46, None, 2.13, 3.21, 5.34, 0.84),
    ("NMT-4", "4gpu"): (10.68, None, 3.64, 11.18, 11.63, 1.69),
    ("NMT-8", "8gpu"): (11.52, None, 3.88, 17.85, 19.01, 4.07),
}
STAND_INS = (
    "*Stand-ins:* the GPUs are K80s, for the catalogue has no K40. The sizes of RNNLM and NMT are "
    "not known to us: ours have LSTM layers of 1,024 and 512 over 20 tokens. Graphs are PyTorch's, "
    "not TensorFlow's, and costs come from data sheets."
)
RULES = (
    "Time of one training step of Inception-V3, ResNet-152, RNNLM and NMT with 2, 4 and 8 layers.",
    "One Haswell CPU with 2, 4 or 8 K40, TensorFlow r1.3.",
    "One grouping and four placements a step, Adam with rate 0.1. The paper does not say how many "
    "placements are timed. Here every method times 500.",
    "The default of 40 groups is that of TensorFlow's code for two devices; the paper has 256.",
)
STAGES = (
    Stage("Baselines without learning", BASELINES, EVALUATIONS, 1),
    Stage("Under the paper's rules", {PAPER: "HDP"}, EVALUATIONS, 1),
    equal_budgets(MENDED, {"post": ""}, EVALUATIONS, 3),
)
CLAIMS = (
    "up to 60.6 % less time for a step of NMT (abstract)",
    "graphs of more than 80,000 operations (abstract)",
    "with eight layers, 4.9 % more time than the expert's (recalled)",
)
MISSING = (
    "The hardware, TensorFlow's graphs and the measured times. Ours are roofline costs of a Xeon "
    "E5-2699 v3 and K80s, and the steps as PyTorch captures them.",
    "Batch sizes that the paper does not state: ours are 32 images and 64 sentences.",
    "Graphs of 80,000 operations: unrolled over 20 tokens ours are smaller.",
    "Limits of memory: the paper's NMT does not fit one GPU, and ours does.",
)


def mirhoseini2018_suite() -> PaperSuite:
    """The suite of Mirhoseini et al. 2018."""
    cases = [training_cases((model,), (cluster,))[0] for model, cluster in TABLE]
    return PaperSuite(
        name="mirhoseini2018",
        title="A Hierarchical Model for Device Placement (Mirhoseini et al., ICLR 2018)",
        stand_ins=STAND_INS,
        rules=RULES,
        cases=cases,
        baseline="expert",
        stages=STAGES,
        published=recalled_cells(TABLE, METHODS),
        claims=CLAIMS,
        missing=MISSING,
        headline=Headline(
            figure="time saved over the best of expert, one GPU and CPU",
            stated="Up to 60.6 % less time for a step (abstract)",
            over={"single:device=cpu": "1 CPU", "single": "1 GPU", "expert": "expert"},
            method="HDP",
            rules=PAPER,
            mended=MENDED,
            evaluations=EVALUATIONS,
            cases=[case.name for case in cases],
        ),
    )
