"""A signal's handler may raise at any moment of a call of a kernel; the process must live on."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import placewright

_SCRIPT = """
import contextlib, random, signal, sys, time
import numpy as np
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.core.placement import Placement
from placewright.testing.problems import random_problem

class Raised(BaseException):
    pass

def raises(number, frame):
    raise Raised

problem = random_problem(np.random.default_rng(2), n_ops=60, n_devices=3, constrained=False)
simulator = Simulator(problem)
placement = Placement.of(np.zeros(60, dtype=np.int64))

def heft():
    make_placer("heft").place(problem, Evaluator(problem), np.random.default_rng(0))

call = {
    "timeline": lambda: simulator.timeline(placement),
    "value": lambda: simulator.value_and_peaks(placement),
    "stream": lambda: simulator.stream(placement, samples=5),
    "heft": heft,
}[sys.argv[1]]
call()
signal.signal(signal.SIGALRM, raises)
random.seed(0)
for _ in range(3000):
    with contextlib.suppress(Raised):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 4e-4))
            for _ in range(100_000):
                call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
print("alive")
"""


@pytest.mark.parametrize("call", ["timeline", "value", "stream", "heft"])
def test_the_process_lives_on(call: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _SCRIPT, call],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]


def test_no_kernel_gives_a_named_tuple_to_python() -> None:
    """Numba calls the tuple's class and does not look whether that raised."""
    plain = {"tuple", "int", "float", "bool", "None", "FloatArray", "IntArray", "BoolArray", "np"}
    found = []
    for file in sorted(Path(placewright.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                marks = {ast.unparse(mark).split(".")[-1] for mark in node.decorator_list}
                names = {n.id for n in ast.walk(node.returns) if isinstance(n, ast.Name)}
                if marks & {"compiled", "uncounted"} and names - plain:
                    found.append(f"{file.name}: {node.name} -> {ast.unparse(node.returns)}")
    assert found == []
