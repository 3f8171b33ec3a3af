"""State that a PyTorch program changes: who reads it, and which calls can change it in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from placewright.frameworks.torch.reading.calls import is_item, kind_of, unstated_aliases

if TYPE_CHECKING:
    from torch.fx import Graph, Node

# Operators that PyTorch calls views, although they copy whenever strides do not fit.
_MAY_COPY = ("reshape", "contiguous", "to", "flatten")


def changes_in_place(
    graph: Graph, updates: Mapping[str, str], outputs: Iterable[str]
) -> dict[str, str]:
    """Calls that can write into the memory of the state that they change: node -> placeholder.

    Such a call has a form that writes into its first argument, and nothing else reads the old
    value. The same holds for each call of a chain that leads from the old value to the new one.

    Args:
        graph: without in-place operators.
        updates: state placeholder -> node that holds its new value.
        outputs: nodes whose values leave the program.
    """
    nodes = {node.name: node for node in graph.nodes}
    leaving = set(outputs)
    found: dict[str, str] = {}
    for name, value in updates.items():
        chain: list[Node] = []
        node = nodes[value]
        while node.name != name and in_place_form(node) is not None and node.name not in leaving:
            chain.append(node)
            node = node.args[0]
            if len([user for user in node.users if user.op != "output"]) != 1:
                break
        if node.name == name and chain and len(nodes[name].users) == 1:
            found |= {link.name: name for link in chain}
    return found


def with_copies(
    graph: Graph, updates: Mapping[str, str], outputs: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Add a copy of each value that no op makes: state that leaves, and inputs that become state.

    State whose new value lies in the memory of state is copied, too: that may change before.

    Args:
        graph: without in-place operators, which gets the copies.
        updates: state placeholder -> node that holds its new value.
        outputs: nodes whose values leave the program.

    Returns:
        The updates and outputs with the copies.
    """
    import torch

    nodes = {node.name: node for node in graph.nodes}
    held = [view.name for name in updates for view in state_views(nodes[name])]
    copies: dict[str, str] = {}

    def copy_of(name: str) -> str:
        if name not in copies:
            source = nodes[name]
            with graph.inserting_before(graph.output_node()):
                copy = graph.call_function(torch.ops.aten.clone.default, (source,))
            copy.meta = {"val": source.meta["val"]}
            copies[name] = copy.name
        return copies[name]

    stays = {
        name: copy_of(value) if nodes[value].op == "placeholder" or value in held else value
        for name, value in updates.items()
    }
    return stays, tuple(copy_of(name) if name in updates else name for name in outputs)


def in_place_form(node: Node) -> Any:
    """The operator that does the same as a call in its first argument's memory; None without one.

    ``aten.index_copy`` has the form ``aten.index_copy_``.
    """
    import torch

    schema = getattr(node.target, "_schema", None)
    if schema is None or not node.args or not hasattr(node.args[0], "meta"):
        return None
    reads: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), reads.append)
    if reads.count(node.args[0]) > 1:  # type: ignore[arg-type]
        return None  # it would read what it has overwritten
    namespace, _, name = str(schema.name).partition("::")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_", None)
    form = getattr(packet, schema.overload_name or "default", None)
    mine: Any = node.meta.get("val")
    first: Any = node.args[0].meta.get("val")  # type: ignore[union-attr]
    if form is None or not (hasattr(mine, "shape") and hasattr(first, "shape")):
        return None
    written = form._schema.arguments[0].alias_info
    same = tuple(mine.shape) == tuple(first.shape) and mine.dtype == first.dtype
    return form if same and written is not None and written.is_write else None


def values_in_state(
    graph: Graph, updates: Mapping[str, str], in_place: Mapping[str, str]
) -> frozenset[str]:
    """Nodes whose values lie in the memory of state that changes: views, and updates in place.

    Args:
        graph: without in-place operators.
        updates: state placeholder -> node that holds its new value.
        in_place: from `changes_in_place`.
    """
    nodes = {node.name: node for node in graph.nodes}
    roots = [*in_place, *updates]
    views = [view for root in roots for view in state_views(nodes[root], surely=True)]
    return frozenset([*in_place, *(view.name for view in views)])


def colocation_classes(
    graph: Graph,
    updates: Mapping[str, str],
    in_place: Mapping[str, str] = MappingProxyType({}),
    pairs: Iterable[tuple[str, str]] = (),
) -> dict[str, int]:
    """Colocation class of each op that must share a device with others, by op name.

    A step changes state in place. So all ops that read a changing tensor of state, directly or
    through views, share a device with each other and with the op that makes its new value. If that
    op writes in place, so do all that read the new value. An op that reads several such tensors
    joins their classes.

    Args:
        graph: without in-place operators.
        updates: state placeholder -> node that holds its new value.
        in_place: from `changes_in_place`.
        pairs: further ops that share a device.
    """
    joined = _Classes()
    nodes = {node.name: node for node in graph.nodes}
    for name, value in updates.items():
        first = _op_of(nodes[value])
        for reader in state_readers(nodes[name]):
            joined.join(first.name, reader.name)
    for value, name in in_place.items():
        for reader in state_readers(nodes[value]):
            joined.join(_op_of(nodes[updates[name]]).name, reader.name)
    for op, other in pairs:
        joined.join(op, other)
    roots = {name: joined.root(name) for name in nodes if name in joined.parent}
    number = {root: at for at, root in enumerate(dict.fromkeys(roots.values()))}
    return {name: number[root] for name, root in roots.items()}


def state_readers(node: Node) -> list[Node]:
    """Calls that read a placeholder's memory, including those that make or read views of it."""
    views = [node, *state_views(node)]
    users = [user for view in views for user in view.users]
    return [
        user for user in dict.fromkeys(users) if user.op == "call_function" and not is_item(user)
    ]


def state_views(node: Node, *, surely: bool = False) -> list[Node]:
    """Calls, and outputs of calls, whose value lies in a placeholder's memory.

    Args:
        node: the placeholder, or a call that writes into its memory.
        surely: leave out calls that copy where strides do not fit.
    """
    views: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        source = waiting.pop()
        for user in source.users:
            is_view = getattr(user.target, "is_view", False) or is_item(user)
            is_view &= not surely or kind_of(user) not in _MAY_COPY
            is_view |= not surely and source in unstated_aliases(user)
            if user.op == "call_function" and is_view and user not in views:
                views[user] = None
                waiting.append(user)
    return list(views)


def _op_of(node: Node) -> Node:
    """The call behind a node that names one of its outputs."""
    while is_item(node):
        node = node.all_input_nodes[0]
    return node


class _Classes:
    """Disjoint sets of names (union-find with path halving)."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}

    def root(self, name: str) -> str:
        self.parent.setdefault(name, name)
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def join(self, name: str, other: str) -> None:
        self.parent[self.root(other)] = self.root(name)
