"""A human expert's placement: from a file, or by a rule for the graph's family.

The file is a split as published with Tarnawski et al. 2020 (``{"fpgas": [{"nodes": [...]}, ...],
"cpus": [...]}``, node ids as text are op names; entry i of a list is the i-th device of that sort
in the cluster; ops that it leaves out follow their colocation class) or our own
``{"op name": "device name", ...}``.

The rule is the practice for the graph's family, which is recognised by structure: operator kinds,
shared weights, ops that all paths pass. It does not need names of ops or modules. The rule for
recurrent models is below; `families` has the others, with their sources. A graph of no family is
cut into whole layers (equal module paths up to the first number) in topological order: each device
gets one run of layers, whose seconds are in proportion to the device's speed. Graphs without module
paths are cut by ops in topological order. Backward and update ops go with their forward ops. If the
rule's placement breaks a memory limit, parts that do not fit move to devices where they do. A
file's placement is never changed; if it does not fit, the message of the solution says so, as the
published tables do ("OOM").

A recurrent model has one layer per device: Sutskever et al., NeurIPS 2014, section 3.5 (each of the
four LSTM layers of encoder and decoder on a GPU of its own, the other GPUs for the softmax); Wu et
al. 2016, section 3.4; Mirhoseini et al., ICML 2017, section 4.1 (each LSTM layer on a device,
embeddings with the first layer, attention and softmax with the last). Layer i of the encoder and
layer i of the decoder share a device unless there are devices for all. A spare device takes the ops
behind the last layer: the output projection and its softmax. With fewer devices than layers,
neighbours share one, more of them on a faster device.

A layer is one recurrent operator. In an unrolled graph it is the matrix products that share a
weight or a gate (LSTM, GRU) and depend on one another. Both directions of a layer are one layer.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import or_
from typing import Any, ClassVar

import numpy as np

from placewright.core.arrays import IntArray, positions_in
from placewright.core.graph import FORWARD, ComputationGraph
from placewright.core.grouping import DisjointSets, Grouping
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import FileFormatError, InputError, UnknownNameError
from placewright.io.json_text import read_json_object
from placewright.placers.baselines.expert.families import (
    TooManyPieces,
    contiguous,
    place_convolutional,
    place_mixture,
    place_transformer,
)
from placewright.placers.baselines.expert.forward import (
    CONCATENATIONS,
    ELEMENTWISE,
    FUSED_RECURRENCE,
    GATES,
    LOOKUPS,
    MOVES,
    PRODUCTS,
    SOFTMAXES,
    ForwardGraph,
)
from placewright.placers.bases import ForEveryProblem, anytime
from placewright.placers.legal import ActionSpace, evaluate_repaired, failure
from placewright.placers.pipelines.ideals.items import components_fused
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Layers:
    """Recurrent layers.

    Attributes:
        number_of: op that makes a step (a product, a recurrent operator) -> its layer's number.
        stack, level: of each layer; stacks (encoder 0, decoder 1) and levels in a stack.
    """

    number_of: dict[int, int]
    stack: list[int]
    level: list[int]


def place_recurrent(view: ForwardGraph, shares: Sequence[float]) -> list[int] | None:
    """Device of each op of ``view.order``, -1 for other ops; None if nothing is recurrent.

    Args:
        shares: relative speed of each device; devices are positions in it.
    """
    groups = _groups(view)
    if not groups:
        return None
    layers = _stacked(view, groups)
    depths = [1 + max(d for s, d in zip(layers.stack, layers.level, strict=True) if s == stack)
              for stack in range(max(layers.stack) + 1)]  # fmt: skip
    together = sum(depths) > len(shares)
    start = [0 if together else sum(depths[:stack]) for stack in range(len(depths))]
    n_slots = max(depths) if together else sum(depths)
    used = min(len(shares), n_slots)
    runs = [contiguous([1.0] * depth, shares).tolist() if depth > len(shares)
            else list(range(depth)) for depth in depths]  # fmt: skip
    device_of = [start[s] + runs[s][d] for s, d in zip(layers.stack, layers.level, strict=True)]
    head = used if len(shares) > used else used - 1
    return _all_ops(view, layers.number_of, device_of, head)


def _groups(view: ForwardGraph) -> dict[int, int]:
    """Op that makes a step -> number of its recurrent layer; empty if nothing is recurrent.

    A layer is one recurrent operator, or a group of `_gated_groups` in which one product depends on
    another and two read the same weight. (In a feed-forward net, gated layers that follow each
    other have different weights.)
    """
    fused = [op for op in view.order if view.kinds[op] in FUSED_RECURRENCE]
    gated = _gated_groups(view)
    read: dict[int, list[int]] = {}
    for op, number in gated.items():
        read.setdefault(number, []).extend(view.weights[op])
    groups = {op: g for op, g in gated.items() if len(set(read[g])) < len(read[g])}
    above = _ancestors(view, groups)
    recurrent = sorted({number for op, number in groups.items() if above[op] >> number & 1})
    number_of = {group: number for number, group in enumerate(recurrent)}
    unrolled = {op: number_of[g] for op, g in groups.items() if g in number_of}
    return unrolled | {op: len(recurrent) + at for at, op in enumerate(fused)}


def _gated_groups(view: ForwardGraph) -> dict[int, int]:
    """Matrix product that feeds a gate, directly or through inner ops -> number of its group.

    Products are in one group if they have the same largest weight (in bytes) or feed the same gate.
    """
    n_ops, kinds = view.graph.n_ops, view.kinds
    sets = DisjointSets(n_ops + len(view.graph.weight_bytes))  # ops, then weights
    inner = [_is_inner(view, op) for op in range(n_ops)]
    leads = [False] * n_ops  # to a gate, through inner ops
    for op in reversed(view.order):
        leads[op] = any(kinds[s] in GATES or (inner[s] and leads[s]) for s in view.after[op])
    carries = [False] * n_ops  # a product's values towards a gate
    members: list[int] = []
    for op in view.order:
        if leads[op] and view.is_layer(op) and kinds[op] in PRODUCTS:
            members.append(op)
            carries[op] = True
            largest = max(view.weights[op], key=lambda w: (view.graph.weight_bytes[w], -w))
            sets.join(op, n_ops + largest)
        elif kinds[op] in GATES or (leads[op] and inner[op]):
            made_by = [p for p in view.before[op] if carries[p]]
            for p in made_by:
                sets.join(op, p)
            carries[op] = inner[op] and bool(made_by)
    numbers: dict[int, int] = {}
    return {op: numbers.setdefault(sets.root(op), len(numbers)) for op in members}


def _is_inner(view: ForwardGraph, op: int) -> bool:
    """True for an op that may lie between a product and its gate, such as a bias or a split."""
    kind = view.kinds[op]
    ends = view.is_layer(op) or kind in GATES or kind == "tanh" or kind in LOOKUPS
    return not ends and kind not in SOFTMAXES and kind not in CONCATENATIONS


def _ancestors(view: ForwardGraph, groups: dict[int, int]) -> list[int]:
    """Bit mask, for each op, of the groups of the ops that it depends on, directly or not.

    The bit of its own group is set only if it depends on another op of that group.
    """
    above = [0] * view.graph.n_ops
    for op in view.order:
        for p in view.before[op]:
            above[op] |= above[p] | (1 << groups[p] if p in groups else 0)
    return above


def _stacked(view: ForwardGraph, groups: dict[int, int]) -> Layers:
    """Stack and level of each layer, by what its first step depends on.

    A layer is at level 0 if it reads no other layer, or if it reads tokens (a look-up of a graph
    input) that no layer before it reads. Layers at level 0 that read the same graph inputs are in
    one stack; one that reads no tokens begins a stack of its own. Any other layer is in the
    highest-numbered stack that it reads, one level above the highest layer that it reads there.
    """
    n = 1 + max(groups.values())
    steps: list[list[int]] = [[] for _ in range(n)]
    for op in sorted(groups, key=view.rank.__getitem__):
        steps[groups[op]].append(op)
    ancestors = _ancestors(view, groups)
    tokens, nearest = _inputs_read(view, groups), _nearest(view, groups)
    reads = [tokens[ops[0]] for ops in steps]
    near = [_others(nearest[ops[0]], g) for g, ops in enumerate(steps)]
    below = [_others(ancestors[ops[0]], g) for g, ops in enumerate(steps)]
    known = [functools.reduce(or_, (reads[o] for o in others), 0) for others in below]
    bottoms = [g for g in range(n) if reads[g] & ~known[g] or not near[g]]
    depends = [functools.reduce(or_, (ancestors[op] for op in ops)).bit_count() for ops in steps]
    bottoms.sort(key=lambda g: (depends[g], view.rank[steps[g][0]]))
    stack, level = [-1] * n, [0] * n
    number_of: dict[int, int] = {}
    for g in bottoms:
        stack[g] = number_of.setdefault(reads[g] or -1 - g, len(number_of))
    for g in sorted(range(n), key=lambda g: view.rank[steps[g][0]]):
        if stack[g] < 0:
            stack[g] = max([stack[o] for o in near[g]])
            level[g] = 1 + max([level[o] for o in near[g] if stack[o] == stack[g]])
    return Layers(groups, stack, level)


def _others(bits: int, group: int) -> list[int]:
    """Positions of the set bits, except `group`."""
    return [other for other in range(bits.bit_length()) if bits >> other & 1 and other != group]


def _inputs_read(view: ForwardGraph, groups: dict[int, int]) -> list[int]:
    """Bit mask, for each op, of graph inputs whose look-up reaches it without passing a layer."""
    graph = view.graph
    tokens = [0] * graph.n_ops
    for tensor in (graph.tensor_producers < 0).nonzero()[0].tolist():
        for op in graph.tensor_consumers.row(tensor).tolist():
            tokens[op] |= 1 << tensor
    looked_up = [0] * graph.n_ops
    for op in view.order:
        for p in view.before[op]:
            tokens[op] |= tokens[p] if not view.weights[p] or view.kinds[p] in MOVES else 0
            looked_up[op] |= 0 if p in groups else looked_up[p]
        if view.kinds[op] in LOOKUPS and view.weights[op]:
            looked_up[op] |= tokens[op]
    return looked_up


def _nearest(view: ForwardGraph, groups: dict[int, int]) -> list[int]:
    """Bit mask, for each op, of groups whose output reaches it without passing another group."""
    near = [0] * view.graph.n_ops
    for op in view.order:
        for p in view.before[op]:
            near[op] |= 1 << groups[p] if p in groups else near[p]
    return near


def _all_ops(
    view: ForwardGraph, number_of: dict[int, int], device_of: list[int], head: int
) -> list[int]:
    """Device of each op of ``view.order``, -1 for other ops.

    Ops before all layers go to the lowest-numbered device of their readers, and attention to the
    highest-numbered device that has a layer.

    Args:
        number_of: op that makes a step -> its layer's number.
        device_of: device of each layer.
        head: device of the ops that come after all layers.
    """
    layer = _cells(view, number_of)
    _pull(view, layer)
    below = [False] * view.graph.n_ops  # a layer lies before the op
    for op in view.order:
        below[op] = any(below[p] or layer[p] >= 0 for p in view.before[op])
    ahead = [False] * view.graph.n_ops  # a layer lies after it
    for op in reversed(view.order):
        ahead[op] = any(ahead[s] or layer[s] >= 0 for s in view.after[op])
    slots = [-1] * view.graph.n_ops
    last = max(device_of)
    attends = _attending(view, layer)
    for op in view.order:
        if layer[op] >= 0:
            slots[op] = device_of[layer[op]]
        elif below[op] and not ahead[op]:
            slots[op] = head
        elif attends[op]:
            slots[op] = last
        elif below[op]:
            slots[op] = max(slots[p] for p in view.before[op])
    for op in reversed(view.order):
        if slots[op] < 0:  # embeddings
            slots[op] = min([slots[s] for s in view.after[op] if slots[s] >= 0], default=0)
    return slots


def _cells(view: ForwardGraph, number_of: dict[int, int]) -> list[int]:
    """Layer of each step, and of elementwise and moving ops that follow one; -1 for other ops."""
    layer = [-1] * view.graph.n_ops
    for op in view.order:
        kind = view.kinds[op]
        if op in number_of:
            layer[op] = number_of[op]
        elif kind in ELEMENTWISE or kind in MOVES:
            layer[op] = max([layer[p] for p in view.before[op]], default=-1)
    return layer


def _pull(view: ForwardGraph, layer: list[int]) -> None:
    """Write into `layer`, for ops that only move values, the one layer that all their readers have.

    `layer` has the layer of each op, -1 for none.
    """
    for op in reversed(view.order):
        kind = view.kinds[op]
        moves = kind in CONCATENATIONS or (kind in MOVES and kind not in LOOKUPS)
        read_by = [layer[s] for s in view.after[op]]
        if layer[op] < 0 and moves and read_by and min(read_by) == max(read_by):
            layer[op] = read_by[0]


def _attending(view: ForwardGraph, layer: list[int]) -> list[bool]:
    """True for softmaxes, and for ops before or after one on a path that passes no layer."""
    after, before = [False] * view.graph.n_ops, [False] * view.graph.n_ops
    for op in view.order:
        here = view.kinds[op] in SOFTMAXES or any(after[p] for p in view.before[op])
        after[op] = here and layer[op] < 0
    for op in reversed(view.order):
        here = view.kinds[op] in SOFTMAXES or any(before[s] for s in view.after[op])
        before[op] = here and layer[op] < 0
    return [one or other for one, other in zip(after, before, strict=True)]


# Tried in this order: a mixture of experts is a transformer, too.
_FAMILIES: Mapping[str, Callable[[ForwardGraph, Sequence[float]], list[int] | None]] = {
    "recurrent": place_recurrent,
    "mixture-of-experts": place_mixture,
    "convolutional": place_convolutional,
    "transformer": place_transformer,
}
FAMILIES = tuple(_FAMILIES)


@dataclass(frozen=True)
class Expert(ForEveryProblem):
    """Places a file's split, or follows the rule of the graph's family.

    Attributes:
        file: path of the placement; empty uses the rule.
        rule: ``"auto"`` recognises the family; a name of `FAMILIES` insists on one, ``"layers"``
            gives each device a run of whole layers by its speed.
        within_memory: move parts that do not fit; false keeps the rule's placement, as published
            tables do.
    """

    name: ClassVar[str] = "expert"
    paper: ClassVar[str] = "Mirhoseini et al., ICML 2017 (baseline)"

    file: str = ""
    rule: str = "auto"
    within_memory: bool = True

    def __post_init__(self) -> None:
        known = ("auto", *FAMILIES, "layers")
        if self.rule not in known:
            raise UnknownNameError("rule of the expert", self.rule, known)
        if self.file and self.rule != "auto":
            raise InputError(
                f"expert: give file or rule, not both, got '{self.file}' and '{self.rule}'"
            )

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation, and a few more if the rule's placement breaks a memory limit."""
        device_of = from_file(self.file, problem) if self.file else by_rule(problem, self.rule)
        if np.isfinite(evaluator.evaluate(device_of)):
            return evaluator.solution()
        reason = failure(evaluator, device_of) or "it breaks a constraint"
        message = f"the expert's placement is infeasible: {reason}"
        if self.within_memory and not self.file:
            value = evaluate_repaired(problem, evaluator, device_of)
            if np.isfinite(value):
                message = f"parts of the expert's placement were moved, because {reason}"
        return evaluator.solution(message=message)


