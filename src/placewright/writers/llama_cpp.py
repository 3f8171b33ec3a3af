"""A plan of a language model as options of llama.cpp.

``-ngl`` and ``-ts`` lay layers in runs, ``-ot`` moves modules away from their layer by regular
expressions of names of tensors, and an option keeps the CPU computing what rests in RAM.
Layer ``i`` of those on cards lies on the first card whose cumulated share of ``-ts`` is above
``i / (layers on cards + 1)``; the head is the layer after the last one (function `load_tensors` of
``src/llama-model.cpp``). Shares are numbers of layers, so that the engine's rule gives ours. Layers
that predict further tokens lie before the head; the engine counts them, and loads none of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placewright.core.cluster import STREAMED_BY, Device
from placewright.core.graph import ComputationGraph
from placewright.core.plan import Plan
from placewright.core.source import PREDICTING, ModelSource
from placewright.errors import InexpressibleError, InputError
from placewright.writers.card_numbers import card_numbers, require_distinct

NAME = "llama.cpp"  # option of a device: the buffer that the engine names after it
THREADS = "threads"  # option of a device: of its server, or of the engine on the host
# A card of a server has a buffer with its number there; as a device it is numbered over all.
SERVED = re.compile(r"RPC\d+\[([^\[\]]+)\]")
_HOST = "CPU"
_LEAST_BATCH = 2048
_MARKS = {  # part of a catalogue name -> the backend that names such devices
    "gpu-mi": "ROCm", "gpu-rx": "ROCm", "gpu-radeon": "ROCm", "gpu-arc": "SYCL",
    "gpu-flex": "SYCL", "gpu-uhd": "SYCL", "gpu-core": "SYCL", "gpu-apple": "MTL",
}  # fmt: skip
TENSORS = {  # kind of module -> its tensors in a layer
    "FeedForward": "ffn_",
    "Experts": "ffn_(up|down|gate|gate_up)_exps",
    "SharedExperts": "ffn_(up|down|gate|gate_inp)_(sh|ch)exps?",
}
_NUMBERS = ("sequences", "context", "micro_batch")  # of a request
_LONG = 32  # tokens of a micro-batch from which a card copies weights in RAM unless told
_MOST_SEQUENCES = 256  # LLAMA_MAX_SEQ of src/llama-cparams.h
_BESIDE_EXPERTS = r"ffn_(up|down|gate)\."  # of a feed-forward module in a layer with experts


@dataclass(frozen=True)
class EngineOptions:
    """Options of a plan, before a tool's own separators."""

    devices: tuple[str, ...]  # names of cards, in the order of the plan
    servers: tuple[str, ...]  # addresses of cards that are served by other processes
    gpu_layers: int  # of ``-ngl``: layers on cards, those that predict tokens, and the head
    shares: tuple[int, ...]  # of ``-ts``, for each card; none leaves it out
    overrides: Mapping[str, str]  # pattern of tensors -> buffer
    cpu_experts: int  # of ``-ncmoe``: first layers whose experts rest in RAM; 0 is none
    is_streaming: bool  # cards compute long passes with weights that rest in RAM
    sizes: Mapping[str, str]  # option -> number or format
    threads: int | None  # of the host; None leaves them to the engine
    predicting: int = 0  # layers of the file that predict further tokens

    def words(self, path: str, tool: str = "llama-server") -> list[str]:
        """The command line.

        Args:
            tool: ``llama-bench`` has other separators, and no context.
        """
        is_bench = tool == "llama-bench"
        comma, semicolon = ("/", ";") if is_bench else (",", ",")
        words = [tool, "-m", path]
        if self.servers:  # before names of buffers on them
            words += [_long("rpc"), ",".join(self.servers)]
        # Without names the engine takes all devices that it finds.
        words += ["-dev", comma.join(self.devices or ("none",))]
        words += ["-ngl", str(self.gpu_layers)]
        if len(self.devices) > 1 and self.gpu_layers and self.shares:
            words += ["-ts", comma.join(map(str, self.shares))]
        if self.overrides:
            words += ["-ot", semicolon.join(f"{key}={at}" for key, at in self.overrides.items())]
        if self.cpu_experts:
            words += ["-ncmoe", str(self.cpu_experts)]
        if not self.is_streaming:
            words += ["-nopo", "1"] if is_bench else [_long("no-op-offload")]
        skipped = ("-c", "-np") if is_bench else ()
        for option, value in self.sizes.items():
            words += [] if option in skipped else [option, value]
        if self.threads is not None:
            words += ["-t", str(self.threads)]
        return words


def _long(option: str) -> str:
    """An option of llama.cpp that has no short form."""
    return f"--{option}"


def command_line(plan: Plan, tool: str = "llama-server") -> str:
    """One line to paste into a shell.

    Raises:
        InexpressibleError: it is no plan of a language model, or breaks a rule of the engine.
    """
    return shlex.join(engine_options(plan).words(_file(plan), tool))


