"""Execution models `subgraph` and `subgraph-ip`: latency of atomic contiguous pieces.

Tarnawski et al. 2020: an accelerator's ops form contiguous pieces; a piece starts when all its
inputs from outside are ready, and takes its incoming transfers, its compute and its outgoing
transfers, each tensor once. A CPU op starts when its producers are done, on as many CPUs as it
takes. Under `subgraph-ip` the pieces of one accelerator also wait for each other in turn.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import SubgraphIP
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.simulation.behaviours import Behaviour, BoundsByMethod, Explanation
from placewright.simulation.bounds.feasibility import Proofs, proof_of
from placewright.simulation.bounds.lower import critical_path_bound
from placewright.simulation.compiled import compiled, read_only
from placewright.simulation.layout import ProblemArrays, broken_limit, resident_bytes
from placewright.simulation.legality import BAD_ORDER, FINE, TOO_LARGE, check


class LatencyArrays(NamedTuple):
    """A problem as the kernels of this file read it."""

    order: IntArray  # (n_units,)
    seconds: FloatArray  # (n_units, n_devices)
    is_atomic: IntArray  # (n_devices,): 1 for accelerators, 0 for CPUs
    input_ptr: IntArray
    inputs: IntArray
    output_ptr: IntArray
    outputs: IntArray
    producers: IntArray  # (n_tensors,)
    consumer_ptr: IntArray
    consumers: IntArray
    transfer: FloatArray  # (n_tensors,)
    max_pieces: int  # per accelerator; 0 is no limit
    is_serial: bool  # pieces of one accelerator wait for each other


class Latency(Behaviour):
    """Latency of placements of one problem under `subgraph` or `subgraph-ip`.

    Raises:
        InputError: the problem has no transfer seconds of its own.
    """

    bounds: ClassVar[BoundsByMethod] = {"critical path": critical_path_bound}

    def __init__(self, problem: Problem, arrays: ProblemArrays) -> None:
        self._arrays, self._tables = arrays, latency_arrays(problem)

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """The reason why a placement without a fault has no latency."""
        if math.isfinite(self.value(device_of, order)):
            return Explanation()
        most = self._tables.max_pieces
        too_many = f", or there are more than {most} on one" if most else ""
        return Explanation(broken=f"pieces of an accelerator need each other{too_many}; move ops")

    @staticmethod
    def why_nothing_fits(problem: Problem) -> str | None:
        """Proofs count weights; every device reaches every other."""
        return proof_of(problem, Proofs(routes=False))

    def evaluate(self, device_of: IntArray, order: IntArray) -> tuple[float, int, int, FloatArray]:
        """Value (inf with a fault), fault, its place, and bytes of each device (n_devices,)."""
        arrays = self._arrays
        fault, at = check(arrays, device_of, order)
        if fault not in (FINE, BAD_ORDER):
            return math.inf, fault, at, np.zeros(len(arrays.memory))
        memory = resident_bytes(arrays, device_of)
        over = broken_limit(arrays, memory)
        if over >= 0:
            return math.inf, TOO_LARGE, over, memory
        # A writable copy, as annealing has: the kernel is compiled once for both.
        return float(latency(self._tables, np.array(device_of))), FINE, -1, memory


def latency_arrays(problem: Problem) -> LatencyArrays:
    """Make the arrays of a problem of execution model `subgraph` or `subgraph-ip`.

    Raises:
        InputError: the problem has no transfer seconds of its own.
    """
    graph = problem.unit_graph
    model = problem.execution_model
    transfer = problem.unit_transfer_seconds
    if transfer is None:
        raise InputError(
            f"execution model '{problem.execution_model.name}' counts a time for each tensor, and "
            "this problem has only links; give it transfer_seconds, or use execution model 'event'"
        )
    atomic = [int(device.pays_transfers) for device in problem.cluster.devices]
    arrays = LatencyArrays(
        order=graph.topological_order,
        seconds=np.where(problem.allowed, problem.costs.seconds, np.inf),
        is_atomic=np.array(atomic, dtype=np.int64),
        input_ptr=graph.op_inputs.indptr,
        inputs=graph.op_inputs.indices,
        output_ptr=graph.op_outputs.indptr,
        outputs=graph.op_outputs.indices,
        producers=graph.tensor_producers,
        consumer_ptr=graph.tensor_consumers.indptr,
        consumers=graph.tensor_consumers.indices,
        transfer=transfer,
        max_pieces=model.per_accelerator if isinstance(model, SubgraphIP) else 0,
        is_serial=isinstance(model, SubgraphIP),
    )
    return read_only(arrays)


@compiled
def pieces(arrays: LatencyArrays, device_of: IntArray, piece: IntArray) -> int:
    """Number of each unit's piece within its accelerator, by the longest alternation before it.

    A piece number rises by one whenever a path leaves the accelerator and comes back.

    Args:
        device_of: shape (n_units,).
        piece: written, shape (n_units,); -1 on CPUs, else 0, 1, ...

    Returns:
        The largest number of pieces of an accelerator.
    """
    order, input_ptr, inputs = arrays.order, arrays.input_ptr, arrays.inputs
    producers, is_atomic = arrays.producers, arrays.is_atomic
    n_units, n_devices = arrays.seconds.shape
    # depth[u, d]: pieces of device d that a path up to u has been through
    depth = np.zeros((n_units, n_devices), dtype=np.int32)
    most = 0
    for unit in order:
        home = device_of[unit]
        for at in range(input_ptr[unit], input_ptr[unit + 1]):
            before = producers[inputs[at]]
            if before < 0:
                continue
            for device in range(n_devices):
                if is_atomic[device] == 1:
                    reached = depth[before, device]
                    if device == home and device_of[before] != home:
                        reached += 1
                    depth[unit, device] = max(depth[unit, device], reached)
        piece[unit] = -1
        if is_atomic[home] == 1:
            depth[unit, home] = max(depth[unit, home], 1)
            piece[unit] = depth[unit, home] - 1
            most = max(most, piece[unit] + 1)
    return most


@compiled
def _blocks(
    arrays: LatencyArrays,
    device_of: IntArray,
    block: IntArray,
    work: FloatArray,
    first_of_device: IntArray,
) -> int:
    """Number the blocks (pieces, and CPU units) and add up their compute.

    Args:
        block: written, shape (n_units,).
        work: written, shape (n_units,), seconds of each block.
        first_of_device: written, shape (n_devices, n_units): block of each piece, -1 where none.

    Returns:
        The number of blocks; -1 when an accelerator has too many pieces.
    """
    n_units = len(device_of)
    piece = np.empty(n_units, dtype=np.int64)
    most = pieces(arrays, device_of, piece)
    if arrays.max_pieces > 0 and most > arrays.max_pieces:
        return -1
    first_of_device[:, : most + 1] = -1
    seconds = arrays.seconds
    n_blocks = 0
    for unit in range(n_units):
        device = device_of[unit]
        number = n_blocks
        if piece[unit] >= 0 and first_of_device[device, piece[unit]] >= 0:
            number = first_of_device[device, piece[unit]]
        else:
            work[number] = 0.0
            n_blocks += 1
            if piece[unit] >= 0:
                first_of_device[device, piece[unit]] = number
        block[unit] = number
        work[number] += seconds[unit, device]
    return n_blocks


@compiled
def _add_transfers(
    arrays: LatencyArrays, device_of: IntArray, block: IntArray, work: FloatArray
) -> None:
    """Add to each accelerator piece the tensors that enter and leave it, each once."""
    producers, transfer, is_atomic = arrays.producers, arrays.transfer, arrays.is_atomic
    consumer_ptr, consumers = arrays.consumer_ptr, arrays.consumers
    entered = np.full(len(block), -1, dtype=np.int64)  # the last tensor that entered each block
    for tensor in range(len(producers)):
        producer = producers[tensor]
        if producer < 0:
            continue
        leaves = False
        for at in range(consumer_ptr[tensor], consumer_ptr[tensor + 1]):
            target = block[consumers[at]]
            if target == block[producer]:
                continue
            leaves = True
            if is_atomic[device_of[consumers[at]]] == 1 and entered[target] != tensor:
                entered[target] = tensor
                work[target] += transfer[tensor]
        if leaves and is_atomic[device_of[producer]] == 1:
            work[block[producer]] += transfer[tensor]


@compiled
def _waiting(
    arrays: LatencyArrays, block: IntArray, piece_block: IntArray, n_blocks: int
) -> tuple[IntArray, IntArray]:
    """Edges into each block, and the block that uses its accelerator next."""
    producers, consumers, consumer_ptr = arrays.producers, arrays.consumers, arrays.consumer_ptr
    waiting = np.zeros(n_blocks, dtype=np.int64)
    for tensor in range(len(producers)):
        for at in range(consumer_ptr[tensor], consumer_ptr[tensor + 1]):
            target = block[consumers[at]]
            if producers[tensor] >= 0 and target != block[producers[tensor]]:
                waiting[target] += 1
    after = np.full(n_blocks, -1, dtype=np.int64)
    if arrays.is_serial:
        for device in np.flatnonzero(arrays.is_atomic):
            piece = 1
            while piece_block[device, piece - 1] >= 0 and piece_block[device, piece] >= 0:
                after[piece_block[device, piece - 1]] = piece_block[device, piece]
                waiting[piece_block[device, piece]] += 1
                piece += 1
    return waiting, after


@compiled
def _members(block: IntArray, n_blocks: int) -> tuple[IntArray, IntArray]:
    """Units of each block as compressed rows."""
    member_ptr = np.zeros(n_blocks + 1, dtype=np.int64)
    for number in block:
        member_ptr[number + 1] += 1
    member_ptr = np.cumsum(member_ptr)
    fill, members = member_ptr[:-1].copy(), np.empty(len(block), dtype=np.int64)
    for unit in range(len(block)):
        members[fill[block[unit]]] = unit
        fill[block[unit]] += 1
    return member_ptr, members


@compiled
def latency(arrays: LatencyArrays, device_of: IntArray) -> float:
    """Latency of a placement; inf if pieces need each other or are too many.

    Args:
        device_of: shape (n_units,).
    """
    n_units, n_devices = arrays.seconds.shape
    block, work = np.empty(n_units, dtype=np.int64), np.empty(n_units)
    piece_block = np.empty((n_devices, n_units + 1), dtype=np.int64)
    n_blocks = _blocks(arrays, device_of, block, work, piece_block)
    if n_blocks < 0:
        return np.inf
    _add_transfers(arrays, device_of, block, work)
    waiting, after = _waiting(arrays, block, piece_block, n_blocks)
    member_ptr, members = _members(block, n_blocks)
    consumers, consumer_ptr = arrays.consumers, arrays.consumer_ptr
    output_ptr, outputs = arrays.output_ptr, arrays.outputs
    ready, queue = np.zeros(n_blocks), np.empty(n_blocks, dtype=np.int64)
    free = np.flatnonzero(waiting == 0)
    head, tail, longest = 0, len(free), 0.0
    queue[:tail] = free
    while head < tail:
        number = queue[head]
        head += 1
        finish = ready[number] + work[number]
        longest = max(longest, finish)
        if after[number] >= 0:
            tail = _release(after[number], finish, ready, waiting, queue, tail)
        for unit in members[member_ptr[number] : member_ptr[number + 1]]:
            for tensor in outputs[output_ptr[unit] : output_ptr[unit + 1]]:
                for at in range(consumer_ptr[tensor], consumer_ptr[tensor + 1]):
                    target = block[consumers[at]]
                    if target != number:
                        tail = _release(target, finish, ready, waiting, queue, tail)
    return longest if head == n_blocks else np.inf


@compiled
def _release(
    target: int, finish: float, ready: FloatArray, waiting: IntArray, queue: IntArray, tail: int
) -> int:
    """Count a dependency of block `target` that ended at `finish`; the new end of the queue."""
    ready[target] = max(ready[target], finish)
    waiting[target] -= 1
    if waiting[target] == 0:
        queue[tail] = target
        tail += 1
    return tail