def from_file(path: str, problem: Problem) -> IntArray:
    """Device of each unit from a file, shape (n_units,).

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no JSON object, names an op that the graph does not have, puts ops of
            one unit on different devices, or gives no op of a colocation class a device.
        UnknownNameError: it names a device that the cluster does not have.
    """
    document = read_json_object(path)
    chosen = _split(path, document, problem) if "fpgas" in document else document
    device_of = np.full(problem.n_units, -1, dtype=np.int64)
    for op_name, device_name in chosen.items():
        if op_name not in problem.graph.op_index:
            raise FileFormatError(f"expert placement '{path}': the graph has no op '{op_name}'")
        unit = int(problem.units.group_of[problem.graph.op_index[op_name]])
        device = problem.cluster.device(str(device_name))
        if device_of[unit] not in (-1, device):
            raise FileFormatError(
                f"expert placement '{path}' puts op '{op_name}' on '{device_name}', but another "
                "op of its unit elsewhere; a unit moves as one"
            )
        device_of[unit] = device
    return _with_classes(path, problem, device_of)


def _split(path: str, document: Mapping[str, Any], problem: Problem) -> dict[str, str]:
    """A published split as op name -> device name.

    ``fpgas[i]`` is device i of those in the cluster that are no CPUs, ``cpus[i]`` is CPU i.
    """
    chosen: dict[str, str] = {}
    for key, is_cpu in (("fpgas", False), ("cpus", True)):
        names = [
            device.name for device in problem.cluster.devices if (device.kind == "cpu") == is_cpu
        ]
        shares = document.get(key, [])
        if not isinstance(shares, list):
            raise FileFormatError(f"expert placement '{path}': '{key}' must be a list of devices")
        for number, share in enumerate(shares):
            nodes = share.get("nodes") if isinstance(share, dict) else None
            if not isinstance(nodes, list):
                raise FileFormatError(f"expert placement '{path}': '{key}' needs lists of 'nodes'")
            if nodes and number >= len(names):
                raise UnknownNameError("device", f"{key}[{number}]", names)
            chosen.update({str(node): names[number] for node in nodes})
    return chosen


