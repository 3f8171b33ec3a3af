"""Decoders with a cache that a loaded plan keeps: a module of our own, and Hugging Face's Llama."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.training_loops import cores_of
from torch import nn

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.frameworks.openvino.runtime import OpenVinoRuntime
from placewright.frameworks.torch.running.runtime import TorchRuntime
from placewright.placers.repair import repaired
from placewright.profiling.units import common_units, light_ops_joined
from placewright.session.models import runnable_source
from placewright.session.plans import plan_of
from placewright.simulation.model import Simulator

WORDS, CONTEXT, WIDTH, HEADS = 101, 256, 64, 4
STATE = {"new_keys_*": "keys_*", "new_values_*": "values_*"}
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """Attention over the cache, and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(
        self, x: torch.Tensor, key: torch.Tensor, value: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parts = self.inner(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        key = key.index_copy(2, position, parts[1])
        value = value.index_copy(2, position, parts[2])
        seen = torch.arange(CONTEXT)[None, :] <= position[:, None]
        mixed = nn.functional.scaled_dot_product_attention(parts[0], key, value, attn_mask=seen)
        x = x + self.outer(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x)))), key, value


class Decoder(nn.Module):
    """One token and its position in, scores of the next one out; caches in and out."""

    def __init__(self, n_layers: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(n_layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(
        self,
        token: torch.Tensor,
        position: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> dict[str, Any]:
        x = self.words(token) + self.places(position)
        new_keys, new_values = [], []
        for layer, key, value in zip(self.layers, keys, values, strict=True):
            x, key, value = layer(x, key, value, position)
            new_keys.append(key)
            new_values.append(value)
        return {"scores": self.head(x), "new_keys": new_keys, "new_values": new_values}


@dataclass(frozen=True)
class Decoding:
    """A decoder with its example inputs and state, and a new cache of the unsplit model."""

    module: nn.Module
    example_inputs: tuple[Any, ...]
    state: Mapping[str, str]
    plain: Callable[[], Step]


def own_decoder(n_layers: int = 4) -> Decoding:
    """The decoder above; the unsplit model is given the caches that it returned."""
    torch.manual_seed(1)
    module = Decoder(n_layers).eval()

    def caches() -> list[list[torch.Tensor]]:
        shape = (1, HEADS, CONTEXT, WIDTH // HEADS)
        return [[torch.zeros(shape) for _ in range(n_layers)] for _ in range(2)]

    def plain() -> Step:
        held = caches()

        def step(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                made = module(token, position, *held)
            held[:] = [made["new_keys"], made["new_values"]]
            return torch.as_tensor(made["scores"])

        return step

    token, position = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    return Decoding(module, (token, position, *caches()), STATE, plain)


def llama_decoder(n_layers: int = 4) -> Decoding:
    """Llama with random weights; the unsplit model has a cache of its own that grows."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    from placewright.frameworks.torch.decoders import cached_decoder

    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH,
        num_hidden_layers=n_layers, num_attention_heads=HEADS, num_key_value_heads=2,
        max_position_embeddings=CONTEXT, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()

    def plain() -> Step:
        cache = DynamicCache()

        def step(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                made = model(input_ids=token, past_key_values=cache, use_cache=True)
            return torch.as_tensor(made.logits)

        return step

    return Decoding(*cached_decoder(model, CONTEXT), plain)


def plan_on_cores(
    decoding: Decoding, seed: int | None, file: Path | None = None, share: float = 0.0
) -> Plan:
    """A random split over two cores; without a seed all on the first.

    With a file the decoder is exported to it, and OpenVINO runs the plan. With a share each core
    has memory for so much of all weights and state.
    """
    if file is None:
        runtime = TorchRuntime()
        model = pw.read(
            decoding.module, decoding.example_inputs, runtime="torch", state=decoding.state
        )
        units = light_ops_joined(model.graph)
    else:
        runtime = OpenVinoRuntime()
        torch.export.save(torch.export.export(decoding.module, decoding.example_inputs), file)
        model = pw.read(file, runtime="openvino", state=decoding.state)
    devices = cores_of(2, runtime)
    if file is not None:
        assert model.source is not None
        held = runtime.load(runnable_source(model.source, model.graph), model.graph)
        units = common_units(model.graph, [held.fused_groups(device) for device in devices])
    ends = [*(device.name for device in devices), "host"]
    links = tuple(Link(a, b, 1e-6) for a in ends for b in ends if a != b)
    seconds = frozen_floats(np.full((units.n_groups, len(devices)), 1e-6))
    problem = Problem(
        model.graph, Cluster(devices, links), CostTable(seconds, "measured"), units,
        source=model.source,
    )  # fmt: skip
    if share:
        return _within(problem, share, runtime.name)
    of_class = np.zeros(problem.colocation.n_groups, dtype=np.int64)
    if seed is not None:
        of_class = np.random.default_rng(seed).integers(len(devices), size=len(of_class))
    found = Solution(Placement.of(of_class[problem.colocation.group_of]), 1.0, "feasible", 0.0)
    return plan_of(problem, found, PlacerRecord("manual", "0", 0, 0, 0.0), runtime.name)


def _within(problem: Problem, share: float, runtime: str) -> Plan:
    """The first core as full as its memory allows, and the rest on the second."""
    kept, alone = share * problem.kept.total, np.zeros(problem.n_units, dtype=np.int64)
    split = repaired(problem, alone, np.full(problem.n_devices, kept))
    for part in np.linspace(0.0, 1.0, 41):  # of all tensors, of which few live at a time
        cluster = problem.cluster
        for name in cluster.device_names:
            room = float(part * problem.unit_graph.tensor_bytes.sum())
            cluster = cluster.with_limit(name, kept + room)
        simulator = Simulator(replace(problem, cluster=cluster))
        if simulator.violation(Placement.of(split)) is None:
            break
    assert simulator.violation(Placement.of(split)) is None
    assert simulator.violation(Placement.of(alone)) is not None, "it fits on one core"
    found = Solution(Placement.of(split), 1.0, "feasible", 0.0)
    return plan_of(simulator.problem, found, PlacerRecord("manual", "0", 0, 0, 0.0), runtime)


def tokens_of(step: Step, count: int, prompt: Sequence[int] = (1, 2, 3)) -> list[int]:
    """Greedy decoding behind a prompt."""
    tokens = list(prompt)
    for position in range(len(prompt) + count - 1):
        scores = step(torch.tensor([[tokens[position]]]), torch.tensor([position]))
        if position + 1 == len(tokens):
            tokens.append(int(scores[0, -1].argmax()))
    return tokens
