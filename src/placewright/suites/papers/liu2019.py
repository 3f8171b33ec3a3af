"""The experiment of a fully connected grouper, as far as its abstract tells it (HP3C 2019)."""

from __future__ import annotations

from placewright.suites.papers.mirhoseini2017 import BASELINES
from placewright.suites.papers.models import training_cases
from placewright.suites.papers.suite import Headline, PaperSuite, Stage, equal_budgets

MODELS = ("Inception-V3", "ResNet-50", "NMT")
CLUSTERS = ("2gpu",)
EVALUATIONS = 500
PAPER = "grouper-placer:homogeneous_starts=false"
MENDED = "grouper-placer-mi"
STAND_INS = (
    "*Stand-ins:* only the abstract could be had. Models, sizes and devices are our choice: "
    "Inception-V3, ResNet-50 and NMT with two layers of 512, on two K80. The learner is our "
    "interpretation. Graphs are PyTorch's, and costs come from data sheets."
)
RULES = (
    "Time of one training step of widely used models of vision and of translation, among them NMT "
    "on WMT14 German to English.",
    "A fully connected network groups the operations, each group gets a device, and policy "
    "gradients learn from measured running time.",
    "The number of placements is not known. Here every method times 500.",
)
STAGES = (
    Stage("Baselines without learning", BASELINES, EVALUATIONS, 1),
    Stage("Under the paper's rules", {PAPER: "its method, as we read it"}, EVALUATIONS, 1),
    equal_budgets(MENDED, {"post": ""}, EVALUATIONS, 3),
)
CLAIMS = (
    "up to 28.41 % less time for a training step of NMT (abstract, which does not say than which "
    "placement)",
    "better than human experts (abstract)",
)
MISSING = (
    "Everything behind the abstract: sizes, devices, tables, network and rates.",
    "Code: none is known.",
)


def liu2019_suite() -> PaperSuite:
    """The suite of Liu et al. 2019."""
    cases = training_cases(MODELS, CLUSTERS)
    return PaperSuite(
        name="liu2019",
        title="An Effective Method for Operations Placement in TensorFlow (Liu et al., HP3C 2019)",
        stand_ins=STAND_INS,
        rules=RULES,
        cases=cases,
        baseline="expert",
        stages=STAGES,
        published=(),
        claims=CLAIMS,
        missing=MISSING,
        headline=Headline(
            figure="time saved over the expert",
            stated="Up to 28.41 % less time for a step of NMT (abstract)",
            over={"expert": "expert"},
            method="",
            rules=PAPER,
            mended=MENDED,
            evaluations=EVALUATIONS,
            cases=[case.name for case in cases],
        ),
    )