def _with_classes(path: str, problem: Problem, device_of: IntArray) -> IntArray:
    """A copy of `device_of` in which units with -1 have the device of their colocation class."""
    classes = problem.colocation
    of_class = np.full(classes.n_groups, -1, dtype=np.int64)
    placed = device_of >= 0
    of_class[classes.group_of[placed]] = device_of[placed]
    full = np.where(placed, device_of, of_class[classes.group_of])
    if np.any(full < 0):
        name = problem.unit_graph.op_names[int(np.argmax(full < 0))]
        raise FileFormatError(f"expert placement '{path}' gives op '{name}' no device")
    return full


def by_rule(problem: Problem, rule: str = "auto") -> IntArray:
    """Device of each unit by the rule of the graph's family, shape (n_units,).

    Devices take their part in the order of the cluster; a CPU takes part only if there is no other
    device, since experts leave it out.

    Raises:
        InputError: `rule` names a family that the graph is not of, or whose rule would cut it into
            more than 5,000 pieces. In both cases ``"auto"`` cuts whole layers instead.
    """
    if rule == "layers":
        return by_layers(problem)
    view = ForwardGraph(problem.graph)
    devices = _fast_devices(problem)
    shares = _speeds(problem, devices)
    for name in FAMILIES if rule == "auto" else (rule,):
        try:
            slots = _FAMILIES[name](view, shares)
        except TooManyPieces:
            if rule == "auto":
                break
            raise InputError(
                f"the expert's rule '{rule}' cuts at most 5,000 pieces; rule=layers takes any "
                "number"
            ) from None
        if slots is not None:
            device_of = np.array(devices)[with_backward(view, slots)]
            return ActionSpace(problem, problem.colocation).expand(_by_class(problem, device_of))
    if rule == "auto":
        return by_layers(problem)
    raise InputError(
        f"the expert's rule '{rule}' does not apply: this graph is {family_of(problem.graph)}; "
        "rule=auto takes the rule that does"
    )


