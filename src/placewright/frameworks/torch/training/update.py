"""Addition of optimizer updates to a joint graph: one group of calls for each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError
from placewright.frameworks.torch.training.joint import JointGraph
from placewright.frameworks.torch.training.optimizers import StepRule

if TYPE_CHECKING:
    import torch
    from torch.fx import Node

STEP = "step"  # a scalar, unlike the other slots
GRADIENT = "gradient"  # slot of the mean gradient of the steps since the last update
APPLY = "apply"  # scalar: this step updates parameters
_SMALL = 1e-6  # added to a norm, as `torch.nn.utils.clip_grad_norm_` does


@dataclass(frozen=True)
class Updates:
    """State and calls of optimizer updates that were added."""

    # of the model, then of the optimizer; placeholder -> value before the first step
    state: dict[str, torch.Tensor]
    updates: dict[str, str]  # state placeholder -> node of its new value
    ops: dict[str, list[str]]  # parameter placeholder -> names of the calls that update it
    backward: list[str]  # names of calls that change gradients; they come before all updates
    # placeholder of optimizer state -> (parameter placeholder, slot)
    slots: dict[str, tuple[str, str]]
    scalars: dict[str, str]  # number that a step is told -> its placeholder


def add_updates(joint: JointGraph, rule: StepRule) -> Updates:
    """Add the rule's calls behind the backward pass.

    The module then takes all state and the graph inputs. It returns the loss and all new values, in
    the order of `Updates.updates`.

    Raises:
        InputError: no parameter gets a gradient.
    """
    if not joint.gradients:
        raise InputError("no parameter of this model gets a gradient from its loss")
    return _Adding(joint, rule).add()


class _Adding:
    """State of adding updates to a joint graph."""

    def __init__(self, joint: JointGraph, rule: StepRule) -> None:
        self.joint, self.rule = joint, rule
        self.module = joint.program.module
        self.nodes: dict[str, Node] = {node.name: node for node in self.module.graph.nodes}
        updates = dict(joint.program.updates)
        self.added = Updates(dict(joint.program.state), updates, {}, [], {}, {})
        self.of: tuple[str, Mapping[str, Any]] = ("", {})  # parameter, where its ops come from
        self.is_update = False  # calls belong to an update, not to the backward pass

    def add(self) -> Updates:
        """Add the update of each parameter that has a gradient."""
        from torch._guards import detect_fake_mode

        first = next(iter(self.joint.gradients))
        self.mode: Any = detect_fake_mode([self.nodes[first].meta["val"]])
        gradients = {name: self.nodes[node] for name, node in self.joint.gradients.items()}
        self._add_scalars()
        if self.rule.accumulate > 1:
            gradients = {name: self._mean(name, node) for name, node in gradients.items()}
        sums = gradients
        if self.rule.clip:
            gradients = self._clipped(gradients)
        self.is_update = True
        for name, gradient in gradients.items():
            self._add_one(name, gradient, sums[name])
        graph, added = self.module.graph, self.added
        names = [*self.joint.program.outputs, *added.updates.values()]
        self.nodes = {node.name: node for node in graph.nodes}
        graph.output_node().args = (tuple(self.nodes[name] for name in names),)
        graph.lint()
        self.module.recompile()
        return added

    def _add_one(self, name: str, gradient: Node, summed: Node) -> None:
        self._at(name)
        parameter = self.nodes[name]
        slots = [self._slot(name, slot) for slot in self.rule.optimizer.slots]
        results = self.rule.optimizer.update(
            self._emit, parameter, gradient, slots, self.scalar_nodes
        )
        old = (parameter, *slots)
        if self.rule.accumulate > 1:
            apply = self.scalar_nodes[APPLY]
            results = tuple(
                self._emit("where", "self", apply, *pair) for pair in zip(results, old, strict=True)
            )
            none = self._emit("zeros_like", "default", summed)
            mean = self.nodes[f"{name}_{GRADIENT}"]
            self.added.updates[mean.name] = self._emit("where", "self", apply, none, summed).name
        for target, value in zip(old, results, strict=True):
            self.added.updates[target.name] = value.name

    def _mean(self, name: str, gradient: Node) -> Node:
        """Add this step's share of the mean gradient to that of the steps before."""
        self._at(name)
        held = self._slot(name, GRADIENT)
        result: Node = self._emit("add", "Tensor", held, gradient, alpha=1 / self.rule.accumulate)
        return result

    def _clipped(self, gradients: Mapping[str, Node]) -> dict[str, Node]:
        """Scale gradients so that the norm of all of them together is at most `clip`."""
        norms = []
        for name, gradient in gradients.items():
            self._at(name)
            norms.append(self._emit("linalg_vector_norm", "default", gradient))
        self.of = ("all", {})
        norm = self._emit("linalg_vector_norm", "default", self._emit("stack", "default", norms))
        small = self._emit("add", "Tensor", norm, _SMALL)
        share = self._emit("reciprocal", "default", small)
        scaled = self._emit("mul", "Tensor", share, self.rule.clip)
        factor = self._emit("clamp", "default", scaled, None, 1.0)
        self.is_update = True
        clipped = {}
        for name, gradient in gradients.items():
            self._at(name)
            clipped[name] = self._emit("mul", "Tensor", gradient, factor)
        return clipped

    def _at(self, name: str) -> None:
        self.of = (name, _stack(self.nodes[name]))

    def _add_scalars(self) -> None:
        """Add a placeholder for each number that a step is told."""
        import torch

        values = [self.added.state[name] for name in self.joint.gradients]
        wide = any(value.dtype == torch.float64 for value in values)
        optimizer = self.rule.optimizer
        numbers: dict[str, Any] = {
            name: torch.tensor(value, dtype=torch.float64 if wide else torch.float32)
            for name, value in optimizer.scalars(optimizer.learning_rate).items()
        }
        if self.rule.accumulate > 1:
            numbers[APPLY] = torch.tensor(True)
        self.scalar_nodes: dict[str, Node] = {}
        for name, value in numbers.items():
            self.scalar_nodes[name] = self._placeholder(f"optimizer_{name}", value)
            self.added.scalars[name] = self.scalar_nodes[name].name

    def _slot(self, name: str, slot: str) -> Node:
        """Add a placeholder of a parameter's optimizer state."""
        import torch

        value = self.added.state[name]
        initial = torch.zeros(()) if slot == STEP else torch.zeros_like(value)
        node = self._placeholder(f"{name}_{slot}", initial)
        self.added.slots[node.name] = (name, slot)
        return node

    def _placeholder(self, name: str, initial: torch.Tensor) -> Node:
        """Add a placeholder of state, behind other state and before the inputs."""
        import torch

        graph = self.module.graph
        behind = self.nodes[next(reversed(self.added.state))]
        with graph.inserting_after(behind):
            node = graph.placeholder(name)
        with self.mode:
            node.meta["val"] = torch.empty_strided(
                initial.shape, initial.stride(), dtype=initial.dtype
            )
        self.nodes[node.name] = node
        self.added.state[node.name] = initial
        return node

    def _emit(self, kind: str, overload: str, *args: Any, **kwargs: Any) -> Node:
        import torch

        target = getattr(getattr(torch.ops.aten, kind), overload)
        graph = self.module.graph
        with graph.inserting_before(graph.output_node()):
            node = graph.create_node(
                "call_function", target, args, kwargs, name=f"update_{self.of[0]}_{kind}"
            )
        with self.mode:
            values = torch.fx.node.map_arg((args, kwargs), lambda source: source.meta["val"])
            node.meta["val"] = target(*values[0], **values[1])
        node.meta["nn_module_stack"] = self.of[1]
        self.nodes[node.name] = node
        if self.is_update:
            self.added.ops.setdefault(self.of[0], []).append(node.name)
        else:
            self.added.backward.append(node.name)
        return node


def _stack(parameter: Node) -> Mapping[str, Any]:
    """Module stack of the first call that reads a parameter."""
    for user in parameter.users:
        stack = user.meta.get("nn_module_stack") or user.meta.get("fwd_nn_module_stack")
        if stack:
            return dict(stack)
    return {}
