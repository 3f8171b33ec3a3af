"""The processor: usable cores, memory, a text for fingerprints, and workers on a core."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from placewright.core.cluster import Device

RAM = "ram"  # memory pool of the processor, and of each device that has no memory of its own
_LOG = logging.getLogger(__name__)
_CPU_INFO_KEYS = ("model name", "cpu family", "model\t", "stepping", "cache size")


def usable_cores() -> tuple[int, ...]:
    """Numbers of the logical cores that this process may use, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Number of usable cores that share no execution units with each other, >= 1."""
    siblings: dict[str, None] = {}
    for core in usable_cores():
        file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings[file.read_text().strip() if file.exists() else str(core)] = None
    return max(1, len(siblings))


def _total_memory_bytes() -> float:
    """Memory of the machine; inf if the system does not report it."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


def processor_devices(whole: Mapping[str, str], core: Mapping[str, str]) -> tuple[Device, ...]:
    """``cpu``, and ``cpu:N``, the N-th core that this process may use.

    Args:
        whole: options of ``cpu``.
        core: options of every ``cpu:N``; option ``core`` with the core's number is added.
    """
    memory = _total_memory_bytes()
    cpu = Device("cpu", memory_bytes=memory, memory_domain="cpu", options=whole)
    return (
        cpu,
        *(
            replace(cpu, name=f"cpu:{number}", options={**core, "core": str(core_number)})
            for number, core_number in enumerate(usable_cores())
        ),
    )


def processor_text(core: str | None = None) -> str:
    """Text that differs between different processors, and not between equal cores.

    Args:
        core: of a device that is one core; None for the whole processor.
    """
    text = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().split("\n\n")[0].splitlines()
        facts = [line for line in lines if line.startswith(_CPU_INFO_KEYS)]
        text = "; ".join(line.partition(":")[2].strip() for line in facts)
    text = text or platform.processor() or platform.machine()
    if core is None:
        return f"{text}; {len(usable_cores())} cores"
    speed = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq")
    return f"{text}; {speed.read_text().strip() if speed.exists() else ''}"


def stay_on(core: str | None, device_name: str) -> Callable[[], None]:
    """A function that binds the thread that calls it to a core; with None it does nothing.

    Args:
        core: number of a logical core, as text.
        device_name: for the warning if that core may not be used.
    """

    def pin() -> None:
        if core is None or not hasattr(os, "sched_setaffinity"):
            return
        try:
            os.sched_setaffinity(0, {int(core)})
        except OSError as error:
            _LOG.warning("'%s' cannot stay on core %s: %s", device_name, core, error)

    return pin