def family_of(graph: ComputationGraph) -> str:
    """The family that a graph is of: one of `FAMILIES`, or ``"layers"``."""
    view = ForwardGraph(graph)  # a single device needs no cut, so that no chain is too long
    return next(
        (name for name, rule in _FAMILIES.items() if rule(view, [1.0]) is not None), "layers"
    )


def _speeds(problem: Problem, devices: list[int]) -> list[float]:
    """Relative speed of each device: 1 / its seconds for the units that all of `devices` can run.

    All speeds are 1 if there are no such units.
    """
    seconds = problem.costs.seconds[:, devices]
    total = seconds[np.isfinite(seconds).all(axis=1)].sum(axis=0)
    return [1.0] * len(devices) if (total <= 0).any() else (1.0 / total).tolist()


def _by_class(problem: Problem, device_of_op: IntArray) -> IntArray:
    """The device with most floating-point operations of each class' forward ops, (n_classes,)."""
    graph, classes = problem.graph, problem.colocation
    class_of_op = classes.group_of[problem.units.group_of]
    votes = np.zeros((classes.n_groups, problem.n_devices))
    weight = np.where(graph.op_phases == FORWARD, 1.0, 1e-12) * (1.0 + graph.op_flops)
    np.add.at(votes, (class_of_op, device_of_op), weight)
    return np.asarray(votes.argmax(axis=1))


