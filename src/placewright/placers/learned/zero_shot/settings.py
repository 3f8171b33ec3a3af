"""What zero-shot can be told."""

from __future__ import annotations

from dataclasses import dataclass

from placewright.errors import InputError


@dataclass(frozen=True)
class ZeroShotSettings:
    """Hyperparameters of `ZeroShot`.

    Attributes:
        policy: file of a trained policy; "" takes the one that is shipped.
        candidates: placements that are evaluated, >= 1.
        temperature: of the samples.
        hidden: width of the network (for training).
        samples: placements per graph and update (for training).
        learning_rate: of Adam (for training).
    """

    policy: str = ""
    candidates: int = 10
    temperature: float = 0.5
    hidden: int = 32
    samples: int = 8
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        for what in ("candidates", "hidden", "samples"):
            if getattr(self, what) < 1:
                raise InputError(f"zero-shot: {what} must be >= 1, got {getattr(self, what)}")
        if not self.temperature > 0:
            raise InputError(f"zero-shot: temperature must be > 0, got {self.temperature}")
