"""Hyperparameters of HSDAG; the defaults are those of the paper's text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.errors import InputError
from placewright.placers.learned.shared.searching import (
    SearchSettings,
    require_counts,
    require_one_of,
)

FEATURES = ("released", "paper")
RETURNS = ("shared", "own", "following")
REWARDS = ("inverse", "root")


@dataclass(frozen=True, kw_only=True)
class HsdagSettings(SearchSettings):
    """Hyperparameters of `hsdag` and its variants.

    Attributes (besides those of `SearchSettings`):
        hidden: width of the network.
        dropout: while sampling and learning, in [0, 1).
        max_nodes: limit on nodes of the network; 0 sets none.
        weights_as_nodes: weights, inputs and outputs stay nodes after coarsening.
        features: ``released`` (kinds, raw group index) or ``paper`` (kinds, degrees, fractal
            dimension, sinusoidal index, output shape).
        normalised_features: every feature with mean 0 and deviation 1; shapes as logarithms.
        without_output_shape: ablation.
        without_node_id: ablation, leaves the index out.
        without_degrees: ablation.
        without_fractal_dimension: ablation.
        without_grouping: ablation, each node of the coarse graph is placed on its own.
        parse_rounds: rounds of grouping; 0 repeats until nothing merges.
        steps: placements per episode, which has one update.
        draws: placements that are drawn from each pass through the network.
        accumulate: nodes add their group's embedding to their state after each pass.
        homogeneous: whether homogeneous placements count; else they are failures (latency 1e10)
            and never returned.
        reward: ``inverse`` (reference / latency) or ``root`` (-sqrt of latency / reference).
        returns: the weight of a step: ``shared`` (one discounted sum for all), ``own`` (its reward
            times discount^step) or ``following`` (its reward and the discounted later ones).
        discount: of rewards, in [0, 1].
        baseline: subtract the moving average of past returns.
        normalised_advantages: divide the advantages by their root mean square in the episode.
        baseline_decay: of the moving average.
        entropy_weight: of the mean entropy of a group's device, in the loss.
        learning_rate: of Adam.
        clip_norm: largest global norm of a gradient; 0 sets no limit.
        policy: file of a trained policy to start from; "" starts from scratch.
    """

    name: ClassVar[str] = "hsdag"

    hidden: int = 128
    dropout: float = 0.2
    max_nodes: int = 0
    weights_as_nodes: bool = True
    features: str = "paper"
    normalised_features: bool = False
    without_output_shape: bool = False
    without_node_id: bool = False
    without_degrees: bool = False
    without_fractal_dimension: bool = False
    without_grouping: bool = False
    parse_rounds: int = 1
    steps: int = 20
    draws: int = 1
    accumulate: bool = True
    homogeneous: bool = True
    reward: str = "inverse"
    returns: str = "own"
    discount: float = 0.99
    baseline: bool = False
    normalised_advantages: bool = False
    baseline_decay: float = 0.9
    entropy_weight: float = 0.0
    learning_rate: float = 1e-3
    clip_norm: float = 0.0
    policy: str = ""

    def __post_init__(self) -> None:
        for what, known in (("features", FEATURES), ("returns", RETURNS), ("reward", REWARDS)):
            require_one_of(self.name, self, known, what)
        require_counts(self.name, self, "hidden", "steps", "draws")
        require_counts(self.name, self, "max_nodes", "parse_rounds", "patience", least=0)
        for what in ("entropy_weight", "clip_norm"):
            if not getattr(self, what) >= 0:
                raise InputError(f"{self.name}: {what} must be >= 0, got {getattr(self, what)}")
        for what in ("dropout", "baseline_decay"):
            if not 0 <= getattr(self, what) < 1:
                raise InputError(
                    f"{self.name}: {what} must be in [0, 1), got {getattr(self, what)}"
                )
        if not 0 <= self.discount <= 1:
            raise InputError(f"{self.name}: discount must be in [0, 1], got {self.discount}")
        if not self.learning_rate > 0:
            raise InputError(f"{self.name}: learning_rate must be > 0, got {self.learning_rate}")

    @property
    def passes(self) -> int:
        """Passes through the network per episode."""
        return -(-self.steps // self.draws)