def by_layers(problem: Problem) -> IntArray:
    """Device of each unit, shape (n_units,): each device gets a run of whole layers by its speed.

    Layers are in topological order, and devices in the order of `by_rule`. For graphs of no known
    family.
    """
    layers = layers_of(problem)
    devices = _fast_devices(problem)
    allowed = problem.allowed[:, devices]  # all False for a unit that is pinned to a CPU
    seconds = np.where(allowed, problem.costs.seconds[:, devices], 0.0)
    work = seconds.sum(axis=1) / np.maximum(allowed.sum(axis=1), 1)
    layer_work = np.bincount(layers.group_of, work, minlength=layers.n_groups)
    position = np.full(layers.n_groups, problem.n_units, dtype=np.int64)
    rank = positions_in(problem.unit_graph.topological_order)
    np.minimum.at(position, layers.group_of, rank)
    order = np.argsort(position, kind="stable")
    middle = np.cumsum(layer_work[order]) - layer_work[order] / 2
    ends = np.cumsum(_speeds(problem, devices))
    share = middle / max(float(layer_work.sum()), 1e-300) * ends[-1]
    turn = np.clip(np.searchsorted(ends, share, side="right"), 0, len(devices) - 1)
    device_of_layer = np.empty(layers.n_groups, dtype=np.int64)
    device_of_layer[order] = np.array(devices, dtype=np.int64)[turn]
    return ActionSpace(problem, layers).expand(device_of_layer)


