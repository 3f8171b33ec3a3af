"""Training of one policy over many graphs, for placers whose networks transfer.

`placeto` and `hsdag` learn as they do on one problem, episode after episode over the graphs in
turn, with a baseline of its own for each; `zero-shot` exists for this only. The others cannot: the
parameters of `post` are the groups of one graph, and the adjacency columns of `seq2seq`,
`hierarchical` and `grouper-placer` are those of one graph.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Link
from placewright.core.problem import Problem
from placewright.errors import FileFormatError, InputError
from placewright.io.written import require_folder
from placewright.placers.learned.shared.searching import (
    EarlyStop,
    SearchSettings,
    require_packages,
    scalars_to,
)
from placewright.placers.learned.shared.training_episodes import (
    ROUND,
    Episode,
    Job,
    Rollouts,
    known_of,
    take,
)
from placewright.placers.registry import (
    family_of,
    make_placer,
    placer_class,
    placers_that_take_a_policy,
)

if TYPE_CHECKING:
    from placewright.placers.learned.shared.checkpoint import Checkpoint

Report = Callable[[float, str], None]
# Settings that no training reads: those of a search, with the argument that serves instead, and
# those of placing with a policy, which may come with the settings that a training reads.
_REFUSED = dict.fromkeys((item.name for item in fields(SearchSettings)), "leave it out")
_REFUSED["policy"] = "give the file as argument `output`, and its training continues"
_REFUSED["patience"] = "give `patience` of argument `options`"
_REFUSED["tensorboard"] = "give `tensorboard` of argument `options`"
_UNREAD = {*_REFUSED, "horizon", "candidates", "temperature"}
_ADAM = ("step", "exp_avg", "exp_avg_sq")  # state of a parameter


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
    optimiser's state, the baselines and the state of `options.patience`. An interrupted training
    continues from its last whole episode when called again with the same arguments; more
    `episodes` continue a finished one. Other graphs, settings or seeds are refused.

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
        InputError: the placer cannot be trained, a setting is one that no training reads, there are
            no problems, they do not fit, or the folder of `output` does not exist.
        FileFormatError: `output` exists and is unusable, or of another training.
        MissingExtraError: PyTorch is absent.
    """
    _check_trainable(placer, len(problems), episodes, options)
    for name in settings or {}:
        if name in _REFUSED:
            raise InputError(f"training does not read setting '{name}': {_REFUSED[name]}")
    require_packages("torch", "torch_geometric")
    import torch

    from placewright.placers.learned.shared.checkpoint import save_checkpoint
    from placewright.placers.learned.shared.learning_scope import torch_scope

    target = Path(output)
    require_folder(target)
    job = Job(placer, settings, tuple(problems))
    rng = np.random.default_rng(options.seed)
    with torch_scope(rng) as generator, scalars_to(options.tensorboard) as scalars:
        policy = job.trainee.policy
        optimiser = torch.optim.Adam(policy.parameters(), lr=job.trainee.learning_rate(0.0))
        course = _Course(job, optimiser, EarlyStop(options.patience), _facts(job, options))
        if options.resume and target.exists():
            course.restore(target)
        written = latest = course.checkpoint(target)
        try:
            while course.done < episodes and not course.is_over:
                done = course.done
                end = done + 1 if options.rollouts is None else done - done % ROUND + ROUND
                numbers = range(done, min(end, episodes))
                turn = [Episode(number, episodes, options.seed) for number in numbers]
                results = _descended(job, optimiser, turn, generator, options.rollouts)
                means = [
                    course.take_in(episode, mean_time)
                    for episode, (_, mean_time) in zip(turn, results, strict=True)
                ]
                latest = course.checkpoint(target)
                for episode, (loss, _), mean in zip(turn, results, means, strict=True):
                    scalars(episode.number, loss=loss, mean_time=mean)
                    if progress is not None:
                        so_far = (episode.number + 1) / episodes
                        progress(so_far, f"mean time {mean:.3f} of the reference")
                if course.done // options.save_every > done // options.save_every:
                    save_checkpoint(latest)
                    written = latest
        finally:
            if latest is not written:
                save_checkpoint(latest)
    return target


def episodes_of(policy: str | Path) -> int:
    """Episodes that a policy file was trained for.

    Raises:
        InputError: there is no such file.
        FileFormatError: it is unusable.
    """
    from placewright.placers.learned.shared.checkpoint import load_checkpoint

    return load_checkpoint(policy).count("episodes", least=0, most=2**62)


