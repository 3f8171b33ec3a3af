"""The kernel of the dynamic program: a walk over nested pairs of ideals that may still improve.

dp[m][J] = min over ideals I in J and kinds k of max(dp[m - k][I], load_k(J - I)), where m counts
the devices of each pool in use (Tarnawski et al. 2020, section 5, there for one kind of accelerator
and CPUs). Without replication each kind is a pool. With replicated stages, kinds are the groups of
one device, two, ... that a pool can form, and m - k takes as many off. From every ideal I the
supersets J are visited depth first, one item at a time, each once; the load of J - I is updated by
what the item changes, and stored for the way back: a difference would keep the rounding of every
item that has left. A branch ends where compute or resident bytes, which only grow, leave no kind
below the incumbent. A state (m, I) is dropped if the free devices cannot carry the remaining items,
each at its cheapest, below the incumbent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.simulation.compiled import compiled


class KernelModel(NamedTuple):
    """`LoadModel` as plain arrays.

    The kernel unpacks the tuples once: in Numba every access to a tuple of arrays costs two atomic
    reference counts, which would double the time of a visit.
    """

    seconds: FloatArray  # (n_items, n_kinds); 0 if the kind may not run the item
    barred: IntArray  # (n_items, n_kinds): 1 if the kind may not run the item
    receive: FloatArray  # (n_tensors, n_kinds)
    send: FloatArray  # (n_tensors, n_kinds)
    memory: FloatArray  # (n_kinds,)
    overlaps: BoolArray  # (n_kinds,)
    input_ptr: IntArray
    inputs: IntArray
    output_ptr: IntArray
    outputs: IntArray
    n_consumers: IntArray  # (n_tensors,)
    weight_ptr: IntArray
    weights: IntArray
    weight_bytes: FloatArray


class KernelStates(NamedTuple):
    """Counts of used devices, as mixed-radix numbers, and the best values.

    States are numbered with pool 0 fastest; ``step[p]`` is what one device of pool p adds,
    ``stride[k]`` what one of kind k adds, which may take several devices of its pool.
    """

    n_used: IntArray  # (n_states, n_pools): devices of each pool that are in use
    step: IntArray  # (n_pools,)
    has_room: BoolArray  # (n_states, n_kinds): one more device of the kind may be used
    stride: IntArray  # (n_kinds,)
    capacity: FloatArray  # (n_states,): weighted devices that are left
    idle_load: FloatArray  # (n_states,): largest load of a device that is not in use
    work: FloatArray  # (n_items,): weighted least seconds of each item
    value: FloatArray  # (n_ideals, n_states)
    previous: IntArray  # (n_ideals, n_states): ideal I behind the value
    last_kind: IntArray  # (n_ideals, n_states): kind that carries J - I


class GrowingSet(NamedTuple):
    """The set J - I while items enter and leave it, and its sums at each depth of the branch.

    Depth 0 is the empty set, whose transfers are those of an idle device.
    """

    compute: FloatArray  # (n_items + 1, n_kinds)
    n_barred: IntArray  # (n_kinds,): items inside that the kind may not run
    transfers: FloatArray  # (n_items + 1, n_kinds)
    resident: FloatArray  # (n_items + 1,): bytes
    n_inside: IntArray  # (n_tensors,): consumers inside
    producer_inside: BoolArray  # (n_tensors,)
    weight_uses: IntArray  # (n_weights,)


@compiled
def _add(  # type: ignore[no-untyped-def]
    item, input_ptr, inputs, output_ptr, outputs, n_consumers,
    receive, send, n_inside, producer_inside, transfers,
) -> None:  # fmt: skip
    """Update the transfers of the set for `item` entering it."""
    n_kinds = len(transfers)
    for at in range(input_ptr[item], input_ptr[item + 1]):
        tensor = inputs[at]
        n_inside[tensor] += 1
        if producer_inside[tensor]:
            if n_inside[tensor] == n_consumers[tensor]:
                for k in range(n_kinds):
                    transfers[k] -= send[tensor, k]
        elif n_inside[tensor] == 1:
            for k in range(n_kinds):
                transfers[k] += receive[tensor, k]
    for at in range(output_ptr[item], output_ptr[item + 1]):
        tensor = outputs[at]
        producer_inside[tensor] = True
        if n_inside[tensor] > 0:
            for k in range(n_kinds):
                transfers[k] -= receive[tensor, k]
        if n_inside[tensor] < n_consumers[tensor]:
            for k in range(n_kinds):
                transfers[k] += send[tensor, k]


@compiled
def _remove(  # type: ignore[no-untyped-def]
    item, input_ptr, inputs, output_ptr, outputs, weight_ptr, weights,
    n_inside, producer_inside, uses,
) -> None:  # fmt: skip
    """Undo the counts of `_add` and `_add_weights` for `item` leaving the set."""
    for at in range(output_ptr[item], output_ptr[item + 1]):
        producer_inside[outputs[at]] = False
    for at in range(input_ptr[item], input_ptr[item + 1]):
        n_inside[inputs[at]] -= 1
    for at in range(weight_ptr[item], weight_ptr[item + 1]):
        uses[weights[at]] -= 1


@compiled
def _add_weights(item, weight_ptr, weights, weight_bytes, uses) -> float:  # type: ignore[no-untyped-def]
    """Bytes that become resident as `item` enters."""
    added = 0.0
    for at in range(weight_ptr[item], weight_ptr[item + 1]):
        weight = weights[at]
        if uses[weight] == 0:
            added += weight_bytes[weight]
        uses[weight] += 1
    return added


@compiled
def remaining_work(indptr, added, reached, work) -> FloatArray:  # type: ignore[no-untyped-def]
    """Weighted least seconds of the items outside each ideal, shape (n_ideals,).

    Reduced by a billionth of the total, so that rounding never prunes.
    """
    n_ideals = len(indptr) - 1
    left = np.zeros(n_ideals)
    left[0] = work.sum()
    for ideal in range(n_ideals):
        for at in range(indptr[ideal], indptr[ideal + 1]):
            left[reached[at]] = left[ideal] - work[added[at]]
    return np.maximum(left - 1e-9 * left[0], 0.0)  # type: ignore[no-any-return]


@compiled
def _open_states(  # type: ignore[no-untyped-def]
    value, n_used, step, capacity, idle_load, left, bound, alive
) -> bool:
    """Mark the states of an ideal that may still lead below `bound`; True if any.

    A state that is not better than one with fewer devices is left out, unless a device that only
    it uses would carry a load when idle.
    """
    n_states, n_pools = n_used.shape
    least = np.empty(n_states)  # over all states with no more devices of any pool
    is_any_alive = False
    for s in range(n_states):
        fewer = np.inf
        for p in range(n_pools):
            if n_used[s, p] > 0 and idle_load[s - step[p]] <= idle_load[s]:
                fewer = min(fewer, least[s - step[p]])
        least[s] = min(fewer, value[s])
        too_much = left > capacity[s] * bound  # False without a bound (0 * inf)
        alive[s] = value[s] < bound and value[s] < fewer and not too_much
        is_any_alive |= alive[s]
    return is_any_alive


@compiled
def _relax(  # type: ignore[no-untyped-def]
    kind, load, origin, ideal, left, bound, alive, has_room, stride, capacity,
    value, previous, last_kind, idle_load,
) -> float:  # fmt: skip
    """Try the set `ideal` - `origin` on one more device of `kind` in every open state.

    Returns:
        The smallest value that a state of `ideal` got, inf if none improved.
    """
    least = np.inf
    for s in range(len(alive)):
        if not (alive[s] and has_room[s, kind]):
            continue
        t = s + stride[kind]
        new = max(value[origin, s], load, idle_load[t])
        if new < value[ideal, t] and new < bound and not left > capacity[t] * bound:
            value[ideal, t] = new
            previous[ideal, t] = origin
            last_kind[ideal, t] = kind
            least = min(least, new)
    return least


@compiled
def _offer(  # type: ignore[no-untyped-def]
    origin, target, compute, n_barred, resident, transfers, memory, overlaps, usable,
    left, is_whole, states, alive, none, bound,
) -> tuple[float, bool]:  # fmt: skip
    """Try a set on every kind of device; return the new bound and if a larger set may fit."""
    _, _, has_room, stride, capacity, idle_load, _, value, previous, last_kind = states
    may_grow = False
    for k in range(len(memory)):
        fits = usable[k] and n_barred[k] == 0 and resident <= memory[k]
        if not fits or compute[k] >= bound * (1 + 1e-9):
            continue
        may_grow = True
        load = max(compute[k], transfers[k]) if overlaps[k] else compute[k] + transfers[k]
        if load < bound:
            least = _relax(
                k, load, origin, target, left, bound, alive, has_room, stride, capacity,
                value, previous, last_kind, idle_load if is_whole else none,
            )  # fmt: skip
            bound = min(bound, least) if is_whole else bound
    return bound, may_grow


@compiled
def _extend(  # type: ignore[no-untyped-def]
    origin, lattice, model, growing, states, open_, stacks, seen, bound,
) -> tuple[float, int]:  # fmt: skip
    """Visit all supersets of `origin` that may matter; return the new bound and their number."""
    indptr, added, reached, left = lattice
    (
        seconds, barred, receive, send, memory, overlaps, input_ptr, inputs, output_ptr, outputs,
        n_consumers, weight_ptr, weights, weight_bytes,
    ) = model  # fmt: skip
    compute, n_barred, transfers, resident, n_inside, producer_inside, uses = growing
    alive, usable = open_
    none = np.zeros(len(states[4]))
    path, position, entered = stacks
    visits, depth = 0, 0
    path[0], position[0] = origin, indptr[origin]
    while depth >= 0:
        at = position[depth]
        if at == indptr[path[depth] + 1]:  # 1. Branch done: step back.
            if depth > 0:
                item = entered[depth]
                n_barred -= barred[item]
                _remove(
                    item, input_ptr, inputs, output_ptr, outputs, weight_ptr, weights,
                    n_inside, producer_inside, uses,
                )  # fmt: skip
            depth -= 1
            continue
        position[depth] += 1
        target = reached[at]
        if seen[target] == origin:
            continue
        # 2. A new set: add the item.
        seen[target], item = origin, added[at]
        visits, depth = visits + 1, depth + 1
        for k in range(len(memory)):
            compute[depth, k] = compute[depth - 1, k] + seconds[item, k]
            transfers[depth, k] = transfers[depth - 1, k]
        n_barred += barred[item]
        more = _add_weights(item, weight_ptr, weights, weight_bytes, uses)
        resident[depth] = resident[depth - 1] + more
        _add(
            item, input_ptr, inputs, output_ptr, outputs, n_consumers,
            receive, send, n_inside, producer_inside, transfers[depth],
        )  # fmt: skip
        # 3. Try it on every kind that it fits.
        bound, may_grow = _offer(
            origin, target, compute[depth], n_barred, resident[depth], transfers[depth], memory,
            overlaps, usable, left[target], target == len(indptr) - 2, states, alive, none, bound,
        )  # fmt: skip
        # 4. Go deeper if a larger set may fit; else the next turn of the loop steps back.
        path[depth], entered[depth] = target, item
        position[depth] = indptr[target] if may_grow else indptr[target + 1]
    return bound, visits


@compiled
def walk(lattice, model, growing, states, incumbent, seen, first, quota) -> int:  # type: ignore[no-untyped-def]
    """Extend ideals `first`, `first` + 1, ... until about `quota` sets have been visited.

    Args:
        lattice: indptr, added and reached of the lattice, and `remaining_work` of it.
        growing: empty on entry and on return.
        states: the table to fill.
        incumbent: shape (1,); the walk looks for smaller values only, and lowers it.
        seen: shape (n_ideals,), which origin visited an ideal last; -1 at first.
        first: the first ideal to extend.
        quota: number of sets after which to return.

    Returns:
        The next ideal to extend; ``n_ideals - 1`` when done.
    """
    left = lattice[3]
    n_items = len(states.work)
    alive = np.zeros(len(states.capacity), dtype=np.bool_)
    usable = np.zeros(len(model.memory), dtype=np.bool_)
    stacks = (  # ideal, next addition to try and entered item, for each depth of the branch
        np.empty(n_items + 1, dtype=np.int64),
        np.empty(n_items + 1, dtype=np.int64),
        np.empty(n_items + 1, dtype=np.int64),
    )
    bound, total, origin = incumbent[0], 0, first
    while origin < len(left) - 1 and total < quota:
        if _open_states(
            states.value[origin], states.n_used, states.step, states.capacity,
            states.idle_load, left[origin], bound, alive,
        ):  # fmt: skip
            for k in range(len(usable)):
                usable[k] = np.any(alive & states.has_room[:, k])
            bound, visits = _extend(
                origin, lattice, model, growing, states, (alive, usable), stacks, seen, bound
            )
            total += visits
        origin += 1
    incumbent[0] = bound
    return origin  # type: ignore[no-any-return]
