"""Messages between the first of several devices and the others, which sum shares of a module.

    star:    it sends the state to each other device and takes a sum from each
    slices:  it sends the state, takes a slice of what the first products made, sends the state of
             attention, or all slices that a device lacks, and takes a slice of the result

Early versions of distributed-llama exchange slices; the messages of a feed-forward network then
grow with the square of the number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass

_ATTENTION = "Attention"
_HEADS_SLICES = 3  # queries, keys and values, each a message of its own


@dataclass(frozen=True)
class Exchange:
    """Messages of the first device for one module, sent and taken."""

    turns: int  # times that a device waits for a message
    messages: int  # that the first device sends or takes
    elements: float  # numbers in them, for one token

    def seconds(self, latency: float, message: float, element: float) -> float:
        """Seconds of the exchange.

        Args:
            latency: seconds of a message's way.
            message: seconds that the first device works for a message.
            element: seconds of the link for a number, of all tokens.
        """
        return self.turns * latency + self.messages * message + self.elements * element


def star(n_devices: int, hidden: float) -> Exchange:
    """The first device sends the state of `hidden` numbers, and takes a sum of each other one."""
    others = n_devices - 1
    return Exchange(2, 2 * others, 2 * others * hidden)


def slices(kind: str, n_devices: int, hidden: float, width: float) -> Exchange:
    """Slices of products are exchanged, not sums.

    Args:
        kind: ``"Attention"``, else a feed-forward network.
        hidden: numbers of the state.
        width: numbers that the first products make: queries, keys and values, or the middle of the
            network.
    """
    others = n_devices - 1
    taken = others / n_devices * (width + hidden)
    if kind == _ATTENTION:
        return Exchange(4, others * (2 + _HEADS_SLICES + 1), others * 2 * hidden + taken)
    missing = others**2 / n_devices * width
    return Exchange(4, others * (3 + others), others * hidden + missing + taken)
