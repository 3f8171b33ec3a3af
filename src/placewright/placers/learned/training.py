"""Training of one policy over many graphs, for placers whose networks transfer.

`placeto` and `hsdag` learn as they do on one problem, episode after episode over the graphs in
turn, with a baseline of its own for each; `zero-shot` exists for this only. The others cannot: the
parameters of `post` are the groups of one graph, and the adjacency columns of `seq2seq`,
`hierarchical` and `grouper-placer` are those of one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.core.problem import Problem
from placewright.errors import FileFormatError, InputError
from placewright.placers.learned.shared.searching import require_packages
from placewright.placers.learned.shared.training_episodes import (
    ROUND,
    Episode,
    Job,
    Rollouts,
    Trainee,
    known_of,
    take,
)
from placewright.placers.registry import family_of, placer_class, placers_that_take_a_policy

if TYPE_CHECKING:
    from placewright.placers.learned.shared.checkpoint import Checkpoint

Report = Callable[[float, str], None]


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training, besides its number of episodes."""

    seed: int = 0  # of all random choices
    resume: bool = True  # continue from the policy file if it exists
    save_every: int = 50  # episodes between two writes
    # stop after so many episodes, counted in whole rounds, in which the mean time of a round has
    # not fallen; 0 never
    patience: int = 0
    tensorboard: str = ""  # folder for TensorBoard scalars; "" writes none
    # runs the episodes of a round, with one step down their mean gradient; None runs episodes one
    # after the other here, with a step for each
    rollouts: Rollouts | None = None


USUAL = TrainingOptions()


def check_takes_policy(placer: str) -> None:
    """Raise if a policy file is given to a placer whose parameters belong to one graph.

    Raises:
        InputError: the placer cannot be trained over graphs.
    """
    known = placers_that_take_a_policy()
    if placer not in known:
        raise InputError(
            f"placer '{placer}' takes no policy file: it learns nothing for other graphs; "
            f"these take one: {', '.join(known)}"
        )


def train(
    placer: str,
    problems: Sequence[Problem],
    output: str | Path,
    *,
    episodes: int = 1_000,
    settings: Mapping[str, str] | None = None,
    progress: Report | None = None,
    options: TrainingOptions = USUAL,
) -> Path:
    """Train a policy over a family of graphs and write it to `output`.

    The file is written every `options.save_every` episodes, at the end and on Ctrl-C, with the
    optimiser's state and the baselines. An interrupted training continues from its last whole
    episode when called again with the same arguments; more `episodes` continue a finished one.

    Args:
        placer: one of `placers_that_take_a_policy`; its folder has a module `algorithm` with
            ``trainee(settings, problems)``.
        problems: the graphs with their devices; all need the same number of devices for `placeto`
            and `hsdag`.
        output: policy file, for the placer's setting `policy`.
        episodes: in all, over the graphs in a random order that is drawn again each round.
        settings: hyperparameters of the placer, as text.
        progress: called with the fraction done and the mean time of the last round.
        options: seed, file, and when to stop.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: the placer cannot be trained, there are no problems, or they do not fit.
        MissingExtraError: PyTorch is absent.
    """
    _check_trainable(placer, len(problems), episodes)
    require_packages("torch", "torch_geometric")
    import torch

    from placewright.placers.learned.shared.checkpoint import save_checkpoint
    from placewright.placers.learned.shared.learning_scope import EarlyStop, scalars_to, torch_scope

    target, job = Path(output), Job(placer, settings, tuple(problems))
    rng = np.random.default_rng(options.seed)
    with torch_scope(rng) as generator, scalars_to(options.tensorboard) as scalars:
        trainee = job.trainee
        optimiser = torch.optim.Adam(trainee.policy.parameters(), lr=trainee.learning_rate(0.0))
        goes_on = options.resume and target.exists()
        done = first = _restore(target, placer, trainee, optimiser) if goes_on else 0
        last, stop = np.full(len(problems), np.nan), EarlyStop(options.patience)
        written = latest = _checkpoint(target, placer, trainee, optimiser, done)
        try:
            while done < episodes:
                end = done + 1 if options.rollouts is None else done - done % ROUND + ROUND
                ahead = [Episode(at, episodes, options.seed) for at in range(done, episodes)]
                turn, before = ahead[: end - done], done
                results = _descended(job, optimiser, turn, generator, options.rollouts)
                done += len(turn)
                latest = _checkpoint(target, placer, trainee, optimiser, done)
                is_over = False
                for episode, (loss, mean_time) in zip(turn, results, strict=True):
                    last[episode.graph(len(problems))] = mean_time
                    mean = float(np.nanmean(last))
                    scalars(episode.number, loss=loss, mean_time=mean)
                    so_far = episode.number + 1
                    if progress is not None:
                        progress(so_far / episodes, f"mean time {mean:.3f} of the reference")
                    if so_far % len(problems) == 0:
                        is_over = stop(mean, so_far - first) or is_over
                if is_over:
                    break
                if done // options.save_every > before // options.save_every:
                    save_checkpoint(latest)
                    written = latest
        finally:
            if latest is not written:
                save_checkpoint(latest)
    return target


