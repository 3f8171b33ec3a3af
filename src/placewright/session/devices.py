"""Devices that a request names, as a cluster, and what splitting a model over them costs."""

from __future__ import annotations

import math
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from placewright.core.cluster import Cluster
from placewright.core.execution_models import EVENT
from placewright.core.problem import Problem
from placewright.errors import (
    FieldError,
    InputError,
    MissingExtraError,
    PlacewrightError,
    UnknownNameError,
)
from placewright.execution.framework import Framework, ModelInMemory, ReadOptions
from placewright.execution.runtime import LoadedModel, Runtime
from placewright.execution.small_model import SmallModel
from placewright.files.cluster_file import read_cluster_and_links
from placewright.frameworks.registry import framework_named, framework_names
from placewright.frameworks.runtimes import default_runtime_name
from placewright.placers.portfolio.kernels import make_ready, seconds_to_compile
from placewright.profiling.calibration import calibration_seconds
from placewright.profiling.catalogue import (
    catalogue_cluster,
    has_data_sheet,
    is_device_name,
    linked,
    whole_name,
)
from placewright.profiling.discover import completed_cluster
from placewright.profiling.discover import discover as discover_devices
from placewright.profiling.evidence import Evidence, with_rule
from placewright.profiling.hardware import NEVER, Deadline
from placewright.profiling.machine_costs import (
    keep_machine_costs,
    known_machine_costs,
    machine_key,
    measure_machine,
    probe,
)
from placewright.profiling.measure import Ends, Progress, ProgressCallback
from placewright.profiling.profile import Measuring, profile
from placewright.profiling.segment_fit import fitted_cluster
from placewright.profiling.store import CostStore
from placewright.report.time_left import KERNELS, MACHINE, Steps
from placewright.session.models import runtime_named

CATALOGUE = "catalogue:"
# Seconds of a split of the small model over those of the whole: its twenty segments take a first
# run each, and wait for each other.
_SPLIT_FACTOR = 1.6


def discover(names: str | None = None, *, runtime: str | None = None) -> Cluster:
    """Devices of this machine, with measured links.

    Args:
        names: ``"cpu"``, ``"cores"``, or names separated by commas; None is the whole CPU with
            every GPU and NPU, or the cores if there is no other device.
        runtime: whose devices; None is the first that is installed.

    Raises:
        UnknownNameError: there is no such device or runtime.
        ClusterError: two devices overlap.
    """
    chosen = runtime_named(runtime or default_runtime_name())
    if names is not None and not names.strip(", "):
        raise FieldError("devices", f"names no device, got '{names}'")
    try:
        return discover_devices(names or default_names(runtime), chosen)
    except UnknownNameError as error:
        listed = ",".join(map(whole_name, (names or "").split(",")))
        if not all(map(is_device_name, listed.split(","))):
            raise
        raise FieldError(
            "devices",
            f"{names}: {error}; {CATALOGUE}{listed} takes devices of the catalogue, with costs of "
            "their data sheets",
        ) from None


def candidates(runtime: str | None = None) -> tuple[str, ...]:
    """Names of all devices of this machine, including devices that overlap."""
    return tuple(
        device.name for device in runtime_named(runtime or default_runtime_name()).discover()
    )


