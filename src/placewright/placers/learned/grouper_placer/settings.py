"""What a run of grouper-placer can be told."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError

VARIANTS = ("paper", "corrected")
PRESETS: dict[str, dict[str, object]] = {
    "corrected": {"aligned": True, "entropy_weight": 3.0, "grouper_entropy_weight": 1.0}
}


@dataclass(frozen=True)
class GrouperPlacerSettings:
    """Hyperparameters of `GrouperPlacer`.

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
        clip_norm: largest global gradient norm.
        baseline_decay: of the moving average.
        normalised: divide advantages by their moving root mean square.
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing.
        updates: False only samples, from the untrained policy: the control of learning.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
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
    clip_norm: float = 1.0
    baseline_decay: float = 0.9
    normalised: bool = True
    homogeneous_starts: bool = True
    updates: bool = True
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise InputError(
                f"grouper-placer: variant must be one of {VARIANTS}, got '{self.variant}'"
            )
        for what in ("groups", "grouper_hidden", "embedding", "hidden", "samples_per_update"):
            if getattr(self, what) < 1:
                raise InputError(f"grouper-placer: {what} must be >= 1, got {getattr(self, what)}")
        if not self.learning_rate > 0:
            raise InputError(f"grouper-placer: learning_rate must be > 0, got {self.learning_rate}")
