"""Training steps of PyTorch modules: the graph computes what eager PyTorch does, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from placewright.core.graph import BACKWARD, FORWARD, UPDATE
from placewright.errors import InputError, UnknownNameError
from placewright.frameworks.torch.reading.fx_program import FxProgram, ReadProgram
from placewright.frameworks.torch.training.step import read_training

Parameters = Iterable[nn.Parameter]
OPTIMIZERS: dict[str, Callable[[Parameters], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "sgd:momentum=0,learning_rate=0.1": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd:nesterov=1,weight_decay=0.1": lambda p: torch.optim.SGD(
        p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "adam": lambda p: torch.optim.Adam(p),
    "adam:weight_decay=0.1,beta1=0.8": lambda p: torch.optim.Adam(
        p, betas=(0.8, 0.999), weight_decay=0.1
    ),
    "adamw": lambda p: torch.optim.AdamW(p),
}


class Convolutional(nn.Module):
    """Batch normalisation, dropout, a linear layer; returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout()
        self.head = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of images (batch, 3, 6, 6)."""
        hidden = torch.relu(self.norm(self.conv(x))).flatten(1)
        return nn.functional.cross_entropy(self.head(self.dropout(hidden)), labels)


class Tied(nn.Module):
    """A language model whose embedding is its head; a frozen scale; a parameter without use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.embedding = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the next word; words (rows,)."""
        hidden = torch.tanh(self.middle(self.embedding(words))) * self.scale
        return nn.functional.cross_entropy(self.head(hidden), labels)


def examples(kind: type[nn.Module]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    if kind is Convolutional:
        return torch.randn(4, 3, 6, 6, generator=generator), torch.tensor([0, 3, 1, 4])
    return torch.tensor([1, 5, 5, 10]), torch.tensor([5, 5, 10, 0])


def stepped(program: FxProgram, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses, and state after some steps, by running the module and applying its updates."""
    state = {name: value.clone() for name, value in program.state.items()}
    losses = []
    for _ in range(steps):
        loss, *values = program.module(*state.values(), *program.example_inputs.values())
        losses.append(float(loss))
        state.update(zip(program.updates, values, strict=True))
    return losses, state


@pytest.mark.parametrize("kind", [Convolutional, Tied])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_steps_are_those_of_eager_pytorch(kind: type[nn.Module], optimizer: str) -> None:
    inputs = examples(kind)
    losses, state = stepped(read_training(kind(), inputs, optimizer=optimizer).program, 4)
    module = kind().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.train()
    eager = OPTIMIZERS[optimizer](module.parameters())
    for loss in losses:
        eager.zero_grad()
        expected = module(*inputs)
        expected.backward()
        eager.step()
        assert loss == pytest.approx(float(expected.detach()), rel=1e-6)
    values = module.state_dict()
    found = {f"{'p' if n in dict(module.named_parameters()) else 'b'}_{n.replace('.', '_')}": v
             for n, v in values.items()}  # fmt: skip
    compared = [name for name in found if name in state]
    assert len(compared) >= 4
    for name in compared:
        torch.testing.assert_close(state[name], found[name].detach(), rtol=1e-5, atol=1e-6)


def op_rows(read: ReadProgram) -> dict[str, tuple[str, int, int]]:
    """Op -> kind, phase, colocation class."""
    graph = read.graph
    rows = zip(graph.op_kinds, graph.op_phases.tolist(), graph.op_colocation.tolist(), strict=True)
    return dict(zip(graph.op_names, rows, strict=True))


def test_phases_classes_and_bytes_by_hand() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ self.weight).sum()

    read = read_training(Linear(), (torch.ones(4, 3),))
    graph, rows = read.graph, op_rows(read)
    kinds = {phase: [k for k, p, _ in rows.values() if p == phase] for phase in range(3)}
    assert kinds[FORWARD] == ["mm", "tanh", "sum"]
    # x needs no gradient, so that there is one product in the backward pass: x.T @ gradient.
    assert [k for k in kinds[BACKWARD] if k in ("mm", "tanh_backward")] == ["tanh_backward", "mm"]
    assert kinds[UPDATE] == ["mul", "add", "addcmul"]  # momentum, then the rate times it
    classes = {name: colocation for name, (_, _, colocation) in rows.items() if colocation >= 0}
    updates = [name for name, (_, phase, _) in rows.items() if phase == UPDATE]
    assert sorted(classes) == sorted(["mm", *updates])  # mm of the forward pass reads the weight
    assert len(dict.fromkeys(classes.values())) == 1
    # The weight, the rate that each step is told, and the weight's momentum, f32.
    assert graph.weight_bytes.tolist() == [24.0, 4.0, 24.0]
    outputs = np.flatnonzero(graph.tensor_is_output)
    assert [graph.tensor_bytes[t] for t in outputs] == [4.0]  # the loss alone
    made = graph.tensor_producers[outputs].tolist()
    assert [graph.op_names[op] for op in made] == ["sum_1"]
    assert read.program.inputs == ("x",)
    # What backward needs of the forward pass is an edge: the output of tanh.
    tanh, backward = (graph.op_names.index(name) for name in ("tanh", "tanh_backward"))
    assert backward in graph.successors.row(tanh).tolist()


