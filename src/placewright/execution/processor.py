"""The processor: usable cores, memory, a text for fingerprints, and workers on a core."""

from __future__ import annotations

import logging
import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from placewright.core.cluster import Device
from placewright.errors import InputError
from placewright.io.machine import memory_bytes, processor_quota

RAM = "ram"  # memory pool of the processor, and of each device that has no memory of its own
_LOG = logging.getLogger(__name__)
_CPU_INFO_KEYS = ("model name", "cpu family", "model\t", "stepping", "cache size")
_ARM_INFO_KEYS = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision")


def usable_cores() -> tuple[int, ...]:
    """Numbers of the logical cores that this process may use, ascending.

    A container may use fewer at a time than it sees: then there are so many, of different physical
    cores as far as possible.
    """
    cores = _allowed()
    most = max(1.0, processor_quota())
    if len(cores) <= most:
        return cores
    apart = _apart(cores)
    return tuple(sorted([*apart, *(core for core in cores if core not in apart)][: int(most)]))


def physical_cores() -> int:
    """Number of usable cores that share no execution units with each other, >= 1."""
    return max(1, len(_apart(usable_cores())))


def _apart(cores: Sequence[int]) -> tuple[int, ...]:
    """The first of those logical cores that share a physical one."""
    first: dict[str, int] = {}
    for core in cores:
        file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        first.setdefault(file.read_text().strip() if file.exists() else str(core), core)
    return tuple(first.values())


def processor_devices(whole: Mapping[str, str], core: Mapping[str, str]) -> tuple[Device, ...]:
    """``cpu``, and ``cpu:N``, the N-th core that this process may use.

    Args:
        whole: options of ``cpu``.
        core: options of every ``cpu:N``; option ``core`` with the core's number is added.
    """
    cpu = Device("cpu", memory_bytes=memory_bytes(), memory_domain="cpu", options=whole)
    return (
        cpu,
        *(
            replace(cpu, name=f"cpu:{number}", options={**core, "core": str(core_number)})
            for number, core_number in enumerate(usable_cores())
        ),
    )


_DIGITS = 9  # most of the number of a core


def processor_text(core: str | None = None) -> str:
    """Text that differs between different processors, and not between equal cores.

    Args:
        core: of a device that is one core; None for the whole processor.

    Raises:
        InputError: `core` is no number.
    """
    if core is not None and not (core.isascii() and core.isdigit() and len(core) <= _DIGITS):
        raise InputError(f"option 'core' of a device is the number of a core, got '{core:.40}'")
    cores = [str(usable) for usable in usable_cores()] if core is None else [core]
    text = "; ".join(_facts_of(cores, Path("/proc/cpuinfo")))
    text = text or platform.processor() or platform.machine()
    if core is None:
        kind = "" if may_use_all() else cores_text(_allowed())
        return f"{text}{kind}; {len(usable_cores())} cores"
    speed = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq")
    return f"{text}; {speed.read_text().strip() if speed.exists() else ''}"


def cores_text(cores: Sequence[int], folder: Path | None = None) -> str:
    """Text of how cores share physical ones, and of their highest frequencies.

    It is empty if none share one, and all of the machine have one frequency.

    Args:
        cores: numbers of logical cores; sets of the same kind have the same text.
        folder: of the system's files about processors.
    """
    folder = folder or Path("/sys/devices/system/cpu")
    siblings = [_read(folder / f"cpu{c}/topology/thread_siblings_list") or str(c) for c in cores]
    speeds = Counter(_read(folder / f"cpu{c}/cpufreq/cpuinfo_max_freq") for c in cores)
    every = {_read(file) for file in folder.glob("cpu[0-9]*/cpufreq/cpuinfo_max_freq")}
    text = ""
    if len(set(siblings)) < len(cores):
        shared = sorted(Counter(siblings).values(), reverse=True)
        text = f"; threads of physical cores {shared}"
    if len(every) > 1:
        text += f"; cores at kHz {dict(sorted(speeds.items()))}"
    return text


def may_use_all() -> bool:
    """True if this process may run on all cores of the machine."""
    return len(_allowed()) >= (os.cpu_count() or 1)


def _allowed() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _read(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


def _facts_of(cores: Sequence[str], info: Path) -> list[str]:
    """Facts about cores, once for each kind of core; those of the first for one without facts."""
    if not info.exists():
        return []
    facts_of: dict[str, str] = {}
    for block in info.read_text().split("\n\n"):
        lines = block.splitlines()
        facts = [line for line in lines if line.startswith(_CPU_INFO_KEYS + _ARM_INFO_KEYS)]
        number = next((line for line in lines if line.startswith("processor\t")), "")
        text = "; ".join(line.partition(":")[2].strip() for line in facts)
        facts_of[number.partition(":")[2].strip()] = text
    first = next(iter(facts_of.values()))
    return [text for text in dict.fromkeys(facts_of.get(core, first) for core in cores) if text]


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
