"""Units of decoders that decode one token: a unit per matrix product, none beyond a layer."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_programs import read_torch  # noqa: E402

from placewright.core.cluster import Cluster, Device, Link  # noqa: E402
from placewright.core.costs import CostTable  # noqa: E402
from placewright.core.graph import ComputationGraph  # noqa: E402
from placewright.core.problem import Problem  # noqa: E402
from placewright.profiling.units import (  # noqa: E402
    LARGE_WEIGHT_BYTES,
    largest_weight,
    light_ops_joined,
    numbered_layers,
)
from placewright.simulation.bounds.feasibility import prove_infeasible  # noqa: E402

WIDTH = 512


class Block(torch.nn.Module):
    """Attention and a feed-forward network, with norms before and sums behind."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.before(x)
        heads = [
            part(normed).view(1, 1, 8, -1).transpose(1, 2) for part in (self.q, self.k, self.v)
        ]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, WIDTH))
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


class Decoder(torch.nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1024, WIDTH)
        self.layers = torch.nn.ModuleList(Block() for _ in range(n_layers))
        self.head = torch.nn.Linear(WIDTH, 1024, bias=False)

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        x = self.embedding(token)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def read(module: torch.nn.Module) -> ComputationGraph:
    graph, _ = read_torch(module.eval(), (torch.zeros(1, 1, dtype=torch.long),))
    return graph


def check_units(graph: ComputationGraph, n_layers: int, products_of_a_layer: int) -> None:
    units = light_ops_joined(graph)
    large = largest_weight(graph) >= LARGE_WEIGHT_BYTES
    assert large.sum() == n_layers * products_of_a_layer + 2  # with the embedding and the head
    in_unit = np.bincount(units.group_of, weights=large, minlength=units.n_groups)
    assert in_unit.max() == 1.0
    # Attention and its light ops join a product: there is no more than a unit per product.
    assert units.n_groups == large.sum()
    layers = numbered_layers(graph.op_modules)
    for unit in range(units.n_groups):
        assert len({layers[op] for op in units.members.row(unit)} - {""}) <= 1


@pytest.mark.parametrize("n_layers", [4, 12])
def test_a_decoder_has_a_unit_per_large_product(n_layers: int) -> None:
    with torch.device("meta"):
        decoder = Decoder(n_layers)
    check_units(read(decoder), n_layers, 6)


def test_llama_has_a_unit_per_large_product() -> None:
    transformers = pytest.importorskip("transformers")

    class Logits(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, token: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=token, use_cache=False).logits

    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=4,
        num_attention_heads=8,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    check_units(read(Logits(model)), 4, 7)


def problem_of(graph: ComputationGraph, limit: float) -> Problem:
    units = light_ops_joined(graph)
    devices = tuple(Device(f"cpu:{at}", memory_bytes=limit) for at in range(2))
    links = tuple(Link(a, b, 1e-6, 1e9) for a, b in (("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")))
    costs = CostTable(np.ones((units.n_groups, 2)))
    return Problem(graph, Cluster(devices, links, "cpu:0"), costs, units)


def test_a_network_of_one_row_is_not_one_unit_that_fits_nowhere() -> None:
    """Ten layers of 60 MB at batch 1: two devices of 400 MB hold them, two of 50 MB do not."""
    width = 3873
    with torch.device("meta"):
        layers = [torch.nn.Linear(width, width, bias=False) for _ in range(10)]
        net = torch.nn.Sequential(*(part for one in layers for part in (one, torch.nn.ReLU())))
    graph, _ = read_torch(net.eval(), (torch.zeros(1, width),))
    assert prove_infeasible(problem_of(graph, 4e8)) is None
    proof = prove_infeasible(problem_of(graph, 5e7))
    assert proof is not None
    assert "the unit of op 'linear' with 'relu' with its weights" in proof
