"""Post's experiment: training steps on 2, 4 and 8 K80 (NeurIPS 2018)."""

from __future__ import annotations

from placewright.suites.papers.models import training_cases
from placewright.suites.papers.suite import Headline, PaperSuite, Stage, equal_budgets

MODELS = ("Inception-V3", "ResNet-50", "RNNLM", "NMT")
CLUSTERS = ("2gpu", "4gpu", "8gpu")
SAMPLES = 2_400
NO_STARTS = "homogeneous_starts=false"
PAPER = f"post:{NO_STARTS}"
POLICY_GRADIENT = f"seq2seq:{NO_STARTS}"
STAND_INS = (
    "*Stand-ins:* the paper does not state all sizes. Ours are ResNet-50, four LSTM layers of "
    "1,024 over 20 tokens, and an encoder and decoder of two layers of 512 over 20 tokens with "
    "attention. Graphs are PyTorch's, not TensorFlow's, and costs come from data sheets."
)
RULES = (
    "Time of one training step on machines with 2, 4 or 8 K80.",
    "Inception-V3 and ResNet on ImageNet with batch 32, an RNNLM of four layers and a "
    "translation model (NMT), both with batch 64.",
    "About 2,400 placements are timed.",
    "Search starts from uniform distributions. Homogeneous placements get no extra evaluation.",
)
STAGES = (
    Stage(
        "Baselines without learning",
        {
            "single": "single GPU",
            "expert": "human expert",
            "metis": "Metis",
            "heft": "a list schedule (not in the paper)",
        },
        SAMPLES,
        1,
    ),
    Stage(
        "Under the paper's rules",
        {PAPER: "Post"},
        SAMPLES,
    ),
    Stage(
        "Ablations of the paper",
        {
            f"post:ablation=ce_only:{NO_STARTS}": "cross-entropy alone",
            f"post:ablation=ppo_only:{NO_STARTS}": "PPO alone",
        },
        SAMPLES,
    ),
    Stage(
        "Under the paper's rules: policy gradient (Mirhoseini et al. 2017)",
        {POLICY_GRADIENT: "policy gradient"},
        SAMPLES,
        1,
    ),
    equal_budgets("post", {"cem": "", "seq2seq-entropy": ""}, SAMPLES, 3),
)
CLAIMS = (
    "up to 63.7 % shorter training steps than the state of the art for equal learning "
    "time (abstract)",
    "up to 58 % over policy gradient, and both steps contribute (a review)",
)
MISSING = (
    "The cells of the paper's tables: they were not recovered, and none is recalled well "
    "enough to write down.",
    "The hardware and TensorFlow's graphs. Ours are roofline costs of a Xeon E5-2699 v3 "
    "and K80s, and the steps as PyTorch captures them.",
    "Times within a step differ from run to run on hardware; the simulator's do not.",
)


def post_suite() -> PaperSuite:
    """The suite of Post."""
    cases = training_cases(MODELS, CLUSTERS)
    return PaperSuite(
        name="post",
        title="Post: Device Placement with Cross-Entropy Minimization and Proximal Policy "
        "Optimization (Gao et al., NeurIPS 2018)",
        stand_ins=STAND_INS,
        rules=RULES,
        cases=cases,
        baseline="single GPU",
        stages=STAGES,
        published=(),
        claims=CLAIMS,
        missing=MISSING,
        headline=Headline(
            figure="time saved over policy gradient",
            stated="Up to 63.7 % less time than the state of the art (abstract), and up to 58 % "
            "than policy gradient (a review)",
            over={POLICY_GRADIENT: "policy gradient"},
            method="",
            rules=PAPER,
            mended="post",
            evaluations=SAMPLES,
            cases=[case.name for case in cases],
        ),
    )
