"""Addition of optimizer updates to a joint graph: one group of calls for each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import InputError
from placewright.frameworks.torch.training.joint import JointGraph
from placewright.frameworks.torch.training.optimizers import Optimizer

if TYPE_CHECKING:
    import torch
    from torch.fx import Node

STEP = "step"  # a scalar, unlike the other slots


@dataclass(frozen=True)
class Updates:
    """State and calls of optimizer updates that were added.

    Attributes:
        state: of the model, then of the optimizer; placeholder -> value before the first step.
        updates: state placeholder -> node of its new value.
        ops: parameter placeholder -> names of the calls that update it.
    """

    state: dict[str, torch.Tensor]
    updates: dict[str, str]
    ops: dict[str, list[str]]


def add_updates(joint: JointGraph, rule: Optimizer) -> Updates:
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

    def __init__(self, joint: JointGraph, rule: Optimizer) -> None:
        self.joint, self.rule = joint, rule
        self.module = joint.program.module
        self.nodes: dict[str, Node] = {node.name: node for node in self.module.graph.nodes}
        self.state = dict(joint.program.state)
        self.updates = dict(joint.program.updates)
        self.ops: dict[str, list[str]] = {}
        self.of: tuple[str, Mapping[str, Any]] = ("", {})  # parameter, where its ops come from

    def add(self) -> Updates:
        """Add the update of each parameter that has a gradient."""
        from torch._guards import detect_fake_mode

        first = next(iter(self.joint.gradients))
        self.mode: Any = detect_fake_mode([self.nodes[first].meta["val"]])
        for name, gradient in self.joint.gradients.items():
            self._add_one(name, gradient)
        graph = self.module.graph
        names = [*self.joint.program.outputs, *self.updates.values()]
        self.nodes = {node.name: node for node in graph.nodes}
        graph.output_node().args = (tuple(self.nodes[name] for name in names),)
        graph.lint()
        self.module.recompile()
        return Updates(self.state, self.updates, self.ops)

    def _add_one(self, name: str, gradient: str) -> None:
        parameter, incoming = self.nodes[name], self.nodes[gradient]
        self.of = (name, _stack(parameter))
        slots = [self._slot(name, slot) for slot in self.rule.slots]
        results = self.rule.update(self._emit, parameter, incoming, slots)
        for target, value in zip((parameter, *slots), results, strict=True):
            self.updates[target.name] = value.name

    def _slot(self, name: str, slot: str) -> Node:
        """Add a placeholder of optimizer state, behind other state and before the inputs."""
        import torch

        value = self.state[name]
        initial = torch.zeros(()) if slot == STEP else torch.zeros_like(value)
        graph = self.module.graph
        behind = self.nodes[next(reversed(self.state))]
        with graph.inserting_after(behind):
            node = graph.placeholder(f"{name}_{slot}")
        with self.mode:
            node.meta["val"] = torch.empty_strided(
                initial.shape, initial.stride(), dtype=initial.dtype
            )
        self.nodes[node.name] = node
        self.state[node.name] = initial
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
        self.ops.setdefault(self.of[0], []).append(node.name)
        return node


def _stack(parameter: Node) -> Mapping[str, Any]:
    """Module stack of the first call that reads a parameter."""
    for user in parameter.users:
        stack = user.meta.get("nn_module_stack") or user.meta.get("fwd_nn_module_stack")
        if stack:
            return dict(stack)
    return {}
