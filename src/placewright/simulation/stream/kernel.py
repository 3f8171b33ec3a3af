"""The compiled loop of a stream: each server takes the ready task of the oldest sample."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.simulation.compiled import compiled
from placewright.simulation.stream.tasks import TaskTables


@compiled
def play(
    tables: TaskTables, n_samples: int, in_flight: int, entry: FloatArray, begin: FloatArray
) -> None:
    """Simulate a stream: write when samples enter and when their tasks begin.

    A sample enters when fewer than `in_flight` are under way. All that ends at one instant is
    settled before anything begins. An idle server begins the ready task of the oldest sample, of
    one sample the first task. Of servers that never work at once, that with the oldest such task
    begins. Nothing is interrupted.

    Args:
        n_samples: >= 1.
        in_flight: >= 1.
        entry: (n_samples,) written.
        begin: (n_samples, n_tasks) written.
    """
    n_tasks = len(tables.seconds)
    slots = min(in_flight, n_samples)
    needed = np.empty((slots, n_tasks), np.int64)
    left = np.empty(slots, np.int64)
    slot_of = np.full(n_samples, -1, np.int64)
    waiting, size, first = _heaps(tables, slots)
    running = np.full(tables.n_servers, -1, np.int64)
    until = np.full(tables.n_servers, np.inf)
    entered = 0
    for slot in range(slots):
        _enter(tables, entered, slot, 0.0, entry, slot_of, needed, left)
        _offer_first(tables, entered, waiting, size, first)
        entered += 1
    now = 0.0
    while True:
        server = _next(tables, -1, running, waiting, size, first)
        while server >= 0:
            key = _pop(waiting, first[server], size, server)
            running[server] = key
            begin[key // n_tasks, key % n_tasks] = now
            until[server] = now + tables.seconds[key % n_tasks]
            server = _next(tables, server, running, waiting, size, first)
        now = until.min()
        if np.isinf(now):
            return
        for server in range(tables.n_servers):
            if until[server] != now:
                continue
            sample, task = running[server] // n_tasks, running[server] % n_tasks
            running[server] = -1
            until[server] = np.inf
            slot = slot_of[sample]
            for at in range(tables.next_ptr[task], tables.next_ptr[task + 1]):
                follower = tables.next_tasks[at]
                needed[slot, follower] -= 1
                if needed[slot, follower] == 0:
                    _push(tables, sample, follower, waiting, size, first)
            left[slot] -= 1
            if left[slot] == 0 and entered < n_samples:
                _enter(tables, entered, slot, now, entry, slot_of, needed, left)
                _offer_first(tables, entered, waiting, size, first)
                entered += 1


@compiled
def _next(
    tables: TaskTables,
    last: int,
    running: IntArray,
    waiting: IntArray,
    size: IntArray,
    first: IntArray,
) -> int:
    """The server that begins a task after server `last` did, -1 if none can.

    Those that work beside all others come first, in turn.
    """
    n_rivals = len(tables.rivals)
    is_over = last >= 0 and n_rivals > 0 and (tables.rivals == last).any()
    for server in range(tables.n_servers if is_over else last + 1, tables.n_servers):
        if running[server] >= 0 or size[server] == 0:
            continue
        if n_rivals == 0 or not (tables.rivals == server).any():
            return server
    found, oldest = -1, -1
    for at in range(n_rivals):
        server = tables.rivals[at]
        if running[server] >= 0 or size[server] == 0:
            continue
        is_free = True
        for other in range(n_rivals):
            if tables.excludes[at, other] and running[tables.rivals[other]] >= 0:
                is_free = False
        key = waiting[first[server]]
        if is_free and (found < 0 or key < oldest):
            found, oldest = server, key
    return found


@compiled
def _enter(
    tables: TaskTables,
    sample: int,
    slot: int,
    now: float,
    entry: FloatArray,
    slot_of: IntArray,
    needed: IntArray,
    left: IntArray,
) -> None:
    entry[sample] = now
    slot_of[sample] = slot
    needed[slot] = tables.n_needed
    left[slot] = len(tables.seconds)


@compiled
def _offer_first(
    tables: TaskTables, sample: int, waiting: IntArray, size: IntArray, first: IntArray
) -> None:
    for task in range(len(tables.seconds)):
        if tables.n_needed[task] == 0:
            _push(tables, sample, task, waiting, size, first)


@compiled
def _heaps(tables: TaskTables, slots: int) -> tuple[IntArray, IntArray, IntArray]:
    """A heap for each server: keys (sample, task) as one number, sizes, where each heap begins."""
    room = np.zeros(tables.n_servers + 1, np.int64)
    for task in range(len(tables.seconds)):
        for member in range(tables.n_members[task]):
            room[tables.first_server[task] + member + 1] += slots
    for server in range(tables.n_servers):
        room[server + 1] += room[server]
    return np.empty(room[-1], np.int64), np.zeros(tables.n_servers, np.int64), room


@compiled
def _push(
    tables: TaskTables,
    sample: int,
    task: int,
    waiting: IntArray,
    size: IntArray,
    first: IntArray,
) -> None:
    server = tables.first_server[task] + sample % tables.n_members[task]
    base, at = first[server], size[server]
    size[server] += 1
    key = sample * len(tables.seconds) + task
    while at > 0:
        parent = (at - 1) // 2
        if waiting[base + parent] <= key:
            break
        waiting[base + at] = waiting[base + parent]
        at = parent
    waiting[base + at] = key


@compiled
def _pop(waiting: IntArray, base: int, size: IntArray, server: int) -> int:
    """Take the smallest key off a heap."""
    smallest = waiting[base]
    size[server] -= 1
    last, stop, at = waiting[base + size[server]], size[server], 0
    while True:
        child = 2 * at + 1
        if child >= stop:
            break
        if child + 1 < stop and waiting[base + child + 1] < waiting[base + child]:
            child += 1
        if waiting[base + child] >= last:
            break
        waiting[base + at] = waiting[base + child]
        at = child
    waiting[base + at] = last
    return int(smallest)
