"""Open the workers that a request names; their modules are imported only then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from placewright.errors import FieldError

if TYPE_CHECKING:
    from placewright.workers.interface import Workers

_MOST_PROCESSES, _PER_PROCESSOR = 64, 4  # each takes two hundred MiB with its libraries


def open_workers(count: int | None, ray: str | None = None, *, apart: bool = False) -> Workers:
    """Open workers for a block; see `Workers`.

    Args:
        count: processes, or tasks at a time on a cluster at most; None is one, or all of a cluster.
        ray: address of a Ray cluster; ``"auto"`` is the one that ``RAY_ADDRESS`` names or that runs
            here, else one that is started here; ``"local"`` one that is started here; None uses
            none.
        apart: a single worker is another process, too.

    Raises:
        FieldError: `count` is below 1, or more processes than this machine can be asked for.
        MissingExtraError: Ray is not installed.
        InputError: there is no such cluster, or its nodes have other versions.
    """
    if count is not None and count < 1:
        raise FieldError("workers", f"expects a whole number >= 1, got {count}")
    if ray is not None:
        from placewright.workers.ray_tasks import RayWorkers

        return RayWorkers(ray, count)
    require_processes(count)
    from placewright.workers.interface import ThisProcess
    from placewright.workers.processes import Processes

    if count is None or count == 1:
        return Processes(1, threads=None) if apart else ThisProcess()
    return Processes(count)


def require_processes(count: int | None) -> None:
    """Refuse more processes than this machine can be asked for.

    Raises:
        FieldError: there are more.
    """
    most = max(_MOST_PROCESSES, _PER_PROCESSOR * (os.cpu_count() or 1))
    if count is not None and count > most:
        raise FieldError("workers", f"can be at most {most} processes here, got {count}")
