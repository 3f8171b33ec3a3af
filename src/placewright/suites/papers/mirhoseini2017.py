"""The experiment of the first learned placements: training steps on 2 and 4 K80 (ICML 2017)."""

from __future__ import annotations

from placewright.suites.papers.models import training_cases
from placewright.suites.papers.suite import (
    Headline,
    PaperSuite,
    Stage,
    equal_budgets,
    recalled_cells,
)

MODELS = ("RNNLM-2", "NMT", "Inception-V3")
CLUSTERS = ("2gpu", "4gpu")
EVALUATIONS = 500
PAPER = "seq2seq:homogeneous_starts=false"
MENDED = "seq2seq-entropy"
METHODS = ("1 CPU", "1 GPU", "Scotch", "MinCut", "expert", "RL")
# Table 2, seconds of a step; None ran out of memory. The paper's gains derive from the cells.
TABLE = {
    ("RNNLM-2", "2gpu"): (6.89, 1.57, 13.43, 11.94, 3.81, 1.57),
    ("RNNLM-2", "4gpu"): (6.89, 1.57, 11.52, 10.44, 4.46, 1.57),
    ("NMT", "2gpu"): (10.72, None, 14.19, 11.54, 4.99, 4.04),
    ("NMT", "4gpu"): (10.72, None, 11.23, 11.78, 4.73, 3.92),
    ("Inception-V3", "2gpu"): (26.21, 4.60, 25.24, 22.88, 11.22, 4.60),
    ("Inception-V3", "4gpu"): (26.21, 4.60, 23.41, 24.52, 10.65, 3.85),
}
STAND_INS = (
    "*Stand-ins:* the sizes of RNNLM and NMT are not known to us. Ours have two LSTM layers of "
    "1,024, and an encoder and decoder of two layers of 512 with attention, both over 20 tokens. "
    "Graphs are PyTorch's, not TensorFlow's, and costs come from data sheets."
)
RULES = (
    "Time of one training step of RNNLM and NMT (batch 64) and Inception-V3 (batch 32).",
    "One Haswell CPU of 18 cores with 2 or 4 K80, TensorFlow r0.9.",
    "Each placement runs for ten steps. The first is dropped, and the others are averaged.",
    "20 controllers with 4 to 8 workers learn for 12 to 27 hours: many thousands of placements. "
    "Here every method times 500.",
    "The reward is the negative square root of the time. Learning starts from no placement.",
)
BASELINES = {
    "single:device=cpu": "1 CPU",
    "single": "1 GPU",
    "scotch": "Scotch",
    "mincut": "MinCut",
    "expert": "expert",
    "heft": "a list schedule (not in the paper)",
}
STAGES = (
    Stage("Baselines without learning", BASELINES, EVALUATIONS, 1),
    Stage("Under the paper's rules", {PAPER: "RL"}, EVALUATIONS, 1),
    equal_budgets(MENDED, {"post": ""}, EVALUATIONS, 3),
)
CLAIMS = (
    "speed-ups of 23.5 and 20.6 % (NMT, 2 and 4 GPUs) and 19.0 % (Inception-V3, 4 GPUs) over the "
    "better of expert and one GPU, as time of the better one over RL's, minus 1 (recalled)",
    "a blog post of the authors has 19.3 % for NMT and 19.7 % for Inception-V3",
    "no gain for RNNLM and for Inception-V3 on 2 GPUs, where RL answers with one GPU",
)
MISSING = (
    "The hardware, TensorFlow's graphs and the measured times. Ours are roofline costs of a Xeon "
    "E5-2699 v3 and K80s, and the steps as PyTorch captures them.",
    "Code: the authors published none.",
    "Limits of memory: the paper's NMT does not fit one GPU, and ours does.",
)


def mirhoseini2017_suite() -> PaperSuite:
    """The suite of Mirhoseini et al. 2017."""
    cases = training_cases(MODELS, CLUSTERS)
    return PaperSuite(
        name="mirhoseini2017",
        title="Device Placement Optimization with Reinforcement Learning (Mirhoseini et al., ICML "
        "2017)",
        stand_ins=STAND_INS,
        rules=RULES,
        cases=cases,
        baseline="1 GPU",
        stages=STAGES,
        published=recalled_cells(TABLE, METHODS),
        claims=CLAIMS,
        missing=MISSING,
        headline=Headline(
            figure="time saved over the better of expert and one GPU",
            stated="Up to 23.5 % faster than the better of expert and one GPU, which is 19.0 % "
            "less time",
            over={"single": "1 GPU", "expert": "expert"},
            method="RL",
            rules=PAPER,
            mended=MENDED,
            evaluations=EVALUATIONS,
            cases=[case.name for case in cases],
        ),
    )
