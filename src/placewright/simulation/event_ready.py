"""Which units of a device are ready: a set of bits by falling rank, so that the first one is next.

Units are numbered by their place among those of their device. A word has a bit for each of 64
units; a word of the level above has a bit for each of 64 words that is not empty; and so on, to one
top word in the device's record. To add and to take touch one word of each level, without a choice
that depends on the data, however many units are ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic

from placewright.simulation.compiled import inlined
from placewright.simulation.event_state import State
from placewright.simulation.event_tables import N_LEVELS, N_WORDS, EventTables
from placewright.simulation.records import ONE, ZERO, U

_BITS = U(6)  # of the number of a bit in its word
_MASK = U(63)


def _trailing_zeros(_: Any, word: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(word), generate


# Number of the lowest bit of a word that is not 0, as one instruction.
trailing_zeros = cast(Callable[[int], int], _intrinsic(_trailing_zeros))


@inlined
def add_ready(tables: EventTables, state: State, index: int, place: int, is_ready: int) -> None:
    """Add a unit, by its place, to the set of device `index`; nothing where `is_ready` is 0."""
    device, words = state.devices[index], state.ready
    at, first, row = U(place), U(device.first), index
    for _ in range(tables.scalars[N_LEVELS]):
        bit = is_ready << (at & _MASK)
        at >>= _BITS
        first >>= _BITS
        words[row + first + at] |= bit
        row += U(tables.scalars[N_WORDS])
    device.ready |= is_ready << at


@inlined
def take_ready(tables: EventTables, state: State, index: int) -> int:
    """Remove the first unit of a set that is not empty; the unit."""
    device, words = state.devices[index], state.ready
    place, level = trailing_zeros(device.ready), U(tables.scalars[N_LEVELS])
    while level > ZERO:
        row = index + (U(device.first) >> (_BITS * level))
        level -= ONE
        word = words[row + level * U(tables.scalars[N_WORDS]) + place]
        place = (place << _BITS) | trailing_zeros(word)
    at, first, row, is_gone = place, U(device.first), index, ONE
    for _ in range(tables.scalars[N_LEVELS]):
        bit = is_gone << (at & _MASK)
        at >>= _BITS
        first >>= _BITS
        left = words[row + first + at] & ~bit
        words[row + first + at] = left
        is_gone &= U(left == ZERO)
        row += U(tables.scalars[N_WORDS])
    device.ready &= ~(is_gone << at)
    return U(state.listed[U(device.first) + place])
