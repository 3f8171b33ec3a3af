"""The papers that can be reproduced, by name (data: ``papers.yaml``), and their models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from placewright.core.arrays import frozen_floats
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.errors import UnknownNameError
from placewright.profiling.roofline import roofline_problem
from placewright.simulation.evaluator import Evaluator
from placewright.suites.learned import Case, zoo_graph
from placewright.suites.papers.suite import Headline, PaperSuite, Published, Stage, equal_budgets

if TYPE_CHECKING:
    from placewright.zoo.model import ZooModel


def inference_cases(models: dict[str, str], cluster: str) -> list[Case]:
    """Latency problems of zoo models on a cluster of the catalogue.

    Args:
        models: name in the table -> name in the zoo.
    """

    def case(name: str, zoo_name: str) -> Case:
        return Case(f"{name} {cluster}", lambda: roofline_problem(zoo_graph(zoo_name), cluster))

    return [case(name, zoo_name) for name, zoo_name in models.items()]


def scaled_cases(cases: Sequence[Case], ratios: Sequence[float]) -> list[Case]:
    """The same problems with CPU costs scaled so that the CPU is slower than the GPU by a ratio.

    Args:
        cases: on a CPU and a GPU, with latency as the objective.
        ratios: seconds of the whole model on the CPU over those on the GPU, for each case.
    """

    def scaled(case: Case, ratio: float) -> Case:
        return Case(f"{case.name}, CPU scaled", lambda: _with_cpu_scaled(case.build(), ratio))

    return [scaled(case, ratio) for case, ratio in zip(cases, ratios, strict=True)]


def _with_cpu_scaled(problem: Problem, ratio: float) -> Problem:
    """Multiply all costs of the CPU by one factor, see `scaled_cases`."""
    kinds = [device.kind for device in problem.cluster.devices]
    on_cpu, on_gpu = (
        Evaluator(problem).evaluate(np.full(problem.n_units, kinds.index(kind)))
        for kind in ("cpu", "gpu")
    )
    seconds = problem.costs.seconds.copy()
    seconds[:, kinds.index("cpu")] *= ratio * on_gpu / on_cpu
    costs = CostTable(frozen_floats(seconds), source=f"{problem.costs.source}, CPU scaled")
    return replace(problem, costs=costs)


def training_cases(names: Sequence[str]) -> list[Case]:
    """Training steps of `STEPS` on clusters of the catalogue, each named ``"MODEL CLUSTER"``."""

    def case(name: str) -> Case:
        model, cluster = name.split()
        return Case(name, lambda: roofline_problem(training_graph(model), cluster, "training"))

    return [case(name) for name in names]


@cache
def training_graph(name: str) -> ComputationGraph:
    """Training step of a model of `STEPS`; PyTorch captures it once per process."""
    from placewright.frameworks.torch.training.step import read_training
    from placewright.zoo.model import training_of

    step = training_of(STEPS[name]())
    captured = read_training(
        step.module, step.example_inputs, input_names=step.input_names, name=f"zoo:{name}"
    )
    return captured.graph


def _batch_of(model: ZooModel, batch: int) -> ZooModel:
    """Repeat the example image of a model to a batch."""
    (image,) = model.example_inputs
    return replace(model, example_inputs=(image.repeat(batch, 1, 1, 1),))


def _inception() -> ZooModel:
    from placewright.zoo.convolutional import inception_v3

    return _batch_of(inception_v3(), 32)


def _resnet() -> ZooModel:
    from placewright.zoo.convolutional import resnet50

    return _batch_of(resnet50(), 32)


def _nasnet() -> ZooModel:
    from placewright.zoo.convolutional import nasnet_a

    return _batch_of(nasnet_a(), 32)


def _deep_resnet() -> ZooModel:
    from placewright.zoo.convolutional import resnet152

    return _batch_of(resnet152(), 32)


def _language_model(layers: int) -> ZooModel:
    from placewright.zoo.recurrent import rnnlm

    return rnnlm(layers=layers, batch=64)


def _translation(layers: int) -> ZooModel:
    from placewright.zoo.recurrent import gnmt

    return gnmt(layers=layers, batch=64)


STEPS: dict[str, Callable[[], ZooModel]] = {
    "Inception-V3": _inception,
    "ResNet-50": _resnet,
    "NASNet-A": _nasnet,
    "ResNet-152": _deep_resnet,
    "RNNLM": partial(_language_model, 4),
    "RNNLM-2": partial(_language_model, 2),
    "NMT": partial(_translation, 2),
    "NMT-4": partial(_translation, 4),
    "NMT-8": partial(_translation, 8),
}


PAPERS = ("mirhoseini2017", "mirhoseini2018", "post", "liu2019", "placeto", "hsdag")


def paper_suite(name: str) -> PaperSuite:
    """The suite of a paper.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in PAPERS:
        raise UnknownNameError("paper", name, PAPERS)
    entry = _document()[name]
    figures: Mapping[str, Sequence[float | None]] = entry.get("published", {})
    uncertain = entry.get("uncertain", ())
    if "training" in entry:
        own = cases = training_cases(entry["training"])
    else:
        own = inference_cases(entry["inference"], entry["cluster"])
        pairs = zip(figures["CPU-only"], figures["GPU-only"], strict=True)
        cases = scaled_cases(own, [(cpu or 0.0) / (gpu or 1.0) for cpu, gpu in pairs])
    names = [case.name for case in own]
    published = [
        Published(case.name, method, seconds, "uncertain" if method in uncertain else "recalled")
        for method, row in figures.items()
        for case, seconds in zip(cases, row, strict=True)
        if seconds is not None
    ]
    evaluations, equal = entry["evaluations"], entry["equal_budgets"]
    others = dict.fromkeys(equal["others"], "")
    stages = [_stage(stage, evaluations, names) for stage in entry["stages"]]
    return PaperSuite(
        name=name,
        title=entry["title"],
        stand_ins=entry["stand_ins"],
        rules=entry["rules"],
        cases=own if cases is own else [*own, *cases],
        baseline=entry["baseline"],
        stages=[*stages, equal_budgets(equal["learner"], others, evaluations, equal["seeds"])],
        published=published,
        claims=entry["claims"],
        missing=entry["missing"],
        headline=Headline(
            **entry["headline"], evaluations=evaluations, cases=[case.name for case in cases]
        ),
    )


def _stage(entry: dict[str, Any], evaluations: int, own: Sequence[str]) -> Stage:
    return Stage(
        entry["title"],
        entry["placers"],
        entry.get("evaluations", evaluations),
        entry.get("seeds", 5),
        () if entry.get("scaled_too", True) else own,
    )


@cache
def _document() -> dict[str, Any]:
    text = resources.files("placewright.suites.papers").joinpath("papers.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document
