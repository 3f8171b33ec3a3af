"""What a run of grouper-placer can be told."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError
from placewright.placers.learned.searching import (
    JointSettings,
    require_counts,
    require_one_of,
)

VARIANTS = ("corrected", "paper")
PRESETS: dict[str, dict[str, object]] = {
    "paper": {
        "aligned": False,
        "entropy_weight": 0.3,
        "usage_entropy_weight": 0.0,
        "grouper_scale": 1.0,
    }
}


@dataclass(frozen=True, kw_only=True)
class GrouperPlacerSettings(JointSettings):
    """Hyperparameters of `GrouperPlacer`, beside those of `JointSettings`.

    Attributes:
        variant: ``corrected`` or ``paper``, which presets what is not given.
        groups: number of groups.
        grouper_hidden: width of the grouper's hidden layer.
        embedding: width of the kind embedding.
        hidden: width of the placer.
        samples_per_update: samples of (grouping, placement) per update.
        learning_rate: of Adam.
    """

    variant: str = "corrected"
    groups: int = 32
    grouper_hidden: int = 64
    embedding: int = 32
    hidden: int = 64
    samples_per_update: int = 20
    learning_rate: float = 0.01
    entropy_weight: float = 1.0
    usage_entropy_weight: float = 1.0
    grouper_scale: float = 6.0
    aligned: bool = True
    normalised: bool = True

    def __post_init__(self) -> None:
        counts = ("groups", "grouper_hidden", "embedding", "hidden", "samples_per_update")
        require_one_of("grouper-placer", self, VARIANTS, "variant")
        require_counts("grouper-placer", self, *counts)
        if not self.learning_rate > 0:
            raise InputError(f"grouper-placer: learning_rate must be > 0, got {self.learning_rate}")
