"""Episodes of a training over graphs: one after the other here, or in rounds on workers.

In a round every episode starts from the parameters and baselines at the start of the round; the
results are applied in the order of their numbers. So the result does not depend on the workers.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.registry import make_placer, placer_class

if TYPE_CHECKING:
    import torch

ROUND = 8  # episodes, however many workers there are


@dataclass(frozen=True)
class EpisodeResult:
    """The result of one training episode."""

    loss: Any  # scalar tensor to descend
    mean_time: float  # of the episode's placements, over the graph's reference time
    # returns that the graph's baseline has taken in; None only if the trainee has no baselines
    returns: FloatArray | None = None


class Baseline(Protocol):
    """A running baseline of an episode's returns."""

    @property
    def kept(self) -> FloatArray:
        """The numbers that later values depend on."""
        ...

    def restore(self, kept: FloatArray, /) -> None:
        """Continue from `kept` of another one."""
        ...

    def update(self, values: FloatArray, /) -> None:
        """Fold in the returns of an episode."""
        ...


@dataclass(frozen=True)
class Trainee:
    """A policy that learns from episodes on several graphs."""

    policy: Any  # a torch module
    metadata: Mapping[str, Any]  # JSON values that its placer needs to build the network again
    # runs one episode: number of the graph, progress in [0, 1], generator of torch
    episode: Callable[[int, float, Any], EpisodeResult]
    learning_rate: Callable[[float], float]  # of Adam, at progress in [0, 1]
    clip_norm: float  # largest global gradient norm; 0 sets no limit
    baselines: Sequence[Baseline] = ()  # of each graph; empty without

    def state(self) -> dict[str, Any]:
        """Tensors besides the parameters that later episodes depend on: the baselines."""
        import torch

        return {
            f"baseline.{graph}": torch.tensor(baseline.kept)
            for graph, baseline in enumerate(self.baselines)
        }

    def tensors(self) -> dict[str, Any]:
        """Parameters under "policy." and `state` under "trainee."."""
        parts = {"policy": self.policy.state_dict(), "trainee": self.state()}
        return {f"{part}.{name}": value for part, of in parts.items() for name, value in of.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load the tensors of `state`."""
        for graph, baseline in enumerate(self.baselines):
            baseline.restore(state[f"baseline.{graph}"].numpy())


def require_one_device_count(placer: str, problems: Sequence[Problem]) -> int:
    """The number of devices of all problems.

    Raises:
        InputError: the problems differ in it.
    """
    counts = sorted({problem.n_devices for problem in problems})
    if len(counts) > 1:
        raise InputError(f"{placer} trains for one number of devices, got graphs with {counts}")
    return counts[0]


@dataclass(frozen=True)
class Episode:
    """The number of an episode, and its training."""

    number: int  # from 0
    of: int  # episodes of the training in all
    seed: int  # of the training

    @property
    def progress(self) -> float:
        """Progress of the training, in [0, 1]."""
        return self.number / self.of

    def graph(self, n_graphs: int) -> int:
        """The graph: each graph once a turn, in an order that depends on seed and turn alone."""
        turn, position = divmod(self.number, n_graphs)
        order = np.random.default_rng((self.seed, turn, 2)).permutation(n_graphs)
        return int(order[position])

    def draw_from(self, generator: torch.Generator) -> None:
        """Seed all random draws from seed and number."""
        import torch

        key = (self.seed, self.number)
        generator.manual_seed(int(np.random.default_rng(key).integers(2**62)))
        seed = int(np.random.default_rng((*key, 1)).integers(2**62))
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` seeds accelerators, too


@dataclass(frozen=True)
class Learned:
    """The result of an episode on a worker."""

    # of each parameter in the policy's order; None if the loss does not reach it
    gradients: list[FloatArray | None]
    loss: float  # of the episode
    mean_time: float  # see `EpisodeResult`
    returns: FloatArray | None  # see `EpisodeResult`


Known = Mapping[str, Any]  # name -> array of `Trainee.tensors`


@dataclass
class Job:
    """A training as workers receive it, once; each creates the trainee on first use."""

    placer: str  # registry name
    settings: Mapping[str, str] | None  # its hyperparameters, as text
    problems: tuple[Problem, ...]  # the graphs

    @cached_property
    def trainee(self) -> Trainee:
        """A trainee with untrained parameters.

        Raises:
            InputError: there is no function that makes one.
        """
        package = placer_class(self.placer).__module__.rpartition(".")[0]
        name = f"{package}.algorithm"
        is_there = bool(package) and importlib.util.find_spec(name) is not None
        make = getattr(importlib.import_module(name), "trainee", None) if is_there else None
        if make is None:
            raise InputError(
                f"placer '{self.placer}' cannot be trained over graphs: its package has no module "
                "`algorithm` with a function `trainee`"
            )
        made: Trainee = make(make_placer(self.placer, self.settings), self.problems)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Without the trainee."""
        return {name: value for name, value in self.__dict__.items() if name != "trainee"}


Rollouts = Callable[[Job, Known, Sequence[Episode]], list[Learned]]  # in the order of the episodes


def learned_in(job: Job, known: Known, episode: Episode) -> Learned:
    """Run one episode of a round, from the state at the start of the round."""
    import torch

    from placewright.placers.learned.shared.learning_scope import torch_scope

    with torch_scope(np.random.default_rng(episode.seed)) as generator:
        trainee = job.trainee
        _give(trainee, known)
        episode.draw_from(generator)
        trainee.policy.zero_grad()
        result = trainee.episode(episode.graph(len(job.problems)), episode.progress, generator)
        result.loss.backward()
        gradients = [
            None if parameter.grad is None else parameter.grad.detach().numpy().copy()
            for parameter in trainee.policy.parameters()
        ]
    assert isinstance(result.loss, torch.Tensor)
    return Learned(gradients, float(result.loss.item()), result.mean_time, result.returns)


def known_of(trainee: Trainee) -> dict[str, Any]:
    """Parameters and states, in the form that `learned_in` takes."""
    return {name: value.detach().numpy().copy() for name, value in trainee.tensors().items()}


def _give(trainee: Trainee, known: Known) -> None:
    import torch

    parts: dict[str, dict[str, Any]] = {"policy": {}, "trainee": {}}
    for name, value in known.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = torch.from_numpy(np.array(value))
    trainee.policy.load_state_dict(parts["policy"])
    trainee.restore(parts["trainee"])


def take(trainee: Trainee, optimiser: Any, learned: Sequence[Learned]) -> None:
    """One step down the mean gradient of a round.

    Args:
        learned: results of the episodes of the round, in the order of their numbers.
    """
    import torch

    from placewright.placers.learned.shared.learning_scope import clipped_step

    for at, parameter in enumerate(trainee.policy.parameters()):
        mine = [result.gradients[at] for result in learned]
        there = [row for row in mine if row is not None]
        total = sum(there[1:], start=there[0]) / len(learned) if there else None
        parameter.grad = None if total is None else torch.from_numpy(np.asarray(total))
    clipped_step(trainee.policy, optimiser, trainee.clip_norm)
