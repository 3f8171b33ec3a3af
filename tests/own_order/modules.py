"""PyTorch modules of three inputs and two outputs of equal shapes, and of odd interfaces."""

from __future__ import annotations

from typing import Any

import torch
from own_order.models import SHAPE
from torch import nn


class _Shallow(nn.Module):
    """a - 2 b + 5 c."""

    def __init__(self) -> None:
        super().__init__()
        self.two = nn.Parameter(torch.full(SHAPE, 2.0))
        self.five = nn.Parameter(torch.full(SHAPE, 5.0))

    def forward(self, a: Any, b: Any, c: Any) -> Any:
        return a - self.two * b + self.five * c


class _Deep(nn.Module):
    """(shallow a - c) b + 3 a."""

    def __init__(self) -> None:
        super().__init__()
        self.three = nn.Parameter(torch.full(SHAPE, 3.0))

    def forward(self, shallow: Any, a: Any, b: Any, c: Any) -> Any:
        return (shallow * a - c) * b + self.three * a


class InModules(nn.Module):
    """The function of `own_order.models`, its halves in modules; ``spare`` is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _Shallow()
        self.spare = nn.Linear(3, 3)
        self.second = _Deep()

    def forward(self, a: Any, b: Any, *, c: Any) -> dict[str, Any]:
        shallow = self.first(a, b, c)
        return {"deep": self.second(shallow, a, b, c), "shallow": shallow}


class InProducts(nn.Module):
    """The function of `own_order.models` on square matrices: each factor k is a product with k I.

    PyTorch's units are products with the light ops around them.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        for name, factor in (("two", 2.0), ("three", 3.0), ("five", 5.0)):
            self.register_buffer(name, factor * torch.eye(size))

    def forward(self, a: Any, b: Any, *, c: Any) -> dict[str, Any]:
        shallow = a - b @ self.two + c @ self.five
        return {"deep": (shallow * a - c) * b + a @ self.three, "shallow": shallow}


class Nested(nn.Module):
    """A dictionary, a pair and named arguments in; a dictionary that holds a list out."""

    def forward(self, held: Any, pair: Any, *, scale: Any, shift: Any) -> dict[str, Any]:
        mixed = held["z"] - 2 * held["a"]
        return {"first": mixed * scale, "rest": [pair[0] - 3 * pair[1], pair[1] + shift]}


class Odd(nn.Module):
    """Outputs: a sum, an input, the same sum again; ``unused`` is read by nothing."""

    def forward(self, x: Any, unused: Any, y: Any) -> tuple[Any, ...]:
        total = x - 3 * y
        return total, y, total, torch.tanh(total)
