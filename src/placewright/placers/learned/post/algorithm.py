"""Post: the distribution, Algorithm 1, and the PPO objective with its gradient (see `Post`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.placers.baselines.simple import evaluate_homogeneous
from placewright.placers.learned.post.placer import Post
from placewright.placers.learned.shared.returns import RunningMean, reference_value, relative_times
from placewright.placers.learned.shared.searching import EarlyStop, reporting
from placewright.placers.legal import ActionSpace
from placewright.simulation.evaluator import Evaluator

SMALLEST_PROBABILITY = 1e-12
SMALLEST_RATE = 1e-9


@dataclass
class Distribution:
    """The independent softmaxes of all groups, and adaptive parameters."""

    log_f: FloatArray  # log f(d_m | u), shape (n_groups, n_devices), -inf if forbidden
    allowed: BoolArray  # shape (n_groups, n_devices)
    beta: float  # weight of the KL penalty
    rate: float  # learning rate of gradient ascent

    @classmethod
    def uniform(cls, allowed: BoolArray, settings: Post) -> Distribution:
        """u = 0: equal probability of every allowed device."""
        log_f = log_softmax(np.zeros(allowed.shape), allowed)
        return cls(log_f, allowed, settings.beta, settings.learning_rate)

    def sample(self, n: int, rng: np.random.Generator) -> IntArray:
        """n samples of all groups, shape (n, n_groups)."""
        gumbel = rng.gumbel(size=(n, *self.log_f.shape))
        samples: IntArray = (self.log_f[None] + gumbel).argmax(axis=2)
        return samples

    def ppo(self, samples: IntArray, advantage: FloatArray, settings: Post) -> float:
        """Gradient ascent on Eq. (11) from the distribution that drew `samples`.

        Steps that lead further than 2 x `kl_target` are taken again with half the learning rate. If
        no rate is small enough, the distribution does not change. The next update tries a larger
        rate if the first attempt held. `beta` doubles or halves if the divergence is more than
        1.5 times `kl_target`, or less than a 1.5th of it.

        Returns:
            KL(old || new) of the joint distribution, at most 2 x `kl_target`; 0 without a change.
        """
        old, limit = self.log_f, 2.0 * settings.kl_target
        rate = self.rate
        new = self._ascended(samples, advantage, settings, rate)
        while kl_divergence(old, new) > limit and rate > SMALLEST_RATE:
            rate /= 2.0
            new = self._ascended(samples, advantage, settings, rate)
        divergence = kl_divergence(old, new)
        if divergence > limit:
            return 0.0
        self.log_f = new
        self.rate = rate if rate < self.rate else min(2.0 * rate, settings.learning_rate)
        if divergence > 1.5 * settings.kl_target:
            self.beta *= 2.0
        elif divergence < settings.kl_target / 1.5:
            self.beta /= 2.0
        return divergence

    def _ascended(
        self, samples: IntArray, advantage: FloatArray, settings: Post, rate: float
    ) -> FloatArray:
        u = np.where(self.allowed, self.log_f, 0.0)
        for _ in range(settings.sga_steps):
            _, gradient = ppo_objective(u, self.log_f, self.allowed, samples, advantage, self.beta)
            u = u + rate * gradient
        floor = np.log(SMALLEST_PROBABILITY)
        log_f = np.maximum(log_softmax(u, self.allowed), floor)
        return np.where(self.allowed, log_f, -np.inf)

    def cross_entropy(self, samples: IntArray, times: FloatArray, settings: Post) -> None:
        """Closed form of Eq. (10): device frequencies among the elite of the last N samples."""
        recent = slice(-settings.ce_every, None)
        n_elite = max(1, round(settings.elite * len(times[recent])))
        threshold = np.sort(times[recent])[n_elite - 1]
        elite = samples[recent][times[recent] <= threshold]  # (n_elite, n_groups)
        counts = (elite[:, :, None] == np.arange(self.allowed.shape[1])).sum(axis=0)
        self._set(counts / len(elite))

    def mix(self, epsilon: float) -> None:
        """f <- (1 - epsilon) f + epsilon / D over each group's allowed devices."""
        uniform = self.allowed / self.allowed.sum(axis=1, keepdims=True)
        self._set((1.0 - epsilon) * np.exp(self.log_f) + epsilon * uniform)

    def entropy(self) -> float:
        """Mean entropy of a group in nats."""
        f = np.exp(self.log_f)
        return float(-(f * np.where(f > 0, self.log_f, 0.0)).sum(axis=1).mean())

    def _set(self, f: FloatArray) -> None:
        bounded = np.where(self.allowed, np.maximum(f, SMALLEST_PROBABILITY), 1.0)
        self.log_f = np.where(self.allowed, np.log(bounded), -np.inf)


def learn(
    settings: Post, space: ActionSpace, evaluator: Evaluator, rng: np.random.Generator
) -> Distribution:
    """Algorithm 1: sample, time, learn; ends with `BudgetSpent` or when `patience` runs out."""
    if settings.homogeneous_starts:
        evaluate_homogeneous(space.problem, evaluator)
    f = Distribution.uniform(space.allowed, settings)
    reference = reference_value(space.problem)
    horizon = evaluator.budget.evaluations or settings.horizon
    mean_time, stop = RunningMean(), EarlyStop(settings.patience)
    read = slice(-max(settings.ppo_every, settings.ce_every), None)  # of the last samples, by steps
    samples = np.empty((0, space.n_groups), dtype=np.int64)
    times, n = np.empty(0), 0  # n samples so far
    with reporting(settings.tensorboard, evaluator) as report:
        while not stop(evaluator.best_value, evaluator.evaluations):
            # Between two steps the distribution does not change: time those samples together.
            batch = f.sample(until_next_step(settings, n), rng)
            values = evaluator.sample_many(space.expand(batch))
            new = relative_times(values, reference)
            samples = np.concatenate([samples, batch[: len(new)]])[read]
            times, n = np.concatenate([times, new])[read], n + len(new)
            mean_time.update(new)
            step, measured = settings.step_after(n), {}
            if step == "ppo":
                # If N is no multiple of K, some of the last K are older than the last cross-entropy
                # step; the ratio takes them for draws of the present distribution.
                k = settings.ppo_every
                measured["kl"] = f.ppo(samples[-k:], mean_time.value - times[-k:], settings)
            elif step == "ce":
                f.cross_entropy(samples, times, settings)
                f.mix(settings.epsilon * max(0.0, 1.0 - n / horizon))
            report(mean_time=float(new.mean()) * reference, entropy=f.entropy(), **measured)
    return f


def until_next_step(settings: Post, n: int) -> int:
    """Number of samples until the distribution changes again."""
    ahead = 1
    while ahead < max(settings.ppo_every, settings.ce_every) and not settings.step_after(n + ahead):
        ahead += 1
    return ahead


def log_softmax(u: FloatArray, allowed: BoolArray) -> FloatArray:
    """Row-wise, -inf if not allowed."""
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
