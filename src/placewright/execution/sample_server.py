"""What runs samples that follow each other, and what a library offers for them by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from placewright.core.arrays import FloatArray
from placewright.core.cluster import Device
from placewright.execution.runtime import HostArray, OpSegment


class SampleServer(Protocol):
    """A way to run the model for samples that follow each other; `close` ends it."""

    @property
    def burst(self) -> int:
        """Samples after which the pattern in which they are done repeats, >= 1."""
        ...

    def outcomes(self, samples: Iterable[Sequence[HostArray]]) -> Iterator[Any]:
        """What each sample gave, or why it failed, in their order; takes samples as they pass."""
        ...

    def close(self, timeout: float = 10.0) -> None:
        """End what is under way, after at most `timeout` seconds."""
        ...


@runtime_checkable
class MeasuresStreamMemory(Protocol):
    """A loaded model whose allocators tell how much memory a stream needs."""

    def stream_memory_peaks(
        self,
        segments: Sequence[OpSegment],
        devices: Sequence[Device],
        schedule: Sequence[tuple[int, int]],
    ) -> FloatArray:
        """Run samples in the order of a schedule, serially.

        Args:
            segments: of one sample.
            devices: ``segments[i].device`` indexes it.
            schedule: (sample, segment) as they begin; segment -1 says that the sample is done.

        Returns:
            Largest bytes in use at one time, shape (n_devices,).
        """
        ...


@runtime_checkable
class HasThroughputMode(Protocol):
    """A loaded model whose library has a mode of its own for samples that follow each other."""

    def throughput_device(self, device: Device, n_threads: int) -> Device:
        """The processor as `device`, with options that ask for the mode on so many cores."""
        ...

    def throughput_mode(self, device: Device, in_flight: int | None = None) -> SampleServer:
        """The unsplit model in that mode.

        Args:
            device: from `throughput_device`.
            in_flight: samples taken whose outputs were not fetched, at most; None is as many as
                pay.

        Raises:
            RuntimeFailure: the library refuses the model.
        """
        ...
