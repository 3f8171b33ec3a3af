"""The format of a file of published comparisons, and the language models that it describes.

Fields that nothing here uses are ignored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    field_validator,
)
from pydantic import ValidationError as Invalid

from placewright.errors import FileFormatError
from placewright.files.schema import fault_text
from placewright.frameworks.language.modules import Cache, LanguageModel, Part, Weight
from placewright.io.json_text import json_list, read_text
from placewright.io.opened import shown_name

_TEXT = 200  # characters of an error


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Latent(_Read):
    """Sizes of multi-head latent attention."""

    q_lora_rank: PositiveInt
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt


class Heads(_Read):
    """Key/value heads of layers that attend to the whole context, if not those of `Shapes`."""

    kv_heads: PositiveInt
    head_dim: PositiveInt


class Linear(_Read):
    """Sizes of linear attention."""

    key_heads: PositiveInt
    value_heads: PositiveInt
    head_dim: PositiveInt


class Shapes(_Read):
    """Sizes of a model, and bits per weight."""

    hidden: PositiveInt
    layers: int = Field(ge=1, le=1000)
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    ffn: PositiveInt | None = None
    vocab: PositiveInt
    experts: PositiveInt | None = None
    experts_per_token: PositiveInt | None = None
    expert_ffn: PositiveInt | None = None
    shared_experts: int | None = None
    dense_layers: int | None = None
    mla: Latent | None = None
    tied_embeddings: bool = False
    bits_per_weight: PositiveFloat
    embedding_bits: PositiveFloat | None = None
    sliding_window: PositiveInt | None = None
    full_attention_layers: PositiveInt | None = None
    full_attention_every: PositiveInt | None = None
    global_attention: Heads | None = None
    linear_attention: Linear | None = None
    attention_gate: bool = False


class ModelFields(_Read):
    """The model of a comparison."""

    config: Shapes | None = None


class DeviceFields(_Read):
    """A device; rates in 1e9 bytes/s and 1e12 operations/s, memory in 1e9 bytes."""

    id: str
    kind: str
    name: str = ""
    memory_GB: PositiveFloat | None = None
    bandwidth_GBps: PositiveFloat | None = None
    bandwidth_estimate_GBps: PositiveFloat | None = None
    peak_fp16_TFLOPs: PositiveFloat | None = None


class LinkFields(_Read):
    """A link between two devices: 1e9 bytes/s and microseconds, the same in both directions."""

    a: str
    b: str
    GBps: PositiveFloat
    latency_us: PositiveFloat | None = None
    kind: str = ""


class PartFields(_Read):
    """Modules that lie on a device, whole or with a share of each, 0 to 1."""

    part: str
    layers: str | list[int] = "all"  # first and last one
    experts: float | list[int] | None = None
    device: str
    share: PositiveFloat | None = None
    replica: int | None = None

    @field_validator("layers")
    @classmethod
    def _are_all_or_a_range(cls, layers: str | list[int]) -> str | list[int]:
        if layers != "all" and (isinstance(layers, str) or len(layers) != 2):
            raise ValueError(f'expected "all", or the first and last number, got {layers!r}')
        return layers


class CopiedWeights(_Read):
    """Two devices: `target` computes all that lies on `source`, and copies the weights for it."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")


class PlanFields(_Read):
    """The devices of an option's modules."""

    parts: list[PartFields]
    stream: CopiedWeights | None = None
    concurrency: PositiveInt | None = None
    engine_flags: str | None = None
    replicas: PositiveInt | None = None
    link_kind: str | None = None
    graph_splits: PositiveInt | None = None


class OptionFields(_Read):
    """One option of a comparison; if `measured` is a text, the option failed in this way."""

    key: str
    measured: float | str
    plan: PlanFields | None = None

    @property
    def rate(self) -> float:
        """The number that was measured, in the unit of the comparison.

        NaN if the option failed or the number is not above 0.
        """
        found = self.measured
        return float(found) if not isinstance(found, str) and found > 0 else math.nan


class Expected(_Read):
    """Keys of the options that may be compared, and of those that are one placement."""

    order: list[str] = []  # empty for all
    same_plan: list[list[str]] = []


class PublishedComparison(_Read):
    """Options that one source measured on the same hardware."""

    id: str
    source: str
    engine: str
    model: ModelFields
    devices: list[DeviceFields] = []
    links: list[LinkFields] = []
    phase: str
    context_tokens: PositiveInt | None = None
    batch: int | str | None = None  # a text says that there were many
    higher_is_better: bool
    options: list[OptionFields]
    better_looking_option_lost: bool = False
    usable: bool = False
    expected: Expected | None = None

    @property
    def is_prefill(self) -> bool:
        """True if prefill was timed, False for decode."""
        return self.phase.startswith("prefill")


def read_comparisons(path: Path) -> list[PublishedComparison]:
    """The comparisons of a file, a JSON list.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no such list, or a field is missing or wrong.
    """
    text = read_text(path)
    name = shown_name(path)
    cleaned = [_cleaned(row) for row in json_list(text, path)]
    try:
        found = TypeAdapter(list[PublishedComparison]).validate_python(cleaned)
    except Invalid as error:
        first = error.errors(include_url=False)[0]
        field = shown_name(".".join(str(part) for part in first["loc"]))
        fault = f"file '{name}': {field}: {fault_text(first)}"
        raise FileFormatError(fault[:_TEXT]) from None
    most = Counter(row.id for row in found).most_common(1)
    if most and most[0][1] > 1:
        raise FileFormatError(f"file '{name}' has comparison '{shown_name(most[0][0])}' twice")
    return found


