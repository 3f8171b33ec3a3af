"""Which ops of a training step must share a device, because a step changes state in place."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

from placewright.frameworks.torch.reading.fx_program import FxProgram

if TYPE_CHECKING:
    from torch.fx import Node


def colocation_classes(program: FxProgram, pairs: Iterable[tuple[str, str]] = ()) -> dict[str, int]:
    """Op name -> class; ops that are free are missing.

    All that read a tensor of state which the step changes, directly or through views of it, share a
    device with one another and with the op that makes its new value. An op that reads several joins
    their classes.

    Args:
        program: its `updates` name the state that changes.
        pairs: ops that are to share a device besides.
    """
    joined = _Classes()
    nodes = {node.name: node for node in program.module.graph.nodes}
    for name, value in program.updates.items():
        first = _op_of(nodes[value])
        for reader in state_readers(nodes[name]):
            joined.join(first.name, reader.name)
    for one, other in pairs:
        joined.join(one, other)
    roots = {name: joined.root(name) for name in nodes if name in joined.parent}
    number = {root: at for at, root in enumerate(dict.fromkeys(roots.values()))}
    return {name: number[root] for name, root in roots.items()}


def state_readers(node: Node) -> list[Node]:
    """Calls that read a placeholder's memory, those that make and take views of it among them."""
    views = [node, *state_views(node)]
    users = [user for view in views for user in view.users]
    return [
        user
        for user in dict.fromkeys(users)
        if user.op == "call_function" and user.target is not operator.getitem
    ]


def state_views(node: Node) -> list[Node]:
    """Calls, and outputs of calls, whose value lies in a placeholder's memory."""
    found: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            is_view = getattr(user.target, "is_view", False) or user.target is operator.getitem
            if user.op == "call_function" and is_view and user not in found:
                found[user] = None
                waiting.append(user)
    return list(found)


def _op_of(node: Node) -> Node:
    """The call behind one of its outputs."""
    while node.op == "call_function" and node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node


class _Classes:
    """Sets that join (union-find)."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}

    def root(self, name: str) -> str:
        self.parent.setdefault(name, name)
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def join(self, one: str, other: str) -> None:
        self.parent[self.root(other)] = self.root(one)
