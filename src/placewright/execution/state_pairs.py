"""State that stays: outputs of one call that are inputs of the next, found by name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence

from placewright.core.source import Port
from placewright.errors import FieldError, InputError, UnknownNameError

OPTION = "state"  # of a source: the names as they were given
Pairs = tuple[tuple[int, int], ...]


def state_pairs(asked: Mapping[str, str], inputs: Sequence[Port], outputs: Sequence[Port]) -> Pairs:
    """Positions (output, input) of the state of a model, in the order of the inputs.

    Args:
        asked: output name -> input name. ``"new_keys_*": "keys_*"`` pairs all whose ``*`` stands
            for the same text.
        inputs, outputs: in the model's own order.

    Raises:
        UnknownNameError: there is no such input or output.
        FieldError: the two differ in shape or type, or one is in two pairs.
    """
    of_input = {known: at for at, port in enumerate(inputs) for known in port.names}
    of_output = {known: at for at, port in enumerate(outputs) for known in port.names}
    pairs: dict[int, int] = {}  # input -> output
    for output, name in asked.items():
        for at, stays in _matched(output, name, of_input, of_output):
            mine, other = outputs[at], inputs[stays]
            if pairs.setdefault(stays, at) != at or list(pairs.values()).count(at) > 1:
                twice = other if pairs[stays] != at else mine
                raise FieldError("state", f"pairs '{twice.name}' twice; keep one")
            if (mine.shape, mine.dtype) != (other.shape, other.dtype):
                raise FieldError(
                    "state",
                    f"output '{mine.name}' is {mine.dtype} {list(mine.shape)}, but input "
                    f"'{other.name}' {other.dtype} {list(other.shape)}: what one call returns "
                    "must fit the next; give the state its full size from the beginning, and "
                    "write the new part at a position",
                )
    return tuple((pairs[stays], stays) for stays in sorted(pairs))


def _matched(
    output: str, name: str, of_input: Mapping[str, int], of_output: Mapping[str, int]
) -> list[tuple[int, int]]:
    if output.count("*") != name.count("*") or output.count("*") > 1:
        raise FieldError(
            "state", f"expects one * on both sides or none, got '{output}' and '{name}'"
        )
    head, star, tail = output.partition("*")
    is_pattern = bool(star) and output not in of_output
    meant: dict[int, list[str]] = {}  # output -> input names, one for each of its own that matches
    for known, at in of_output.items():
        middle = known.removeprefix(head).removesuffix(tail)
        if known == output or (is_pattern and known == head + middle + tail):
            meant.setdefault(at, []).append(name.replace("*", middle))
    if not meant:
        raise UnknownNameError("model output", output, list(of_output))
    pairs: dict[tuple[int, int], None] = {}
    for at, names in meant.items():
        stays = [of_input[known] for known in names if known in of_input]
        if not stays:
            raise UnknownNameError("model input", names[0], list(of_input))
        pairs |= dict.fromkeys((at, place) for place in stays)
    return list(pairs)


def option_of(asked: Mapping[str, str]) -> dict[str, str]:
    """The option of a source that was read with state; empty without any."""
    return {OPTION: json.dumps(dict(asked))} if asked else {}


def asked_of(options: Mapping[str, str]) -> dict[str, str]:
    """Read the pairs that `option_of` wrote.

    Raises:
        InputError: somebody else wrote it.
    """
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(options.get(OPTION, "{}"))
        if isinstance(found, dict) and all(isinstance(name, str) for name in found.values()):
            return found
    raise InputError("the model's state in this plan or problem names no inputs; place it again")
