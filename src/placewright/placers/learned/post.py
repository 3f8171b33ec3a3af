"""Device placement by cross-entropy minimisation and proximal policy optimisation (Post)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.anytime import anytime
from placewright.placers.homogeneous import evaluate_homogeneous
from placewright.placers.learned.baselines import RunningMean
from placewright.placers.learned.grouping import ActionSpace, merged_space
from placewright.placers.learned.monitoring import EarlyStop, scalars_to
from placewright.placers.learned.returns import reference_value, relative_times
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator

ABLATIONS = ("", "ce_only", "ppo_only")
SMALLEST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class Post:
    """One softmax per group; a PPO step every K samples, a cross-entropy step every N.

    "Post: Device Placement with Cross-Entropy Minimization and Proximal Policy Optimization",
    NeurIPS 2018, Algorithm 1. There is no neural network: f(d|u) is the product over groups m of
    softmax(u_m)[d_m]. At sample n: if n mod K = 0 and n mod N != 0, `sga_steps` steps of gradient
    ascent on the PPO objective (Eq. 11) over the last K; if n mod N = 0, the closed form of the
    cross-entropy minimum over the best `elite` of the last N (Eq. 10), then every group is mixed
    with the uniform distribution, f <- (1 - epsilon) f + epsilon / D.

    Where the paper is silent, or would not work:
        * groups: co-location groups, then neighbours merged to at most `groups`;
        * times are divided by the problem's reference time, so that learning rate 1 has a scale;
        * epsilon falls linearly to 0 over the evaluation budget (over `horizon` without one);
        * beta doubles above 1.5 x the KL target and halves below it / 1.5 (adaptive-KL PPO);
        * u = 0 gives each group's allowed devices equal probability; forbidden ones have none.

    Attributes:
        groups: largest number of groups M.
        ppo_every: K.
        ce_every: N.
        elite: share of the last N samples that the cross-entropy step keeps.
        sga_steps: gradient steps per PPO update.
        learning_rate: of gradient ascent.
        epsilon: first weight of the uniform distribution after a cross-entropy step.
        beta: first weight of the KL penalty.
        kl_target: KL divergence that beta is adapted to.
        horizon: samples over which epsilon falls where the budget has no evaluation limit.
        ablation: "", ``ce_only`` or ``ppo_only``.
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing.
        updates: False only samples, from the untrained policy: the control of learning.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    name: ClassVar[str] = "post"
    paper: ClassVar[str] = "Gao et al., NeurIPS 2018"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False

    groups: int = 128
    ppo_every: int = 10
    ce_every: int = 50
    elite: float = 0.1
    sga_steps: int = 10
    learning_rate: float = 1.0
    epsilon: float = 0.1
    beta: float = 1.0
    kl_target: float = 0.03
    horizon: int = 2_400
    ablation: str = ""
    homogeneous_starts: bool = True
    updates: bool = True
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        if self.ablation not in ABLATIONS:
            raise InputError(f"post: ablation must be one of {ABLATIONS}, got '{self.ablation}'")
        for what in ("groups", "ppo_every", "ce_every", "sga_steps", "horizon"):
            if getattr(self, what) < 1:
                raise InputError(f"post: {what} must be >= 1, got {getattr(self, what)}")
        for what in ("learning_rate", "beta", "kl_target"):
            if not getattr(self, what) > 0:
                raise InputError(f"post: {what} must be > 0, got {getattr(self, what)}")
        for what in ("elite", "epsilon"):
            if not 0 <= getattr(self, what) <= 1:
                raise InputError(f"post: {what} must be in [0, 1], got {getattr(self, what)}")

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    def step_after(self, n: int) -> str:
        """What Algorithm 1 does after sample n >= 1: ``ppo``, ``ce`` or nothing ("")."""
        if not self.updates:
            return ""
        if self.ablation != "ppo_only" and n % self.ce_every == 0:
            return "ce"
        if self.ablation == "ce_only" or n % self.ppo_every:
            return ""
        return "ppo" if self.ablation == "ppo_only" or n % self.ce_every else ""

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups and their devices: what the policy chooses from."""
        return merged_space(with_shared_weights_tied(problem), self.groups)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Run Algorithm 1 until the budget ends."""
        space = self.actions(problem)
        if self.homogeneous_starts:
            evaluate_homogeneous(space.problem, evaluator)
        Distribution.learn(self, space, evaluator, rng)
        return evaluator.solution()