def _descended(
    job: Job,
    optimiser: Any,
    turn: Sequence[Episode],
    generator: Any,
    rollouts: Rollouts | None,
) -> list[tuple[float, float]]:
    """Run the episodes of a turn, then one optimiser step; (loss, mean time) of each episode."""
    from placewright.placers.learned.shared.learning_scope import descend

    trainee, progress = job.trainee, turn[0].progress
    rate = trainee.learning_rate(progress)
    if rollouts is None:
        (episode,) = turn
        episode.draw_from(generator)
        result = trainee.episode(episode.graph(len(job.problems)), progress, generator)
        optimiser.param_groups[0]["lr"] = rate
        descend(trainee.policy, optimiser, result.loss, trainee.clip_norm)
        return [(result.loss.item(), result.mean_time)]
    results = rollouts(job, known_of(trainee), turn)
    optimiser.param_groups[0]["lr"] = rate
    take(trainee, optimiser, results)
    if trainee.baselines:
        for episode, learned in zip(turn, results, strict=True):
            assert learned.returns is not None, "a baseline that takes in nothing teaches nothing"
            trainee.baselines[episode.graph(len(job.problems))].update(learned.returns)
    return [(learned.loss, learned.mean_time) for learned in results]


def _check_trainable(placer: str, n_graphs: int, episodes: int, options: TrainingOptions) -> None:
    placer_class(placer)  # raises on an unknown name
    known = placers_that_take_a_policy()
    if placer not in known:
        raise InputError(
            f"placer '{placer}' cannot be trained over graphs: what it learns belongs to one; "
            f"these can: {', '.join(known)}"
        )
    if n_graphs == 0 or episodes < 1:
        raise InputError(f"training needs graphs and episodes >= 1, got {n_graphs}, {episodes}")
    if options.save_every < 1:
        raise InputError(f"training needs save_every >= 1, got {options.save_every}")
    if options.patience < 0:
        raise InputError(f"training needs patience >= 0, got {options.patience}")


@dataclass
class _Course:
    """The state of a training between two episodes, which its file holds."""

    job: Job  # with the trainee
    optimiser: Any  # of torch
    stop: EarlyStop  # over the mean times of turns, each of which has an episode of every graph
    facts: Mapping[str, Any]  # of the training, see `_facts`
    done: int = 0  # episodes
    last: FloatArray = field(init=False)  # mean time of each graph's last episode; NaN before

    def __post_init__(self) -> None:
        self.last = np.full(len(self.job.problems), np.nan)

    @property
    def is_over(self) -> bool:
        """True if patience has run out at the end of the last whole turn."""
        return self.stop.ends(self.done - self.done % len(self.last))

    def take_in(self, episode: Episode, mean_time: float) -> float:
        """Count an episode that has been learned from; the mean time of the graphs so far."""
        self.last[episode.graph(len(self.last))] = mean_time
        self.done, mean = episode.number + 1, float(np.nanmean(self.last))
        if self.done % len(self.last) == 0:
            self.stop(mean, self.done)
        return mean

    def checkpoint(self, target: Path) -> Checkpoint:
        """A copy of all state."""
        import torch

        from placewright.placers.learned.shared.checkpoint import Checkpoint

        trainee, tensors = self.job.trainee, self.job.trainee.tensors()
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors.update({f"optimiser.{index}.{key}": value for key, value in state.items()})
        tensors["course.last"] = torch.tensor(self.last)
        tensors["course.stop"] = torch.tensor(
            [self.stop.best, self.stop.since], dtype=torch.float64
        )
        copies = {name: value.detach().clone() for name, value in tensors.items()}
        metadata = {**trainee.metadata, "training": self.facts, "episodes": self.done}
        return Checkpoint(str(target), family_of(self.job.placer), metadata, copies)

    def restore(self, target: Path) -> None:
        """Load all state from a file.

        Raises:
            FileFormatError: the file is unusable, or of another training.
        """
        from placewright.placers.learned.shared.checkpoint import load_checkpoint

        checkpoint = load_checkpoint(target, family_of(self.job.placer))
        self._refuse_another(checkpoint)
        trainee = self.job.trainee
        checkpoint.give_to(trainee.policy)
        kept, course = checkpoint.under("trainee"), checkpoint.under("course")
        shapes = {"last": self.last.shape, "stop": (2,)}
        absent = [
            name for name, of in shapes.items() if name not in course or course[name].shape != of
        ]
        if missing := sorted({*trainee.state()} - set(kept)) + absent:
            raise FileFormatError(
                f"policy '{target}' has no '{missing[0]}', so that its training cannot continue; "
                "give another file"
            )
        best, since = course["stop"].tolist()
        if math.isnan(best) or not 0 <= since < math.inf:
            raise FileFormatError(
                f"policy '{target}': 'course.stop' must be a time and a number of episodes, got "
                f"{best} and {since}; give another file"
            )
        trainee.restore(kept)
        self.last[:] = course["last"].numpy()
        self.stop.best, self.stop.since = best, int(since)
        if state := _adam_states(checkpoint, trainee.policy):
            self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        self.done = checkpoint.count("episodes", least=0, most=2**62)

    def _refuse_another(self, checkpoint: Checkpoint) -> None:
        theirs = checkpoint.metadata.get("training")
        if not isinstance(theirs, dict):
            raise FileFormatError(
                f"policy '{checkpoint.path}' is older than the check of what it was trained on, so "
                "that its training cannot continue; give another file"
            )
        for name in {**self.facts, **theirs}:
            if theirs.get(name) != (mine := self.facts.get(name)):
                told = f"with {name} = {theirs.get(name)}, not {mine}"
                if name.startswith("problem "):
                    told = f"on another {name}, or with other costs"
                    told += ", as a model has that is measured again"
                raise FileFormatError(
                    f"policy '{checkpoint.path}' was trained {told}; give another file"
                )
        network = {name: checkpoint.metadata.get(name) for name in self.job.trainee.metadata}
        if network != self.job.trainee.metadata:
            raise FileFormatError(
                f"policy '{checkpoint.path}' has another network; give another file"
            )


