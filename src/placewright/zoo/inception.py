"""Inception-V3 (Szegedy et al. 2016, arXiv 1512.00567), the auxiliary head off."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from placewright.zoo.model import ZooModel, example_image, keep_signal, seeded

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
