"""A paper's suite: its problems, our runs, and the numbers that the paper reports.

`run_suite` runs every stage on its problems, adds a row per run to a results file, and skips runs
that the file already has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml

from placewright.core.arrays import frozen_floats
from placewright.core.costs import CostTable
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.errors import FieldError, UnknownNameError
from placewright.files.problem_file import content_sha256
from placewright.profiling.roofline import roofline_problem
from placewright.report.learned_statistics import LearnedRun, controls_of
from placewright.report.time_left import Report
from placewright.simulation.bounds.lower import lower_bound
from placewright.simulation.evaluator import Evaluator
from placewright.suites.learned import (
    Case,
    read_runs,
    run_learned_benchmark,
    runs_file,
    single_value,
    zoo_graph,
)
from placewright.workers.interface import Workers

if TYPE_CHECKING:
    from placewright.zoo.model import ZooModel


Certainty = Literal["recalled", "uncertain"]
CERTAINTIES: dict[Certainty, str] = {
    "recalled": "recalled from the table and consistent with figures that were read",
    "uncertain": "recalled only; do not cite it",
}
CONTROLS = (
    "its first policy, updates off",
    "uniform over its groups",
    "cooling, which reads no feedback",
    "uniform over the groups of Post",
)
BOUND = "lower bound"  # name of the placer in the row with a problem's bound
BOUND_SECONDS = 20.0


@dataclass(frozen=True)
class Published:
    """One number that a paper reports."""

    problem: str  # name of our case for the paper's problem
    method: str  # name in the paper
    seconds: float  # as reported
    certainty: Certainty  # source of the figure, see `CERTAINTIES`


@dataclass(frozen=True)
class Stage:
    """Placers that run with the same number of evaluations."""

    title: str  # heading of these runs
    placers: dict[str, str]  # ``NAME:key=value`` -> its counterpart in the paper
    evaluations: int  # of every run
    seeds: int = 5  # runs of each at most; methods without chance need one
    cases: Sequence[str] = ()  # names of the problems that it runs on; empty is all


def equal_budgets(learner: str, others: dict[str, str], evaluations: int, seeds: int) -> Stage:
    """A stage in which all placers have the same number of evaluations and of seeds.

    They are the learner, its controls (`controls_of`), local search and `others`.

    Args:
        others: placer -> its counterpart in the paper, "" for none.
    """
    controls = dict(zip(controls_of(learner), CONTROLS, strict=True))
    placers = {learner: "", **others, **controls, "local-search": "no learning"}
    return Stage("Equal budgets, all with our defaults", placers, evaluations, seeds)


@dataclass(frozen=True)
class Headline:
    """The figure that a paper is known for, and what we compare it with.

    A figure compares a method with the best of some others: their least seconds, `t`, and those of
    the method, `s`. It is the share of time saved, 100 (1 - s / t) per cent.
    """

    figure: str  # the metric in words, such as ``"time saved over CPU-only"``
    stated: str  # the paper's largest figure with its source
    over: dict[str, str]  # our placers that stand for the others -> their names in the paper
    method: str  # of the paper, by its name in `PaperSuite.published`
    rules: str  # ``NAME:key=value``, the paper's system under the paper's rules
    mended: str  # the system with our defaults or mends
    evaluations: int  # of the runs that are compared
    cases: Sequence[str]  # names of the problems
    device: str = "single"  # the single device that stands for no placement at all

    @property
    def placers(self) -> dict[str, str]:
        """Placer of a run -> words for its part in the comparison."""
        return {
            self.rules: "under its rules",
            self.mended: "ours, equal budget",
            "local-search": "local search, equal budget",
            "heft": "HEFT, one evaluation",
            controls_of(self.mended)[1]: "uniform over its groups",
            self.device: "one GPU",
        }


@dataclass(frozen=True)
class PaperSuite:
    """A paper's experiment as far as it can be run here."""

    name: str  # of the experiment, see `PAPERS`
    title: str  # of the paper
    stand_ins: str  # what is not the paper's in models and machines; the first line of its page
    rules: Sequence[str]  # its experiment, sentence by sentence
    cases: Sequence[Case]  # its problems
    baseline: str  # method of `published` that other figures are divided by
    stages: Sequence[Stage]  # our runs on every case
    published: Sequence[Published]  # its figures
    claims: Sequence[str]  # figures that belong to no cell, each with its source
    missing: Sequence[str]  # differences that remain, sentence by sentence
    headline: Headline  # its best-known figure

    def cases_of(self, stage: Stage) -> list[Case]:
        """The problems that a stage runs on."""
        return [case for case in self.cases if not stage.cases or case.name in stage.cases]


def run_suite(
    suite: PaperSuite,
    results: Path,
    *,
    seeds: int,
    workers: Workers | None = None,
    progress: Report | None = None,
) -> list[LearnedRun]:
    """Run all stages of a suite on all its problems; rows in the file are not repeated.

    Args:
        results: the results file, written after every run.
        seeds: largest number of runs of one placer on one problem; a stage may ask for fewer.
        workers: run the tasks; None is this process.
        progress: called with the fraction done and the run that has ended.

    Returns:
        The rows of all these runs and bounds, including those that the file already had.

    Raises:
        FieldError: `seeds` is less than 1.
    """
    if seeds < 1:
        raise FieldError("seeds", f"must be >= 1, got {seeds}")
    rows: list[LearnedRun] = []
    for number, case in enumerate(suite.cases):
        problem = case.build()
        rows.append(bound_row(case.name, problem, results))
        for stage in suite.stages:
            if case not in suite.cases_of(stage):
                continue
            rows += run_learned_benchmark(
                [Case(case.name, _held(problem))],
                list(stage.placers),
                stage.evaluations,
                min(seeds, stage.seeds),
                results,
                workers=workers,
                progress=_part(progress, number, len(suite.cases)),
            )
    return rows


def bound_row(name: str, problem: Problem, results: Path) -> LearnedRun:
    """The problem's lower bound as a row: from the file, or computed and added to it."""
    key = content_sha256(problem)
    stored = read_runs(results)
    for row in stored:
        if (row.key, row.placer) == (key, BOUND):
            return row
    bound = lower_bound(problem, BOUND_SECONDS)
    row = LearnedRun(
        problem=name,
        key=key,
        evaluations=0,
        placer=BOUND,
        seed=0,
        value=bound.value,
        single=single_value(problem),
        seconds=round(bound.seconds, 3),
        samples=0,
        parts=[],
        history=[],
    )
    runs_file(results).add([row])
    return row


def _held(problem: Problem) -> Callable[[], Problem]:
    return lambda: problem


def _part(progress: Report | None, number: int, count: int) -> Report | None:
    if progress is None:
        return None
    return lambda fraction, text: progress((number + fraction) / count, text)


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
    """Multiply the costs of the first CPU by `ratio` over the present ratio.

    That is the simulated value of the whole model on the first CPU divided by that on the first
    GPU.
    """
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
    """A copy of a model whose example input has `batch` times its image."""
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
