"""What a run of Placeto can be told."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError

INITIAL = ("random", "zero", "varied")
REWARDS = ("intermediate", "terminal")
EMBEDDINGS = ("messages", "partition", "sum")


@dataclass(frozen=True)
class PlacetoSettings:
    """Hyperparameters of `Placeto`.

    Attributes:
        groups: largest number of groups.
        rounds: of message passing.
        workers: episodes that run side by side and share one update.
        initial: first placement of an episode: ``random`` draws one for all episodes, ``varied``
            one for each, ``zero`` takes the first device.
        reward: ``intermediate`` pays each step the fall in time; ``terminal`` pays every step the
            fall over the episode (ablation; as many placements are timed as else).
        embedding: ``messages`` passes messages; ``partition`` adds up ancestors, descendants and
            the rest without them, ``sum`` all nodes alike (ablations).
        learning_rate: first of Adam.
        last_learning_rate: it falls linearly to this.
        entropy_weight: first weight of the entropy bonus; falls linearly to 0.
        normalised: divide advantages by their root mean square over the remembered episodes.
        clip_norm: largest global gradient norm.
        baseline_window: episodes that the per-step baseline remembers.
        horizon: episodes over which rates fall where the budget has no evaluation limit.
        policy: file of a trained policy to start from; "" starts from scratch.
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing.
        updates: False only samples, from the untrained policy: the control of learning.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    groups: int = 64
    rounds: int = 8
    workers: int = 1
    initial: str = "random"
    reward: str = "intermediate"
    embedding: str = "messages"
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-4
    entropy_weight: float = 0.3
    normalised: bool = True
    clip_norm: float = 1.25
    baseline_window: int = 10
    horizon: int = 100
    policy: str = ""
    homogeneous_starts: bool = True
    updates: bool = True
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        known = {"initial": INITIAL, "reward": REWARDS, "embedding": EMBEDDINGS}
        for what, choices in known.items():
            if getattr(self, what) not in choices:
                got = getattr(self, what)
                raise InputError(f"placeto: {what} must be one of {choices}, got '{got}'")
        for what in ("groups", "rounds", "workers", "baseline_window", "horizon"):
            if getattr(self, what) < 1:
                raise InputError(f"placeto: {what} must be >= 1, got {getattr(self, what)}")

    def learning_rate_at(self, progress: float) -> float:
        """Learning rate where `progress` of the episodes, in [0, 1], are done."""
        fall = self.learning_rate - self.last_learning_rate
        return self.last_learning_rate + (1.0 - progress) * fall
