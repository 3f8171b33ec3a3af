"""This machine's devices and the links between them, measured, as a cluster."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue

from placewright.core.cluster import Cluster, Device, Link
from placewright.errors import ClusterError, UnknownNameError
from placewright.execution.runtime import MeasuresTransfers, Runtime

_SMALL, _LARGE = 4 * 1024, 16 * 1024 * 1024
_NO_OPTIONS: Mapping[str, str] = {}


def discover(
    devices: str | Sequence[str],
    runtime: Runtime,
    *,
    options: Mapping[str, str] = _NO_OPTIONS,
) -> Cluster:
    """A cluster of devices of this machine.

    Args:
        devices: ``"cpu"`` (all threads as one device), ``"cores"`` (one single-thread device per
            core), or names such as ``["cpu:0", "cpu:1", "GPU.0"]`` (also as one text with commas).
        runtime: that will execute plans on them.
        options: for every device, for example ``{"INFERENCE_PRECISION_HINT": "bf16"}``.

    Returns:
        The devices with measured links between every pair, in both directions, and with the host.

    Raises:
        UnknownNameError: there is no such device; the message lists those that there are.
        ClusterError: two devices overlap: one core, or the whole CPU, would be used twice.
    """
    known = {device.name: device for device in runtime.discover()}
    chosen = [_named(known, name) for name in _names(devices, known)]
    chosen = [
        runtime.completed(replace(device, options={**device.options, **options}, fingerprint=""))
        for device in chosen
    ]
    check_no_overlap(chosen)
    return Cluster(tuple(chosen), tuple(measure_links(chosen, runtime)))


def completed_cluster(cluster: Cluster, runtime: Runtime) -> Cluster:
    """A cluster from a file with what it leaves open.

    Options and fingerprints come by device name, memory and memory domain from the machine's device
    of that name, or from its whole CPU. A file without any link gets measured ones.

    Raises:
        UnknownNameError: the runtime has no such device here.
        ClusterError: two devices overlap.
    """
    known = {device.name: device for device in runtime.discover()}
    devices = tuple(
        _with_memory(runtime.completed(device), known.get(device.name, known.get(device.kind)))
        for device in cluster.devices
    )
    check_no_overlap(devices)
    links = cluster.links or tuple(measure_links(devices, runtime, host=cluster.host))
    return replace(cluster, devices=devices, links=links)


def _with_memory(device: Device, machine: Device | None) -> Device:
    """A device of a file with the memory of the machine's, where the file names none."""
    if machine is None:
        return device
    is_open = math.isinf(device.memory_bytes)
    return replace(
        device,
        memory_bytes=machine.memory_bytes if is_open else device.memory_bytes,
        memory_domain=device.memory_domain or machine.memory_domain,
    )


def check_no_overlap(devices: Sequence[Device]) -> None:
    """Refuse devices that would share a core.

    Raises:
        ClusterError: naming the two.
    """
    for a, b in itertools.combinations(devices, 2):
        if a.kind != "cpu" or b.kind != "cpu":
            overlap = a.name == b.name
        else:
            cores = (a.options.get("core"), b.options.get("core"))
            overlap = None in cores or cores[0] == cores[1]
        if overlap:
            raise ClusterError(
                f"devices '{a.name}' and '{b.name}' overlap: they share processor cores; "
                "take single cores (argument `devices` cores) or the whole CPU (argument "
                "`devices` cpu)"
            )


def measure_links(devices: Sequence[Device], runtime: Runtime, *, host: str = "host") -> list[Link]:
    """Links between every pair of devices and with the host, latency and bandwidth measured.

    Within one memory a tensor is handed over, not copied: its latency is that of waking the other
    device's worker, its bandwidth infinite. The host is woken by the last op, which costs nothing.
    """
    return same_between_alike(list(_measured_links(devices, runtime, host)), devices)


def same_between_alike(links: Sequence[Link], devices: Sequence[Device]) -> list[Link]:
    """The links, those between cores of one kind and one memory with the median of their latencies.

    Such cores may take turns as a group, which they could not if each measurement's own noise told
    them apart.
    """
    kinds = {
        one.name: (one.fingerprint, one.memory_domain)
        for one in devices
        if one.kind == "cpu" and one.fingerprint
    }

    def ends(link: Link) -> tuple[object, object]:
        return kinds.get(link.source, link.source), kinds.get(link.destination, link.destination)

    latencies: dict[tuple[object, object], list[float]] = {}
    for link in links:
        latencies.setdefault(ends(link), []).append(link.latency_seconds)
    return [
        replace(link, latency_seconds=statistics.median(latencies[ends(link)])) for link in links
    ]


def _measured_links(devices: Sequence[Device], runtime: Runtime, host: str) -> Iterable[Link]:
    for source, destination in itertools.permutations(devices, 2):
        wake = wake_seconds(source, destination)
        latency, bandwidth = _copy(source, destination, runtime)
        yield Link(source.name, destination.name, wake + latency, bandwidth)
    for device in devices:
        if device.name == host:
            continue
        near = Device("host memory", "cpu")
        latency, bandwidth = _copy(near, device, runtime)
        yield Link(host, device.name, wake_seconds(None, device) + latency, bandwidth)
        latency, bandwidth = _copy(device, near, runtime)
        yield Link(device.name, host, latency, bandwidth)


def wake_seconds(source: Device | None, destination: Device, *, rounds: int = 200) -> float:
    """One way of a message between two worker threads, half of the median round trip.

    Args:
        source: None for a thread that is bound to no core.
        destination: where the other thread is.
        rounds: messages there and back.
    """
    there: SimpleQueue[bool] = SimpleQueue()
    back: SimpleQueue[float] = SimpleQueue()

    def answer() -> None:
        on_core(destination)
        while there.get():
            back.put(0.0)

    seconds: list[float] = []

    def ask() -> None:
        on_core(source)
        for _ in range(rounds):
            start = time.perf_counter()
            there.put(True)
            back.get()
            seconds.append(time.perf_counter() - start)
        there.put(False)

    _run_together(answer, ask)
    return statistics.median(seconds) / 2


def _run_together(*functions: Callable[[], None]) -> None:
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def on_core(device: Device | None) -> None:
    """Bind this thread to the core of a device, where it has one."""
    core = None if device is None else device.options.get("core")
    if core is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # a core that we may not use: measure where we are
            os.sched_setaffinity(0, {int(core)})


def _copy(source: Device, destination: Device, runtime: Runtime) -> tuple[float, float]:
    """Latency and bandwidth of copying between two memories; (0, inf) within one."""
    if not isinstance(runtime, MeasuresTransfers):
        return 0.0, float("inf")
    small = runtime.transfer_seconds(source, destination, _SMALL)
    if small == 0:
        return 0.0, float("inf")
    large = runtime.transfer_seconds(source, destination, _LARGE)
    per_byte = max((large - small) / (_LARGE - _SMALL), 1e-15)
    return max(small - _SMALL * per_byte, 0.0), 1.0 / per_byte


def _names(devices: str | Sequence[str], known: Mapping[str, Device]) -> list[str]:
    if not isinstance(devices, str):
        return list(devices)
    if devices == "cores":
        return [name for name in known if name.startswith("cpu:")]
    return [name.strip() for name in devices.split(",") if name.strip()]


def _named(known: Mapping[str, Device], name: str) -> Device:
    if name not in known:
        raise UnknownNameError("device", name, list(known))
    return known[name]
