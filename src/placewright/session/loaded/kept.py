"""Plans that `pw.run` keeps loaded, within a limit of bytes."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from weakref import WeakKeyDictionary, WeakValueDictionary

from placewright.core.plan import Plan
from placewright.core.quantities import parse_bytes
from placewright.errors import InputError
from placewright.execution.requests import numbered
from placewright.execution.runtime import LoadedModel
from placewright.files.problem_file import content_sha256
from placewright.session.loaded.plans import LoadedPlan
from placewright.session.models import stamp_of

LIMIT_VARIABLE = "PLACEWRIGHT_KEPT_PLANS"  # bytes, as in "2GiB"; 0 keeps none
_DEFAULT_BYTES = float(2**30)

_Key = tuple[str, object]


class KeptPlans:
    """Loaded plans within a limit of bytes; the least recently used are closed first.

    The key of a plan is its content, with time, size and place of its model's files, or the state
    of its module's weights. Plans that change state as they run are loaded for each use.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plans: dict[_Key, LoadedPlan] = {}  # the one used last stands last
        self._loading: WeakValueDictionary[_Key, threading.Lock] = WeakValueDictionary()
        self._hashes: WeakKeyDictionary[Plan, str] = WeakKeyDictionary()
        self._numbers: dict[str, Iterator[int]] = {}  # of the calls of each plan, by its hash

    @contextmanager
    def using(self, plan: Plan, load: Callable[[], LoadedModel]) -> Iterator[LoadedPlan]:
        """Give the loaded plan for a block, in which it is not closed.

        A plan whose use failed, other than by wrong inputs, is loaded again for the next use; its
        last user closes it.

        Args:
            load: gives its model, where the plan is not kept.
        """
        with ExitStack() as closing, ExitStack() as held:
            with self._lock:
                source = plan.problem.source
                key = (self._hash(plan), stamp_of("" if source is None else source.path))
                turn = self._loading.setdefault(key, threading.Lock())
            with turn:  # other plans are used meanwhile
                loaded = self._loaded(key, plan, load, held)
            closing.callback(self._close_unless_kept, loaded)
            try:
                yield loaded
            except (InputError, GeneratorExit):
                raise  # the plan is as good as before
            except BaseException:
                with self._lock:
                    if self._plans.get(key) is loaded:
                        del self._plans[key]
                raise

    def counting(self, plan: Plan) -> AbstractContextManager[None]:
        """Let plans that are loaded inside go on counting calls, by which random operators draw.

        So a plan that is loaded for each call does not draw the same numbers in each.
        """
        with self._lock:
            return numbered(self._numbers.setdefault(self._hash(plan), itertools.count()))

    def clear(self) -> None:
        """Close all plans that are kept."""
        with self._lock:
            plans = list(self._plans.values())
            self._plans.clear()
            self._numbers.clear()
        for loaded in plans:
            loaded.close()

    def _close_unless_kept(self, loaded: LoadedPlan) -> None:
        with self._lock:
            is_needed = loaded.is_in_use or any(loaded is kept for kept in self._plans.values())
        if not is_needed:
            loaded.close()

    def _loaded(
        self, key: _Key, plan: Plan, load: Callable[[], LoadedModel], held: ExitStack
    ) -> LoadedPlan:
        """The loaded plan, held; it stays for the next call if it is among those kept."""
        with self._lock:
            known = self._plans.pop(key, None)
            if known is not None:
                self._plans[key] = known
                held.enter_context(known.in_use())
                return known
            for other in [other for other in self._plans if other[0] == key[0]]:
                self._close_unless_kept(self._plans.pop(other))  # its model has changed
        limit = _limit()  # refuses a wrong one before the plan is loaded
        model = load()
        if plan.problem.objective == "training":  # each call does the first step
            loaded, stays = LoadedPlan(plan, model), False
        else:
            with self.counting(plan):
                loaded = LoadedPlan(plan, model)
            stays = not model.keeps_state and loaded.weight <= limit
        with self._lock:
            held.enter_context(loaded.in_use())
            if stays:
                self._plans[key] = loaded
                self._shrink(limit)
        return loaded

    def _shrink(self, limit: float) -> None:
        """Close plans beyond the limit, except for the newest and for those in use."""
        held = sum(plan.weight for plan in self._plans.values())
        for key in list(self._plans)[:-1]:
            if held > limit and not self._plans[key].is_in_use:
                loaded = self._plans.pop(key)
                held -= loaded.weight
                loaded.close()

    def _hash(self, plan: Plan) -> str:
        if plan not in self._hashes:
            placement, measured = plan.placement, plan.measured
            order = None if placement.order is None else placement.order.tolist()
            recommended = None if measured is None else measured.recommendation
            asked = (placement.device_of.tolist(), order, plan.runtime, recommended, plan.in_flight)
            text = f"{content_sha256(plan.problem)} {asked!r}"
            self._hashes[plan] = hashlib.sha256(text.encode()).hexdigest()
        return self._hashes[plan]


def _limit() -> float:
    """Bytes that plans may take; raises InputError if the variable holds no number of bytes."""
    text = os.environ.get(LIMIT_VARIABLE)
    try:
        return _DEFAULT_BYTES if text is None else parse_bytes(text)
    except InputError as error:
        raise InputError(f"environment variable {LIMIT_VARIABLE}: {error}") from None


KEPT = KeptPlans()
