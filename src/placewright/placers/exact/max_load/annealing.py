"""Simulated annealing of max-load: moves, swaps and small connected groups, loads kept up to date.

The energy is the 8-norm of the loads, which follows the largest load and still depends on the
others; the result is the best assignment by the true maximum. Bytes over a device's memory cost as
much as the initial value, so that a start that does not fit becomes feasible.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.placers.pipelines.ideals.load_model import LoadModel
from placewright.simulation.compiled import compiled


class Fixed(NamedTuple):
    """`LoadModel` by device, as plain arrays; phases are one, or forward and backward."""

    seconds: FloatArray  # (n_items, n_phases, n_devices); 0 if barred
    barred: BoolArray  # (n_items, n_devices)
    receive: FloatArray  # (n_tensors, n_devices)
    send: FloatArray  # (n_tensors, n_devices)
    standing: FloatArray  # (n_phases, n_devices): transfers of an empty device
    phase: IntArray  # (n_tensors,)
    producers: IntArray  # (n_tensors,): item, FROM_HOST (-1) or AT_HOST (-2)
    host_device: int  # -1 if the host is no device
    memory: FloatArray  # (n_devices,)
    pool_shares: FloatArray  # (n_pools, n_devices) of `Cluster`
    pool_bytes: FloatArray  # (n_pools,)
    overlaps: BoolArray  # (n_devices,)
    user_ptr: IntArray
    users: IntArray  # devices of each shared processor
    input_ptr: IntArray
    inputs: IntArray
    output_ptr: IntArray
    outputs: IntArray
    consumer_ptr: IntArray
    consumers: IntArray
    weight_ptr: IntArray
    weights: IntArray
    weight_bytes: FloatArray


class AnnealingState(NamedTuple):
    """An assignment and its loads."""

    device_of: IntArray  # (n_items,)
    compute: FloatArray  # (n_phases, n_devices)
    transfers: FloatArray  # (n_phases, n_devices)
    resident: FloatArray  # (n_devices,)
    n_readers: IntArray  # (n_tensors, n_devices): consumers there
    n_foreign: IntArray  # (n_tensors,): devices other than the producer's that read it
    weight_uses: IntArray  # (n_weights, n_devices)


def fixed_arrays(model: LoadModel, *, split_phases: bool) -> Fixed:
    """Lay a load model out for the kernels."""
    kinds = model.kind_of
    allowed = np.isfinite(model.seconds)
    total = np.where(allowed, model.seconds, 0.0)
    parts = [total]
    if split_phases:
        forward = np.where(allowed, model.forward_seconds, 0.0)
        parts = [forward, total - forward]
    phase, standing = np.where(model.is_forward, 0, len(parts) - 1), model.standing[:, kinds]
    return Fixed(
        seconds=np.ascontiguousarray(np.stack(parts)[:, kinds].transpose(2, 0, 1)),
        barred=np.ascontiguousarray(~allowed[kinds].T),
        receive=np.ascontiguousarray(model.receive[kinds].T),
        send=np.ascontiguousarray(model.send[kinds].T),
        standing=np.ascontiguousarray(standing if split_phases else standing.sum(axis=0)[None]),
        phase=phase.astype(np.int64),
        producers=model.producers,
        host_device=model.host_device,
        memory=model.memory[kinds],
        pool_shares=np.ascontiguousarray(model.pool_shares[:, kinds]),
        pool_bytes=model.pool_bytes,
        overlaps=model.overlaps[kinds],
        user_ptr=model.users.indptr,
        users=model.users.indices,
        input_ptr=model.inputs.indptr,
        inputs=model.inputs.indices,
        output_ptr=model.outputs.indptr,
        outputs=model.outputs.indices,
        consumer_ptr=model.consumers.indptr,
        consumers=model.consumers.indices,
        weight_ptr=model.weights.indptr,
        weights=model.weights.indices,
        weight_bytes=model.weight_bytes,
    )


def annealing_state(fixed: Fixed, device_of: IntArray) -> AnnealingState:
    """Loads of an assignment; copies `device_of`."""
    n_devices, n_tensors = len(fixed.memory), len(fixed.producers)
    n_phases = fixed.seconds.shape[1]
    state = AnnealingState(
        device_of=np.array(device_of, dtype=np.int64),
        compute=np.zeros((n_phases, n_devices)),
        transfers=np.zeros((n_phases, n_devices)),
        resident=np.zeros(n_devices),
        n_readers=np.zeros((n_tensors, n_devices), dtype=np.int64),
        n_foreign=np.zeros(n_tensors, dtype=np.int64),
        weight_uses=np.zeros((len(fixed.weight_bytes), n_devices), dtype=np.int64),
    )
    _fill(fixed, state)
    return state


@compiled
def _fill(fixed, state) -> None:  # type: ignore[no-untyped-def]
    """Compute everything in `state` from its `device_of`."""
    device_of = state.device_of
    state.compute[:] = 0.0
    state.transfers[:] = fixed.standing
    state.resident[:] = 0.0
    state.n_readers[:] = 0
    state.n_foreign[:] = 0
    state.weight_uses[:] = 0
    for item in range(len(device_of)):
        device = device_of[item]
        for phase in range(len(state.compute)):
            state.compute[phase, device] += fixed.seconds[item, phase, device]
        for at in range(fixed.weight_ptr[item], fixed.weight_ptr[item + 1]):
            weight = fixed.weights[at]
            state.weight_uses[weight, device] += 1
            if state.weight_uses[weight, device] == 1:
                state.resident[device] += fixed.weight_bytes[weight]
    for tensor in range(len(fixed.producers)):
        producer, phase = fixed.producers[tensor], fixed.phase[tensor]
        home = device_of[producer] if producer >= 0 else -1
        if producer == -2:
            home = fixed.host_device
        for at in range(fixed.consumer_ptr[tensor], fixed.consumer_ptr[tensor + 1]):
            device = device_of[fixed.consumers[at]]
            state.n_readers[tensor, device] += 1
            if state.n_readers[tensor, device] == 1 and device != home:
                state.n_foreign[tensor] += 1
                state.transfers[phase, device] += fixed.receive[tensor, device]
        if home >= 0 and state.n_foreign[tensor] > 0:
            state.transfers[phase, home] += fixed.send[tensor, home]


@compiled
def _move_inputs(  # type: ignore[no-untyped-def]
    item, a, b, device_of, host_device, input_ptr, inputs, producers, phases, receive, send,
    transfers, n_readers, n_foreign,
) -> None:  # fmt: skip
    """Update the tensors that `item` reads when it moves from device a to b."""
    for at in range(input_ptr[item], input_ptr[item + 1]):
        tensor = inputs[at]
        phase = phases[tensor]
        home = device_of[producers[tensor]] if producers[tensor] >= 0 else -1
        if producers[tensor] == -2:
            home = host_device
        was_sent = n_foreign[tensor] > 0
        n_readers[tensor, a] -= 1
        if n_readers[tensor, a] == 0 and a != home:
            n_foreign[tensor] -= 1
            transfers[phase, a] -= receive[tensor, a]
        n_readers[tensor, b] += 1
        if n_readers[tensor, b] == 1 and b != home:
            n_foreign[tensor] += 1
            transfers[phase, b] += receive[tensor, b]
        is_sent = n_foreign[tensor] > 0
        if home >= 0 and was_sent != is_sent:
            sign = 1.0 if is_sent else -1.0
            transfers[phase, home] += sign * send[tensor, home]


@compiled
def _move_outputs(  # type: ignore[no-untyped-def]
    item, a, b, output_ptr, outputs, phases, receive, send,
    transfers, n_readers, n_foreign,
) -> None:  # fmt: skip
    """Update the tensors that `item` produces when it moves from device a to b."""
    for at in range(output_ptr[item], output_ptr[item + 1]):
        tensor = outputs[at]
        phase = phases[tensor]
        if n_foreign[tensor] > 0:
            transfers[phase, a] -= send[tensor, a]
        if n_readers[tensor, a] > 0:
            n_foreign[tensor] += 1
            transfers[phase, a] += receive[tensor, a]
        if n_readers[tensor, b] > 0:
            n_foreign[tensor] -= 1
            transfers[phase, b] -= receive[tensor, b]
        if n_foreign[tensor] > 0:
            transfers[phase, b] += send[tensor, b]


@compiled
def _move_weights(item, a, b, weight_ptr, weights, weight_bytes, weight_uses, resident) -> None:  # type: ignore[no-untyped-def]
    for at in range(weight_ptr[item], weight_ptr[item + 1]):
        weight = weights[at]
        weight_uses[weight, a] -= 1
        if weight_uses[weight, a] == 0:
            resident[a] -= weight_bytes[weight]
        if weight_uses[weight, b] == 0:
            resident[b] += weight_bytes[weight]
        weight_uses[weight, b] += 1


@compiled
def _move(items, targets, n_moved, fixed, state) -> None:  # type: ignore[no-untyped-def]
    """Move each of the first `n_moved` items to its target; store its old device in `targets`."""
    seconds, input_ptr, inputs = fixed.seconds, fixed.input_ptr, fixed.inputs
    output_ptr, outputs, producers = fixed.output_ptr, fixed.outputs, fixed.producers
    phases, receive, send = fixed.phase, fixed.receive, fixed.send
    weight_ptr, weights, weight_bytes = fixed.weight_ptr, fixed.weights, fixed.weight_bytes
    device_of, compute, transfers, resident, n_readers, n_foreign, weight_uses = state
    host_device = fixed.host_device
    for index in range(n_moved):
        item, b = items[index], targets[index]
        a = device_of[item]
        targets[index] = a
        if a == b:
            continue
        for phase in range(len(compute)):
            compute[phase, a] -= seconds[item, phase, a]
            compute[phase, b] += seconds[item, phase, b]
        _move_weights(item, a, b, weight_ptr, weights, weight_bytes, weight_uses, resident)
        _move_inputs(
            item, a, b, device_of, host_device, input_ptr, inputs, producers, phases, receive, send,
            transfers, n_readers, n_foreign,
        )  # fmt: skip
        _move_outputs(
            item, a, b, output_ptr, outputs, phases, receive, send,
            transfers, n_readers, n_foreign,
        )  # fmt: skip
        device_of[item] = b


@compiled
def _load(at, compute, transfers, overlaps, user_ptr, users) -> float:  # type: ignore[no-untyped-def]
    """The load of a device in one phase or, beyond them, of a shared processor."""
    n_devices, total = len(overlaps), 0.0
    if at < n_devices and overlaps[at]:
        return max(compute[at], transfers[at])  # type: ignore[no-any-return]
    if at < n_devices:
        return compute[at] + transfers[at]  # type: ignore[no-any-return]
    for user in range(user_ptr[at - n_devices], user_ptr[at - n_devices + 1]):
        total += compute[users[user]] + transfers[users[user]]
    return total


@compiled
def _measure(compute, transfers, resident, memory, fixed, penalty) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """The 8-norm of the loads, their true value, both summed over phases; inf value over memory."""
    smooth, value, over = 0.0, 0.0, 0.0
    overlaps, user_ptr, users = fixed.overlaps, fixed.user_ptr, fixed.users
    n_loads = len(memory) + len(user_ptr) - 1
    for device in range(len(memory)):
        if resident[device] > memory[device]:
            over += resident[device] / memory[device] - 1.0
    if penalty > 0 and len(fixed.pool_bytes) > 0:
        over += _over_pools(resident, fixed)
    for phase in range(len(compute)):
        largest, own, moved = 1e-300, compute[phase], transfers[phase]
        for at in range(n_loads):
            load = _load(at, own, moved, overlaps, user_ptr, users)
            largest = max(largest, load)
        powers = 0.0
        for at in range(n_loads):
            load = _load(at, own, moved, overlaps, user_ptr, users)
            ratio = load / largest
            ratio *= ratio
            ratio *= ratio
            powers += ratio * ratio
        smooth += largest * np.sqrt(np.sqrt(np.sqrt(powers)))
        value += largest
    if over > 0:
        return smooth + penalty * (over + 0.1), np.inf
    return smooth, value


@compiled
def _over_pools(resident, fixed) -> float:  # type: ignore[no-untyped-def]
    """Bytes over the limits of shared memory pools, as shares of the limits."""
    over = 0.0
    for pool in range(len(fixed.pool_bytes)):
        kept = 0.0
        for device in range(len(resident)):
            if fixed.pool_shares[pool, device] > 0.0:
                kept += resident[device] * fixed.pool_shares[pool, device]
        if kept > fixed.pool_bytes[pool]:
            over += (kept - fixed.pool_bytes[pool]) / max(fixed.pool_bytes[pool], 1.0)
    return over


@compiled
def _choose(rng, items, targets, chosen, fixed, device_of) -> int:  # type: ignore[no-untyped-def]
    """Draw a move (an item, a swap or a connected group); return its number of items (0: none)."""
    n_items, n_devices = len(device_of), len(fixed.memory)
    item = int(rng.random() * n_items)
    home = device_of[item]
    target = int(rng.random() * n_devices)
    near = _neighbour(rng, item, fixed)
    if near >= 0 and rng.random() < 0.5:
        target = device_of[near]
    if target == home or fixed.barred[item, target]:
        return 0
    items[0], targets[0] = item, target
    draw = rng.random()
    if draw < 0.5:
        return 1
    if draw < 0.8:
        other = int(rng.random() * n_items)
        if device_of[other] != target or fixed.barred[other, home]:
            return 0
        items[1], targets[1] = other, home
        return 2
    size = 2 + int(rng.random() * (len(items) - 2))
    n_chosen = 1
    chosen[item] = True
    for _ in range(3 * size):
        near = _neighbour(rng, items[int(rng.random() * n_chosen)], fixed)
        usable = near >= 0 and not chosen[near] and device_of[near] == home
        if usable and not fixed.barred[near, target]:
            items[n_chosen], targets[n_chosen] = near, target
            chosen[near] = True
            n_chosen += 1
            if n_chosen == size:
                break
    for index in range(n_chosen):
        chosen[items[index]] = False
    return n_chosen


@compiled
def _neighbour(rng, item, fixed) -> int:  # type: ignore[no-untyped-def]
    """A random item that shares a tensor with `item`, -1 if it has none."""
    first_in, n_in = fixed.input_ptr[item], fixed.input_ptr[item + 1] - fixed.input_ptr[item]
    first_out, n_out = fixed.output_ptr[item], fixed.output_ptr[item + 1] - fixed.output_ptr[item]
    if n_in + n_out == 0:
        return -1
    pick = int(rng.random() * (n_in + n_out))
    if pick < n_in:
        return max(-1, fixed.producers[fixed.inputs[first_in + pick]])  # type: ignore[no-any-return]
    tensor = fixed.outputs[first_out + pick - n_in]
    first = fixed.consumer_ptr[tensor]
    n_readers = fixed.consumer_ptr[tensor + 1] - first
    return fixed.consumers[first + int(rng.random() * n_readers)] if n_readers > 0 else -1


@compiled
def anneal(fixed, state, best, best_value, rng, n_steps, hot, cold) -> float:  # type: ignore[no-untyped-def]
    """Anneal `state` in place from temperature `hot` to `cold` (both in seconds of load).

    Args:
        best: the best assignment by true value is written here, shape (n_items,).
        best_value: only assignments with a smaller value are written.

    Returns:
        The value of `best`.
    """
    n_items = len(state.device_of)
    items = np.zeros(max(2, min(24, n_items)), dtype=np.int64)
    targets = np.zeros(len(items), dtype=np.int64)
    chosen = np.zeros(n_items, dtype=np.bool_)
    memory = fixed.memory
    compute, transfers, resident = state.compute, state.transfers, state.resident
    penalty = _measure(compute, transfers, resident, np.full_like(memory, np.inf), fixed, 0.0)[0]
    current, value = _measure(compute, transfers, resident, memory, fixed, penalty)
    cooling = (cold / hot) ** (1.0 / max(1, n_steps))
    temperature = hot
    for step in range(n_steps):
        temperature *= cooling
        if step % 100_000 == 99_999:  # removes the rounding errors of many updates
            _fill(fixed, state)
            current, value = _measure(compute, transfers, resident, memory, fixed, penalty)
        n_moved = _choose(rng, items, targets, chosen, fixed, state.device_of)
        if n_moved == 0:
            continue
        _move(items, targets, n_moved, fixed, state)
        new, value = _measure(compute, transfers, resident, memory, fixed, penalty)
        if new > current and rng.random() >= np.exp((current - new) / temperature):
            _move(items, targets, n_moved, fixed, state)
            continue
        current = new
        if value < best_value * (1 - 1e-12):
            best_value = value
            best[:] = state.device_of
    return best_value  # type: ignore[no-any-return]
