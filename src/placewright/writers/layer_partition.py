"""A plan of a language model as layers of pipeline ranks, for vLLM and SGLang.

Both take the number of layers of each rank from an environment variable (function `get_pp_indices`
of ``vllm/distributed/utils.py`` and of ``sglang/srt/distributed/utils.py``): as many numbers as
ranks, whose sum is the number of layers. The first rank has the embedding, the last one the head.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placewright.core.cluster import Cluster
from placewright.core.plan import Plan
from placewright.errors import InexpressibleError
from placewright.writers.llama_cpp import NAME, engine_names

_CACHES = {"f16": "auto", "bf16": "auto"}  # formats of caches that both take without a conversion


@dataclass(frozen=True)
class PipelineEngine:
    """Command that starts an engine with a partition."""

    variable: str  # of the environment, for the numbers of layers
    words: tuple[str, ...]  # of the command
    model: str  # option of the model's path; "" if it needs none
    # ranks, context, sequences: options, without their dashes
    ranks: str
    context: str
    sequences: str


ENGINES = {
    "vllm": PipelineEngine(
        "VLLM_PP_LAYER_PARTITION",
        ("vllm", "serve"),
        "",
        "pipeline-parallel-size",
        "max-model-len",
        "max-num-seqs",
    ),
    "sglang": PipelineEngine(
        "SGLANG_PP_LAYER_PARTITION",
        ("python", "-m", "sglang.launch_server"),
        "model-path",
        "pp-size",
        "context-length",
        "max-running-requests",
    ),
}


@dataclass(frozen=True)
class Ranks:
    """Pipeline ranks of a plan."""

    devices: tuple[int, ...]  # number of each rank's card in its driver
    layers: tuple[int, ...]  # of each rank


def pipeline_ranks(plan: Plan) -> Ranks:
    """The ranks of a plan.

    Raises:
        InexpressibleError: it is no plan of a language model, uses a device that is no local CUDA
            or ROCm card, divides a layer, or its layers do not lie in runs.
    """
    problem = plan.problem
    graph, cluster = problem.graph, problem.cluster
    if "Attention" not in graph.op_kinds or "embedding" not in graph.op_index:
        raise InexpressibleError("this plan is not of a language model, whose layers are divided")
    at = [int(device) for device in problem.device_of_ops(plan.placement.device_of)]
    for op, name in enumerate(graph.op_names):
        if cluster.devices[at[op]].kind == "cpu":
            raise InexpressibleError(
                f"'{name}' is on '{cluster.device_names[at[op]]}', and each rank needs a card; "
                "leave the CPU out of argument `devices`"
            )
    of_layer: dict[int, int] = {}
    for op, module in enumerate(graph.op_modules):
        found = re.fullmatch(r"layers\.(\d+)", module)
        if found and of_layer.setdefault(int(found[1]), at[op]) != at[op]:
            raise InexpressibleError(
                f"layer {found[1]} lies on '{cluster.device_names[of_layer[int(found[1])]]}' and "
                f"'{cluster.device_names[at[op]]}', and a rank has whole layers; pin "
                f"'layers.{found[1]}.*' to one card with argument `pins`"
            )
    order = [of_layer[number] for number in sorted(of_layer)]
    devices = tuple(dict.fromkeys(order))
    runs = [device for device in devices for _ in range(order.count(device))]
    if order != runs:
        raise InexpressibleError("layers do not lie in runs, one for each card")
    for name, own in (("embedding", devices[0]), ("head", devices[-1])):
        if at[graph.op_index[name]] != own:
            raise InexpressibleError(
                f"'{name}' is on '{cluster.device_names[at[graph.op_index[name]]]}', and the "
                f"engine keeps it on '{cluster.device_names[own]}'; pin it there"
            )
    numbers = _driver_numbers(cluster, devices)
    return Ranks(numbers, tuple(order.count(device) for device in devices))


def _driver_numbers(cluster: Cluster, used: Sequence[int]) -> tuple[int, ...]:
    """Numbers of cards in their driver, by the names that llama.cpp gives them."""
    cards = [card for card in cluster.devices if card.kind == "gpu" or NAME in card.options]
    names = dict(zip([card.name for card in cards], engine_names(cards), strict=True))
    numbers: dict[str, list[int]] = {}  # backend -> of its cards
    for device in used:
        card = cluster.devices[device]
        engine = names.get(card.name, card.kind)
        found = re.fullmatch(r"(CUDA|ROCm)(\d+)", engine)
        if found is None:
            raise InexpressibleError(
                f"'{card.name}' is '{engine}', and a rank needs a local CUDA or ROCm card; leave "
                "it out of argument `devices`"
            )
        numbers.setdefault(found[1], []).append(int(found[2]))
    if any(len(set(own)) < len(own) for own in numbers.values()):
        raise InexpressibleError(
            f"two ranks have one card; name each of them with option `{NAME}` of the cluster file, "
            "or none"
        )
    if len(numbers) > 1:
        raise InexpressibleError(
            "ranks are on CUDA and ROCm cards, and an engine runs on one of the two; leave the "
            "others out of argument `devices`"
        )
    return tuple(number for own in numbers.values() for number in own)


def _model_path(path: str) -> str:
    """The file of a model; of a configuration the folder that holds it, which engines load."""
    if not path.startswith("hf:"):
        return path
    own = Path(path.removeprefix("hf:"))
    return str(own.parent if own.suffix == ".json" else own)


def command_line(plan: Plan, engine: str) -> str:
    """One line to paste into a shell.

    Args:
        plan: of a language model on cards.
        engine: one of `ENGINES`.

    Raises:
        InexpressibleError: the engine cannot express the plan.
    """
    ranks, how, source = pipeline_ranks(plan), ENGINES[engine], plan.problem.source
    assert source is not None, "a plan of a language model has a source"
    if source.format == "config" and not source.state:
        raise InexpressibleError(
            f"'{source.path}' is part of a larger model, whose other weights this plan does not "
            f"count and {engine} loads; place the configuration of a model that only writes, "
            "hf:PATH"
        )
    if source.other_weights:
        raise InexpressibleError(
            f"{source.other_weights}: place again without argument `weights`, or export to "
            "llama.cpp"
        )
    asked = source.options
    if asked["cache"] not in _CACHES:
        raise InexpressibleError(
            f"a cache as {asked['cache']} is no format of {engine}; plan with argument `kv` f16"
        )
    variables = {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, ranks.devices)),
        how.variable: ",".join(map(str, ranks.layers)),
    }
    sizes = {
        how.ranks: str(len(ranks.layers)),
        how.context: asked["context"],
        how.sequences: asked["sequences"],
    }
    words = [*how.words, *([f"--{how.model}"] if how.model else [])]
    words.append(_model_path(source.path))
    for option, value in sizes.items():
        words += [f"--{option}", value]
    if len(ranks.layers) == 1:
        del variables[how.variable]
    settings = [f"{name}={value}" for name, value in variables.items()]
    return " ".join([*settings, shlex.join(words)])
