"""Additive attention in pieces gives what one expression gives, within rounding."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from placewright.placers.learned.shared.encoders import additive_scores  # noqa: E402


def plain(keys: torch.Tensor, queries: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    mixed = torch.tanh(keys.unsqueeze(1) + queries.unsqueeze(2))
    return torch.nn.functional.linear(mixed, weight).squeeze(-1)


@pytest.mark.parametrize("shape", [(4, 40, 40, 512), (3, 7, 9, 64), (1, 300, 300, 128)])
def test_pieces_change_nothing_but_rounding(shape: tuple[int, int, int, int]) -> None:
    batch, n_queries, n_keys, hidden = shape
    generator = torch.Generator().manual_seed(1)
    inputs = [
        torch.randn(size, generator=generator, requires_grad=True)
        for size in ((batch, n_keys, hidden), (batch, n_queries, hidden), (1, hidden))
    ]
    weights = torch.randn((batch, n_queries, n_keys), generator=generator)
    found, expected = additive_scores(*inputs), plain(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_gradients_against_finite_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    inputs = tuple(
        torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True)
        for size in ((2, 3, 4), (2, 5, 4), (1, 4))
    )
    assert torch.autograd.gradcheck(additive_scores, inputs)
