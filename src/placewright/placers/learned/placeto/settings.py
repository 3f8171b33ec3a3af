"""What a run of Placeto can be told."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.placers.learned.searching import SearchSettings, require_counts, require_one_of

INITIAL = ("random", "zero", "varied")
REWARDS = ("intermediate", "terminal")
AGGREGATIONS = ("sum", "mean")
EMBEDDINGS = ("messages", "partition", "sum")


@dataclass(frozen=True)
class PlacetoSettings(SearchSettings):
    """Hyperparameters of `Placeto`, beside those of `SearchSettings`.

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
        aggregation: ``sum`` adds up messages and the nodes of each relation, as published; ``mean``
            divides by how many they are, so that what a policy sees does not grow with the graph.
        learning_rate: first of Adam.
        last_learning_rate: it falls linearly to this.
        entropy_weight: first weight of the entropy bonus; falls linearly to 0.
        normalised: divide advantages by their root mean square over the remembered episodes.
        clip_norm: largest global gradient norm.
        baseline_window: episodes that the per-step baseline remembers.
        horizon: episodes over which rates fall where the budget has no evaluation limit.
        policy: file of a trained policy to start from; "" starts from scratch.
    """

    groups: int = 64
    rounds: int = 8
    workers: int = 1
    initial: str = "random"
    reward: str = "intermediate"
    embedding: str = "messages"
    aggregation: str = "sum"
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-4
    entropy_weight: float = 0.3
    normalised: bool = True
    clip_norm: float = 1.25
    baseline_window: int = 10
    horizon: int = 100
    policy: str = ""

    def __post_init__(self) -> None:
        require_one_of("placeto", self, INITIAL, "initial")
        require_one_of("placeto", self, REWARDS, "reward")
        require_one_of("placeto", self, EMBEDDINGS, "embedding")
        require_one_of("placeto", self, AGGREGATIONS, "aggregation")
        require_counts("placeto", self, "groups", "rounds", "workers", "baseline_window", "horizon")

    def learning_rate_at(self, progress: float) -> float:
        """Learning rate where `progress` of the episodes, in [0, 1], are done."""
        fall = self.learning_rate - self.last_learning_rate
        return self.last_learning_rate + (1.0 - progress) * fall
