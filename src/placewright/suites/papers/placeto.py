"""Placeto's experiment: training steps on 2 and 4 K80 (NeurIPS 2019)."""

from __future__ import annotations

from placewright.suites.papers.models import training_cases
from placewright.suites.papers.suite import PaperSuite, Published, Stage

MODELS = ("Inception-V3", "NMT", "NASNet-A")
CLUSTERS = ("2gpu", "4gpu")
EVALUATIONS = 5_000
CODE = "placeto:entropy_weight=1:normalised=false:homogeneous_starts=false"
# Table 1, seconds of a step; None ran out of memory. Ratios and gains derive from one another.
TABLE = {
    ("Inception-V3", "2gpu"): (12.54, 1.56, 1.28, 1.54, 1.18, 1.17),
    ("Inception-V3", "4gpu"): (12.54, 1.56, 1.15, 1.74, 1.13, 1.19),
    ("NMT", "2gpu"): (33.5, None, None, None, 2.32, 2.35),
    ("NMT", "4gpu"): (33.5, None, None, None, 2.63, 3.15),
    ("NASNet-A", "2gpu"): (37.5, 1.28, 0.86, 1.28, 0.86, 0.89),
    ("NASNet-A", "4gpu"): (37.5, 1.28, 0.84, 1.22, 0.74, 0.76),
}
METHODS = ("CPU only", "single GPU", "expert", "Scotch", "Placeto", "RNN-based")
ABLATED = CODE.replace("entropy_weight=1:normalised=false:", "")
RULES = (
    "Time of one training step on 2 and 4 K80 (p2.8xlarge), measured in a simulator while "
    "learning.",
    "1,600 to 94,000 placements are timed until the best one. Here every method times 5,000.",
    "All episodes start from one placement. Homogeneous placements get no extra evaluation.",
    "The code's entropy weight is 1, with returns in seconds.",
)
STAGES = (
    Stage(
        "Baselines without learning",
        {
            "single:device=cpu": "CPU only",
            "single": "single GPU",
            "expert": "expert",
            "scotch": "Scotch",
            "heft": "a list schedule (not in the paper)",
        },
        EVALUATIONS,
        1,
    ),
    Stage("Under the paper's rules", {CODE: "Placeto, the code's weights"}, EVALUATIONS, 2),
    Stage(
        "Under the paper's rules: the RNN-based policy (Mirhoseini et al. 2017)",
        {"seq2seq-entropy:homogeneous_starts=false": "RNN-based"},
        EVALUATIONS,
        1,
    ),
    Stage(
        "Ablations of the paper, with our entropy weight",
        {
            ABLATED: "Placeto",
            f"{ABLATED}:reward=terminal": "no intermediate rewards",
            f"{ABLATED}:embedding=partition": "simple partitioner",
            f"{ABLATED}:embedding=sum": "simple aggregator",
        },
        EVALUATIONS,
        1,
    ),
    Stage(
        "Equal budgets, all with our defaults",
        {
            "placeto": "",
            "post": "",
            "local-search": "no learning",
            "random-grouped:learner=placeto": "uniform over Placeto's groups",
            "random": "uniform over ops",
        },
        EVALUATIONS,
        2,
    ),
)
CLAIMS = (
    "up to 6.1 times fewer placements than the RNN-based policy (abstract)",
    "a policy that was trained on a family is close to one trained on each graph (figures "
    "of distributions, no table)",
)
MISSING = (
    "The hardware, its profiles and TensorFlow's graphs. Ours are roofline costs of a Xeon "
    "E5-2699 v3 and K80s, and the steps as PyTorch captures them.",
    "The paper's families of 32 graphs each are a download outside its repository that "
    "could not be had. Ours are generated in their spirit, see below.",
    "`important_ops_simulator`, `utils` and the grouper are not in the authors' repository.",
    "Batch sizes that the paper does not state: ours are 32 images and 64 sentences.",
)


def published() -> list[Published]:
    """The cells of Table 1."""
    return [
        Published(f"{model} {cluster}", method, seconds, "recalled")
        for (model, cluster), row in TABLE.items()
        for method, seconds in zip(METHODS, row, strict=True)
        if seconds is not None
    ]


def placeto_suite() -> PaperSuite:
    """The suite of Placeto."""
    return PaperSuite(
        name="placeto",
        title="Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine "
        "Learning (Addanki et al., NeurIPS 2019)",
        rules=RULES,
        cases=training_cases(MODELS, CLUSTERS),
        baseline="single GPU",
        stages=STAGES,
        published=published(),
        claims=CLAIMS,
        missing=MISSING,
    )
