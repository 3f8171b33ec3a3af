"""NASNet-A mobile, "4 @ 1056" (Zoph et al. 2018, arXiv 1707.07012), without drop-path.

Padding is symmetric where the original pads as TensorFlow does; shapes and weights are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from placewright.zoo.model import ZooModel, example_image, keep_signal, seeded

_EPSILON = 0.001
_CLASSES = 1000

# Appendix A.4: five pairs of (state, operation). State 0 is the cell's input, 1 the output of the
# cell before, the others are the sums of earlier pairs.
_Pair = tuple[tuple[int, str], tuple[int, str]]
_NORMAL: tuple[_Pair, ...] = (
    ((0, "separable 5"), (1, "separable 3")),
    ((1, "separable 5"), (1, "separable 3")),
    ((0, "average"), (1, "identity")),
    ((1, "average"), (1, "average")),
    ((0, "separable 3"), (0, "identity")),
)
_REDUCTION: tuple[_Pair, ...] = (
    ((0, "separable 5"), (1, "separable 7")),
    ((0, "maximum"), (1, "separable 7")),
    ((0, "average"), (1, "separable 5")),
    ((3, "identity"), (2, "average")),
    ((2, "separable 3"), (0, "maximum")),
)


class _Separable(nn.Module):
    """ReLU, depthwise, pointwise, normalisation; twice, the first with the stride."""

    def __init__(self, inputs: int, filters: int, kernel: int, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, step in ((inputs, stride), (filters, 1)):
            layers += [
                nn.ReLU(),
                nn.Conv2d(width, width, kernel, step, kernel // 2, groups=width, bias=False),
                nn.Conv2d(width, filters, 1, bias=False),
                nn.BatchNorm2d(filters, eps=_EPSILON),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, filters, h / stride, w / stride)."""
        return self.layers(x)  # type: ignore[no-any-return]


class _Fit(nn.Sequential):
    """ReLU, 1x1 convolution, normalisation: gives a cell's input the cell's width."""

    def __init__(self, inputs: int, filters: int) -> None:
        super().__init__(
            nn.ReLU(),
            nn.Conv2d(inputs, filters, 1, bias=False),
            nn.BatchNorm2d(filters, eps=_EPSILON),
        )


class _FactorizedReduction(nn.Module):
    """Halves height and width by two subsamplings that are one pixel apart, half the width each."""

    def __init__(self, inputs: int, filters: int) -> None:
        super().__init__()
        self.near = nn.Conv2d(inputs, filters // 2, 1, bias=False)
        self.far = nn.Conv2d(inputs, filters - filters // 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(filters, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, filters, ceil(h / 2), ceil(w / 2))."""
        x = functional.relu(x)
        shifted = functional.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        near = self.near(functional.avg_pool2d(x, 1, 2))
        far = self.far(functional.avg_pool2d(shifted, 1, 2))
        return self.bn(torch.cat([near, far], 1))  # type: ignore[no-any-return]


class _Cell(nn.Module):
    """A normal (stride 1) or reduction (stride 2) cell.

    Args:
        inputs: width of the input and of the output of the cell before.
        filters: width inside.
        stride: 1 or 2.
        shrink: how often the earlier output is larger than the input, 1 or 2; 0 in the first cell,
            which has no earlier output and reads its input as it is in its place.
    """

    def __init__(self, inputs: tuple[int, int], filters: int, stride: int, shrink: int) -> None:
        super().__init__()
        self.pairs = _REDUCTION if stride == 2 else _NORMAL
        self.fit = _Fit(inputs[0], filters)
        self.fit_before: nn.Module = nn.Identity()
        if shrink == 2:
            self.fit_before = _FactorizedReduction(inputs[1], filters)
        elif shrink == 1 and inputs[1] != filters:
            self.fit_before = _Fit(inputs[1], filters)
        widths = (filters, filters if shrink else inputs[1])
        self.operations = nn.ModuleList(
            _operation(name, widths[state], filters, stride)
            if state < 2
            else _operation(name, filters, filters, 1)
            for pair in self.pairs
            for state, name in pair
        )
        self.results = (3, 4, 5, 6) if stride == 2 else (1, 2, 3, 4, 5, 6)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """(batch, inputs, h, w) and the earlier output -> (batch, len(results) filters, h', w')."""
        states = [self.fit(x), self.fit_before(before)]
        for number, (left, right) in enumerate(self.pairs):
            first = self.operations[2 * number](states[left[0]])
            states.append(first + self.operations[2 * number + 1](states[right[0]]))
        return torch.cat([states[state] for state in self.results], 1)


def _operation(name: str, inputs: int, filters: int, stride: int) -> nn.Module:
    match name.split():
        case ["separable", kernel]:
            return _Separable(inputs, filters, int(kernel), stride)
        case ["average"]:
            return nn.AvgPool2d(3, stride, 1, count_include_pad=False)
        case ["maximum"]:
            return nn.MaxPool2d(3, stride, 1)
        case _:
            return nn.Identity()


class _NasNet(nn.Module):
    def __init__(self, filters: int, repeats: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, bias=False), nn.BatchNorm2d(32, eps=_EPSILON)
        )
        cells: list[nn.Module] = []
        widths, shrink = (32, 32), 0
        plan = [(filters // 4, 2), (filters // 2, 2)]
        for stage in range(3):
            plan += [(filters << stage, 2)] if stage else []
            plan += [(filters << stage, 1)] * repeats
        for width, stride in plan:
            cells.append(_Cell(widths, width, stride, shrink))
            widths, shrink = (width * (4 if stride == 2 else 6), widths[0]), stride
        self.cells = nn.ModuleList(cells)
        self.head = nn.Linear(widths[0], _CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        """(batch, 3, size, size) -> (batch, classes)."""
        x = before = self.stem(image)
        for cell in self.cells:
            x, before = cell(x, before), x
        logits: Tensor = self.head(functional.relu(x).mean((2, 3)))
        return logits


def nasnet_a(size: int = 224, filters: int = 44, repeats: int = 4) -> ZooModel:
    """NASNet-A mobile for one image of `size` x `size` pixels."""
    return ZooModel(
        "nasnet_a",
        seeded(lambda: keep_signal(_NasNet(filters, repeats))),
        (example_image(size),),
        ("image",),
        f"NASNet-A mobile (Zoph et al. 2018), {size} x {size}, batch 1",
    )
