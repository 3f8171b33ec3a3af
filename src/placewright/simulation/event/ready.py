"""Which units of a device are ready: a set of bits by falling rank, so that the first one is next.

A word has a bit for each of 64 places, a word above it one for each of 64 words that is not empty.
All words are one array, in which word w has its bit in word w // 64, so the upper ones come first.
The first place is always known before it is asked for. To add and to take touch one word of each
level, without a choice that depends on the data, however many units are ready. The places of a
device begin with an upper word, so that no two devices share one.

Where devices take units in the order in which they become ready, a queue by time takes the place of
the set: a unit joins it when its last input is sent, with the time at which that will arrive.
"""

from __future__ import annotations

from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event.queue import put
from placewright.simulation.event.state import ARRIVING, State
from placewright.simulation.instructions import trailing_zeros
from placewright.simulation.records import NO_SLOT, ONE, ZERO, U

_BITS = U(6)  # of the number of a bit in its word
_MASK = U(63)


@inlined
def add_ready(state: State, index: int, place: int, is_ready: int) -> None:
    """Add a place to the set of device `index`; nothing where `is_ready` is 0."""
    device, words = state.devices[index], state.ready
    word = place >> _BITS
    words[word] |= is_ready << (place & _MASK)
    words[word >> _BITS] |= is_ready << (word & _MASK)
    candidate = place | (is_ready - ONE)  # the largest number where it is not ready
    device.best = min(U(device.best), candidate)


@uncounted
def join_queue(state: State, index: int, time: float, number: int) -> None:
    """Have a unit wait from `time` on, when it becomes ready; lower numbers go first."""
    at = U(ARRIVING) * U(len(state.devices)) + index
    put(state.queues, state.window, state.heap, at, time, number)


@inlined
def take_ready(state: State, index: int) -> int:
    """Remove the first slot of a set that is not empty; the slot."""
    device, words = state.devices[index], state.ready
    place = U(device.best)
    word = place >> _BITS
    left = words[word] & (words[word] - ONE)
    words[word] = left
    at = word >> _BITS
    left_above = words[at] & ~(U(left == ZERO) << (word & _MASK))
    words[at] = left_above
    last = (U(device.stop) + U(device.shift) - ONE) >> (_BITS + _BITS)
    while left_above == ZERO and at < last:
        at += ONE
        left_above = words[at]
    word = at << _BITS | trailing_zeros(left_above)
    device.best = NO_SLOT
    if left_above != ZERO:
        device.best = word << _BITS | trailing_zeros(words[word])
    return place - U(device.shift)
