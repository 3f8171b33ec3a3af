"""What a run of grouper-placer can be told."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError
from placewright.placers.learned.searching import (
    ReinforceSettings,
    require_counts,
    require_one_of,
)

VARIANTS = ("paper", "corrected")
PRESETS: dict[str, dict[str, object]] = {
    "corrected": {"aligned": True, "entropy_weight": 3.0, "grouper_entropy_weight": 1.0}
}


@dataclass(frozen=True)
class GrouperPlacerSettings(ReinforceSettings):
    """Hyperparameters of `GrouperPlacer`, beside those of `ReinforceSettings`.

    Attributes:
        variant: ``paper`` or ``corrected``, which presets what is not given.
        groups: number of groups.
        grouper_hidden: width of the grouper's hidden layer.
        embedding: width of the kind embedding.
        hidden: width of the placer.
        samples_per_update: samples of (grouping, placement) per update.
        learning_rate: of Adam.
        entropy_weight: of the placer's mean entropy per group, in the loss.
        grouper_entropy_weight: of the grouper's mean entropy per node, in the loss.
        aligned: the decoder's logits see the encoder's state of the group that is placed.
        normalised: divide advantages by their moving root mean square.
    """

    variant: str = "paper"
    groups: int = 32
    grouper_hidden: int = 64
    embedding: int = 32
    hidden: int = 64
    samples_per_update: int = 20
    learning_rate: float = 0.01
    entropy_weight: float = 0.3
    grouper_entropy_weight: float = 0.0
    aligned: bool = False
    normalised: bool = True

    def __post_init__(self) -> None:
        counts = ("groups", "grouper_hidden", "embedding", "hidden", "samples_per_update")
        require_one_of("grouper-placer", self, VARIANTS, "variant")
        require_counts("grouper-placer", self, *counts)
        if not self.learning_rate > 0:
            raise InputError(f"grouper-placer: learning_rate must be > 0, got {self.learning_rate}")