def test_a_tied_weight_is_one_weight_in_one_class() -> None:
    read = read_training(Tied(), examples(Tied))
    sizes = sorted(read.graph.weight_bytes.tolist())
    embedding = 11 * 6 * 4.0
    assert sizes.count(embedding) == 2  # itself and its momentum
    rows = op_rows(read)
    readers = [name for name, (kind, _, _) in rows.items() if kind.startswith("embedding")]
    assert [rows[name][0] for name in readers] == ["embedding", "embedding_dense_backward"]
    last = [n for n in rows if n.startswith("update_p_embedding_weight")]
    assert last
    assert rows[readers[0]][2] == rows[last[0]][2] >= 0
    assert not any("head" in name or "unused" in name or "scale" in name for name in
                   read.program.updates)  # fmt: skip


def test_views_of_a_parameter_stay_with_it_and_have_no_bytes_of_their_own() -> None:
    read = read_training(Convolutional(), examples(Convolutional))
    graph, rows = read.graph, op_rows(read)
    product = next(op for op in range(graph.n_ops) if graph.op_kinds[op] == "addmm")
    view = graph.op_names.index("t")
    assert product in graph.successors.row(view).tolist()
    assert rows["t"][2] == rows[graph.op_names[product]][2] >= 0
    assert graph.tensor_bytes[graph.op_outputs.row(view)].tolist() == [0.0]


def test_backward_ops_join_their_forward_ops_on_request() -> None:
    free = read_training(Convolutional(), examples(Convolutional))
    bound = read_training(Convolutional(), examples(Convolutional), colocate_backward=True)
    assert bound.source.options["colocate_backward"] == "yes"
    assert bound.graph.op_names == free.graph.op_names
    rows, before = op_rows(bound), op_rows(free)
    assert before["relu"][2] == before["threshold_backward"][2] == -1
    assert rows["relu"][2] == rows["threshold_backward"][2] >= 0
    assert rows["convolution"][2] == rows["convolution_backward"][2] >= 0


def test_reading_twice_gives_the_same_source_and_another_optimizer_another() -> None:
    inputs = examples(Tied)
    one, two = (read_training(Tied(), inputs).source for _ in range(2))
    assert one == two
    assert read_training(Tied(), inputs, optimizer="adam").source.sha256 != one.sha256


def test_the_module_keeps_its_mode_and_its_values() -> None:
    module = Convolutional().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    read_training(module, examples(Convolutional))
    assert all(part.training for part in module.modules())
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_a_pt2_file_without_a_scalar_trains_on_the_sum_of_means(tmp_path: Any) -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval()
    x = torch.randn(2, 4)
    path = tmp_path / "layer.pt2"
    torch.export.save(torch.export.export(module, (x,)), path)
    program = read_training(path).program
    loss = program.module(*program.state.values(), x)[0]
    assert float(loss) == pytest.approx(float(module(x).mean().detach()), rel=1e-6)
    assert len(program.updates) == 4  # weight, bias and their momenta


def test_what_cannot_be_trained_is_refused() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.layer(x), training=True).sum()

    with pytest.raises(InputError, match="random numbers"):
        read_training(Noisy(), (torch.ones(2, 4),))
    frozen = nn.Linear(4, 4).requires_grad_(False)
    with pytest.raises(InputError, match="nothing to train"):
        read_training(frozen, (torch.ones(2, 4),))
    with pytest.raises(UnknownNameError, match="momentun"):
        read_training(nn.Linear(4, 4), (torch.ones(2, 4),), optimizer="sgd:momentun=0.5")
    with pytest.raises(InputError, match="nesterov must be 0 without momentum, got 1"):
        read_training(nn.Linear(4, 4), (torch.ones(2, 4),), optimizer="sgd:momentum=0,nesterov=1")
    with pytest.raises(InputError, match="learning_rate must be >= 0"):
        read_training(nn.Linear(4, 4), (torch.ones(2, 4),), optimizer="adam:learning_rate=-1")


