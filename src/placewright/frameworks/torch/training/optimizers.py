"""Optimizers as functional update rules: new parameter and new state from a gradient.

The formulas and their order of operations are those of ``torch.optim`` (single-tensor
implementations, ``capturable``: the step count is a tensor).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from placewright.errors import InputError, UnknownNameError

# Stands for a learning rate of 0 where a formula divides by the rate. A parameter of 0 moves by so
# much, any other by nothing. Smaller numbers would have subnormal products, which are flushed to 0.
_LEAST_RATE = 1e-30

# Called with an operator's name in torch.ops.aten, its overload and its arguments.
Emit = Callable[..., Any]


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent, as ``torch.optim.SGD``."""

    learning_rate: float = 0.01  # >= 0
    momentum: float = 0.9  # 0 keeps no state
    weight_decay: float = 0.0  # added to the gradient, times the parameter
    nesterov: float = 0.0  # 1 looks ahead (Sutskever et al. 2013)

    def __post_init__(self) -> None:
        _require(self, "learning_rate", self.learning_rate >= 0, ">= 0")
        _require(self, "momentum", 0 <= self.momentum < 1, "in [0, 1)")
        _require(self, "weight_decay", self.weight_decay >= 0, ">= 0")
        _require(self, "nesterov", self.nesterov in (0, 1), "0 or 1")
        _require(self, "nesterov", self.momentum > 0 or not self.nesterov, "0 without momentum")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each parameter, in the shape of the parameter; ``step`` is
        a scalar. All start at zero."""
        return ("momentum",) if self.momentum else ()

    def scalars(self, learning_rate: float) -> dict[str, float]:
        """Numbers that the updates of a step read, by name: they follow the learning rate."""
        return {"learning_rate": learning_rate}

    def update(
        self,
        emit: Emit,
        parameter: Any,
        gradient: Any,
        state: Sequence[Any],
        scalars: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        """Emit the operators of a parameter's update.

        Args:
            emit: ``emit("mul", "Tensor", a, b)`` adds one ATen call and returns its value.
            state: values of `slots`.
            scalars: values of `scalars`, tensors without dimensions.

        Returns:
            The new parameter, then the new value of each slot.
        """
        if self.weight_decay:
            gradient = emit("add", "Tensor", gradient, parameter, alpha=self.weight_decay)
        rate = scalars["learning_rate"]
        if not self.momentum:
            return (emit("addcmul", "default", parameter, gradient, rate, value=-1),)
        scaled = emit("mul", "Tensor", state[0], self.momentum)
        momentum = direction = emit("add", "Tensor", scaled, gradient)
        if self.nesterov:
            direction = emit("add", "Tensor", gradient, momentum, alpha=self.momentum)
        new = emit("addcmul", "default", parameter, direction, rate, value=-1)
        return new, momentum


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015), as ``torch.optim.Adam``; see `AdamW` for decoupled decay."""

    learning_rate: float = 1e-3  # >= 0
    # beta1, beta2: decay of the averages of the gradient and of its square
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8  # added to the denominator
    weight_decay: float = 0.0  # added to the gradient, times the parameter

    def __post_init__(self) -> None:
        _require(self, "learning_rate", self.learning_rate >= 0, ">= 0")
        _require(self, "beta1", 0 <= self.beta1 < 1, "in [0, 1)")
        _require(self, "beta2", 0 <= self.beta2 < 1, "in [0, 1)")
        _require(self, "epsilon", self.epsilon > 0, "> 0")
        _require(self, "weight_decay", self.weight_decay >= 0, ">= 0")

    @property
    def slots(self) -> tuple[str, ...]:
        """See `Sgd.slots`."""
        return ("average", "average_of_squares", "step")

    def scalars(self, learning_rate: float) -> dict[str, float]:
        """See `Sgd.scalars`."""
        return {"learning_rate": max(learning_rate, _LEAST_RATE)}

    def update(
        self,
        emit: Emit,
        parameter: Any,
        gradient: Any,
        state: Sequence[Any],
        scalars: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        """See `Sgd.update`."""
        average, squares, step = state
        parameter, gradient = self._decayed(emit, parameter, gradient, scalars)
        step = emit("add", "Tensor", step, 1)
        average = emit("lerp", "Scalar", average, gradient, 1 - self.beta1)
        scaled = emit("mul", "Tensor", squares, self.beta2)
        squares = emit("addcmul", "default", scaled, gradient, gradient, value=1 - self.beta2)
        correction1 = self._correction(emit, self.beta1, step)
        correction2 = self._correction(emit, self.beta2, step)
        # Everything over -learning_rate / correction1, which is then no factor of the quotient.
        size = emit("neg", "default", emit("mul", "Tensor", emit("reciprocal", "default",
                    correction1), scalars["learning_rate"]))  # fmt: skip
        root = emit("sqrt", "default", squares)
        scale = emit("mul", "Tensor", emit("sqrt", "default", correction2), size)
        own, wide = parameter.meta["val"].dtype, scale.meta["val"].dtype
        if is_narrow := str(own) == "torch.float16":  # a root over a small rate is infinite there
            root = emit("_to_copy", "default", root, dtype=wide)
        small = emit("mul", "Tensor", emit("reciprocal", "default", size), self.epsilon)
        denominator = emit("add", "Tensor", emit("div", "Tensor", root, scale), small)
        new = emit("addcdiv", "default", parameter, average, denominator)
        if is_narrow:
            new = emit("_to_copy", "default", new, dtype=own)
        return new, average, squares, step

    def _decayed(
        self, emit: Emit, parameter: Any, gradient: Any, scalars: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        if not self.weight_decay:
            return parameter, gradient
        return parameter, emit("add", "Tensor", gradient, parameter, alpha=self.weight_decay)

    def _correction(self, emit: Emit, beta: float, step: Any) -> Any:
        """1 - beta ** step, exact even if beta is close to 1."""
        if beta == 0:
            return emit("ones_like", "default", step)
        power = emit("mul", "Tensor", step, math.log(beta))
        return emit("neg", "default", emit("expm1", "default", power))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as ``torch.optim.AdamW``."""

    weight_decay: float = 0.01

    def scalars(self, learning_rate: float) -> dict[str, float]:
        """See `Sgd.scalars`."""
        decay = {"remaining": 1 - learning_rate * self.weight_decay} if self.weight_decay else {}
        return {**super().scalars(learning_rate), **decay}

    def _decayed(
        self, emit: Emit, parameter: Any, gradient: Any, scalars: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        if not self.weight_decay:
            return parameter, gradient
        return emit("mul", "Tensor", parameter, scalars["remaining"]), gradient


@dataclass(frozen=True)
class StepRule:
    """An optimizer, and what happens to the gradients before it."""

    optimizer: Sgd | Adam  # makes new parameters
    # largest norm of all gradients together, as ``clip_grad_norm_``; 0 sets no limit
    clip: float = 0.0
    accumulate: int = 1  # steps whose mean gradient makes one update

    def __post_init__(self) -> None:
        if not (self.clip >= 0 and math.isfinite(self.clip)):
            raise InputError(f"optimizer: clip must be >= 0, got {self.clip:g}")
        if self.accumulate < 1:
            raise InputError(f"optimizer: accumulate must be >= 1, got {self.accumulate}")


OPTIMIZERS: Mapping[str, type[Sgd | Adam]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}


def rule_of(text: str) -> StepRule:
    """Make a rule from a text such as ``"sgd"`` or ``"adamw:learning_rate=1e-4,clip=1"``.

    Raises:
        UnknownNameError: there is no such optimizer or setting.
        InputError: a value is no number, or out of range.
    """
    name, _, settings = text.partition(":")
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, tuple(OPTIMIZERS))
    known = (*(entry.name for entry in fields(OPTIMIZERS[name])), "clip", "accumulate")
    values: dict[str, float] = {}
    for part in filter(None, settings.split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise UnknownNameError(f"setting of optimizer {name}", key, known)
        try:
            values[key] = float(value)
        except ValueError:
            raise InputError(f"optimizer {name}: {key} must be a number, got '{value}'") from None
        if not math.isfinite(values[key]):
            raise InputError(f"optimizer {name}: {key} must be finite, got '{value}'")
    clip, steps = values.pop("clip", 0.0), values.pop("accumulate", 1.0)
    if steps != math.floor(steps):
        raise InputError(f"optimizer {name}: accumulate must be a whole number, got {steps:g}")
    return StepRule(OPTIMIZERS[name](**values), clip, int(steps))


def text_without_rate(optimizer: Sgd | Adam) -> str:
    """The text of an optimizer with all its settings but the learning rate."""
    names = [entry.name for entry in fields(optimizer) if entry.name != "learning_rate"]
    settings = ",".join(f"{name}={float(getattr(optimizer, name))!r}" for name in names)
    return f"{type(optimizer).__name__.lower()}:{settings}"


def text_of(optimizer: Any, module: Any) -> str:
    """The text of a ``torch.optim`` optimizer of a module, which has done no step.

    Raises:
        UnknownNameError: there is no rule for its class.
        InputError: it lacks parameters of the module or has others, has settings without a rule,
            has state, hooks or a scheduler, or its class is no class of ``torch.optim``.
    """
    kind = type(optimizer).__name__
    groups = getattr(optimizer, "param_groups", None)
    if groups is None or module is None:
        raise InputError(
            f"optimizer: expects a text such as adamw:learning_rate=1e-3, or, for a module in "
            f"memory, its optimizer of torch.optim; got {kind}"
        )
    name = kind.lower()
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, tuple(OPTIMIZERS))
    _require_plain(optimizer, kind)
    mine = {id(value): path for path, value in module.named_parameters() if value.requires_grad}
    held = {id(value) for group in groups for value in group["params"]}
    if apart := [path for key, path in mine.items() if key not in held]:
        raise InputError(
            f"optimizer {kind}: lacks parameter '{apart[0]}', which the step would train; call "
            "requires_grad_(False) on it"
        )
    if others := len(held - {id(value) for value in module.parameters()}):
        raise InputError(
            f"optimizer {kind}: has {others} of {len(held)} parameters from outside the module, "
            "which a step would not train; make it of module.parameters()"
        )
    said = [_settings(name, group) for group in groups]
    if any(settings != said[0] for settings in said):
        raise InputError(f"optimizer {kind}: has {len(said)} groups that differ; a step has one")
    return f"{name}:{','.join(f'{key}={value!r}' for key, value in said[0].items())}"


def _require_plain(optimizer: Any, kind: str) -> None:
    """Refuse what no rule describes, of an optimizer whose class has the name of one with a rule.

    Raises:
        InputError: it is of another library, or has state, hooks or a scheduler.
    """
    import torch

    if type(optimizer) is not getattr(torch.optim, kind, None):
        raise InputError(
            f"optimizer {kind}: is of {type(optimizer).__module__}, which may compute otherwise; "
            f"make it with torch.optim.{kind}"
        )
    if optimizer.state:
        raise InputError(
            f"optimizer {kind}: has state of earlier steps, but a plan starts without; place "
            "before the first step"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise InputError(
            f"optimizer {kind}: has hooks of its steps, which no plan runs; remove them"
        )
    for group in optimizer.param_groups:
        if "initial_lr" in group:  # a scheduler notes it, also one that begins with this rate
            rate, first = group["lr"], group["initial_lr"]
            has_set = f", which has set the learning rate to {rate:g} of {first:g}"
            raise InputError(
                f"optimizer {kind}: has a scheduler{'' if rate == first else has_set}, and a plan "
                "has none; make the optimizer without one, and give `pw.load` the argument "
                "`learning_rate`, a function of the number of updates done"
            )


# Name in torch.optim -> ours; all others must be off.
_SETTINGS = {
    "lr": "learning_rate", "momentum": "momentum", "weight_decay": "weight_decay",
    "nesterov": "nesterov", "eps": "epsilon", "betas": "",
}  # fmt: skip
# How torch.optim computes, and not what.
_MEANS = ("params", "foreach", "fused", "capturable", "differentiable")


def _settings(name: str, group: Mapping[str, Any]) -> dict[str, float]:
    decoupled = name == "adamw"  # by its class, as `torch.optim.Adam` may also say it
    for key, value in group.items():
        if key in (*_SETTINGS, *_MEANS) or (key == "decoupled_weight_decay" and value == decoupled):
            continue
        if value:
            raise InputError(f"optimizer {name}: there is no setting {key}, got {value}")
    values = {ours: float(group[key]) for key, ours in _SETTINGS.items() if ours and key in group}
    if "betas" in group:
        values["beta1"], values["beta2"] = map(float, group["betas"])
    return values


def _require(optimizer: object, name: str, holds: bool, what: str) -> None:
    if not holds:
        kind, value = type(optimizer).__name__, getattr(optimizer, name)
        raise InputError(f"optimizer {kind}: {name} must be {what}, got {value:g}")
