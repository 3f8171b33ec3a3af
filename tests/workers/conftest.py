"""One Ray cluster for all tests that need one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def ray_here() -> Any:
    """The module with a connection to a cluster of two cores, whatever this machine has.

    The first test that needs the cluster starts it.
    """
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    from placewright.workers.served import thread_variables

    if not ray.is_initialized():
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=80 << 20,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            runtime_env={"env_vars": thread_variables(1)},
        )
    return ray


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the cluster after the last test of this folder: its processes compute while they wait."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            ray.shutdown()