def threads_of(device: Device) -> int | None:
    """Threads of a device's server, or of the engine on the host; None without the option.

    Raises:
        InputError: the option is no whole number above 0.
    """
    text = str(device.options.get(THREADS, "1"))
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            f"device '{device.name}': option {THREADS} must be a whole number above 0, got '{text}'"
        )
    return int(text) if THREADS in device.options else None


def has_weights(source: ModelSource) -> bool:
    """True if the model is a file that the engine reads, and no configuration."""
    return source.format == "gguf"


def _file(plan: Plan) -> str:
    """The model's file; of a configuration the one that llama.cpp's converter is to make."""
    source = plan.problem.source
    assert source is not None
    if has_weights(source):
        return source.path
    path = Path(source.path.partition(":")[2]).absolute()
    folder = path.parent if path.suffix == ".json" else path
    return f"{folder.name or 'model'}-{source.options.get('weights', 'f16')}.gguf"


def engine_options(plan: Plan) -> EngineOptions:
    """The options of a plan.

    Raises:
        InexpressibleError: it is no plan of a language model, or breaks a rule of the engine.
    """
    return _Export(plan).options()


def buffers_of(plan: Plan) -> tuple[str, ...]:
    """The engine's buffer for each device of a plan; devices that share the host's have one.

    Raises:
        InexpressibleError: it is no plan of a language model.
    """
    return tuple(_Export(plan).buffers.values())


class _Export:
    def __init__(self, plan: Plan) -> None:
        source = plan.problem.source
        if source is None or "micro_batch" not in source.options:
            raise InexpressibleError(
                "this plan is not of a language model; llama.cpp runs no other"
            )
        self._asked = source.options
        self._numbers = {name: _whole(source, name) for name in (*_NUMBERS, PREDICTING)}
        self._graph, devices = plan.problem.graph, plan.problem.cluster.devices
        self._cards = [device for device in devices if device.pool is None]
        names = engine_names(self._cards)
        self.buffers = {
            at: _HOST if device.pool is not None else names[self._cards.index(device)]
            for at, device in enumerate(devices)
        }
        self._threads = next((threads_of(x) for x in devices if x.pool is not None), None)
        self._device_of = plan.placement.device_of
        self._streamed = {at for at, device in enumerate(devices) if STREAMED_BY in device.options}
        self._names = names

    def options(self) -> EngineOptions:
        """The options."""
        layers = [self._at(op) for op in first_of_layers(self._graph)]
        shares, gpu_layers, head = self._split(layers)
        overrides = head | self._overrides()
        experts = self._host_experts(overrides)
        if experts:
            overrides = {key: at for key, at in overrides.items() if not key.endswith("_exps")}
        served = [found for name in self._names if (found := SERVED.fullmatch(name))]
        for card in served:
            if not card[0].startswith("RPC0["):
                raise InexpressibleError(
                    f"'{card[0]}' is not the first card of its server, and llama.cpp numbers the "
                    "cards of all servers in turn; start one rpc-server for each card, with its "
                    "option -d, and name the card RPC0[ADDRESS]"
                )
        numbers = iter(range(len(served)))
        return EngineOptions(
            tuple(f"RPC{next(numbers)}" if SERVED.fullmatch(x) else x for x in self._names),
            tuple(found[1] for found in served),
            gpu_layers,
            shares,
            overrides,
            experts,
            self._is_streaming(),
            self._sizes(),
            self._threads,
            self._numbers[PREDICTING],
        )

    def _sizes(self) -> dict[str, str]:
        asked = self._asked
        sequences, context, micro_batch = (self._numbers[name] for name in _NUMBERS)
        if sequences > _MOST_SEQUENCES:
            raise InexpressibleError(
                f"llama.cpp has room for {_MOST_SEQUENCES} sequences at most, and this plan has "
                f"{sequences}; place with fewer `sequences`"
            )
        return {
            "-c": str(sequences * context),
            "-np": str(sequences),  # a server has room for four unless told
            "-b": str(max(_LEAST_BATCH, micro_batch)),
            "-ub": str(micro_batch),
            "-fa": "on",
            "-ctk": asked["cache"],
            "-ctv": asked["cache"],
        }

    def _is_streaming(self) -> bool:
        """True if weights in RAM are streamed, and if none would be.

        A plan without a column for them has none if the card lacks room for copies. The engine
        reserves that room for a whole micro-batch, however short the prompt.
        """
        used = {int(at) for at in self._device_of[1:] if self.buffers[int(at)] == _HOST}
        # Its contexts have 256 tokens or more; a step has one sequence beyond the micro-batch.
        micro_batch = self._numbers["micro_batch"]
        is_long = max(micro_batch, min(self._numbers["sequences"], micro_batch + 1)) >= _LONG
        own = (card for card in self._cards if card.kind == "gpu")
        copies = any(not card.options.get(NAME, "").startswith("RPC") for card in own)
        return not used or not (is_long and copies) or bool(used & self._streamed)

    def _ops(self, kind: str) -> list[int]:
        return [op for op, own in enumerate(self._graph.op_kinds) if own == kind]

    def _at(self, op: int) -> str:
        return self.buffers[int(self._device_of[op])]

    def _split(self, layers: Sequence[str]) -> tuple[tuple[int, ...], int, dict[str, str]]:
        """Shares of cards, layers on cards with the head, and where the head is moved."""
        order = [_HOST, *self._names]
        if layers != sorted(layers, key=order.index):
            raise InexpressibleError(
                "layers do not lie in runs: those of the CPU first, then those of each card in the "
                "order of argument `devices`"
            )
        shares = [layers.count(name) for name in self._names]
        head = self._at(self._graph.op_index["head"])
        on_cards = sum(shares)
        if not on_cards and head == _HOST:
            return tuple(shares), 0, {}
        last = max((at for at, share in enumerate(shares) if share), default=0)
        at = self._names.index(head) if head != _HOST else -1
        natural = max(at, last)
        behind = 1 + self._numbers[PREDICTING]
        shares[natural] += behind
        if natural == at:
            return tuple(shares), on_cards + behind, {}
        if self._is_tied():
            raise InexpressibleError(
                f"the head of this model is its embedding again, which '{head}' cannot hold while "
                f"the last layer is on '{self._names[last]}'"
            )
        return tuple(shares), on_cards + behind, {"^output": head}

    def _is_tied(self) -> bool:
        ends = (self._graph.op_index[name] for name in ("embedding", "head"))
        first, last = (set(self._graph.op_weights.row(op).tolist()) for op in ends)
        return bool(first & last)

    def _overrides(self) -> dict[str, str]:
        """Modules that rest elsewhere than the attention of their layer, as patterns."""
        graph = self._graph
        own = {graph.op_modules[op]: self._at(op) for op in first_of_layers(graph)}
        with_experts = {graph.op_modules[op] for op in self._ops("Experts")}
        moved: dict[tuple[str, str], list[int]] = {}
        for kind in TENSORS:
            for op in self._ops(kind):
                module, at = graph.op_modules[op], self._at(op)
                is_beside = kind == "FeedForward" and module in with_experts
                tensors = _BESIDE_EXPERTS if is_beside else TENSORS[kind]
                if own[module] != at:
                    moved.setdefault((tensors, at), []).append(int(module.split(".")[1]))
        return {
            rf"blk\.{_any_of(numbers)}\.{tensors}": at for (tensors, at), numbers in moved.items()
        }

    def _host_experts(self, overrides: Mapping[str, str]) -> int:
        """First layers whose experts rest in RAM, if no other experts are moved; else 0."""
        if any(self._at(op) != _HOST for op in self._ops("SharedExperts")):
            return 0  # the option would move chunk experts, which are shared ones here, too
        found = [
            int(self._graph.op_modules[op].split(".")[1])
            for op in self._ops("Experts")
            if self._at(op) == _HOST
        ]
        others = [key for key, at in overrides.items() if key.endswith("_exps") and at != _HOST]
        is_first = found == sorted(found)[: len(found)] and found == list(range(len(found)))
        return len(found) if found and is_first and not others else 0


