"""Settings, reports and the search of the placers that learn on one problem; without PyTorch."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import MissingExtraError, Requires
from placewright.placers.bases import ForEveryProblem, anytime, require_numbers
from placewright.simulation.evaluator import Evaluator


def require_packages(*packages: str) -> None:
    """Raise early, by name, if an optional package is missing.

    Raises:
        MissingExtraError: one of `packages` cannot be imported.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(package, "learned", "this learned placer") from error


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Hyperparameters of every search.

    Attributes:
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing. There is
            one query for each device; what it cannot run goes to the first device that can.
        updates: False samples from the first policy only, which is untrained unless a file gave it:
            the control of learning.
        patience: stop after so many evaluations without improvement, looked at between updates; 0
            never stops early.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    homogeneous_starts: bool = True
    updates: bool = True
    patience: int = 0
    tensorboard: str = ""


@dataclass(frozen=True, kw_only=True)
class ReinforceSettings(SearchSettings):
    """Hyperparameters that all systems with a moving baseline have.

    Attributes:
        clip_norm: largest global gradient norm; 0 sets no limit.
        baseline_decay: of the moving average, in [0, 1).
    """

    clip_norm: float = 1.0
    baseline_decay: float = 0.9

    def check_reinforce(self, placer: str) -> None:
        """Raise if one of these is no possible value.

        Raises:
            InputError: naming placer, setting and value.
        """
        require_numbers(placer, self, ">= 0", "clip_norm", "patience")
        require_numbers(placer, self, "in [0, 1)", "baseline_decay")


@dataclass(frozen=True, kw_only=True)
class JointSettings(ReinforceSettings):
    """Hyperparameters of a grouper and a placer that are trained together.

    Attributes:
        entropy_weight: of the placer's mean entropy per group, in the bonus that is subtracted from
            the loss.
        grouper_entropy_weight: of the grouper's mean entropy per node, in that bonus; below 0 it
            penalises undecided nodes.
        usage_entropy_weight: of the entropy of the group of a random node, in that bonus; it
            rewards even use of the groups.
        grouper_scale: factor on the first weights and biases of the grouper's last layer; above 1
            nodes begin with different groups.
        aligned: the decoder's logits see the encoder's state of the group that is placed.
        normalised: divide advantages by their moving root mean square.
    """

    entropy_weight: float = 0.0
    grouper_entropy_weight: float = 0.0
    usage_entropy_weight: float = 0.0
    grouper_scale: float = 1.0
    aligned: bool = False
    normalised: bool = False


class Scalars(Protocol):
    """Function that writes named numbers after so many steps."""

    def __call__(self, step: int, **values: float) -> None: ...


class UpdateReport(Protocol):
    """Function that records the named numbers of an update of a policy."""

    def __call__(self, **values: float) -> None: ...


@contextmanager
def scalars_to(folder: str) -> Iterator[Scalars]:
    """Write numbers of updates into a folder for TensorBoard; "" writes none.

    A number that several learners have has one name: ``best``, ``mean_time``, ``loss``,
    ``entropy``, ``kl``.

    Raises:
        MissingExtraError: a folder is given and TensorBoard is absent.
    """
    if not folder:
        yield lambda step, **values: None
        return
    require_packages("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:

        def write(step: int, **values: float) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        yield write


@contextmanager
def reporting(tensorboard: str, evaluator: Evaluator) -> Iterator[UpdateReport]:
    """Record numbers of updates, and the best value so far, in the evaluator and for TensorBoard.

    Args:
        tensorboard: as `scalars_to` takes it.
    """
    with scalars_to(tensorboard) as write:

        def report(**values: float) -> None:
            values = {"best": evaluator.best_value, **values}
            evaluator.record_update(**values)
            write(evaluator.evaluations, **values)

        yield report


@dataclass
class EarlyStop:
    """True once the incumbent has not improved for a number of evaluations."""

    patience: int = 0  # evaluations without improvement that end a run; 0 never ends it
    best: float = math.inf  # the incumbent
    since: int = 0  # evaluations at its last improvement

    def __call__(self, best_value: float, evaluations: int) -> bool:
        """Take in an incumbent; True if the run should end."""
        if best_value < self.best:
            self.best, self.since = best_value, evaluations
        return self.ends(evaluations)

    def ends(self, evaluations: int) -> bool:
        """True if the run should end after so many evaluations."""
        return self.patience > 0 and evaluations - self.since >= self.patience


class LearningPlacer(ForEveryProblem, ABC):
    """A placer that learns on the problem that it places.

    Attributes:
        requires: packages that its algorithm imports.
        algorithm: module with ``learn(settings, actions, evaluator, rng)``, where actions is what
            `actions` returns; that of HSDAG receives the problem, as it groups in each pass.
    """

    requires: ClassVar[Requires] = (("torch", "learned"),)
    algorithm: ClassVar[str]

    @abstractmethod
    def actions(self, problem: Problem) -> Any:
        """The choices of the policy. Each placer has its own."""

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Sample, evaluate and learn until the budget or `patience` runs out.

        Raises:
            MissingExtraError: a required package is absent.
            FileFormatError: the policy file is unusable for this placer or number of devices.
        """
        self.learn(self.actions(problem), evaluator, rng)
        return evaluator.solution()

    def learn(self, actions: Any, evaluator: Evaluator, rng: np.random.Generator) -> None:
        """Run the algorithm. Its module is imported here, so that only a search loads PyTorch.

        Args:
            actions: the choices of the policy.

        Raises:
            MissingExtraError: a required package is absent.
        """
        require_packages(*(package for package, _ in self.requires))
        importlib.import_module(self.algorithm).learn(self, actions, evaluator, rng)
