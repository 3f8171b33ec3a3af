"""What the learners that search on one problem have in common: settings, groups, the search."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError, Requires
from placewright.placers.anytime import anytime
from placewright.placers.learned.extra import require_packages
from placewright.placers.learned.group_inputs import JointSpace
from placewright.placers.learned.grouping import ActionSpace, merged_space
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Hyperparameters of every search.

    Attributes:
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing.
        updates: False only samples, from the untrained policy: the control of learning.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    homogeneous_starts: bool = True
    updates: bool = True
    patience: int = 0
    tensorboard: str = ""


@dataclass(frozen=True, kw_only=True)
class ReinforceSettings(SearchSettings):
    """Hyperparameters of `reinforce.Reinforce` that have one default for all.

    Attributes:
        clip_norm: largest global gradient norm.
        baseline_decay: of the moving average.
    """

    clip_norm: float = 1.0
    baseline_decay: float = 0.9


@dataclass(frozen=True, kw_only=True)
class JointSettings(ReinforceSettings):
    """Hyperparameters of a grouper and a placer that are trained together.

    Attributes:
        entropy_weight: of the placer's mean entropy per group, in the loss.
        grouper_entropy_weight: of the grouper's mean entropy per node, in the loss; below 0 it asks
            each node to decide.
        usage_entropy_weight: of the entropy of how evenly all nodes together use the groups, in the
            loss.
        grouper_scale: the grouper's last layer is multiplied by it at first; above 1 nodes begin
            with different groups instead of all alike.
        aligned: the decoder's logits see the encoder's state of the group that is placed.
        normalised: divide advantages by their moving root mean square.
    """

    entropy_weight: float = 0.0
    grouper_entropy_weight: float = 0.0
    usage_entropy_weight: float = 0.0
    grouper_scale: float = 1.0
    aligned: bool = False
    normalised: bool = False


def require_one_of(placer: str, settings: object, known: Sequence[str], what: str) -> None:
    """Refuse a setting that is none of the known words.

    Raises:
        InputError: naming placer, setting and value.
    """
    value = getattr(settings, what)
    if value not in known:
        raise InputError(f"{placer}: {what} must be one of {tuple(known)}, got '{value}'")


def require_counts(placer: str, settings: object, *names: str) -> None:
    """Refuse settings that count something and are below 1.

    Raises:
        InputError: naming placer, setting and value.
    """
    for what in names:
        if getattr(settings, what) < 1:
            raise InputError(f"{placer}: {what} must be >= 1, got {getattr(settings, what)}")


class SearchingPlacer:
    """A placer that learns while it searches, with PyTorch.

    Its module `learner` has ``learn(settings, actions, evaluator, rng)``, which goes on until the
    budget ends or patience is lost. It is imported when a search starts.
    """

    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False
    requires: ClassVar[Requires] = (("torch", "learned"),)
    learner: ClassVar[str]  # name of the module

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    @abstractmethod
    def actions(self, problem: Problem) -> Any:
        """What the policy chooses from on a problem."""

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Sample, evaluate and learn until the budget ends.

        Raises:
            MissingExtraError: PyTorch is absent.
            FileFormatError: a policy file is unusable for this placer or number of devices.
        """
        require_packages(*(package for package, _ in self.requires))
        module = importlib.import_module(self.learner)
        module.learn(self, self.actions(problem), evaluator, rng)
        return evaluator.solution()


class PlacesGroups(SearchingPlacer):
    """Chooses a device for each of at most `groups` co-location groups."""

    groups: int

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups and their devices: what the policy chooses from."""
        return merged_space(with_shared_weights_tied(problem), self.groups)


class GroupsAndPlaces(SearchingPlacer):
    """Chooses a group for each colocation class, and a device for each of `groups` groups."""

    groups: int

    def actions(self, problem: Problem) -> JointSpace:
        """Groups of every op and devices of every group: what the policies choose from."""
        return JointSpace.of(with_shared_weights_tied(problem), self.groups)
