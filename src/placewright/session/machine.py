"""What splitting costs on this machine: found in the cache, or measured on a small model."""

from __future__ import annotations

import tempfile
from pathlib import Path

from placewright.core.cluster import Cluster
from placewright.core.deadline import NEVER, Deadline
from placewright.errors import PlacewrightError
from placewright.execution.framework import (
    Framework,
    MakesSmallModel,
    ModelInMemory,
    ReadOptions,
)
from placewright.execution.runtime import Runtime
from placewright.execution.small_model import SmallModel
from placewright.frameworks.registry import framework_named
from placewright.profiling.evidence import Evidence
from placewright.profiling.machine_costs import (
    keep_machine_costs,
    known_machine_costs,
    machine_key,
    measure_machine,
    probe,
)
from placewright.profiling.measure import ProgressCallback
from placewright.profiling.profile import Measuring, profile
from placewright.profiling.segment_fit import fitted_cluster
from placewright.profiling.store import CostStore

SECONDS = 10.0  # that measuring takes on the machine of the published tables, roughly


def split_costs(
    cluster: Cluster, runtime: Runtime, progress: ProgressCallback | None = None
) -> Cluster | None:
    """The devices with what splitting over them costs, found or measured; None where it cannot be.

    Args:
        cluster: of this machine.
        runtime: that measures.
        progress: called before each placement.
    """
    if cluster.n_devices < 2:
        return None
    found = MachineCosts(cluster, runtime, CostStore()).measured(progress)
    if found is None:
        return None
    return fitted_cluster(cluster.without_overheads, list(found.rows), list(found.waits))


class MachineCosts:
    """What splitting costs on the devices of a cluster, whatever the model.

    Args:
        cluster: of this machine.
        runtime: that measures.
        store: in the user's cache folder.
    """

    def __init__(self, cluster: Cluster, runtime: Runtime, store: CostStore) -> None:
        self._cluster = cluster.without_overheads
        self._runtime, self._store = runtime, store
        self._key = f"{SmallModel.VERSION}|{machine_key(cluster, runtime.name, runtime.version)}"
        self.known = known_machine_costs(store, self._key, self.probe)

    def probe(self) -> tuple[float, float, float]:
        """See `profiling.machine_costs.probe`."""
        return probe(self._cluster.devices)

    def measured(
        self, progress: ProgressCallback | None = None, deadline: Deadline = NEVER
    ) -> Evidence | None:
        """What is known, or is measured now; None where it cannot be, or time is too short.

        Args:
            progress: called before each placement.
            deadline: no round starts after it.
        """
        framework = framework_named(self._runtime.name)
        if self.known is None and isinstance(framework, MakesSmallModel):
            try:
                self.known = self._of_small_model(framework, progress, deadline)
            except PlacewrightError:  # a device that cannot run the small model may run others
                return None
            if self.known is not None:
                keep_machine_costs(self._store, self._key, self.known, self.probe())
                # As later calls will read it, so that the same request is the same problem.
                self.known = Evidence.of_text(self.known.text())
        return self.known

    def _of_small_model(
        self, framework: Framework, progress: ProgressCallback | None, deadline: Deadline
    ) -> Evidence | None:
        assert isinstance(framework, MakesSmallModel)
        with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
            found = framework.small_model(Path(folder))
            name = found.name if isinstance(found, ModelInMemory) else str(found)
            graph, source = framework.read(name, lambda _: found, ReadOptions())
            runtime = framework.runtime(lambda _: found)
            source = framework.runnable(source, lambda _: found)
            loaded = runtime.load(source, graph)
            kept = CostStore(Path(folder) / "costs.sqlite")
            problem = profile(
                graph, source, self._cluster, runtime, model=loaded, measuring=Measuring(kept)
            )
            return measure_machine(problem, loaded, progress=progress, deadline=deadline)
