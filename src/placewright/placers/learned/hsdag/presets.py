"""The choices in which HSDAG's paper, its released code and our corrections differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placewright.errors import InputError

FEATURES = ("released", "paper")
RETURNS = ("shared", "own", "following")
REWARDS = ("inverse", "root")


@dataclass(frozen=True)
class Choices:
    """All choices of the algorithm and the network, without defaults.

    The attributes are described in `placer.Hsdag`.
    """

    hidden: int
    dropout: float
    max_nodes: int
    weights_as_nodes: bool
    features: str
    normalised_features: bool
    without_output_shape: bool
    without_node_id: bool
    without_degrees: bool
    without_fractal_dimension: bool
    without_grouping: bool
    parse_rounds: int
    steps: int
    draws: int
    accumulate: bool
    homogeneous: bool
    reward: str
    returns: str
    discount: float
    baseline: bool
    normalised_advantages: bool
    baseline_decay: float
    entropy_weight: float
    learning_rate: float
    clip_norm: float
    updates: bool
    homogeneous_starts: bool
    policy: str
    patience: int
    tensorboard: str

    def __post_init__(self) -> None:
        for what, known in (("features", FEATURES), ("returns", RETURNS), ("reward", REWARDS)):
            if getattr(self, what) not in known:
                raise InputError(
                    f"hsdag: {what} must be one of {known}, got {getattr(self, what)!r}"
                )
        for what in ("hidden", "steps", "draws"):
            if getattr(self, what) < 1:
                raise InputError(f"hsdag: {what} must be >= 1, got {getattr(self, what)}")
        for what in ("max_nodes", "parse_rounds", "patience", "entropy_weight", "clip_norm"):
            if not getattr(self, what) >= 0:
                raise InputError(f"hsdag: {what} must be >= 0, got {getattr(self, what)}")
        for what in ("dropout", "baseline_decay"):
            if not 0 <= getattr(self, what) < 1:
                raise InputError(f"hsdag: {what} must be in [0, 1), got {getattr(self, what)}")
        if not 0 <= self.discount <= 1:
            raise InputError(f"hsdag: discount must be in [0, 1], got {self.discount}")
        if not self.learning_rate > 0:
            raise InputError(f"hsdag: learning_rate must be > 0, got {self.learning_rate}")

    @property
    def passes(self) -> int:
        """Passes through the network per episode."""
        return -(-self.steps // self.draws)


# The public code (hping666/HSDAG).
RELEASED: Mapping[str, Any] = {
    "features": "released",
    "weights_as_nodes": True,
    "max_nodes": 0,
    "normalised_features": False,
    "dropout": 0.2,
    "parse_rounds": 1,
    "steps": 20,
    "draws": 1,
    "accumulate": True,
    "homogeneous": False,
    "reward": "inverse",
    "returns": "shared",
    "discount": 0.95,
    "baseline": False,
    "normalised_advantages": False,
    "entropy_weight": 0.0,
    "learning_rate": 1e-3,
    "clip_norm": 0.0,
    "homogeneous_starts": False,
}
# The text, if it differs from the code.
PAPER: Mapping[str, Any] = {
    **RELEASED,
    "features": "paper",
    "homogeneous": True,
    "returns": "own",
    "discount": 0.99,
    "homogeneous_starts": True,
}
# `baseline` and a `discount` of 0 (or `returns` "own") are needed; the others make no difference on
# thirteen problems (docs/results/learned.md).
CORRECTED: Mapping[str, Any] = {
    **PAPER,
    "max_nodes": 1024,
    "normalised_features": True,
    "steps": 10,
    "draws": 5,
    "accumulate": False,
    "returns": "following",
    "discount": 0.0,
    "baseline": True,
    "normalised_advantages": True,
    "entropy_weight": 0.03,
    "clip_norm": 1.0,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "corrected": CORRECTED,
    "paper": PAPER,
    "released": RELEASED,
}