def _adam_states(checkpoint: Checkpoint, policy: Any) -> dict[int, dict[str, Any]]:
    """States of the optimiser, by the number of their parameter; those without gradient have none.

    Raises:
        FileFormatError: a tensor is missing, unknown, of another shape or not finite.
    """
    path, found = checkpoint.path, checkpoint.under("optimiser")
    shapes = [parameter.shape for parameter in policy.parameters()]
    states: dict[int, dict[str, Any]] = {}
    for name, value in found.items():
        index, _, key = name.partition(".")
        if index not in map(str, range(len(shapes))) or key not in _ADAM:
            raise FileFormatError(
                f"policy '{path}' has an unknown tensor 'optimiser.{name}'; give another file"
            )
        shape = () if key == "step" else tuple(shapes[int(index)])
        if value.shape != shape or not value.isfinite().all():
            raise FileFormatError(
                f"policy '{path}': 'optimiser.{name}' must have shape {shape} and finite values; "
                "give another file"
            )
        states.setdefault(int(index), {})[key] = value
    if absent := [f"{at}.{key}" for at in states for key in _ADAM if key not in states[at]]:
        raise FileFormatError(f"policy '{path}' has no 'optimiser.{absent[0]}'; give another file")
    return states


def _facts(job: Job, options: TrainingOptions) -> dict[str, Any]:
    """All that decides the episodes of a training, by names for people; JSON values."""
    settings: Any = make_placer(job.placer, job.settings)
    facts = {
        "seed": options.seed,
        "episodes per step": 1 if options.rollouts is None else ROUND,
        **{name: value for name, value in asdict(settings).items() if name not in _UNREAD},
        "number of graphs": len(job.problems),
        # "graph" in files of versions whose hash leaves out the sending end of a link
        **{f"problem {at}": sha256_of(one) for at, one in enumerate(job.problems, 1)},
    }
    told: dict[str, Any] = json.loads(json.dumps(facts))
    return told


def sha256_of(problem: Problem) -> str:
    """Hash of a problem without its origin, so that it is equal in other folders."""
    digest = hashlib.sha256()

    def feed(value: object) -> None:
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype} {value.shape} ".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        elif is_dataclass(value):
            if not fields(value):  # an execution model without choices
                digest.update(f"{type(value).__name__} ".encode())
            for item in fields(value):
                # of the problem, the model's file and the costs' origin; of a link, its sending end
                if item.name != "source" or isinstance(value, Link):
                    digest.update(f"{item.name} ".encode())
                    feed(getattr(value, item.name))
        elif isinstance(value, Mapping):
            feed(sorted(value.items()))
        elif isinstance(value, (list, tuple)):
            digest.update(f"{len(value)} ".encode())
            for one in value:
                feed(one)
        else:
            digest.update(f"{value!r} ".encode())

    feed(problem)
    return digest.hexdigest()
