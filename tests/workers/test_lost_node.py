"""A node of a Ray cluster that goes away in the middle of a search costs its tasks alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = """
import json, sys, time
import ray
from ray.cluster_utils import Cluster
from placewright.workers.interface import ThisProcess
from placewright.workers.ray_workers import RayWorkers
from tests.workers.searches import found_by, problem_of

moments = json.loads(sys.argv[1])
few = {"num_cpus": 1, "object_store_memory": 80 << 20}


class Watched(RayWorkers):
    started = lost = 0

    def _start(self, attempt):
        super()._start(attempt)
        Watched.started += 1
        if Watched.started in moments:  # both nodes have work now
            global second
            time.sleep(0.2)
            cluster.remove_node(second, allow_graceful=False)
            second = cluster.add_node(**few)

    def _wait(self):
        ended = super()._wait()
        Watched.lost += sum(bool(one.lost) for one in ended)
        return ended


if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={**few, "include_dashboard": False})
    second = cluster.add_node(**few)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        problem = problem_of(300)
        with Watched(cluster.address) as workers:
            spread = found_by(workers, problem, 20_000)
        found = [spread == found_by(ThisProcess(), problem, 20_000), Watched.lost]
        open("found.json", "w").write(json.dumps(found))
    finally:
        ray.shutdown()
        cluster.shutdown()
"""


@pytest.mark.slow
def test_a_node_that_is_lost_changes_nothing(tmp_path: Path) -> None:
    """Its raylet is killed while its worker has a task, three times; another takes its place."""
    moments = [5, 12, 20]
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    path = tmp_path / "driver.py"
    path.write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, str(path), json.dumps(moments)],
        cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    equal, lost = json.loads((tmp_path / "found.json").read_text())
    assert equal
    assert lost >= 1, "the node had no work"
