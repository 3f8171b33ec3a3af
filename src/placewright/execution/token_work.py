"""A request to a language model, and the work that each of its modules does for it.

A reader of language models makes the work; `profiling.token_costs` turns it into seconds. Neither
knows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from placewright.errors import FieldError

if TYPE_CHECKING:
    from placewright.core.graph import ComputationGraph
    from placewright.core.source import ModelSource

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
MOST_TOKENS = 1 << 24
_MOST_SEQUENCES = 4096


@dataclass(frozen=True)
class TokenRequest:
    """Work for which a placement of a language model is made.

    Raises:
        FieldError: a number is too small or too large, or the context is too short.
    """

    prompt: int  # tokens of a prompt, which the model reads in micro-batches
    generate: int  # tokens that it then generates, one after the other; 0 only reads
    context: int  # tokens for which caches have room
    micro_batch: int = 512  # tokens of a prompt that are computed at once
    sequences: int = 1  # generated at once, each with a prompt and a cache of its own
    cache: str = "f16"  # format of keys and values

    def __post_init__(self) -> None:
        for name in ("prompt", "context", "micro_batch"):
            if not 1 <= getattr(self, name) <= MOST_TOKENS:
                value = getattr(self, name)
                raise FieldError(name, f"must be 1 to {MOST_TOKENS} tokens, got {value}")
        if not 0 <= self.generate <= MOST_TOKENS:
            raise FieldError("generate", f"must be 0 to {MOST_TOKENS}, got {self.generate}")
        if not 1 <= self.sequences <= _MOST_SEQUENCES:
            raise FieldError("sequences", f"must be 1 to {_MOST_SEQUENCES}, got {self.sequences}")
        if self.prompt + self.generate > self.context:
            raise FieldError(
                "context",
                f"{self.context}: {self.prompt} tokens of the prompt and {self.generate} generated "
                "ones do not fit into it; give a longer one",
            )

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Passes through the model, alike ones counted; no pass is beyond a micro-batch."""
        whole, rest = divmod(self.prompt, self.micro_batch)
        steps, few = divmod(self.sequences, self.micro_batch)  # of decode, for each token
        found = (
            Pass("prefill", whole * self.sequences, self.micro_batch),
            Pass("prefill", self.sequences if rest else 0, rest),
            Pass("decode", self.generate * steps, self.micro_batch),
            Pass("decode", self.generate if few else 0, few),
        )
        return tuple(pass_ for pass_ in found if pass_.repeats)

    @property
    def options(self) -> dict[str, str]:
        """The request as texts, for the source of a model."""
        return {item.name: str(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> TokenRequest | None:
        """The request in the options of a source; None if they hold none.

        Raises:
            FieldError: one of them is no number, or does not fit the others.
        """
        names = [item.name for item in fields(cls)]
        if not all(name in options for name in names):
            return None
        numbers = {}
        for name in names:
            if name == "cache":
                continue
            try:
                numbers[name] = int(options[name])
            except ValueError:
                raise FieldError(name, f"must be a number, got '{options[name]}'") from None
        return replace(cls(1, 1, 2), **numbers, cache=options["cache"])


@dataclass(frozen=True)
class Pass:
    """A pass through the model, which is repeated."""

    phase: Phase  # of the request
    repeats: int  # >= 1
    tokens: int  # of one repeat


@dataclass(frozen=True)
class Product:
    """The matrix products of a module with the weights of one format, in one repeat of a pass."""

    dtype: str  # of the weights
    flops: float  # operations, a multiply-add being two
    n_bytes: float  # weights that are read
    rows: float  # tokens that each matrix multiplies: fewer than those of the pass for an expert


@dataclass(frozen=True)
class ModuleWork:
    """Work of one module in one pass."""

    products: tuple[Product, ...] = ()  # of each repeat
    # that stay where the module rests and that a repeat needs, all of them
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0  # that are read, and of a state also written, in all repeats
    score_flops: float = 0.0  # operations of attention on the cache, in all repeats
    kernels: int = 0  # that an engine starts in each repeat
    entry_bytes: float = 0.0  # of new keys and values before they enter the cache, in each repeat


@dataclass(frozen=True)
class Matrix:
    """A matrix of weights, and what it makes of a micro-batch."""

    weight_bytes: float  # of the matrix
    # activations on either side: as wide as the state, for all experts of a token, or as it makes
    # it from that
    state_bytes: float
    wide_bytes: float


@dataclass(frozen=True)
class RequestedWork:
    """A language model and a request, as a graph of modules with the work of each."""

    graph: ComputationGraph  # modules; tensors have the bytes of all passes
    source: ModelSource  # of the model, with the request in its options
    request: TokenRequest  # which tokens
    work: Sequence[tuple[ModuleWork, ...]]  # of each op of `graph`, in each of `request.passes`
    caches: Sequence[float]  # bytes of keys, values and states that each op keeps
    buffer_bytes: float  # that an engine keeps free on each device that computes
    streamed_bytes: float  # that it keeps besides, where it computes with weights of another memory
    # that the host needs besides, for states that it makes and hands on
    embedding_bytes: float = 0.0
    scratch_bytes: float = 0.0  # by which logits exceed the buffers, among the weights of the head
    matrices: Sequence[tuple[Matrix, ...]] = ()  # of each op, in the order in which they multiply
    # of each op: keys and values in f16, which a card makes in its buffer of those in other formats
    converted: Sequence[float] = ()
    spared_bytes: float = 0.0  # of the buffers, which the host does not need, as it makes none


Works = Callable[[TokenRequest], RequestedWork]