def devices_by_runtime() -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Device names of every installed runtime; for the others, the message that names the extra."""
    found: dict[str, tuple[str, ...]] = {}
    missing: dict[str, str] = {}
    for name in framework_names():
        try:
            found[name] = candidates(name)
        except MissingExtraError as error:
            missing[name] = str(error)
    return found, missing


def cluster_for(names: str | None, cluster: Path | Cluster | None, runtime: str | None) -> Cluster:
    """The cluster that a request names: a file, a cluster, or devices of this machine.

    Raises:
        InputError: both are given, or one of them is wrong.
    """
    if cluster is None:
        return discover(names, runtime=runtime)
    if names is not None:
        raise FieldError("devices", "or a cluster, not both")
    has_links = bool(cluster.links) if isinstance(cluster, Cluster) else True
    if isinstance(cluster, Path):
        cluster, has_links = read_cluster_and_links(cluster)
    own = runtime_named(runtime or default_runtime_name())
    return completed_cluster(cluster, own, has_links=has_links)


def catalogue_for(names: str | None, given: Path | Cluster | None) -> Cluster | None:
    """The cluster of a request whose costs come from data sheets; None for other requests.

    ``catalogue:4gpu`` is a cluster of the catalogue, ``catalogue:cpu-xeon-8480,t4`` devices of it
    on PCI Express, see `whole_name`; the devices of a file or a cluster have fingerprints
    ``catalogue:NAME`` or data sheets of their own, all or none, and are on PCI Express, too, if it
    has no links.

    Raises:
        InputError: names of the catalogue are mixed with others, or both are given.
        UnknownNameError: the catalogue lacks a name.
    """
    if given is not None:
        if isinstance(given, Path):
            cluster, has_links = read_cluster_and_links(given)
        else:
            cluster, has_links = given, len(given.links) > 0
        of_catalogue = [has_data_sheet(device) for device in cluster.devices]
        if not any(of_catalogue):
            return None
        if names is not None:
            raise FieldError("devices", "or a cluster, not both")
        if not all(of_catalogue):
            odd = cluster.devices[of_catalogue.index(False)].name
            where = f"'{given}'" if isinstance(given, Path) else "cluster"
            raise InputError(
                f"{where}: device '{odd}' is not of the catalogue and has no peak, but others are "
                "or have; costs are measured for all devices or for none"
            )
        return cluster if has_links else linked(cluster)
    if names is None or not names.startswith(CATALOGUE):
        return None
    listed = [whole_name(name.strip().removeprefix(CATALOGUE)) for name in names.split(",")]
    is_cluster = len(listed) == 1 and not is_device_name(listed[0])
    return catalogue_cluster(listed[0] if is_cluster else listed)


def default_names(runtime: str | None) -> str:
    """The devices of a request that names none: all, or the cores of a machine that has only a CPU.

    Args:
        runtime: whose devices; None is that of `discover`.
    """
    names = candidates(runtime)
    others = [name for name in names if not name.startswith("cpu")]
    cores = [name for name in names if name.startswith("cpu:")]
    if others or len(cores) < 2:
        return ",".join(["cpu", *others])
    return "cores"


def split_costs(cluster: Cluster, runtime: Runtime, steps: Steps) -> Cluster | None:
    """Add the costs of splitting to a cluster; they are stored, or measured on a small model."""
    if cluster.n_devices < 2:
        return None
    costs = MachineCosts(cluster, runtime, CostStore())
    compiling = 0.0 if costs.known is not None else seconds_to_compile("latency", EVENT)

    def told(at: Progress) -> None:
        if at.ahead is not None:
            ahead = {KERNELS: compiling, MACHINE: at.seconds_left or math.nan}
            steps.expect(ahead, f"a small model, measured on {', '.join(at.ahead.devices)}")
        steps.tell(MACHINE, f"what a cut costs, {at.what}", at.seconds_left)

    if costs.known is None:
        costs.start(told)
        steps.tell(KERNELS, "compiling kernels")
        make_ready("latency", EVENT)
    found = costs.measured(told)
    if found is None:
        return None
    ruled = with_rule(cluster.without_overheads, found.occupies)
    return fitted_cluster(ruled, list(found.rows), list(found.waits))


class MachineCosts:
    """The costs of splitting any model over the devices of a cluster."""

    def __init__(self, cluster: Cluster, runtime: Runtime, store: CostStore) -> None:
        self._cluster = cluster.without_overheads
        self._runtime, self._store = runtime, store
        self._key = f"{SmallModel.VERSION}|{machine_key(cluster, runtime.name, runtime.version)}"
        self.known = known_machine_costs(store, self._key, self.probe)
        self._small: _SmallRun | None = None
        self._was_tried = False

    def probe(self) -> tuple[float, float, float]:
        """See `profiling.machine_costs.probe`."""
        return probe(self._cluster.devices)

    def start(self, progress: ProgressCallback | None = None, deadline: Deadline = NEVER) -> float:
        """Measure the small model's units, and estimate the seconds of the rest of `measured`.

        Args:
            progress, deadline: see `measured`.

        Returns:
            The seconds; nan if a device cannot run the small model, or if the
            deadline passed before each device had run it once.
        """
        framework = framework_named(self._runtime.name)
        if not self._was_tried:
            self._was_tried = True
            with suppress(PlacewrightError):  # such a device may run other models
                self._small = _SmallRun.of(framework, self._cluster, progress, deadline)
        return math.nan if self._small is None else self._small.seconds

    def measured(
        self, progress: ProgressCallback | None = None, deadline: Deadline = NEVER
    ) -> Evidence | None:
        """The stored costs, or measure them now; None if that is impossible or time is too short.

        Args:
            progress: called after each round of the small model's units, and before each
                placement, with the seconds left of both.
            deadline: no round starts after it.
        """
        if self.known is None:
            self.start(progress, deadline)
            if (small := self._small) is None:
                return None
            with suppress(PlacewrightError), small.folder:
                self.known = small.placements(progress, deadline)
            self._small, self._was_tried = None, False
            if self.known is not None:
                keep_machine_costs(self._store, self._key, self.known, self.probe())
                # As later calls will read it, so that the same request is the same problem.
                self.known = Evidence.of_text(self.known.text())
        return self.known

    def close(self) -> None:
        """Remove the files of a small model whose placements were not measured."""
        if self._small is not None:
            self._small.folder.cleanup()
            self._small = None


@dataclass(frozen=True)
class _SmallRun:
    """The framework's small model, whose units were measured.

    Attributes:
        folder: of its files.
        problem: of its measured units.
        loaded: by the runtime.
        seconds: that `placements` should take.
    """

    folder: tempfile.TemporaryDirectory[str]
    problem: Problem
    loaded: LoadedModel
    seconds: float

    @classmethod
    def of(
        cls,
        framework: Framework,
        cluster: Cluster,
        progress: ProgressCallback | None,
        deadline: Deadline,
    ) -> _SmallRun:
        """Make the model, and measure its units."""
        folder = tempfile.TemporaryDirectory(prefix="placewright-")
        try:
            return cls._of(folder, framework, cluster, progress or (lambda at: None), deadline)
        except BaseException:
            folder.cleanup()
            raise

    @classmethod
    def _of(
        cls,
        folder: tempfile.TemporaryDirectory[str],
        framework: Framework,
        cluster: Cluster,
        progress: ProgressCallback,
        deadline: Deadline,
    ) -> _SmallRun:
        found = framework.small_model(Path(folder.name))
        name = found.name if isinstance(found, ModelInMemory) else str(found)
        graph, source = framework.read(name, lambda _: found, ReadOptions())
        runtime = framework.runtime(lambda _: found)
        source = framework.runnable(source, lambda _: found)
        loaded = runtime.load(source, graph)
        kept = CostStore(Path(folder.name) / "costs.sqlite")
        placements = math.nan

        def told(at: Progress) -> None:
            nonlocal placements
            if at.ahead is not None:
                once, compiling = at.ahead.request_seconds, at.ahead.compile_seconds
                # Two threads scatter more than one, so that few splits need no further rounds.
                whole = calibration_seconds(once, compiling, scatter=math.inf)
                placements = _SPLIT_FACTOR * whole
            left = None if at.seconds_left is None else at.seconds_left + placements
            progress(replace(at, seconds_left=left))

        measuring = Measuring(kept, progress=told, ends=Ends(deadline))
        problem = profile(graph, source, cluster, runtime, model=loaded, measuring=measuring)
        return cls(folder, problem, loaded, placements)

    def placements(self, progress: ProgressCallback | None, deadline: Deadline) -> Evidence | None:
        """Measure placements of the model; None if the time was too short.

        Args:
            progress: gets the pace of the placements, or their estimate before it is known.
            deadline: no round starts after it.
        """

        def told(at: Progress) -> None:
            if progress is not None:
                left = self.seconds if at.seconds_left is None else at.seconds_left
                progress(replace(at, seconds_left=left))

        return measure_machine(self.problem, self.loaded, progress=told, deadline=deadline)