def test_a_decomposed_program_that_changes_an_input_is_trained(tmp_path: Any) -> None:
    """The results of such a program begin with the changed input, before the loss."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            count.add_(1.0)
            return self.layer(x).square().mean()

    torch.manual_seed(3)
    module, inputs = Counting(), (torch.randn(3, 4), torch.zeros(2))
    expected = float(module(*inputs).detach())
    program = torch.export.export(module, (inputs[0], torch.zeros(2))).run_decompositions()
    assert program.graph_signature.user_inputs_to_mutate
    torch.export.save(program, tmp_path / "m.pt2")
    losses, _ = stepped(read_training(tmp_path / "m.pt2").program, 2)
    assert losses[0] == pytest.approx(expected, rel=1e-6)
    assert losses[1] < losses[0]


def test_a_decomposed_program_trains_with_the_buffers_of_a_plain_loop(tmp_path: Any) -> None:
    """It returns their new values, in front of the loss."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
            self.register_buffer("count", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1.0)
            return (torch.relu(self.norm(self.layer(x))) * self.count).square().mean()

    module, x = Counting(), torch.randn(3, 4)
    program = torch.export.export(Counting(), (x,)).run_decompositions()
    assert program.graph_signature.buffers_to_mutate
    torch.export.save(program, tmp_path / "m.pt2")
    losses, state = stepped(read_training(tmp_path / "m.pt2").program, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    for found in losses:
        optimizer.zero_grad()
        loss = module(x)
        loss.backward()
        optimizer.step()
        assert found == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, value in module.named_buffers():
        torch.testing.assert_close(state[f"b_{name.replace('.', '_')}"], value)


def test_a_decomposed_program_that_stops_gradients_is_refused(tmp_path: Any) -> None:
    """Decomposition makes a plain alias of ``detach``, as of an index that takes all."""

    class Stopped(nn.Module):
        def __init__(self, is_input: bool) -> None:
            super().__init__()
            self.layer, self.is_input = nn.Linear(4, 1), is_input

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # what takes the whole of a tensor is an alias, also in a program as it was exported
            found: torch.Tensor = self.layer(x.detach() if self.is_input else x)[...]
            return (found if self.is_input else found * found.detach()).mean()

    for is_input in (False, True):
        program = torch.export.export(Stopped(is_input), (torch.ones(3, 4),))
        torch.export.save(program, tmp_path / f"whole {is_input}.pt2")
        torch.export.save(program.run_decompositions(), tmp_path / f"{is_input}.pt2")
        read_training(tmp_path / f"whole {is_input}.pt2")
    with pytest.raises(InputError, match=r"'alias' may stand for detach.*run_decompositions\(\)"):
        read_training(tmp_path / "False.pt2")


def test_adam_of_f64_parameters_counts_in_f64() -> None:
    """Corrections in f32 are wrong in the eighth digit."""
    module, inputs = Tied().double(), examples(Tied)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    made = read_training(Tied().double(), inputs, optimizer="adam:learning_rate=0.1")
    _, state = stepped(made.program, 3)
    for _ in range(3):
        optimizer.zero_grad()
        module(*inputs).backward()
        optimizer.step()
    found, wanted = state["p_embedding_weight"], module.embedding.weight.detach()
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-12)


def test_adam_of_f16_parameters_moves_them_at_small_rates() -> None:
    """The root of squares over a small rate is infinite in f16."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.s = (nn.Parameter(torch.full(n, 1e-3).half()) for n in ((4,), ()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.w * x).sum() + self.s * x[0]

    x = torch.full((4,), 10.0).half()
    _, state = stepped(
        read_training(Halves(), (x,), optimizer="adam:learning_rate=1e-5").program, 3
    )
    for found in (state["p_w"], state["p_s"]):
        wanted = torch.full_like(found, 1e-3 - 3e-5, dtype=torch.float16)
        torch.testing.assert_close(found, wanted, rtol=5e-3, atol=0.0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_parameter_may_be_called_as_the_state_of_another(accumulate: int) -> None:
    """Adam counts the steps of `w` in a placeholder that would be called `p_w_step`."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))
            self.w_step = nn.Parameter(torch.full((2,), 2.0))
            self.w_gradient = nn.Parameter(torch.full((2,), 3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.w * self.w_step * self.w_gradient).sum()

    optimizer = f"adam:accumulate={accumulate}"
    program = read_training(Named(), (torch.ones(2),), optimizer=optimizer).program
    values = [value.tolist() for value in program.state.values() if value.shape == (2,)]
    assert {tuple(value) for value in values} >= {(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)}
    losses, _ = stepped(program, 1)
    assert losses == [12.0]
