"""Placeto's experiment: training steps on 2 and 4 K80 (NeurIPS 2019)."""

from __future__ import annotations

from placewright.suites.papers.models import training_cases
from placewright.suites.papers.suite import (
    Headline,
    PaperSuite,
    Stage,
    equal_budgets,
    recalled_cells,
)

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
RNN = "seq2seq:homogeneous_starts=false"
STAND_INS = (
    "*Stand-ins:* batch sizes and the sizes of NMT are not known to us. Ours are 32 images, 64 "
    "sentences, and two layers of 512 over 20 tokens. Graphs are PyTorch's, not TensorFlow's, and "
    "costs come from data sheets."
)
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
        {RNN: "RNN-based"},
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
    equal_budgets(
        "placeto-mean", {"placeto": "", "seq2seq-entropy": "", "post": ""}, EVALUATIONS, 2
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
)


def placeto_suite() -> PaperSuite:
    """The suite of Placeto."""
    cases = training_cases(MODELS, CLUSTERS)
    return PaperSuite(
        name="placeto",
        title="Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine "
        "Learning (Addanki et al., NeurIPS 2019)",
        stand_ins=STAND_INS,
        rules=RULES,
        cases=cases,
        baseline="single GPU",
        stages=STAGES,
        published=recalled_cells(TABLE, METHODS),
        claims=CLAIMS,
        missing=MISSING,
        headline=Headline(
            figure="time saved over the RNN-based policy",
            stated="Up to 6.1 times fewer placements than the RNN-based policy (abstract); the "
            "table has up to 16.5 % less time",
            over={RNN: "RNN-based"},
            method="Placeto",
            rules=CODE,
            mended="placeto-mean",
            evaluations=EVALUATIONS,
            cases=[case.name for case in cases],
        ),
    )
