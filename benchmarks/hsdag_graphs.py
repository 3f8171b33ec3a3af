"""Counts of HSDAG's graphs: nodes, edges and groups of our zoo's OpenVINO files.

    python -m benchmarks.hsdag_graphs --results docs/results/hsdag-graphs.json

HSDAG (Duan et al., NeurIPS 2024) publishes the nodes and edges of its raw graphs. Its files store
weights in half precision, so that each weight is a constant and a conversion. The narrow variants
of Inception-V3 and ResNet-50 have the graphs of the wide ones. `normalised` repeats the input
normalisation of torchvision's pretrained Inception-V3, channel by channel.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import Results, run
from placewright import zoo
from placewright.cli.output import print_line
from placewright.files.results import write_rows
from placewright.frameworks.openvino.conversion import OpenVinoConverter
from placewright.frameworks.openvino.reader import read_openvino
from placewright.placers.learned.hsdag.graph import GraphView, trees_of_single_predecessors

FORMAT = "placewright.hsdag-graphs/1"
# Name on the page -> model, variant, whether its input is normalised, published nodes and edges.
GRAPHS: dict[str, tuple[str, str, bool, tuple[int, int] | None]] = {
    "ResNet-50": ("resnet50", "tiny", False, (396, 411)),
    "Inception-V3": ("inception_v3", "tiny", False, None),
    "Inception-V3 with normalised input": ("inception_v3", "tiny", True, (728, 764)),
    "BERT-base": ("bert_base", "default", False, (1009, 1071)),
}
_SCALES = ((0.229, 0.485), (0.224, 0.456), (0.225, 0.406))  # deviation and mean of a channel


@dataclass(frozen=True)
class GraphCounts:
    """Counts of one graph.

    Attributes:
        model: name on the page.
        version: of OpenVINO.
        nodes: operators, constants, inputs and outputs of the file.
        edges: between them.
        groups: after parsing.
        groups_with_ops: groups that hold more than constants.
        half_nodes: nodes of the file whose weights are stored in half precision.
        half_edges: its edges.
        half_groups: its groups.
        published: nodes and edges in the paper; empty if it has no such graph.
    """

    model: str
    version: str
    nodes: int
    edges: int
    groups: int
    groups_with_ops: int
    half_nodes: int
    half_edges: int
    half_groups: int
    published: tuple[int, ...]


def counts_of(name: str, folder: Path) -> GraphCounts:
    """Convert a model and count its graph."""
    import openvino

    model, variant, is_normalised, published = GRAPHS[name]
    built = zoo.build(model, variant=variant)
    module = _normalised(built.module) if is_normalised else built.module
    file = OpenVinoConverter().file_of_module(
        f"{model}/{variant}/{is_normalised}", module, built.example_inputs, built.input_names,
        folder=folder,
    )  # fmt: skip
    half = folder / f"{model}-half.xml"
    openvino.save_model(openvino.Core().read_model(str(file)), str(half), compress_to_fp16=True)
    view, raw = GraphView.of(read_openvino(file)[0]), read_openvino(half, fold_constants=False)[0]
    opener = trees_of_single_predecessors(view)
    of_half = trees_of_single_predecessors(GraphView.of(read_openvino(half)[0]))
    with_ops = opener[[kind != "Const" for kind in view.kinds]]
    return GraphCounts(
        model=name,
        version=f"OpenVINO {openvino.__version__.partition('-')[0]}",
        nodes=view.n_nodes,
        edges=view.edges.shape[1],
        groups=len(np.unique(opener)),
        groups_with_ops=len(np.unique(with_ops)),
        half_nodes=raw.n_ops,
        half_edges=raw.n_edges,
        half_groups=len(np.unique(of_half)),
        published=published or (),
    )


def _normalised(module: Any) -> Any:
    """The module behind the input normalisation of torchvision's pretrained Inception-V3."""
    import torch

    class Normalised(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any) -> Any:
            channels = [
                torch.unsqueeze(x[:, at], 1) * (deviation / 0.5) + (mean - 0.5) / 0.5
                for at, (deviation, mean) in enumerate(_SCALES)
            ]
            return self.inner(torch.cat(channels, 1))

    return Normalised().eval()


def graphs(results: Results = Path("hsdag-graphs.json")) -> None:
    """Count the graphs of HSDAG's models and write a row for each."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [counts_of(name, Path(folder)) for name in GRAPHS]
    write_rows(results, FORMAT, rows)
    for row in rows:
        print_line(f"{row.model}: {row.nodes}/{row.edges}, half {row.half_nodes}/{row.half_edges}")


if __name__ == "__main__":
    run(graphs)
