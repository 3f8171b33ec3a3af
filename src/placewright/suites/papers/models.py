"""The models of the papers, at the sizes that the papers state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.profiling.roofline import roofline_problem
from placewright.suites.learned import Case, zoo_graph

if TYPE_CHECKING:
    from placewright.zoo.model import ZooModel


def inference_cases(models: dict[str, str], cluster: str) -> list[Case]:
    """Latency of zoo models, name -> name in the zoo, on one cluster of the catalogue."""

    def case(name: str, zoo_name: str) -> Case:
        return Case(f"{name} {cluster}", lambda: roofline_problem(zoo_graph(zoo_name), cluster))

    return [case(name, zoo_name) for name, zoo_name in models.items()]


def training_cases(names: tuple[str, ...], clusters: tuple[str, ...]) -> list[Case]:
    """Training steps of `STEPS` on clusters of the catalogue; each step is read once."""

    def case(name: str, graph: Callable[[], ComputationGraph], cluster: str) -> Case:
        def build() -> Problem:
            return roofline_problem(graph(), cluster, "training")

        return Case(f"{name} {cluster}", build)

    return [
        case(name, graph, cluster)
        for name in names
        for graph in [_once(name)]
        for cluster in clusters
    ]


def training_graph(name: str) -> ComputationGraph:
    """The training step of one of `STEPS`, as PyTorch captures it."""
    from placewright.frameworks.torch.training.step import read_training
    from placewright.zoo.model import training_of

    step = training_of(STEPS[name]())
    captured = read_training(
        step.module, step.example_inputs, input_names=step.input_names, name=f"zoo:{name}"
    )
    return captured.graph


def _once(name: str) -> Callable[[], ComputationGraph]:
    read: list[ComputationGraph] = []

    def graph() -> ComputationGraph:
        if not read:
            read.append(training_graph(name))
        return read[0]

    return graph


def _batch_of(model: ZooModel, batch: int) -> ZooModel:
    """The model with its one image repeated."""
    (image,) = model.example_inputs
    return replace(model, example_inputs=(image.repeat(batch, 1, 1, 1),))


def _inception() -> ZooModel:
    from placewright.zoo.inception import inception_v3

    return _batch_of(inception_v3(), 32)


def _resnet() -> ZooModel:
    from placewright.zoo.resnet import resnet50

    return _batch_of(resnet50(), 32)


def _nasnet() -> ZooModel:
    from placewright.zoo.nasnet import nasnet_a

    return _batch_of(nasnet_a(), 32)


def _language_model() -> ZooModel:
    from placewright.zoo.recurrent import rnnlm

    return rnnlm(layers=4, batch=64)


def _translation() -> ZooModel:
    from placewright.zoo.recurrent import gnmt

    return gnmt(layers=2, batch=64)


STEPS: dict[str, Callable[[], ZooModel]] = {
    "Inception-V3": _inception,
    "ResNet-50": _resnet,
    "NASNet-A": _nasnet,
    "RNNLM": _language_model,
    "NMT": _translation,
}
