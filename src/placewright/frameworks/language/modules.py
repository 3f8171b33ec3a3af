"""A language model as layers of modules, and the graph of its modules for one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.errors import InputError
from placewright.execution.token_work import MOST_TOKENS

Part = Literal[
    "embedding", "attention", "feed-forward", "router", "experts", "shared-experts", "head"
]
_KINDS: Mapping[Part, str] = {
    "embedding": "Embedding",
    "attention": "Attention",
    "feed-forward": "FeedForward",
    "router": "Router",
    "experts": "Experts",
    "shared-experts": "SharedExperts",
    "head": "Head",
}
_CELLS = 256  # tokens; caches are multiples of it (llama-context.cpp, llama-kv-cache-iswa.cpp)
_HIDDEN_BYTES = 4  # of an element between modules, which engines keep in f32
CACHE_FORMATS: Mapping[str, tuple[int, int]] = {  # elements and bytes of a block
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
}


@dataclass(frozen=True)
class Weight:
    """One tensor of weights."""

    n_elements: int  # parameters
    n_bytes: int  # as they rest in memory
    dtype: str  # for example ``"q4_k"``
    multiplies: bool  # a matrix, which multiplies every token; norms and biases are added to it


@dataclass(frozen=True)
class Cache:
    """Memory of a layer for a sequence: keys and values, or a recurrent state."""

    elements_per_token: int = 0  # keys and values of one token; 0 without a cache
    window: int = 0  # tokens that the layer looks back; 0 is all of them
    score_flops: float = 0.0  # operations of attention for a token and a token that it looks at
    state_bytes: int = 0  # of a recurrent state, which does not grow with the context
    head: int = 0  # elements that divide a head's key and its value; 0 if unknown
    # of latent attention: elements of a token's queries, before and after positions join them
    absorbed: int = 0

    def tokens(self, context: int) -> int:
        """Number of tokens of a context whose keys and values are kept."""
        return min(context, self.window) if self.window else context

    def kept_at_ends(self, tokens: int, passes: int) -> int:
        """Sum over equal passes of so many tokens: tokens that are kept at the end of each."""
        full = min(passes, self.window // tokens) if self.window else passes  # that keep them all
        return tokens * full * (full + 1) // 2 + (passes - full) * self.window

    def looked_at(self, tokens: int, context: int) -> int:
        """Sum over the last `tokens` of a context: tokens that each attends to, itself included.

        The last one looks at ``context`` tokens or its window, the one before it at one token less.
        """
        first = context - tokens + 1
        full = max(0, min(context, self.window or context) - first + 1)  # that see all before them
        return full * first + full * (full - 1) // 2 + (tokens - full) * self.tokens(context)

    def n_bytes(self, context: int, dtype: str, at_once: int = 0) -> float:
        """Bytes that one sequence of `context` tokens keeps.

        Args:
            context: tokens.
            dtype: one of `CACHE_FORMATS`.
            at_once: tokens of a pass for which llama.cpp makes room besides the window; it rounds
                both and the context up to 256. 0 is the context or window alone.
        """
        block, size = CACHE_FORMATS[dtype]
        kept = self.tokens(context)
        if at_once:
            kept = whole_cells(context)
            if self.window:
                kept = min(kept, whole_cells(self.window + at_once))
        return self.elements_per_token * kept * size / block + self.state_bytes


def whole_cells(tokens: int) -> int:
    """Tokens for which llama.cpp keeps room if so many are requested."""
    return -(-tokens // _CELLS) * _CELLS


@dataclass(frozen=True)
class LanguageModel:
    """A decoder as layers of modules with their weights and caches."""

    architecture: str  # as the file names it
    hidden: int  # elements of the state that modules hand on
    vocabulary: int  # number of tokens
    trained_context: int  # tokens; 0 if unknown
    experts_used: int  # of each layer with experts, for a token
    n_experts: int  # of such a layer
    layers: tuple[Mapping[Part, Sequence[Weight]], ...]  # modules of each layer, with their weights
    caches: tuple[Cache, ...]  # of each layer
    embedding: tuple[Weight, ...]  # weights
    head: tuple[Weight, ...]  # weights of the last norm and of the output matrix
    tied: bool  # the head multiplies with the embedding's first weight
    state: tuple[str, ...] = ()  # paths of parameters and buffers in PyTorch, if it has modules
    # layers of the file behind these that predict further tokens; engines leave them out
    predicting: int = 0

    def all_weights(self) -> list[Weight]:
        """Each weight once."""
        of_layers = [weight for layer in self.layers for part in layer.values() for weight in part]
        return [*self.embedding, *of_layers, *self.head]

    @property
    def n_parameters(self) -> int:
        """All parameters, a tied embedding once."""
        return sum(weight.n_elements for weight in self.all_weights())

    @property
    def n_active_parameters(self) -> float:
        """Parameters that compute one token: of routed experts only the chosen ones."""
        total = float(self.n_parameters)
        for layer in self.layers:
            of_experts = sum(weight.n_elements for weight in layer.get("experts", ()))
            total -= of_experts * (1 - self.share_of_experts)
        return total

    @property
    def share_of_experts(self) -> float:
        """Part of the experts that a token passes."""
        return self.experts_used / self.n_experts if self.n_experts else 1.0

    def cache_bytes(self, context: int, dtype: str) -> float:
        """Bytes that one sequence of `context` tokens keeps in all layers."""
        return sum(cache.n_bytes(context, dtype) for cache in self.caches)

    def facts(self, step: ModelStep) -> dict[str, int | float | str]:
        """Figures of a language model for one step, by the names that users see."""
        growing = sum(cache.elements_per_token for cache in self.caches)
        per_format = {
            f"cache_bytes_per_token_{name}": growing * size / block
            for name, (block, size) in CACHE_FORMATS.items()
        }
        return {
            "architecture": self.architecture,
            "layers": len(self.layers),
            "parameters": self.n_parameters,
            "active_parameters": self.n_active_parameters,
            "vocabulary": self.vocabulary,
            "experts": self.n_experts,
            "experts_used": self.experts_used,
            "trained_context": self.trained_context,
            "model_bytes": sum(weight.n_bytes for weight in self.all_weights()),
            **per_format,
            "tokens": step.tokens,
            "context": step.context,
            "cache_bytes": self.cache_bytes(step.context, "f16"),
            "state_bytes": sum(cache.state_bytes for cache in self.caches),
        }


@dataclass(frozen=True)
class ModelStep:
    """One pass of a model: number of new tokens, context, and sequences."""

    tokens: int  # that are computed at once; 1 is a step of decoding
    context: int  # tokens of the sequence, those among them
    cache: str = "f16"  # format of keys and values
    sequences: int = 1  # that share the tokens, each with a cache
    end: int = 0  # tokens of a sequence after the step; 0 if they fill the context
    answers: int = 1  # tokens whose logits are computed; engines skip the others
    scratch_bytes: float = 0.0  # of the head, for logits
    # tokens of the longest pass, for which windows keep room; 0 keeps the window alone
    at_once: int = 0


_DEFAULT_CONTEXT = 4096
_INPUTS = ("tokens", "context")


def step_of(shapes: Mapping[str, tuple[int, ...]], trained_context: int) -> ModelStep:
    """Make the step of requested sizes; default one token, at the end of a context of 4096 or less.

    Raises:
        InputError: a name is unknown, a size is not one number, or the context is too long.
    """
    longest = trained_context or MOST_TOKENS
    values: dict[str, int] = {"tokens": 1, "context": min(_DEFAULT_CONTEXT, longest)}
    for name, shape in shapes.items():
        if name not in _INPUTS:
            raise InputError(f"a language model has sizes 'tokens' and 'context', not '{name}'")
        if len(shape) != 1 or not 0 < shape[0] <= MOST_TOKENS:
            raise InputError(f"'{name}' must be one number from 1 to {MOST_TOKENS}, got {shape}")
        values[name] = shape[0]
    step = ModelStep(values["tokens"], values["context"])
    if step.context > longest:
        raise InputError(
            f"a context of {step.context} tokens is beyond the {longest} of the model; give fewer"
        )
    if step.tokens > step.context:
        raise InputError(f"{step.tokens} tokens do not fit into a context of {step.context}")
    return step


def modules_graph(model: LanguageModel, step: ModelStep) -> ComputationGraph:
    """Make the graph of a step: modules that pass the hidden state on.

    A cache is a weight of its attention: it rests where the layer is.
    """
    return _ModulesGraph(model, step).build()


class _ModulesGraph:
    """Makes the graph of a model for one step."""

    def __init__(self, model: LanguageModel, step: ModelStep) -> None:
        self._model, self._step = model, step
        self._builder = GraphBuilder()

    def build(self) -> ComputationGraph:
        model, step, builder = self._model, self._step, self._builder
        tokens = builder.add_input(4 * step.tokens, shape=(step.tokens,), dtype="i32")
        embedded = self._add(model.embedding)
        embedding = builder.add_op(
            "embedding", _KINDS["embedding"], inputs=[tokens], weights=embedded
        )
        state = [self._hidden(embedding)]
        for number, layer in enumerate(model.layers):
            state = self._layer(number, layer, model.caches[number], state)
        head = [*self._add(model.head), *(embedded[:1] if model.tied else [])]
        if step.scratch_bytes:
            head.append(builder.add_weight(step.scratch_bytes, dtype="f32"))
        matrices = [*model.head, *(model.embedding[:1] if model.tied else ())]
        op = builder.add_op(
            "head",
            _KINDS["head"],
            inputs=state,
            flops=step.answers
            * sum(2.0 * matrix.n_elements for matrix in matrices if matrix.multiplies),
            module="head",
            weights=head,
        )
        shape = step.answers, model.vocabulary
        builder.add_tensor(op, 4 * shape[0] * shape[1], shape=shape, dtype="f32", is_output=True)
        return builder.build()

    def _layer(
        self, number: int, layer: Mapping[Part, Sequence[Weight]], cache: Cache, state: list[int]
    ) -> list[int]:
        """Add the modules of a layer; return the tensors that the next layer reads."""
        place = f"layers.{number}"
        if "attention" in layer:
            state = [self._hidden(self._op(place, "attention", layer, cache, state))]
        if "feed-forward" in layer:
            state = [self._hidden(self._op(place, "feed-forward", layer, Cache(), state))]
        if "experts" in layer:
            router = self._op(place, "router", layer, Cache(), state)
            chosen = self._step.tokens * self._model.experts_used
            choice = self._builder.add_tensor(
                router, 8 * chosen, shape=(self._step.tokens, self._model.experts_used), dtype="f32"
            )  # an index and a factor for each expert of a token
            experts = self._op(place, "experts", layer, Cache(), [*state, choice])
            after = [self._hidden(experts)]
            if "shared-experts" in layer:
                after.append(self._hidden(self._op(place, "shared-experts", layer, Cache(), state)))
            state = after
        return state

    def _op(
        self,
        place: str,
        part: Part,
        layer: Mapping[Part, Sequence[Weight]],
        cache: Cache,
        inputs: list[int],
    ) -> int:
        weights = self._add(layer[part])
        step = self._step
        n_bytes = step.sequences * cache.n_bytes(step.context, step.cache, step.at_once)
        if n_bytes:
            weights.append(self._builder.add_weight(n_bytes, dtype=step.cache))
        flops_per_token = sum((2.0 if w.multiplies else 1.0) * w.n_elements for w in layer[part])
        if part == "experts":
            flops_per_token *= self._model.share_of_experts
        end = step.end or step.context
        looked_at = cache.looked_at(step.tokens // step.sequences, end)
        scores = cache.score_flops * step.sequences * looked_at
        return self._builder.add_op(
            f"{place}.{part}",
            _KINDS[part],
            inputs=inputs,
            flops=step.tokens * flops_per_token + scores,
            module=place,
            weights=weights,
        )

    def _add(self, weights: Sequence[Weight]) -> list[int]:
        return [self._builder.add_weight(weight.n_bytes, dtype=weight.dtype) for weight in weights]

    def _hidden(self, op: int) -> int:
        shape = (self._step.tokens, self._model.hidden)
        size = _HIDDEN_BYTES * shape[0] * shape[1]
        return self._builder.add_tensor(op, size, shape=shape, dtype="f32")