def _cleaned(row: Any) -> Any:
    """Prepare a comparison as read: 0 tokens of context become None.

    One whose ``usable`` is not true is never predicted, so that its links and devices are dropped
    unchecked.
    """
    if not isinstance(row, dict):
        return row
    changed = {"context_tokens": row.get("context_tokens") or None}
    if not row.get("usable"):
        changed |= {"links": [], "devices": []}
    return {**row, **changed}


_NORM_BITS = 32  # of norms and routers, which engines keep in f32
_STATE_BYTES = 4  # of a number of a recurrent state


def language_model(shapes: Shapes) -> LanguageModel:
    """The modules of a model with these sizes.

    Raises:
        ValueError: a feed-forward network or a number of experts is missing.
    """
    return _Maker(shapes).model()


class _Maker:
    def __init__(self, shapes: Shapes) -> None:
        self._s = shapes

    def model(self) -> LanguageModel:
        s = self._s
        embedding = self._matrix(s.vocab, s.hidden, bits=s.embedding_bits)
        head = () if s.tied_embeddings else (self._matrix(s.vocab, s.hidden),)
        made = [self._layer(number) for number in range(s.layers)]
        return LanguageModel(
            "published sizes",
            s.hidden,
            s.vocab,
            0,
            s.experts_per_token or 0,
            s.experts or 0,
            tuple(layer for layer, _ in made),
            tuple(cache for _, cache in made),
            (embedding,),
            (self._norm(), *head),
            s.tied_embeddings,
        )

    def _layer(self, number: int) -> tuple[Mapping[Part, Sequence[Weight]], Cache]:
        s = self._s
        attention, cache = self._attention(number)
        layer: dict[Part, Sequence[Weight]] = {"attention": (*attention, self._norm())}
        if not s.experts or number < (s.dense_layers or 0):
            if not s.ffn:
                raise ValueError("the width of its feed-forward network is not stated")
            layer["feed-forward"] = (*self._gated(s.ffn), self._norm())
            return layer, cache
        if not (s.expert_ffn and s.experts_per_token):
            raise ValueError("the width of its experts, or how many a token uses, is not stated")
        layer["router"] = (self._matrix(s.experts, s.hidden, bits=_NORM_BITS), self._norm())
        layer["experts"] = self._gated(s.expert_ffn, s.experts)
        if s.shared_experts:
            layer["shared-experts"] = self._gated(s.shared_experts * s.expert_ffn)
        return layer, cache

    def _attention(self, number: int) -> tuple[tuple[Weight, ...], Cache]:
        s = self._s
        if s.linear_attention and not self._looks_at_all(number):
            return self._linear()
        if s.mla:
            return self._latent()
        own = s.global_attention if self._looks_at_all(number) else None
        kv_heads, size = (s.kv_heads, s.head_dim) if own is None else (own.kv_heads, own.head_dim)
        width, hidden = s.heads * size, s.hidden
        matrices = (
            self._matrix((2 if s.attention_gate else 1) * width, hidden),
            self._matrix(2 * kv_heads * size, hidden),
            self._matrix(hidden, width),
        )
        window = 0 if self._looks_at_all(number) else s.sliding_window or 0
        return matrices, Cache(2 * kv_heads * size, window, 4.0 * width)

    def _looks_at_all(self, number: int) -> bool:
        """True if a layer attends to the whole context; such layers are evenly spaced."""
        s = self._s
        if s.full_attention_every is not None:
            return (number + 1) % s.full_attention_every == 0
        if s.full_attention_layers is None:
            return not (s.sliding_window or s.linear_attention)
        full = min(s.full_attention_layers, s.layers)
        return (number + 1) * full // s.layers > number * full // s.layers

    def _linear(self) -> tuple[tuple[Weight, ...], Cache]:
        linear, hidden = self._s.linear_attention, self._s.hidden
        assert linear is not None
        keys, values = (n * linear.head_dim for n in (linear.key_heads, linear.value_heads))
        matrices = (self._matrix(2 * keys + 2 * values, hidden), self._matrix(hidden, values))
        return matrices, Cache(state_bytes=_STATE_BYTES * values * linear.head_dim)

    def _latent(self) -> tuple[tuple[Weight, ...], Cache]:
        s, mla = self._s, self._s.mla
        assert mla is not None
        rank, rope = mla.kv_lora_rank, mla.qk_rope_head_dim
        matrices = (
            self._matrix(mla.q_lora_rank, s.hidden),
            self._matrix(s.heads * (mla.qk_nope_head_dim + rope), mla.q_lora_rank),
            self._matrix(rank + rope, s.hidden),
            self._matrix(s.heads * (mla.qk_nope_head_dim + mla.v_head_dim), rank),
            self._matrix(s.hidden, s.heads * mla.v_head_dim),
        )
        scores, queries = 2.0 * s.heads * (2 * rank + rope), 2 * s.heads * (rank + rope)
        return matrices, Cache(rank + rope, 0, scores, absorbed=queries)

    def _gated(self, width: int, copies: int = 1) -> tuple[Weight, ...]:
        return tuple(self._matrix(copies * width, self._s.hidden) for _ in range(3))

    def _matrix(self, rows: int, columns: int, bits: float | None = None) -> Weight:
        each = self._s.bits_per_weight if bits is None else bits
        return Weight(rows * columns, round(rows * columns * each / 8), f"{each:g} bits", True)

    def _norm(self) -> Weight:
        return Weight(self._s.hidden, self._s.hidden * _NORM_BITS // 8, "f32", False)
