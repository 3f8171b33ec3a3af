"""The contract holds for every registered placer, in this process and in another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from placewright.placers.registry import make_placer, placer_class, placer_names
from placewright.testing.contract import check_placer, fingerprints

_CHILD = """
import json, sys
from placewright.testing.contract import fingerprints
sys.stdout.write(json.dumps(fingerprints(json.loads(sys.argv[1]))))
"""


@pytest.mark.parametrize("name", placer_names())
def test_contract(name: str) -> None:
    """Legal, honest, repeatable, within budget, interruptible."""
    check_placer(lambda: make_placer(name))
    assert placer_class(name).name == name


def test_other_hash_seed_and_threads() -> None:
    """One child process with another hash seed and one thread gives the same answers."""
    names = placer_names()
    environment = dict(
        os.environ, PYTHONHASHSEED="4242", NUMBA_NUM_THREADS="1", OMP_NUM_THREADS="1"
    )
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(names)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == fingerprints(names)
