"""The episodes of a training on several workers."""

from __future__ import annotations

from collections.abc import Sequence

from placewright.placers.learned.shared.training_episodes import (
    Episode,
    Job,
    Known,
    Learned,
    Rollouts,
    learned_in,
)
from placewright.workers.interface import Workers
from placewright.workers.tasks import Shared, Task


def spread_rollouts(workers: Workers) -> Rollouts:
    """What `TrainingOptions.rollouts` takes: the episodes of a round are tasks.

    The graphs go to each worker once, the parameters once a round with each episode.
    """
    shared: dict[int, Shared] = {}

    def rollouts(job: Job, known: Known, episodes: Sequence[Episode]) -> list[Learned]:
        if id(job) not in shared:
            shared.clear()
            # Another object: the driver's own trainee is the one that takes the steps.
            shared[id(job)] = Shared(Job(job.placer, job.settings, job.problems))
        tasks = [
            Task(learned_in, (known, one), shared[id(job)], f"episode {one.number}")
            for one in episodes
        ]
        found: list[Learned] = workers.results(tasks)
        return found

    return rollouts
