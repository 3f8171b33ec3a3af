"""A trained list scheduler that places graphs it has never seen, with hardly any evaluations.

Training takes samples per graph, with the advantage against their own mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError, Requires
from placewright.placers.anytime import anytime
from placewright.placers.learned.shared.returns import reference_value, relative_times
from placewright.placers.learned.shared.sampling import chosen, masked_log_softmax
from placewright.placers.learned.shared.searching import require_packages
from placewright.placers.learned.shared.training_episodes import EpisodeResult, Trainee
from placewright.placers.learned.zero_shot.list_state import ListProblem
from placewright.placers.learned.zero_shot.policy import ZeroShotPolicy, decode, policy_inputs
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class ZeroShot:
    """One pass of a graph network, then units in rank order go to the device that scores best.

    Our own, in the line of Placeto's transfer and of learned list scheduling (Paliwal et al. 2020,
    Zhou et al. 2019). All features are ratios and describe a (unit, device) pair, so one policy
    serves any graph and any number of devices: earliest start and finish of the pair in the
    schedule so far, relative cost, where inputs lie, load; and a graph embedding of the unit. The
    score of a fresh policy is minus the earliest finish time; training by REINFORCE adds the rest.

    A negative result, kept for research: on unseen graphs it does not beat local search with as
    many evaluations (docs/results). Use `auto` to place a model.

    Evaluated are the greedy placement, the one by earliest finish alone (a trained policy is not
    better on every graph), the homogeneous placement on each device kind, and samples, `candidates`
    in all. Nothing is learned while placing.

    Attributes:
        policy: file of a trained policy; "" takes the one that is shipped.
        candidates: placements that are evaluated, >= 1.
        temperature: of the samples.
        hidden: width of the network (for training).
        samples: placements per graph and update (for training).
        learning_rate: of Adam (for training).
    """

    name: ClassVar[str] = "zero-shot"
    paper: ClassVar[str] = "Placewright; after Addanki et al. 2019 and Zhou et al. 2019"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training")
    needs_training: ClassVar[bool] = True
    requires: ClassVar[Requires] = (("torch", "learned"), ("torch_geometric", "learned"))

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

    def why_not(self, problem: Problem) -> str | None:
        """Defined for latency and training."""
        if problem.objective not in self.objectives:
            return f"it was made for latency and training, not {problem.objective}"
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Evaluate the policy's placements.

        Raises:
            MissingExtraError: PyTorch or PyTorch Geometric is absent.
            FileFormatError: the policy file is unusable.
        """
        require_packages("torch", "torch_geometric")
        from placewright.placers.learned.zero_shot.policy import candidate_placements

        for device_of in candidate_placements(
            problem, self.policy, self.candidates, self.temperature, rng
        ):
            evaluator.evaluate(device_of)
        return evaluator.solution()


def trainee(settings: ZeroShot, problems: Sequence[Problem]) -> Trainee:
    """A policy for any graphs and devices. Samples faster than their mean become likelier."""
    policy = ZeroShotPolicy(settings.hidden)
    graphs = [(ListProblem(problem), Evaluator(problem)) for problem in problems]

    def one(graph: int, progress: float, generator: torch.Generator) -> EpisodeResult:
        """Samples of one graph."""
        del progress
        problem, evaluator = graphs[graph]
        rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        decoded = decode(policy, problem, np.full(settings.samples, 1.0), rng)
        values = evaluator.evaluate_many(decoded.placements)
        times = relative_times(values, reference_value(problem.problem))
        advantage = (times.mean() - times) / (times.std() + 1e-3 * times.mean())
        embedding = policy.embed(*policy_inputs(problem))[torch.tensor(decoded.order)]
        pairs = torch.tensor(decoded.pairs).float()  # (steps, k, D, features)
        wide = embedding.unsqueeze(1).expand(-1, pairs.shape[1], -1)  # (steps, k, hidden)
        log_p = masked_log_softmax(policy.scores(wide, pairs), torch.tensor(decoded.allowed))
        actions = torch.tensor(decoded.placements[:, decoded.order].T.copy())  # (steps, k)
        total = chosen(log_p, actions).sum(dim=0)  # (k,)
        loss = -(torch.tensor(advantage, dtype=torch.float32) * total).mean() / len(actions)
        return EpisodeResult(loss, float(times.mean()))

    return Trainee(
        policy,
        {"hidden": settings.hidden},
        one,
        learning_rate=lambda progress: settings.learning_rate,
        clip_norm=1.0,
    )
