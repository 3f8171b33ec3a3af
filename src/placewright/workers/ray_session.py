"""A connection to a Ray cluster: one that is there, or one of this machine for a while."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

from placewright.errors import InputError, MissingExtraError

HERE = "local"  # address of a cluster that is started here
ANY = "auto"  # of the one that `RAY_ADDRESS` names or that runs here, else of one started here
ADDRESS = r"(?:ray://)?(?:[\w.\-]+|\[[0-9a-fA-F:]+\]):\d{1,5}"  # of one that runs already
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def connect(address: str, cpus: int | None) -> tuple[Any, bool]:
    """Connect; return the module `ray`, and True if this call made the connection.

    Args:
        address: ``HOST:PORT`` or ``ray://HOST:PORT`` of a cluster, `HERE`, or `ANY`.
        cpus: of a cluster that is started here; None is all of this machine.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: there is no such cluster, or its nodes have other versions.
    """
    from placewright.workers.ray_nodes import nodes_of, require_same_versions

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "work on a Ray cluster") from None
    if ray.is_initialized():
        require_same_versions(ray, nodes_of(ray))
        return ray, False
    if address == ANY:
        address = "auto" if _runs_here(ray) else HERE
    _start(ray, address, cpus)
    try:
        if address != HERE:
            require_same_versions(ray, nodes_of(ray))
    except BaseException:
        ray.shutdown()
        raise
    return ray, True


def _runs_here(ray: Any) -> bool:
    """True if Ray finds a cluster by itself."""
    if os.environ.get("RAY_ADDRESS"):
        return True
    try:
        return bool(ray._private.services.find_gcs_addresses())
    except (AttributeError, OSError):
        return False


def _start(ray: Any, address: str, cpus: int | None) -> None:
    from placewright.workers.served import thread_variables

    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    local = {"num_cpus": cpus, "include_dashboard": False} if address == HERE else {}
    try:
        ray.init(
            address=address,
            configure_logging=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": thread_variables(1)},
            **local,
        )
    except SystemExit:  # of Ray's own handler: the signal is for who was asked first
        _restore(handlers)
        signal.raise_signal(signal.SIGTERM)
        raise
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        # Ray itself sends its token to no address that somebody names, unless it is told to.
        token = (
            "" if "RAY_AUTH_MODE" in os.environ else "; if it asks for one, set RAY_AUTH_MODE=token"
        )
        raise InputError(f"no Ray cluster answers at '{address}': {reason}{token}") from None
    finally:
        _restore(handlers)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    """Restore the handlers of signals: Ray's own handler of SIGTERM ends in a loop of faults."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