def _whole(source: ModelSource, name: str) -> int:
    text = source.options.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InexpressibleError(f"'{name}' of this plan's request is '{text:.40}'; place it again")
    return int(text)


def first_of_layers(graph: ComputationGraph) -> list[int]:
    """The first op of each layer, which decides where the engine has the layer.

    It is attention, but for layers without any.
    """
    found: dict[str, int] = {}
    for op, module in enumerate(graph.op_modules):
        if module.startswith("layers."):
            found.setdefault(module, op)
    return list(found.values())


def _any_of(numbers: Iterable[int]) -> str:
    texts = [str(number) for number in sorted(numbers)]
    return texts[0] if len(texts) == 1 else f"({'|'.join(texts)})"


def engine_names(cards: Sequence[Device]) -> list[str]:
    """Names of cards for the engine: those of their options, else free numbers of a backend.

    Raises:
        InexpressibleError: the engine has no name for a card, or one for two.
    """
    names = {card.name: own for card in cards if (own := card.options.get(NAME))}
    given = tuple(names.values())
    of_backend: dict[str, list[Device]] = {}
    for card in cards:
        if card.name not in names:
            kind = card.fingerprint.removeprefix("catalogue:")
            if card.kind != "gpu" and kind != card.fingerprint:
                raise InexpressibleError(
                    f"device '{card.name}' ({card.kind}) has no name in llama.cpp; give it one "
                    f"with option {NAME} in a cluster file, such as that of a server"
                )
            backend = next((name for mark, name in _MARKS.items() if kind.startswith(mark)), "CUDA")
            of_backend.setdefault(backend, []).append(card)
    for backend, unnamed in of_backend.items():
        found = (re.fullmatch(rf"{backend}(\d+)", name) for name in given)
        numbers = card_numbers(unnamed, [int(name[1]) for name in found if name])
        names |= {card.name: f"{backend}{at}" for card, at in zip(unnamed, numbers, strict=True)}
    require_distinct("llama.cpp", names, NAME)
    return [names[card.name] for card in cards]