def _descended(
    job: Job,
    optimiser: Any,
    turn: Sequence[Episode],
    generator: Any,
    rollouts: Rollouts | None,
) -> list[tuple[float, float]]:
    """Run the episodes of a turn, then one optimiser step; (loss, mean time) of each episode."""
    trainee, progress = job.trainee, turn[0].progress
    if rollouts is None:
        (episode,) = turn
        episode.draw_from(generator)
        result = trainee.episode(episode.graph(len(job.problems)), progress, generator)
        _descend(trainee, optimiser, result.loss, progress)
        return [(result.loss.item(), result.mean_time)]
    results = rollouts(job, known_of(trainee), turn)
    take(trainee, optimiser, results, progress)
    for episode, episode_result in zip(turn, results, strict=True):
        if episode_result.returns is not None:
            baseline = trainee.baselines[episode.graph(len(job.problems))]
            baseline.update(episode_result.returns)
    return [(episode_result.loss, episode_result.mean_time) for episode_result in results]


def _check_trainable(placer: str, n_graphs: int, episodes: int) -> None:
    placer_class(placer)  # raises on an unknown name
    known = placers_that_take_a_policy()
    if placer not in known:
        raise InputError(
            f"placer '{placer}' cannot be trained over graphs: what it learns belongs to one; "
            f"these can: {', '.join(known)}"
        )
    if n_graphs == 0 or episodes < 1:
        raise InputError(f"training needs graphs and episodes >= 1, got {n_graphs}, {episodes}")


def _descend(trainee: Trainee, optimiser: Any, loss: Any, progress: float) -> None:
    from placewright.placers.learned.shared.learning_scope import clipped_step

    optimiser.param_groups[0]["lr"] = trainee.learning_rate(progress)
    clipped_step(trainee.policy, optimiser, loss, trainee.clip_norm)


def _checkpoint(
    target: Path, placer: str, trainee: Trainee, optimiser: Any, episodes: int
) -> Checkpoint:
    """A copy of all state of the training after so many episodes."""
    from placewright.placers.learned.shared.checkpoint import Checkpoint

    tensors = {f"policy.{name}": value for name, value in trainee.policy.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors.update({f"optimiser.{index}.{key}": value for key, value in state.items()})
    tensors.update({f"trainee.{name}": value for name, value in trainee.state().items()})
    copies = {name: value.detach().clone() for name, value in tensors.items()}
    return Checkpoint(
        str(target), family_of(placer), {**trainee.metadata, "episodes": episodes}, copies
    )


def _restore(target: Path, placer: str, trainee: Trainee, optimiser: Any) -> int:
    """Load parameters and states from `target`; return the number of finished episodes.

    Raises:
        FileFormatError: the file is unusable, or of another training.
    """
    from placewright.placers.learned.shared.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(target, family_of(placer))
    if {**checkpoint.metadata, "episodes": 0} != {**trainee.metadata, "episodes": 0}:
        raise FileFormatError(
            f"policy '{target}' was trained with other settings or graphs; give another file"
        )
    checkpoint.give_to(trainee.policy)
    kept = checkpoint.under("trainee")
    if missing := sorted(set(trainee.state()) - set(kept)):
        raise FileFormatError(
            f"policy '{target}' has no '{missing[0]}', so that its training cannot continue; "
            "give another file"
        )
    trainee.restore(kept)
    state: dict[int, dict[str, Any]] = {}
    for name, value in checkpoint.under("optimiser").items():
        index, _, key = name.partition(".")
        if not index.isdecimal() or not key:
            raise FileFormatError(
                f"policy '{target}' has an unknown tensor 'optimiser.{name}'; give another file"
            )
        state.setdefault(int(index), {})[key] = value
    if state:
        optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    return checkpoint.count("episodes", least=0, most=2**62)
