"""An LSTM cell in plain ops, so that each step of each layer is a group of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class LstmCell(nn.Module):
    """One step of an LSTM layer; both matrices are one, as in TensorFlow's BasicLSTMCell."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)
        nn.init.normal_(self.gates.weight, std=(inputs + hidden) ** -0.5)
        nn.init.zeros_(self.gates.bias)

    def forward(self, x: Tensor, state: State) -> State:
        """x (batch, inputs), state (h, c) each (batch, hidden) -> the next state."""
        h, c = state
        into, forget, cell, out = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(forget + 1.0) * c + torch.sigmoid(into) * torch.tanh(cell)
        return torch.sigmoid(out) * torch.tanh(c), c

    def start(self, x: Tensor) -> State:
        """Zero state for the batch of x."""
        zeros = torch.zeros(x.shape[0], self.hidden, dtype=x.dtype, device=x.device)
        return zeros, zeros


class SeparateGatesCell(nn.Module):
    """The same step with one matrix per gate, so that a layer can lie on several devices."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.ModuleList(nn.Linear(inputs + hidden, hidden) for _ in range(4))
        for gate in self.gates:
            nn.init.normal_(gate.get_parameter("weight"), std=(inputs + hidden) ** -0.5)
            nn.init.zeros_(gate.get_parameter("bias"))

    def forward(self, x: Tensor, state: State) -> State:
        """x (batch, inputs), state (h, c) each (batch, hidden) -> the next state."""
        h, c = state
        both = torch.cat([x, h], 1)
        into, forget, cell, out = (gate(both) for gate in self.gates)
        c = torch.sigmoid(forget + 1.0) * c + torch.sigmoid(into) * torch.tanh(cell)
        return torch.sigmoid(out) * torch.tanh(c), c
