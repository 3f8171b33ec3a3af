"""Forms of operators that every device can run.

A graph is exported on the processor. PyTorch then takes the processor's own kernels of attention,
and a `view` where the processor's kernels leave strides that allow one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_ATEN = torch.ops.aten
_OPERATORS: Any = torch.library.Library("placewright", "DEF")  # type: ignore[no-untyped-call]


def portable(target: Any) -> Any:
    """The form of a call's target for devices other than the processor."""
    return _FORMS.get(target, target)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_scaled_dot_product_flash_attention_for_cpu`` by matrix products.

    Returns:
        Output, shape (batch, heads, queries, width), and logarithms of the sums of exponentials,
        shape (batch, heads, queries).
    """
    scores = _scores(query, key, is_causal, attn_mask, scale)
    sums = scores.logsumexp(-1)
    sums = sums.masked_fill(sums == -math.inf, 0.0)  # nothing is seen, and the output is 0
    shares = torch.exp(scores - sums.unsqueeze(-1))
    return (shares @ value.to(shares.dtype)).to(query.dtype), sums


def attention_backward(
    grad_out: torch.Tensor,
    *forward: Any,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value, by the operator's backward on the processor.

    Args:
        forward: query, key, value, output, logarithms of sums, share that is dropped (0), and
            whether a query sees only the keys before it.
    """
    query, key, value, out, logsumexp, _, is_causal = forward
    scores = _scores(query, key, is_causal, attn_mask, scale)
    shares = torch.exp(scores - logsumexp.unsqueeze(-1))
    grad = grad_out.to(shares.dtype)
    of_shares = grad @ value.to(shares.dtype).transpose(-2, -1)
    mean = (grad * out).sum(-1, keepdim=True)
    of_scores = shares * (of_shares - mean) * _scale(query, scale)
    grads = (
        of_scores @ key.to(shares.dtype),
        of_scores.transpose(-2, -1) @ query.to(shares.dtype),
        shares.transpose(-2, -1) @ grad,
    )
    of_query, of_key, of_value = (gradient.to(query.dtype) for gradient in grads)
    return of_query, of_key, of_value


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    is_causal: bool,
    attn_mask: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    """Products of queries and keys in f32 at least, with what may not be seen at -inf."""
    kind = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(kind) @ key.to(kind).transpose(-2, -1) * _scale(query, scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return scores if attn_mask is None else scores + attn_mask


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _own(kernel: Any, function: Callable[..., object]) -> Any:
    """Register `function` as an operator with the arguments of a kernel of the processor."""
    name = function.__name__
    _OPERATORS.define(f"{name}{str(kernel._schema).partition(kernel._schema.name)[2]}")
    _OPERATORS.impl(name, function, "CompositeExplicitAutograd")
    return getattr(torch.ops.placewright, name).default


_FORMS: dict[Any, Any] = {
    _ATEN.view.default: _ATEN.reshape.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default: _own(
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default, attention
    ),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default: _own(
        _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default, attention_backward
    ),
}
