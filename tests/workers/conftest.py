"""One Ray cluster for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_here() -> Iterator[Any]:
    """The module with a connection to a cluster of two cores, whatever this machine has."""
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    from placewright.workers.served import thread_variables

    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=80 << 20,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        runtime_env={"env_vars": thread_variables(1)},
    )
    yield ray
    ray.shutdown()
