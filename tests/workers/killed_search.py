"""A search whose worker is killed once, at a question that its seed names."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.search.local_search import LocalSearch
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class KilledSearch(LocalSearch):
    """Local search; the first worker that takes a seed is killed on the way.

    Attributes:
        folder: a file per seed says that it was tried; empty for a search that nobody kills.
    """

    name: ClassVar[str] = "killed-search"

    folder: str = ""

    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        seed = int(rng.bit_generator.seed_seq.entropy)  # type: ignore[attr-defined]
        if self.folder and not (mark := Path(self.folder) / str(seed)).exists():
            mark.touch()
            left = int(np.random.default_rng((seed, 1)).integers(1, 40))
            evaluate_many = evaluator.evaluate_many

            def dying(*arguments: object, **more: object) -> object:
                nonlocal left
                left -= 1
                if left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return evaluate_many(*arguments, **more)  # type: ignore[arg-type]

            evaluator.evaluate_many = dying  # type: ignore[method-assign, assignment]
            found = super().place(problem, evaluator, rng)
            os.kill(os.getpid(), signal.SIGKILL)  # it asked fewer questions
            return found
        return super().place(problem, evaluator, rng)
