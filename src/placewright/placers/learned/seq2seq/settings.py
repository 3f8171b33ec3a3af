"""What a run of seq2seq can be told."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError
from placewright.placers.learned.searching import (
    ReinforceSettings,
    require_counts,
    require_one_of,
)

VARIANTS = ("paper", "hsdag-rnn")
PRESETS: dict[str, dict[str, object]] = {
    "hsdag-rnn": {
        "embedding": 64,
        "samples_per_update": 1,
        "learning_rate": 0.01,
        "entropy_weight": 0.0,
    }
}


@dataclass(frozen=True)
class Seq2SeqSettings(ReinforceSettings):
    """Hyperparameters of `Seq2Seq`, beside those of `ReinforceSettings`.

    Attributes:
        variant: ``paper`` or ``hsdag-rnn``.
        groups: largest number of groups.
        hidden: width of encoder and decoder.
        embedding: width of the kind embedding.
        learning_rate: of Adam.
        samples_per_update: placements per gradient step.
        tanh_constant: C of C * tanh(u / T).
        temperature: T of C * tanh(u / T).
        entropy_weight: of the mean entropy of a group's device, in the loss.
        feasible_only_after: updates after which infeasible placements no longer teach.
    """

    variant: str = "paper"
    groups: int = 128
    hidden: int = 64
    embedding: int = 32
    learning_rate: float = 0.003
    samples_per_update: int = 10
    tanh_constant: float = 5.0
    temperature: float = 10.0
    entropy_weight: float = 0.03
    feasible_only_after: int = 5_000

    def __post_init__(self) -> None:
        require_one_of("seq2seq", self, VARIANTS, "variant")
        require_counts("seq2seq", self, "groups", "hidden", "embedding", "samples_per_update")
        if not self.learning_rate > 0 or not self.temperature > 0:
            raise InputError("seq2seq: learning_rate and temperature must be > 0")
