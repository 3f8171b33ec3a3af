"""This machine's devices, or those of a cluster file, as a cluster."""

from __future__ import annotations

from pathlib import Path

from placewright.core.cluster import Cluster
from placewright.errors import FieldError, InputError, MissingExtraError
from placewright.files.cluster_file import read_cluster
from placewright.frameworks.registry import framework_names
from placewright.profiling.catalogue import catalogue_cluster, device_names
from placewright.profiling.discover import completed_cluster
from placewright.profiling.discover import discover as discover_devices
from placewright.session.runtimes import default_runtime_name, runtime_named

CATALOGUE = "catalogue:"


def discover(names: str | None = None, *, runtime: str | None = None) -> Cluster:
    """Devices of this machine, with measured links.

    Args:
        names: ``"cpu"``, ``"cores"``, or names separated by commas; None is the whole CPU with
            every GPU and NPU, or the cores where there is nothing else to split over.
        runtime: whose devices; None is OpenVINO.

    Raises:
        UnknownNameError: there is no such device or runtime.
        ClusterError: two devices overlap.
    """
    chosen = runtime_named(runtime or default_runtime_name())
    if names is not None and not names.strip(", "):
        raise FieldError("devices", f"names no device, got '{names}'")
    return discover_devices(names or default_names(runtime), chosen)


def candidates(runtime: str | None = None) -> tuple[str, ...]:
    """Names of all devices of this machine, those that overlap among them."""
    return tuple(
        device.name for device in runtime_named(runtime or default_runtime_name()).discover()
    )


def devices_by_runtime() -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Device names of every runtime that is installed, and what to install for the others."""
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
    if isinstance(cluster, Path):
        cluster, _ = read_cluster(cluster)
    return completed_cluster(cluster, runtime_named(runtime or default_runtime_name()))


def catalogue_for(names: str | None, given: Path | Cluster | None) -> Cluster | None:
    """The cluster that a request names where its costs come from data sheets, else None.

    ``catalogue:4gpu`` is a cluster of the catalogue, ``catalogue:cpu-xeon-8480,gpu-t4`` devices of
    it on PCI Express; the devices of a file have fingerprints ``catalogue:NAME``, all or none.

    Raises:
        InputError: names of the catalogue are mixed with others, or both are given.
        UnknownNameError: the catalogue lacks a name.
    """
    if given is not None:
        cluster = read_cluster(given)[0] if isinstance(given, Path) else given
        of_catalogue = [device.fingerprint.startswith(CATALOGUE) for device in cluster.devices]
        if not any(of_catalogue):
            return None
        if names is not None:
            raise FieldError("devices", "or a cluster, not both")
        if not all(of_catalogue):
            odd = cluster.devices[of_catalogue.index(False)].name
            where = f"'{given}'" if isinstance(given, Path) else "cluster"
            raise InputError(
                f"{where}: device '{odd}' is not of the catalogue, but others are; costs are "
                "measured for all devices or for none"
            )
        return cluster
    if names is None or not names.startswith(CATALOGUE):
        return None
    listed = [name.strip() for name in names.removeprefix(CATALOGUE).split(",")]
    if len(listed) == 1 and listed[0] not in device_names():
        return catalogue_cluster(listed[0])
    return catalogue_cluster(listed)


def default_names(runtime: str | None) -> str:
    """What is placed on where nobody says it: all that there is, or cores if it is one processor.

    Args:
        runtime: whose devices; None is OpenVINO's.
    """
    names = candidates(runtime)
    others = [name for name in names if not name.startswith("cpu")]
    cores = [name for name in names if name.startswith("cpu:")]
    if others or len(cores) < 2:
        return ",".join(["cpu", *others])
    return "cores"
