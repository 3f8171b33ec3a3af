"""Usable cores of a container, and texts that tell processors apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.execution import processor
from placewright.execution.processor import (
    cores_text,
    processor_devices,
    processor_text,
    usable_cores,
)

X86 = "processor\t: {0}\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: {1}\nbugs\t: none\n"
ARM = (
    "processor\t: {0}\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
    "CPU variant\t: 0x1\nCPU part\t: {1}\nCPU revision\t: 1\n"
)


@pytest.mark.parametrize("core", ["many", "", "-1", "../0", "1" * 10, "\u0663"])
def test_a_core_is_a_number(core: str) -> None:
    with pytest.raises(InputError, match="option 'core' of a device is the number of a core"):
        processor_text(core)


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.9, 1), (2.0, 2), (3.0, 3), (99.0, 4)])
def test_a_container_has_as_many_cores_as_its_quota(
    quota: float, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container of two processors on a machine of 64 had 64 devices, all of them throttled."""
    monkeypatch.setattr(processor, "processor_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {4, 5, 6, 7}, raising=False)
    assert len(usable_cores()) == cores
    assert len(processor_devices({}, {})) == 1 + cores
    assert processor_text().endswith(f"; {cores} cores")


def test_cores_of_a_quota_are_different_physical_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "processor_quota", lambda: 2.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(processor, "_apart", lambda cores: tuple(cores[::2]))
    assert usable_cores() == (0, 2)


def test_the_memory_of_a_container_is_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "memory_bytes", lambda: 2.0**31)
    assert {device.memory_bytes for device in processor_devices({}, {})} == {2.0**31}


def text_of(info: str, core: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Text of a processor that the system describes like this; all texts end in the same way."""
    file = folder / "cpuinfo"
    file.write_text(info)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    named = {"/proc/cpuinfo": file}
    monkeypatch.setattr(processor, "Path", lambda name: named.get(name, folder / "none"))
    return processor_text(core)


def test_processors_of_arm_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives them no model name: all of them had one text, the architecture's."""

    def text(parts: tuple[str, str], core: str | None = None) -> str:
        blocks = "\n".join(ARM.format(number, part) for number, part in enumerate(parts))
        return text_of(blocks, core, tmp_path, monkeypatch)

    assert text(("0xd40", "0xd40")) == "0x41; 8; 0x1; 0xd40; 1; 2 cores"
    assert text(("0xd4f", "0xd4f")) != text(("0xd40", "0xd40"))
    mixed = ("0xd05", "0xd0a")  # small and large cores
    assert text(mixed) == "0x41; 8; 0x1; 0xd05; 1; 0x41; 8; 0x1; 0xd0a; 1; 2 cores"
    assert text(mixed, "0") != text(mixed, "1")
    assert text(mixed, "9") == text(mixed, "0")  # the system does not list it


def test_equal_cores_of_x86_have_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has named devices in stores and plans since before other processors were told apart."""
    info = "\n".join(X86.format(number, "Some CPU @ 2 GHz") for number in range(2))
    assert text_of(info, None, tmp_path, monkeypatch) == "6; 85; Some CPU @ 2 GHz; 2 cores"
    assert text_of(info, "1", tmp_path, monkeypatch) == "6; 85; Some CPU @ 2 GHz; "


def machine(folder: Path, siblings: list[str], kilohertz: list[int]) -> Path:
    """Files of a system about its processors."""
    for core, (text, speed) in enumerate(zip(siblings, kilohertz, strict=True)):
        for name, content in (
            ("topology/thread_siblings_list", text),
            ("cpufreq/cpuinfo_max_freq", str(speed)),
        ):
            file = folder / f"cpu{core}" / name
            file.parent.mkdir(parents=True)
            file.write_text(f"{content}\n")
    return folder


def test_threads_of_one_physical_core_are_told_from_two_cores(tmp_path: Path) -> None:
    """Costs of `taskset -c 0,1` were taken for `taskset -c 0,2`."""
    folder = machine(tmp_path, ["0-1", "0-1", "2-3", "2-3"], [3_000_000] * 4)
    assert cores_text([0, 2], folder) == cores_text([1, 3], folder) == ""
    assert cores_text([0, 1], folder) == cores_text([2, 3], folder)
    assert cores_text([0, 1], folder) == "; threads of physical cores [2]"
    assert cores_text([0, 2, 3], folder) == "; threads of physical cores [2, 1]"


def test_fast_cores_are_told_from_slow_ones(tmp_path: Path) -> None:
    """Both kinds of a hybrid processor have the same name in the system's files."""
    folder = machine(tmp_path, ["0", "1", "2", "3"], [5_000_000, 5_000_000, 3_900_000, 3_900_000])
    assert cores_text([0, 1], folder) == "; cores at kHz {'5000000': 2}"
    assert cores_text([2, 3], folder) == "; cores at kHz {'3900000': 2}"
    assert cores_text([0, 2], folder) == cores_text([1, 3], folder)


def test_only_a_part_of_the_machine_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices of stored plans keep their fingerprints where all cores are used."""
    folder = machine(tmp_path, ["0-1", "0-1", "2-3", "2-3"], [3_000_000] * 4)
    monkeypatch.setattr(
        processor, "Path", lambda name: folder if name == "/sys/devices/system/cpu" else Path(name)
    )
    monkeypatch.setattr(processor, "processor_quota", lambda: 99.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    texts = {}
    for cores in ((0, 1), (0, 2), (0, 1, 2, 3)):
        allowed = set(cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, now=allowed: now, raising=False)
        texts[cores] = processor_text()
    plain = texts[0, 2].removesuffix("; 2 cores")
    assert texts[0, 1] == f"{plain}; threads of physical cores [2]; 2 cores"
    assert texts[0, 1, 2, 3] == f"{plain}; 4 cores"
