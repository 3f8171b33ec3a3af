"""Costs from data sheets against a card of this machine: whole models and their ops, measured.

Language models of other sizes and batches than the zoo's, in eager PyTorch and f32, with random
weights. The catalogue knows the card by PyTorch's name of it, and took no part in its fit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import placewright as pw
from benchmarks.command import Results, run
from placewright.cli.output import print_line, print_note
from placewright.core.arrays import FloatArray
from placewright.core.cluster import Cluster, Device
from placewright.core.graph import ComputationGraph
from placewright.files.results import ResultsFile
from placewright.frameworks.torch.running.runtime import TorchRuntime
from placewright.profiling.catalogue import catalogue_cluster
from placewright.profiling.roofline import (
    FITTED_CLASSES,
    at_peak,
    roofline_costs,
    roofline_interval,
    roofline_problem,
)
from placewright.session.models import Model, loaded_model

FORMAT = "placewright.own-card/1"
_ROUNDS, _OP_ROUNDS = 20, 5


@dataclass(frozen=True)
class CardRow:
    """A model on the card, in seconds.

    Attributes:
        machine: PyTorch's name of the card.
        model, batch, tokens: what ran.
        measured: median of a call of the module, by the card's own events.
        spread: distance between the quartiles.
        kernels: sum of the medians of its ops.
        fitted, assumed: predicted from the data sheet, with its fit and without.
        inside: class of ops -> how many had an interval, and how many were in it.
        version: of PyTorch.
    """

    machine: str
    model: str
    batch: int
    tokens: int
    measured: float
    spread: float
    kernels: float
    fitted: float
    assumed: float
    inside: dict[str, tuple[int, int]]
    version: str


def _made(name: str, hidden: int, layers: int, **more: int) -> torch.nn.Module:
    """A model of `transformers` with random weights."""
    import transformers

    sizes: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": layers, **more}
    sizes["num_attention_heads"] = sizes.get("num_attention_heads", hidden // 64)
    of_model: Any = getattr(transformers, name)
    configuration = of_model.config_class(**sizes)
    configuration.use_cache = False
    model: torch.nn.Module = of_model(configuration)
    return model


_MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "bert-base": partial(_made, "BertModel", 768, 12, intermediate_size=3072),
    "bert-large": partial(_made, "BertModel", 1024, 24, intermediate_size=4096),
    "gpt2": partial(_made, "GPT2LMHeadModel", 768, 12),
    "gpt2-large": partial(_made, "GPT2LMHeadModel", 1280, 36),
    "opt-1.3b": partial(
        _made, "OPTForCausalLM", 2048, 24, ffn_dim=8192, word_embed_proj_dim=2048,
        num_attention_heads=32,
    ),
}  # fmt: skip
_SIZES = (
    ("bert-base", 1, 128), ("bert-base", 32, 128), ("bert-large", 8, 512), ("bert-large", 32, 512),
    ("gpt2", 1, 512), ("gpt2", 16, 512), ("gpt2-large", 4, 1024), ("gpt2-large", 8, 1024),
    ("opt-1.3b", 2, 512), ("opt-1.3b", 4, 2048),
)  # fmt: skip


def _called(module: torch.nn.Module, inputs: torch.Tensor, device: torch.device) -> list[float]:
    """Seconds of calls of the module itself, one after the other."""
    held = module.to(device)
    given, seconds = inputs.to(device), []
    with torch.inference_mode():
        for _ in range(_ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            held(given)
            end.record()
            end.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3)
    module.to("cpu")
    return seconds[2:]  # the first calls set up libraries


def _kernels(model: Model, cluster: Cluster, device: Device) -> FloatArray:
    """Median seconds of each op on the card."""
    problem = replace(roofline_problem(model.graph, cluster), source=model.source)
    profile = loaded_model(problem, "torch").profiler(device)
    profile()
    return np.asarray(np.median([profile() for _ in range(_OP_ROUNDS)], axis=0))


def _inside(
    graph: ComputationGraph, cluster: Cluster, kernels: FloatArray
) -> dict[str, tuple[int, int]]:
    """Class -> ops with an interval, and those whose measured seconds it holds."""
    interval, classes = (
        roofline_interval(graph, cluster),
        at_peak(graph, cluster.devices[0]).classes,
    )
    low, high = interval.low[:, 0], interval.high[:, 0]
    has = np.isfinite(high) & (high > 0)
    found = {}
    for name in FITTED_CLASSES:
        chosen = has & (np.array(classes) == name)
        holds = chosen & (low <= kernels) & (kernels <= high)
        if chosen.any():
            found[name] = (int(chosen.sum()), int(holds.sum()))
    return found


def measured_row(name: str, batch: int, tokens: int, device: Device) -> CardRow:
    """Measure a model on the card, and predict it from the data sheet."""
    torch.manual_seed(0)
    module = _MODELS[name]().eval()
    inputs = torch.randint(0, 1000, (batch, tokens))
    native = torch.device(device.options["device"])
    card = torch.cuda.get_device_name(native)
    cluster = catalogue_cluster([card])
    seconds = _called(module, inputs, native)
    model = pw.read(module, (inputs,), runtime="torch")
    kernels = _kernels(model, cluster, device)
    sums = [
        float(roofline_costs(model.graph, cluster, fitted=fitted).seconds.sum())
        for fitted in (True, False)
    ]
    quartiles = statistics.quantiles(seconds, n=4)
    return CardRow(
        machine=card,
        model=name,
        batch=batch,
        tokens=tokens,
        measured=statistics.median(seconds),
        spread=quartiles[2] - quartiles[0],
        kernels=float(kernels.sum()),
        fitted=sums[0],
        assumed=sums[1],
        inside=_inside(model.graph, cluster, kernels),
        version=f"torch {torch.__version__}",
    )


def own_card(
    results: Results = Path("docs/results/own-card.json"),
    device: Annotated[str, typer.Option(help="PyTorch's name of the card.")] = "cuda:0",
) -> None:
    """Measure what is missing on the card, and print predicted over measured seconds."""
    found = {one.name: one for one in TorchRuntime().discover()}
    if device not in found:
        raise pw.InputError(f"PyTorch has no device '{device}' here; it has {', '.join(found)}")
    card = torch.cuda.get_device_name(torch.device(device))
    file = ResultsFile(results, FORMAT, CardRow, _identity)
    for name, batch, tokens in _SIZES:
        if (card, name, batch, tokens) in file.rows:
            continue
        row = measured_row(name, batch, tokens, found[device])
        file.add([row])
        print_line(
            f"{name} {batch} x {tokens}: {row.measured * 1e3:.2f} ms, kernels "
            f"{row.kernels / row.measured:.2f}, fitted {row.fitted / row.measured:.2f}, assumed "
            f"{row.assumed / row.measured:.2f}, inside {row.inside}"
        )
    print_note(f"wrote {results}")


def _identity(row: CardRow) -> tuple[str, str, int, int]:
    return row.machine, row.model, row.batch, row.tokens


if __name__ == "__main__":
    run(own_card)