def layers_of(problem: Problem) -> Grouping:
    """Grouping of units by layer: equal module path up to its first number (`encoder.layer.3`).

    Layers with a colocation class in common are joined.
    """
    classes = problem.colocation
    label = {f"#{c}": c for c in range(classes.n_groups)}
    names: list[int] = []
    for unit, module in enumerate(problem.unit_graph.op_modules):
        match = re.match(r"^(.*?[./_]?\d+)(?=[./]|$)", module)
        key = match.group(1) if match else module or f"#{classes.group_of[unit]}"
        names.append(label.setdefault(key, len(label)))
    pairs = np.stack([classes.group_of, classes.n_groups + np.array(names)], axis=1)
    joined = np.concatenate([pairs, pairs[:, ::-1]])
    n_nodes = classes.n_groups + len(label)
    both = components_fused(Grouping.identity(n_nodes), joined)
    return Grouping.from_labels(both.group_of[classes.group_of])


def _fast_devices(problem: Problem) -> list[int]:
    kinds = [device.kind for device in problem.cluster.devices]
    fast = [index for index, kind in enumerate(kinds) if kind != "cpu"]
    return fast or list(range(problem.n_devices))


def with_backward(view: ForwardGraph, slots: Sequence[int]) -> list[int]:
    """Device of every op, from those of the forward ops that depend on a graph input.

    Any other forward op goes to the lowest-numbered device of its readers. A backward or update op
    goes to the device of its module's products with weights (of all forward ops, if there are none)
    if that is one device; otherwise to that of the last forward op that it reads; if it reads none,
    to that of the highest-numbered op that it reads.

    Args:
        slots: device of each op that depends on a graph input, -1 for the others.
    """
    graph = view.graph
    full = list(slots)
    for op in graph.topological_order[::-1].tolist():
        if full[op] < 0 and graph.op_phases[op] == FORWARD:
            read_by = [full[s] for s in graph.successors.row(op).tolist() if full[s] >= 0]
            full[op] = min(read_by, default=-1)
    layered = {graph.op_modules[op] for op in view.products}  # membership only
    modules: dict[str, set[int]] = {}
    for op in view.order:
        path = graph.op_modules[op]
        if view.is_layer(op) or path not in layered:
            modules.setdefault(path, set()).add(full[op])
    for op in graph.topological_order.tolist():
        if full[op] >= 0:
            continue
        here = modules.get(graph.op_modules[op], set()) if graph.op_modules[op] else set()
        above = graph.predecessors.row(op).tolist()
        forward = [p for p in above if view.rank[p] >= 0]
        if len(here) == 1:
            full[op] = min(here)
        elif forward:
            full[op] = full[max(forward, key=view.rank.__getitem__)]
        else:
            full[op] = full[above[-1]] if above else 0
    return full
