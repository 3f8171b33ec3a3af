"""What a run of hierarchical can be told."""

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
        "hidden": 512,
        "learning_rate": 0.001,
        "entropy_weight": 0.03,
        "grouper_entropy_weight": 0.0,
        "usage_entropy_weight": 0.0,
        "grouper_scale": 1.0,
    }
}


@dataclass(frozen=True, kw_only=True)
class HierarchicalSettings(JointSettings):
    """Hyperparameters of `Hierarchical`, beside those of `JointSettings`.

    Attributes:
        variant: ``corrected`` or ``paper``, which presets what is not given.
        groups: number of groups.
        grouper_hidden: width of the grouper's hidden layer.
        hidden: width of the placer.
        placements_per_update: k.
        learning_rate: of Adam.
        tanh_constant: C of C * tanh(u / T).
        temperature: T of C * tanh(u / T).
        noise: standard deviation of the noise on the placer's logits, in units of their root mean
            square.
        noise_updates: updates with that noise.
        feasible_only_after: updates after which infeasible placements no longer teach.
    """

    variant: str = "corrected"
    groups: int = 40
    grouper_hidden: int = 64
    hidden: int = 64
    placements_per_update: int = 4
    learning_rate: float = 0.005
    tanh_constant: float = 5.0
    temperature: float = 10.0
    entropy_weight: float = 0.1
    grouper_entropy_weight: float = -1.2
    usage_entropy_weight: float = 2.0
    grouper_scale: float = 6.0
    noise: float = 0.5
    noise_updates: int = 750
    feasible_only_after: int = 1_000

    def __post_init__(self) -> None:
        require_one_of("hierarchical", self, VARIANTS, "variant")
        require_counts("hierarchical", self, "groups", "grouper_hidden", "placements_per_update")
        if self.hidden < 2 or self.hidden % 2:
            raise InputError(f"hierarchical: hidden must be even and >= 2, got {self.hidden}")
        if not self.learning_rate > 0 or not self.temperature > 0:
            raise InputError("hierarchical: learning_rate and temperature must be > 0")
