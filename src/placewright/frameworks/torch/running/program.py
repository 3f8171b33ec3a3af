"""What the PyTorch runtime needs to know of a model: one functional graph and its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class TorchProgram(Protocol):
    """A functional graph of one inference or one training step. A reader makes it.

    Ops of the computation graph are the calls of `module`, by name; ``getitem`` only names one
    output of a call, and a call that depends on state alone may have been folded away.
    """

    @property
    def module(self) -> torch.fx.GraphModule:
        """Placeholders, calls of functional operators with ``meta["val"]``, and the output."""
        ...

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """Placeholder -> parameter, buffer, optimizer state or constant; tied ones are one
        tensor object."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """Placeholders of the inputs, in the model's own order and in that of their tensors."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """Nodes that hold the graph outputs; of a training step the loss."""
        ...

    @property
    def updates(self) -> Mapping[str, str]:
        """State placeholder -> node that holds its value after the step; empty for inference."""
        ...

    @property
    def example_inputs(self) -> Mapping[str, torch.Tensor]:
        """Graph input placeholder -> a valid value."""
        ...

    @property
    def plain(self) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
        """Runs the model as PyTorch does, without this graph: values of all inputs -> all outputs,
        in the order of `inputs` and of the model's own result; state stays as it is."""
        ...
