"""Convolutional networks: Inception-V3, NASNet-A mobile, ResNet-50 and ResNet-152.

Inception-V3 (Szegedy et al. 2016, arXiv 1512.00567) is without its auxiliary head. NASNet-A is
"4 @ 1056" (Zoph et al. 2018, arXiv 1707.07012), without drop-path. Its padding is symmetric where
the original pads as TensorFlow does; shapes and weights are the same. ResNets (He et al. 2016,
arXiv 1512.03385) have the stride in the 3x3 convolution ("v1.5").
"""

from __future__ import annotations

from collections import OrderedDict

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


Kernel = int | tuple[int, int]


class ConvUnit(nn.Module):
    """Convolution without bias, batch normalisation, ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: Kernel, stride: int = 1, padding: Kernel = 0
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, outputs, h', w')."""
        return functional.relu(self.bn(self.conv(x)))


class InceptionA(nn.Module):
    """Branches 1x1, 5x5, double 3x3 and pooling at 35 x 35 (figure 5 of the paper)."""

    def __init__(self, inputs: int, pool: int) -> None:
        super().__init__()
        self.branch1x1 = ConvUnit(inputs, 64, 1)
        self.branch5x5 = nn.Sequential(ConvUnit(inputs, 48, 1), ConvUnit(48, 64, 5, padding=2))
        self.branch3x3 = nn.Sequential(
            ConvUnit(inputs, 64, 1), ConvUnit(64, 96, 3, padding=1), ConvUnit(96, 96, 3, padding=1)
        )
        self.branch_pool = ConvUnit(inputs, pool, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, 224 + pool, h, w)."""
        pooled = functional.avg_pool2d(x, 3, stride=1, padding=1)
        branches = self.branch1x1(x), self.branch5x5(x), self.branch3x3(x)
        return torch.cat([*branches, self.branch_pool(pooled)], 1)


class ReductionA(nn.Module):
    """35 x 35 to 17 x 17."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3 = ConvUnit(inputs, 384, 3, stride=2)
        self.branch3x3_double = nn.Sequential(
            ConvUnit(inputs, 64, 1), ConvUnit(64, 96, 3, padding=1), ConvUnit(96, 96, 3, stride=2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, inputs + 480, h', w')."""
        pooled = functional.max_pool2d(x, 3, stride=2)
        return torch.cat([self.branch3x3(x), self.branch3x3_double(x), pooled], 1)


class InceptionB(nn.Module):
    """7x7 convolutions factorised into 1x7 and 7x1 at 17 x 17 (figure 6)."""

    def __init__(self, inputs: int, inner: int) -> None:
        super().__init__()
        across: Kernel = (1, 7)
        down: Kernel = (7, 1)
        self.branch1x1 = ConvUnit(inputs, 192, 1)
        self.branch7x7 = nn.Sequential(
            ConvUnit(inputs, inner, 1),
            ConvUnit(inner, inner, across, padding=(0, 3)),
            ConvUnit(inner, 192, down, padding=(3, 0)),
        )
        self.branch7x7_double = nn.Sequential(
            ConvUnit(inputs, inner, 1),
            ConvUnit(inner, inner, down, padding=(3, 0)),
            ConvUnit(inner, inner, across, padding=(0, 3)),
            ConvUnit(inner, inner, down, padding=(3, 0)),
            ConvUnit(inner, 192, across, padding=(0, 3)),
        )
        self.branch_pool = ConvUnit(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, 768, h, w)."""
        pooled = functional.avg_pool2d(x, 3, stride=1, padding=1)
        branches = self.branch1x1(x), self.branch7x7(x), self.branch7x7_double(x)
        return torch.cat([*branches, self.branch_pool(pooled)], 1)


class ReductionB(nn.Module):
    """17 x 17 to 8 x 8."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3 = nn.Sequential(ConvUnit(inputs, 192, 1), ConvUnit(192, 320, 3, stride=2))
        self.branch7x7 = nn.Sequential(
            ConvUnit(inputs, 192, 1),
            ConvUnit(192, 192, (1, 7), padding=(0, 3)),
            ConvUnit(192, 192, (7, 1), padding=(3, 0)),
            ConvUnit(192, 192, 3, stride=2),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, inputs + 512, h', w')."""
        pooled = functional.max_pool2d(x, 3, stride=2)
        return torch.cat([self.branch3x3(x), self.branch7x7(x), pooled], 1)


class InceptionC(nn.Module):
    """Expanded filter banks at 8 x 8 (figure 7)."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch1x1 = ConvUnit(inputs, 320, 1)
        self.branch3x3 = ConvUnit(inputs, 384, 1)
        self.branch3x3_across = ConvUnit(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_down = ConvUnit(384, 384, (3, 1), padding=(1, 0))
        self.branch3x3_double = nn.Sequential(
            ConvUnit(inputs, 448, 1), ConvUnit(448, 384, 3, padding=1)
        )
        self.branch3x3_double_across = ConvUnit(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_double_down = ConvUnit(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = ConvUnit(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, 2048, h, w)."""
        single, double = self.branch3x3(x), self.branch3x3_double(x)
        pooled = functional.avg_pool2d(x, 3, stride=1, padding=1)
        branches = [
            self.branch1x1(x),
            self.branch3x3_across(single),
            self.branch3x3_down(single),
            self.branch3x3_double_across(double),
            self.branch3x3_double_down(double),
            self.branch_pool(pooled),
        ]
        return torch.cat(branches, 1)


def _network(classes: int) -> nn.Module:
    layers: dict[str, nn.Module] = {
        "conv_1a": ConvUnit(3, 32, 3, stride=2),
        "conv_2a": ConvUnit(32, 32, 3),
        "conv_2b": ConvUnit(32, 64, 3, padding=1),
        "pool_1": nn.MaxPool2d(3, stride=2),
        "conv_3b": ConvUnit(64, 80, 1),
        "conv_4a": ConvUnit(80, 192, 3),
        "pool_2": nn.MaxPool2d(3, stride=2),
        "mixed_5b": InceptionA(192, 32),
        "mixed_5c": InceptionA(256, 64),
        "mixed_5d": InceptionA(288, 64),
        "mixed_6a": ReductionA(288),
        "mixed_6b": InceptionB(768, 128),
        "mixed_6c": InceptionB(768, 160),
        "mixed_6d": InceptionB(768, 160),
        "mixed_6e": InceptionB(768, 192),
        "mixed_7a": ReductionB(768),
        "mixed_7b": InceptionC(1280),
        "mixed_7c": InceptionC(2048),
        "pool": nn.AdaptiveAvgPool2d(1),
        "dropout": nn.Dropout(),
        "flatten": nn.Flatten(),
        "head": nn.Linear(2048, classes),
    }
    return keep_signal(nn.Sequential(OrderedDict(layers)))


def inception_v3(size: int = 299, classes: int = 1000) -> ZooModel:
    """Inception-V3 for one image of `size` x `size` pixels (at least 75)."""
    return ZooModel(
        "inception_v3",
        seeded(lambda: _network(classes)),
        (example_image(size),),
        ("image",),
        f"Inception-V3 (Szegedy et al. 2016), {size} x {size}, batch 1",
    )


_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # width, stride
_BLOCKS = {50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}  # number of layers -> blocks of each stage


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut; the output is four times as wide as the middle."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != 4 * width or stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, 4 width, h / stride, w / stride)."""
        inner = functional.relu(self.bn1(self.conv1(x)))
        inner = functional.relu(self.bn2(self.conv2(inner)))
        return functional.relu(self.bn3(self.conv3(inner)) + self.shortcut(x))


def _residual(depth: int, classes: int) -> nn.Module:
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        "bn": nn.BatchNorm2d(64),
        "relu": nn.ReLU(),
        "max_pool": nn.MaxPool2d(3, 2, 1),
    }
    inputs = 64
    for stage, (width, stride) in enumerate(_STAGES, start=1):
        bottlenecks = []
        for block in range(_BLOCKS[depth][stage - 1]):
            bottlenecks.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
        layers[f"stage{stage}"] = nn.Sequential(*bottlenecks)
    layers |= {
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "head": nn.Linear(inputs, classes),
    }
    return keep_signal(nn.Sequential(OrderedDict(layers)))


def resnet50(size: int = 224, classes: int = 1000) -> ZooModel:
    """ResNet-50 for one image of `size` x `size` pixels."""
    return _resnet(50, size, classes)


def resnet152(size: int = 224) -> ZooModel:
    """ResNet-152 for one image of `size` x `size` pixels; of `bench paper`, not of the zoo."""
    return _resnet(152, size, classes=1000)


def _resnet(depth: int, size: int, classes: int) -> ZooModel:
    return ZooModel(
        f"resnet{depth}",
        seeded(lambda: _residual(depth, classes)),
        (example_image(size),),
        ("image",),
        f"ResNet-{depth} (He et al. 2016), {size} x {size}, batch 1",
    )
