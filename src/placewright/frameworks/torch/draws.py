"""Random operators whose numbers follow from a seed, while the user's generators stay as they are.

Most operators take a generator of their own. Some draw from the default generators, of which a
process has one for each device. These are seeded for a moment, and then go back to where they were.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

_SEED = 20170612
_DEFAULT = threading.Lock()  # of the default generators


def users_seed() -> int:
    """PyTorch's initial seed, as the user has set it."""
    with _DEFAULT:
        return torch.initial_seed()


def drawn(target: Any, args: Any, kwargs: Any, seed: int) -> Any:
    """Call a random operator, whose numbers then follow from a seed."""
    device = _device_of(args, kwargs)
    form = _OWN_FORMS.get(target) or _form_with_generator(target)
    if form is not None:
        generator = torch.Generator(device).manual_seed(seed)
        return form(*args, **{**kwargs, "generator": generator})
    generators = _default_generators(device)
    with _DEFAULT:
        before = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(seed)
            return target(*args, **kwargs)
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)


class PrivateDraws:
    """A state of the processor's default generator that blocks of this object alone continue."""

    def __init__(self) -> None:
        self._state = torch.Generator().manual_seed(_SEED).get_state()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let operators inside draw from it."""
        generator = torch.default_generator
        with _DEFAULT:
            before = generator.get_state()
            generator.set_state(self._state)
            try:
                yield
            finally:
                self._state = generator.get_state()
                generator.set_state(before)


def _dropout(x: torch.Tensor, p: float, train: bool, *, generator: torch.Generator) -> torch.Tensor:
    """As `aten.dropout` computes it on the processor."""
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    return x * torch.empty_like(x).bernoulli_(1 - p, generator=generator).div_(1 - p)


_OWN_FORMS = {torch.ops.aten.dropout.default: _dropout}


@lru_cache
def _form_with_generator(target: Any) -> Any:
    """An operator's form with argument ``generator``; None without one."""
    mine = _arguments(target)
    if "generator" in mine:
        return target
    packet = target.overloadpacket
    for name in packet.overloads():
        other = _arguments(getattr(packet, name))
        if other.pop("generator", None) is not None and other == mine:
            return getattr(packet, name)
    return None


def _arguments(target: Any) -> dict[str, str]:
    """Name -> type of each argument of an operator."""
    return {argument.name: str(argument.type) for argument in target._schema.arguments}


def _device_of(args: Any, kwargs: Any) -> torch.device:
    """The device on which an operator draws."""
    named = kwargs.get("device")
    if named is not None:
        return torch.device(named)
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    devices = [value.device for value in leaves if isinstance(value, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _default_generators(device: torch.device) -> list[torch.Generator]:
    """The processor's, from which libraries of accelerators draw a seed, and the device's own."""
    generators = [torch.default_generator]
    if device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    elif device.type != "cpu":
        of_kind = getattr(torch.get_device_module(device), "default_generators", ())
        generators += of_kind[device.index or 0 :][:1]
    return generators
