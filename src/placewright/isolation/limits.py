"""What an isolated process may use at most."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

_OPEN_FILES = 4096
_CPU_GRACE_SECONDS = 5


@dataclass(frozen=True)
class Limits:
    """Of one isolated process.

    Attributes:
        memory: bytes that it may allocate; mapped files do not count.
        cpu: seconds of all its threads together.
        files: bytes that any one file may have.
    """

    memory: float
    cpu: float
    files: float

    @classmethod
    def usual(cls) -> Limits:
        """Three quarters of the machine's memory, one hour on each core, files of 8 GiB."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(0.75 * memory, 3600.0 * (os.cpu_count() or 1), float(8 << 30))

    def apply(self) -> None:
        """To this process, for good.

        Raises:
            OSError, ValueError: the system refuses.
        """
        _lower(resource.RLIMIT_DATA, int(self.memory))
        seconds = max(1, int(self.cpu))  # then comes SIGXCPU, and SIGKILL where that is ignored
        _lower(resource.RLIMIT_CPU, seconds, seconds + _CPU_GRACE_SECONDS)
        _lower(resource.RLIMIT_FSIZE, int(self.files))
        _lower(resource.RLIMIT_NOFILE, _OPEN_FILES)
        _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, soft: int, hard: int | None = None) -> None:
    """Set both limits, where the process does not have lower ones."""
    _, held = resource.getrlimit(which)
    most = soft if hard is None else hard
    limit = most if held == resource.RLIM_INFINITY else min(most, held)
    resource.setrlimit(which, (min(soft, limit), limit))
