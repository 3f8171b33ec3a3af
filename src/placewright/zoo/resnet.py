"""ResNet-50 and ResNet-152 (He et al. 2016, arXiv 1512.03385), stride in the 3x3 ("v1.5")."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional

from placewright.zoo.model import ZooModel, example_image, keep_signal, seeded

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


def _network(depth: int, classes: int) -> nn.Module:
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
    return _model(50, size, classes)


def resnet152(size: int = 224) -> ZooModel:
    """ResNet-152 for one image of `size` x `size` pixels; of `bench paper`, not of the zoo."""
    return _model(152, size, classes=1000)


def _model(depth: int, size: int, classes: int) -> ZooModel:
    return ZooModel(
        f"resnet{depth}",
        seeded(lambda: _network(depth, classes)),
        (example_image(size),),
        ("image",),
        f"ResNet-{depth} (He et al. 2016), {size} x {size}, batch 1",
    )
