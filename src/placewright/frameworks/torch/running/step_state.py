"""The state of a training step that is loaded: numbers of a step, checkpoints, `write_back`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from placewright.errors import FileFormatError, InputError
from placewright.frameworks.torch.reading.fx_program import FxProgram, StepParts
from placewright.frameworks.torch.running.functions import Draws
from placewright.frameworks.torch.running.instances import Lane, queue_of
from placewright.io.content import one_line
from placewright.io.opened import opened
from placewright.io.written import write_files

_APPLY = "apply"
# Entries of a checkpoint beside those of tensors. Files of earlier versions lack the last one.
_STEPS, _SEED, _ACCUMULATE = "steps", "seed", "accumulate"
_MODEL, _OPTIMIZER, _COUNT = "model.", "optimizer.", ".step"
_FORMAT = {"format": "1", "kind": "placewright training step"}
_RULE = "optimizer"  # in the metadata of a file; files of earlier versions lack it


class TorchStepState:
    """State of the segments of one training step, on all its devices.

    Args:
        initial: state placeholder -> the tensor that copies are made from.
        copies: device -> tensors of state there, by the id of the tensor they are made from.
        draws: what random operators draw from.
        lanes: queues of accelerators. State is written there, behind the segments that read it.
    """

    def __init__(
        self,
        program: FxProgram,
        initial: Mapping[str, torch.Tensor],
        copies: Mapping[torch.device, Mapping[int, torch.Tensor]],
        draws: Draws,
        lanes: Mapping[torch.device, Lane],
    ) -> None:
        assert program.step is not None
        self._parts: StepParts = program.step
        self._updates = program.updates
        self._initial, self._copies, self._draws = initial, copies, draws
        self._lanes = lanes
        self._replaced: dict[str, torch.Tensor] = {}  # values of a checkpoint that no step changes
        self._steps = 0
        self.learning_rate = self._parts.learning_rate

    @property
    def steps(self) -> int:
        """Steps done so far."""
        return self._steps

    @property
    def updates(self) -> int:
        """Updates of the parameters done so far."""
        return self._steps // self._parts.accumulate

    def begin(self) -> None:
        """Tell the devices the numbers of the next step."""
        numbers = dict(self._parts.scalars_at(self.learning_rate))
        if _APPLY in self._parts.scalars:
            numbers[_APPLY] = (self._steps + 1) % self._parts.accumulate == 0
        for name, value in numbers.items():
            for device, tensor in self._tensors(self._parts.scalars[name]):
                with queue_of(self._lanes.get(device)):
                    tensor.fill_(value)
        self._draws.number = self._steps

    def end(self) -> None:
        """Count a step."""
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Copies of all state, in the processor's memory, by its names in a checkpoint."""
        values: dict[str, Any] = {}
        for name, paths in self._parts.paths.items():
            for path in paths:
                value = self._value(name).detach().cpu()
                # A safetensors file has no strides, such as those of channels_last.
                values[path] = value.clone(memory_format=torch.contiguous_format)
        values[_STEPS] = torch.tensor(self._steps)
        values[_SEED] = torch.tensor(self._draws.seed)
        values[_ACCUMULATE] = torch.tensor(self._parts.accumulate)
        return values

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; nothing changes if an entry does not fit.

        Raises:
            InputError: an entry is missing, unknown, or of another shape, tied entries differ, or
                another number of steps makes one update.
        """
        known = {path for paths in self._parts.paths.values() for path in paths}
        expected = known | {_STEPS, _SEED}
        if missing := sorted(expected - set(values)):
            raise InputError(f"the state has no '{missing[0]}'; it is of another step")
        if unknown := sorted(set(values) - expected - {_ACCUMULATE}):
            raise InputError(f"this step has no state '{unknown[0]}'; it is of another step")
        given = {
            name: self._fitting(name, [_tensor(path, values[path]) for path in paths])
            for name, paths in self._parts.paths.items()
        }
        steps, seed = (_whole_number(name, values[name]) for name in (_STEPS, _SEED))
        if steps < 0:
            raise InputError(f"state '{_STEPS}' must be >= 0, got {steps}")
        mine = self._parts.accumulate
        if (other := _whole_number(_ACCUMULATE, values.get(_ACCUMULATE, mine))) != mine:
            raise InputError(
                f"the state is of a step with accumulate={other}, and this one has "
                f"accumulate={mine}; place with the optimizer of the checkpoint"
            )
        for name, value in given.items():
            self._set(name, value)
        self._steps, self._draws.seed = steps, seed

    def _fitting(self, name: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """The value that all paths of a tensor of state have."""
        wanted, paths = self._initial[name], self._parts.paths[name]
        if paths[0].startswith(_OPTIMIZER) and paths[0].endswith(_COUNT):
            # Files of earlier versions count the steps of f64 parameters in f32.
            values = [v.to(wanted.dtype) if v.dtype == torch.float32 else v for v in values]
        for path, value in zip(paths, values, strict=True):
            if value.shape != wanted.shape or value.dtype != wanted.dtype:
                raise InputError(
                    f"state '{path}' is {value.dtype} {list(value.shape)}, expected "
                    f"{wanted.dtype} {list(wanted.shape)}"
                )
            if value is not values[0] and not _is_equal(value, values[0]):
                raise InputError(
                    f"state '{path}' differs from '{paths[0]}', to which it is tied; give both "
                    "one value"
                )
        return values[0]

    def write_back(self, module: Any) -> None:
        """Copy parameters and buffers into a module.

        Raises:
            InputError: the module lacks one, or has it in another shape or type.
        """
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        held = {**module.state_dict(keep_vars=True), **held}
        mine = {
            path.removeprefix(_MODEL): value
            for path, value in self.state_dict().items()
            if path.startswith(_MODEL)
        }
        for name, value in mine.items():
            if name not in held:
                raise InputError(f"the module has no parameter or buffer '{name}'")
            if held[name].shape != value.shape:
                raise InputError(
                    f"'{name}' of the module is {list(held[name].shape)}, that of the step "
                    f"{list(value.shape)}"
                )
            if held[name].dtype != value.dtype:
                raise InputError(
                    f"'{name}' of the module is {held[name].dtype}, that of the step "
                    f"{value.dtype}; convert the module first, such as by `module.float()`"
                )
        with torch.no_grad():
            for name, value in mine.items():
                held[name].copy_(value)

    def save(self, path: Path) -> None:
        """Write a safetensors file; an earlier file survives every failure.

        Raises:
            InputError: the file cannot be written.
        """
        from safetensors.torch import save

        metadata = _FORMAT | {_RULE: self._parts.optimizer}
        write_files({path: save(self.state_dict(), metadata)})

    def restore(self, path: Path) -> None:
        """Take over a file that `save` wrote.

        Raises:
            InputError: there is no such file, or it is of another step or optimizer.
            FileFormatError: it is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        file, size = opened(path)
        with file:
            content = file.read(size)
        try:
            values = load(content)
        except SafetensorError as error:
            raise FileFormatError(f"file '{path}' is no checkpoint: {one_line(error)}") from None
        mine = self._parts.optimizer
        if (other := _metadata(content).get(_RULE, mine)) != mine:
            raise InputError(
                f"file '{path}' is a checkpoint of optimizer {one_line(other)}, and this step has "
                f"{mine}; place with the optimizer of the checkpoint"
            )
        self.load_state_dict(values)

    def _set(self, name: str, value: torch.Tensor) -> None:
        """Give a tensor of state a value, and leave the user's module as it is."""
        changes = name in self._updates
        held = [tensor for _, tensor in self._tensors(name)] or [self._value(name)]
        # On all devices: an attempt that was interrupted may have reached some of them.
        if not changes and all(torch.equal(tensor.cpu(), value) for tensor in held):
            return
        if not changes:
            self._replaced[name] = value.clone()
        for device, tensor in self._tensors(name):
            with queue_of(self._lanes.get(device)):
                if not changes:  # such as a frozen parameter, which is the module's own so far
                    tensor.data = torch.empty_like(tensor)
                tensor.copy_(value)

    def _value(self, name: str) -> torch.Tensor:
        """The present value of a tensor of state, also of one that no segment reads."""
        unread = self._replaced.get(name, self._initial[name])
        return next((tensor for _, tensor in self._tensors(name)), unread)

    def _tensors(self, name: str) -> list[tuple[torch.device, torch.Tensor]]:
        """The tensors of a name that segments change or read, with their devices."""
        key = id(self._initial[name])
        return [(device, held[key]) for device, held in self._copies.items() if key in held]


def _metadata(content: bytes) -> dict[str, str]:
    """Metadata of a safetensors file that could be read; the length of its header comes first."""
    begin = 8
    header = json.loads(content[begin : begin + int.from_bytes(content[:begin], "little")])
    held: dict[str, str] = header.get("__metadata__") or {}
    return held


def _tensor(name: str, value: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"state '{name}' is a {type(value).__name__}, no tensor") from None


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.isclose(one, other, rtol=0.0, atol=0.0, equal_nan=True).all())


def _whole_number(name: str, value: Any) -> int:
    tensor = _tensor(name, value)
    if tensor.numel() != 1 or tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        raise InputError(f"state '{name}' must be one whole number, got {list(tensor.shape)}")
    return int(tensor)
