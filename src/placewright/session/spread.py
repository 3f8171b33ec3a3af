"""Searches with workers: turns of the members of `auto` are tasks, and so are training episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import FieldError
from placewright.placers.anytime import anytime
from placewright.placers.learned.shared.training_episodes import (
    Episode,
    Job,
    Known,
    Learned,
    Rollouts,
    learned_in,
)
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.portfolio.turn import Turn, Turns, TurnTaker, take_turn
from placewright.session.request import Request
from placewright.simulation.evaluator import Evaluator
from placewright.workers.interface import ThisProcess, Workers
from placewright.workers.opened import open_workers
from placewright.workers.tasks import Shared, Task

_PATIENCE = 5.0  # seconds after its own after which a turn is given up
_PATIENCE_WITHOUT_CLOCK = 60.0  # if processor seconds alone count: a busy machine gives few


@contextmanager
def workers_of(request: Request) -> Iterator[Workers | None]:
    """The workers of a request for a block; None if it names none.

    Raises:
        InputError: there are no such workers, or they could only stand in each other's way.
    """
    if request.workers is None and request.ray is None:
        yield None
        return
    if request.evaluator == "measured":
        field = "workers" if request.ray is None else "ray"
        raise FieldError(field, "is for simulated values: one placement is measured at a time")
    with open_workers(request.workers, request.ray) as workers:
        yield workers


@dataclass(frozen=True)
class SpreadAuto:
    """A placer that is `auto` with workers for its members' turns."""

    name: ClassVar[str] = Auto.name
    paper: ClassVar[str] = Auto.paper
    objectives: ClassVar[tuple[str, ...]] = Auto.objectives
    needs_training: ClassVar[bool] = False

    auto: Auto  # its settings
    workers: Workers  # that take the turns

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        return self.auto.why_not(problem)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Search as `Auto.place` does; a single worker is this process with its threads."""
        if isinstance(self.workers, ThisProcess):
            return self.auto.place(problem, evaluator, rng)
        takers = _TurnsAsTasks(problem, evaluator.budget, self.workers)
        return self.auto.place_with(takers, problem, evaluator, rng)


class _TurnsAsTasks:
    """Takers whose turns are tasks of workers.

    Args:
        problem: what is placed; each worker gets it once.
    """

    is_joint, is_elsewhere = False, True

    def __init__(self, problem: Problem, budget: Budget, workers: Workers) -> None:
        self._problem, self._workers = problem, workers
        self._shared = Shared(TurnTaker(problem))
        self._patience = _PATIENCE_WITHOUT_CLOCK if budget.seconds is None else _PATIENCE

    @property
    def count(self) -> int:
        """As many as there are workers now."""
        return self._workers.count

    def make_ready(self) -> None:
        """See `portfolio.turn.Takers`."""
        kernels = (self._problem.objective, self._problem.execution_model)
        tasks = (Task(make_ready, kernels, label="kernels") for _ in range(self.count))
        self._workers.results(tasks)

    def run(self, turns: Iterable[Turn | None]) -> Turns:
        """See `portfolio.turn.Takers`."""
        for done in self._workers.run(self._tasks(turns)):
            turn: Turn = done.task.arguments[0]
            yield turn, None if done.lost else done.result

    def _tasks(self, turns: Iterable[Turn | None]) -> Iterator[Task | None]:
        for turn in turns:
            if turn is None:
                yield None
                continue
            task = Task(take_turn, (turn,), self._shared, label=turn.member)
            if turn.budget.seconds is not None:
                most = turn.budget.seconds + self._patience
                task = replace(task, seconds=most, tries=1, may_be_lost=True)
            yield task


def spread_rollouts(workers: Workers) -> Rollouts:
    """Make the `TrainingOptions.rollouts` whose episodes are tasks of workers.

    The graphs go to each worker once, the parameters once a round with each episode.
    """
    shared: dict[int, Shared] = {}

    def rollouts(job: Job, known: Known, episodes: Sequence[Episode]) -> list[Learned]:
        if id(job) not in shared:
            shared.clear()
            # Another object: the driver's own trainee is the one that takes the steps.
            shared[id(job)] = Shared(Job(job.placer, job.settings, job.problems))
        tasks = [
            Task(learned_in, (known, episode), shared[id(job)], f"episode {episode.number}")
            for episode in episodes
        ]
        learned: list[Learned] = workers.results(tasks)
        return learned

    return rollouts
