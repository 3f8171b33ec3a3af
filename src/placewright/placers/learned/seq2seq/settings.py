"""What a run of seq2seq can be told."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError

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
class Seq2SeqSettings:
    """Hyperparameters of `Seq2Seq`.

    Attributes:
        variant: ``paper`` or ``hsdag-rnn``.
        groups: largest number of groups.
        hidden: width of encoder and decoder.
        embedding: width of the kind embedding.
        learning_rate: of Adam.
        samples_per_update: placements per gradient step.
        tanh_constant: C of C * tanh(u / T).
        temperature: T of C * tanh(u / T).
        clip_norm: largest global gradient norm.
        baseline_decay: of the moving average.
        entropy_weight: of the mean entropy of a group's device, in the loss.
        feasible_only_after: updates after which infeasible placements no longer teach.
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing.
        updates: False only samples, from the untrained policy: the control of learning.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    variant: str = "paper"
    groups: int = 128
    hidden: int = 64
    embedding: int = 32
    learning_rate: float = 0.003
    samples_per_update: int = 10
    tanh_constant: float = 5.0
    temperature: float = 10.0
    clip_norm: float = 1.0
    baseline_decay: float = 0.9
    entropy_weight: float = 0.03
    feasible_only_after: int = 5_000
    homogeneous_starts: bool = True
    updates: bool = True
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise InputError(f"seq2seq: variant must be one of {VARIANTS}, got '{self.variant}'")
        for what in ("groups", "hidden", "embedding", "samples_per_update"):
            if getattr(self, what) < 1:
                raise InputError(f"seq2seq: {what} must be >= 1, got {getattr(self, what)}")
        if not self.learning_rate > 0 or not self.temperature > 0:
            raise InputError("seq2seq: learning_rate and temperature must be > 0")
