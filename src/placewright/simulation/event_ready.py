"""Which units of a device are ready: a set of bits by falling rank, so that the first one is next.

A word has a bit for each of 64 slots, a word above it a bit for each of 64 words that is not empty.
The first slot is always known before it is asked for. To add and to take touch one word of each
level, without a choice that depends on the data, however many units are ready. Words of no two
devices are one, since each device's begin one further on than the bits alone would need.
"""

from __future__ import annotations

from placewright.simulation.compiled import inlined
from placewright.simulation.event_state import State
from placewright.simulation.instructions import trailing_zeros
from placewright.simulation.records import NO_SLOT, ONE, ZERO, U

_BITS = U(6)  # of the number of a bit in its word
_MASK = U(63)


@inlined
def add_ready(state: State, index: int, place: int, is_ready: int) -> None:
    """Add a slot to the set of device `index`; nothing where `is_ready` is 0."""
    device = state.devices[index]
    word = (place >> _BITS) + index
    state.ready[word] |= is_ready << (place & _MASK)
    state.ready_words[(word >> _BITS) + index] |= is_ready << (word & _MASK)
    candidate = place | (is_ready - ONE)  # the largest number where it is not ready
    device.best = min(U(device.best), candidate)


@inlined
def take_ready(state: State, index: int) -> int:
    """Remove the first slot of a set that is not empty; the slot."""
    device, words, above = state.devices[index], state.ready, state.ready_words
    place = U(device.best)
    word = (place >> _BITS) + index
    left = words[word] & (words[word] - ONE)
    words[word] = left
    at = (word >> _BITS) + index
    left_above = above[at] & ~(U(left == ZERO) << (word & _MASK))
    above[at] = left_above
    last = (((U(device.stop) - ONE) >> _BITS) + index >> _BITS) + index
    while left_above == ZERO and at < last:
        at += ONE
        left_above = above[at]
    word = ((at - index) << _BITS) + trailing_zeros(left_above)
    device.best = NO_SLOT
    if left_above != ZERO:
        device.best = ((word - index) << _BITS) | trailing_zeros(words[word])
    return place
