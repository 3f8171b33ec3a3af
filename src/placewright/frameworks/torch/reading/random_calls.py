"""Whether a call in a PyTorch graph draws random numbers, by its schema; needs no PyTorch.

Readers and runtimes ask, and neither may import the other.
"""

from __future__ import annotations

from typing import Any

# Arguments that switch randomness off: attention without dropout, layers in evaluation mode.
_PROBABILITIES, _MODES = ("dropout_p", "dropout"), ("train", "training")


def draws_random_numbers(node: Any) -> bool:
    """True for a `torch.fx` node whose operator draws random numbers with these arguments.

    PyTorch tags attention, dropout and recurrent layers as random whatever their arguments are; in
    a model that is evaluated all of them are switched off.
    """
    tags = getattr(node.target, "tags", ())
    if not any("nondeterministic_seeded" in str(tag) for tag in tags):
        return False
    given = _arguments(node)
    is_off = any(given.get(name, 1.0) == 0 for name in _PROBABILITIES)
    return not is_off and not any(given.get(name, True) is False for name in _MODES)


def _arguments(node: Any) -> dict[str, Any]:
    """Arguments by name, those that the call leaves out by their default."""
    found: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            found[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found
