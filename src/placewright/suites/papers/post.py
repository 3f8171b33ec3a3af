"""Post's experiment: training steps on 2, 4 and 8 K80 (NeurIPS 2018)."""

from __future__ import annotations

from placewright.suites.papers.models import training_cases
from placewright.suites.papers.suite import PaperSuite, Stage

MODELS = ("Inception-V3", "ResNet-50", "RNNLM", "NMT")
CLUSTERS = ("2gpu", "4gpu", "8gpu")
SAMPLES = 2_400
NO_STARTS = "homogeneous_starts=false"
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
        {f"post:{NO_STARTS}": "Post"},
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
        {f"seq2seq-entropy:{NO_STARTS}": "policy gradient"},
        SAMPLES,
        1,
    ),
    Stage(
        "Equal budgets, all with our defaults",
        {
            "post": "",
            "cem": "",
            "local-search": "no learning",
            "random-grouped:learner=post": "uniform over Post's groups",
            "random": "uniform over ops",
        },
        SAMPLES,
        3,
    ),
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
    "Sizes that the paper does not state: ours are ResNet-50, four LSTM layers of 1,024 "
    "over 20 tokens, and an encoder and decoder of two layers of 512 over 20 tokens with "
    "attention.",
    "Times within a step differ from run to run on hardware; the simulator's do not.",
)


def post_suite() -> PaperSuite:
    """The suite of Post."""
    return PaperSuite(
        name="post",
        title="Post: Device Placement with Cross-Entropy Minimization and Proximal Policy "
        "Optimization (Gao et al., NeurIPS 2018)",
        rules=RULES,
        cases=training_cases(MODELS, CLUSTERS),
        baseline="single GPU",
        stages=STAGES,
        published=(),
        claims=CLAIMS,
        missing=MISSING,
    )
