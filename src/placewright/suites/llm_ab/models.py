"""A language model from the sizes that a comparison states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewright.frameworks.language.modules import Cache, LanguageModel, Part, Weight
from placewright.suites.llm_ab.documents import Shapes

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
        """True if a layer attends to the whole context; those that do lie evenly."""
        s = self._s
        every = s.full_attention_every
        if every is None:
            every = s.layers // s.full_attention_layers if s.full_attention_layers else 1
        return (number + 1) % max(1, every) == 0

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
        return matrices, Cache(rank + rope, 0, 2.0 * s.heads * (2 * rank + rope))

    def _gated(self, width: int, copies: int = 1) -> tuple[Weight, ...]:
        return tuple(self._matrix(copies * width, self._s.hidden) for _ in range(3))

    def _matrix(self, rows: int, columns: int, bits: float | None = None) -> Weight:
        each = self._s.bits_per_weight if bits is None else bits
        return Weight(rows * columns, round(rows * columns * each / 8), f"{each:g} bits", True)

    def _norm(self) -> Weight:
        return Weight(self._s.hidden, self._s.hidden * _NORM_BITS // 8, "f32", False)
