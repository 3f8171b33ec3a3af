"""What a run of Post can be told, and when Algorithm 1 takes which step."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError
from placewright.placers.learned.searching import SearchSettings, require_counts, require_one_of

ABLATIONS = ("", "ce_only", "ppo_only")


@dataclass(frozen=True)
class PostSettings(SearchSettings):
    """Hyperparameters of `Post`, beside those of `SearchSettings`.

    Attributes:
        groups: largest number of groups M.
        ppo_every: K.
        ce_every: N.
        elite: share of the last N samples that the cross-entropy step keeps.
        sga_steps: gradient steps per PPO update.
        learning_rate: of gradient ascent, at most; the KL target lowers it.
        epsilon: first weight of the uniform distribution after a cross-entropy step.
        beta: first weight of the KL penalty.
        kl_target: KL(old || new) of the joint distribution, in nats, that beta is adapted to;
            no update goes beyond twice this.
        horizon: samples over which epsilon falls where the budget has no evaluation limit.
        ablation: "", ``ce_only`` or ``ppo_only``.
    """

    groups: int = 128
    ppo_every: int = 10
    ce_every: int = 50
    elite: float = 0.1
    sga_steps: int = 10
    learning_rate: float = 1.0
    epsilon: float = 0.1
    beta: float = 1.0
    kl_target: float = 0.03
    horizon: int = 2_400
    ablation: str = ""

    def __post_init__(self) -> None:
        require_one_of("post", self, ABLATIONS, "ablation")
        require_counts("post", self, "groups", "ppo_every", "ce_every", "sga_steps", "horizon")
        for what in ("learning_rate", "beta", "kl_target"):
            if not getattr(self, what) > 0:
                raise InputError(f"post: {what} must be > 0, got {getattr(self, what)}")
        for what in ("elite", "epsilon"):
            if not 0 <= getattr(self, what) <= 1:
                raise InputError(f"post: {what} must be in [0, 1], got {getattr(self, what)}")

    def step_after(self, n: int) -> str:
        """What Algorithm 1 does after sample n >= 1: ``ppo``, ``ce`` or nothing ("")."""
        if not self.updates:
            return ""
        if self.ablation != "ppo_only" and n % self.ce_every == 0:
            return "ce"
        if self.ablation == "ce_only" or n % self.ppo_every:
            return ""
        return "ppo" if self.ablation == "ppo_only" or n % self.ce_every else ""
