"""The objective of Post's proximal policy steps, Eq. (11), and its gradient."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray


def log_softmax(u: FloatArray, allowed: BoolArray) -> FloatArray:
    """Row-wise, -inf where not allowed."""
    masked = np.where(allowed, u, -np.inf)
    shifted = masked - masked.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def ppo_objective(
    u: FloatArray,
    log_old: FloatArray,
    allowed: BoolArray,
    samples: IntArray,
    advantage: FloatArray,
    beta: float,
) -> tuple[float, FloatArray]:
    """Eq. (11) and its gradient in u: mean of ratio * advantage - beta * KL(old || new).

    The ratio is a product over groups and is taken in log space.

    Args:
        u: logits, shape (n_groups, n_devices).
        log_old: log-probabilities that drew the samples, same shape.
        allowed: same shape.
        samples: shape (n_samples, n_groups).
        advantage: b - T of each sample, shape (n_samples,).
        beta: weight of the penalty.
    """
    log_new = log_softmax(u, allowed)
    new, old = np.exp(log_new), np.exp(log_old)
    groups = np.arange(u.shape[0])
    log_ratio = (log_new[groups, samples] - log_old[groups, samples]).sum(axis=1)
    weight = np.exp(np.clip(log_ratio, -50.0, 50.0)) * advantage / len(samples)  # (n_samples,)
    gradient = -weight.sum() * new
    np.add.at(gradient, (np.broadcast_to(groups, samples.shape), samples), weight[:, None])
    gradient -= beta * (new - old)  # d KL(old || softmax(u)) / du = new - old
    return float(weight.sum()) - beta * kl_divergence(log_old, log_new), gradient


def kl_divergence(log_old: FloatArray, log_new: FloatArray) -> float:
    """KL(old || new), summed over groups."""
    possible = np.isfinite(log_old)
    return float((np.exp(log_old[possible]) * (log_old[possible] - log_new[possible])).sum())
