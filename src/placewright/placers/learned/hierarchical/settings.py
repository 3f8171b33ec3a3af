"""What a run of hierarchical can be told."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError
from placewright.placers.learned.searching import ReinforceSettings, require_one_of

VARIANTS = ("paper", "corrected")
PRESETS: dict[str, dict[str, object]] = {
    "corrected": {
        "aligned": True,
        "entropy_weight": 3.0,
        "grouper_entropy_weight": 1.0,
        "normalised": True,
        "hidden": 64,
        "learning_rate": 0.003,
    }
}


@dataclass(frozen=True)
class HierarchicalSettings(ReinforceSettings):
    """Hyperparameters of `Hierarchical`, beside those of `ReinforceSettings`.

    Attributes:
        variant: ``paper`` or ``corrected``, which presets what is not given.
        groups: number of groups.
        grouper_hidden: width of the grouper's hidden layer.
        hidden: width of the placer.
        placements_per_update: k.
        learning_rate: of Adam.
        tanh_constant: C of C * tanh(u / T).
        temperature: T of C * tanh(u / T).
        entropy_weight: of the placer's mean entropy per group, in the loss.
        noise: standard deviation of the noise on the placer's logits, in units of their root mean
            square.
        noise_updates: updates with that noise.
        feasible_only_after: updates after which infeasible placements no longer teach.
        grouper_entropy_weight: of the grouper's mean entropy per node, in the loss.
        aligned: the decoder's logits see the encoder's state of the group that is placed.
        normalised: divide advantages by their moving root mean square.
    """

    variant: str = "paper"
    groups: int = 40
    grouper_hidden: int = 64
    hidden: int = 512
    placements_per_update: int = 4
    learning_rate: float = 0.001
    tanh_constant: float = 5.0
    temperature: float = 10.0
    entropy_weight: float = 0.03
    grouper_entropy_weight: float = 0.0
    aligned: bool = False
    noise: float = 0.5
    noise_updates: int = 750
    feasible_only_after: int = 1_000
    normalised: bool = False

    def __post_init__(self) -> None:
        require_one_of("hierarchical", self, VARIANTS, "variant")
        if self.groups < 1 or self.hidden < 2 or self.hidden % 2:
            raise InputError(
                "hierarchical: groups must be >= 1 and hidden even and >= 2, got "
                f"{self.groups}, {self.hidden}"
            )
        if self.placements_per_update < 1 or not self.learning_rate > 0:
            raise InputError("hierarchical: placements_per_update and learning_rate must be > 0")