@dataclass
class Distribution:
    """The independent softmaxes of all groups and the state of Algorithm 1.

    Attributes:
        log_f: log f(d_m | u), shape (n_groups, n_devices), -inf where forbidden.
        allowed: shape (n_groups, n_devices).
        beta: weight of the KL penalty.
    """

    log_f: FloatArray
    allowed: BoolArray
    beta: float

    @classmethod
    def learn(
        cls, settings: Post, space: ActionSpace, evaluator: Evaluator, rng: np.random.Generator
    ) -> Distribution:
        """Algorithm 1: sample, time, learn; ends with `BudgetSpent` or lost patience."""
        f = cls(
            log_softmax(np.zeros(space.allowed.shape), space.allowed), space.allowed, settings.beta
        )
        reference = reference_value(space.problem)
        horizon = evaluator.budget.evaluations or settings.horizon
        mean_time, stop = RunningMean(), EarlyStop(settings.patience)
        samples = np.empty((0, space.n_groups), dtype=np.int64)
        times = np.empty(0)
        with scalars_to(settings.tensorboard) as scalars:
            while not stop(evaluator.best_value, evaluator.evaluations):
                # Between two steps the distribution does not change: time those samples together.
                batch = f.sample(until_next_step(settings, len(samples)), rng)
                values = evaluator.sample_many(space.expand(batch))
                new = relative_times(values, reference)
                samples = np.concatenate([samples, batch[: len(new)]])
                times = np.concatenate([times, new])
                mean_time.update(new)
                step, divergence = settings.step_after(len(samples)), 0.0
                if step == "ppo":
                    k = settings.ppo_every
                    divergence = f.ppo(samples[-k:], mean_time.value - times[-k:], settings)
                elif step == "ce":
                    f.cross_entropy(samples, times, settings)
                    f.mix(settings.epsilon * max(0.0, 1.0 - len(samples) / horizon))
                scalars(
                    evaluator.evaluations,
                    best=evaluator.best_value,
                    mean_time=float(new.mean()) * reference,
                    entropy=f.entropy(),
                    approximate_kl=divergence,
                )
        return f

    def sample(self, n: int, rng: np.random.Generator) -> IntArray:
        """n samples of all groups, shape (n, n_groups)."""
        gumbel = rng.gumbel(size=(n, *self.log_f.shape))
        samples: IntArray = (self.log_f[None] + gumbel).argmax(axis=2)
        return samples

    def ppo(self, samples: IntArray, advantage: FloatArray, settings: Post) -> float:
        """Gradient ascent on Eq. (11) from the distribution that drew `samples`; returns the KL."""
        old = self.log_f
        u = np.where(self.allowed, old, 0.0)
        for _ in range(settings.sga_steps):
            _, gradient = ppo_objective(u, old, self.allowed, samples, advantage, self.beta)
            u = u + settings.learning_rate * gradient
        self.log_f = np.where(
            self.allowed,
            np.maximum(log_softmax(u, self.allowed), np.log(SMALLEST_PROBABILITY)),
            -np.inf,
        )
        divergence = kl_divergence(old, self.log_f)
        if divergence > 1.5 * settings.kl_target:
            self.beta *= 2.0
        elif divergence < settings.kl_target / 1.5:
            self.beta /= 2.0
        return divergence

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


def until_next_step(settings: Post, n: int) -> int:
    """Samples to draw before the distribution changes again."""
    ahead = 1
    while ahead < max(settings.ppo_every, settings.ce_every) and not settings.step_after(n + ahead):
        ahead += 1
    return ahead


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
