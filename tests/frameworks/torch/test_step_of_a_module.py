"""The traced step is the module's own: modes, recurrent layers, and what tracing cannot see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import placewright as pw
from placewright.errors import InputError
from placewright.frameworks.torch.training.eager import (
    begins_with_loss,
    eager_step,
    losses_behind,
)
from placewright.frameworks.torch.training.step import SUM_OF_MEANS, read_training


class Loss(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), labels)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return -gradient


class Between(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function, self.first, self.second = function, nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.function(self.first(x)))


class Counting(nn.Module):
    """A part that replaces its buffer by another tensor."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        scores: torch.Tensor = self.layer(x) + self.count * torch.arange(4.0)
        return scores


class Regularised(nn.Module):
    """It computes otherwise in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x)
        return scores * 3 if self.training else scores


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(3, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.cells(x.unflatten(1, (2, 3)))[0][:, -1])


def hooked(x: torch.Tensor) -> torch.Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 3)
    return x


def cleaned(x: torch.Tensor) -> torch.Tensor:
    """Roots of zeros: their infinite gradient is NaN times 0, unless a hook makes it finite."""
    squares = (x * 0.0).square()
    if squares.requires_grad:
        squares.register_hook(torch.nan_to_num)
    return squares.sqrt()


def batch_of() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 6, generator=generator), torch.arange(8) % 4


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (lambda: Between(Reversed.apply), "gradient of 'body.first.weight'"),
        (lambda: Between(hooked), "gradient of 'body.first.weight'"),
        (lambda: Between(cleaned), "gradient of 'body.first.weight' differs by nan"),
        (Counting, "buffer 'body.count'"),
    ],
)
def test_what_tracing_leaves_out_is_refused(body: Callable[[], nn.Module], what: str) -> None:
    module = Loss(body())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(InputError, match=what):
        read_training(module, batch_of())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_hook_behind_a_gradient_is_refused() -> None:
    """Such a hook often holds an optimizer, which changes the parameter in the backward pass."""
    body = nn.Linear(6, 4)
    module, hook = Loss(body), body.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(InputError, match=r"parameter 'body\.bias' has a hook of register_post"):
        read_training(module, batch_of())
    hook.remove()
    read_training(module, batch_of())


class Decaying(Loss):
    """It makes its parameters smaller in each call."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for value in self.parameters():
                value.mul_(0.5)
        return super().forward(x, labels)


def test_a_step_that_is_compared_leaves_parameters_as_they_were() -> None:
    module = Decaying(nn.Linear(6, 4))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert eager_step(module, batch_of()) is not None
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class LayersAtRandom(nn.Module):
    """In training mode it leaves out its last layer at random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.first(x)
        if self.training and torch.rand(()) < 0.5:
            return first
        second: torch.Tensor = self.second(first)
        return second


def test_a_module_that_trains_in_evaluation_mode_has_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = Loss(LayersAtRandom()).train()
    read_training(module, batch_of())
    assert "module Loss cannot be exported in training mode" in caplog.text
    assert module.body.training
    with pytest.raises(InputError, match="module Loss cannot be exported"):
        read_training(module, batch_of(), dropout=True)


def test_a_module_that_fails_in_every_mode_has_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(InputError, match="module Loss cannot be exported"):
        read_training(Loss(nn.Linear(5, 4)), batch_of())
    assert "training mode" not in caplog.text


class Complex(nn.Module):
    """A layer whose weight is complex, behind one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * self.turn).real


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(InputError, match=r"parameter 'body\.turn' is torch\.complex64"):
        read_training(Loss(Complex()), batch_of())


class LossLast(Loss):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        scores = self.body(x)
        return scores, nn.functional.cross_entropy(scores, labels)


def test_a_loss_that_comes_second_is_refused() -> None:
    """It would train on the loss and the mean of the scores."""
    with pytest.raises(InputError, match="'output_1' is one number: return the loss first"):
        read_training(LossLast(nn.Linear(6, 4)), batch_of())


class OneNumber(nn.Module):
    """A layer with scores of shape (1, 1) at batch 1, and a loss of them."""

    def __init__(self, result: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.result = nn.Linear(6, 1), result

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.layer(x)
        return self.result(scores, (scores - 1).square().mean())


ONE_ROW = (torch.linspace(-1, 1, 6).reshape(1, 6),)


@pytest.mark.parametrize(
    "result",
    [
        lambda scores, loss: (scores, loss),
        lambda scores, loss: (scores[0], loss),
        lambda scores, loss: (scores, loss.reshape(1)),
        lambda scores, loss: (scores[0], loss.reshape(1)),
        lambda scores, loss: (scores.argmax(), loss),
    ],
)
def test_scores_of_one_number_are_not_taken_for_the_loss(
    result: Callable[[torch.Tensor, torch.Tensor], Any],
) -> None:
    """At batch 1, the step would train the scores, and leave out the loss."""
    module = OneNumber(result)
    assert eager_step(module, ONE_ROW) is None
    with pytest.raises(InputError, match="'output_1' is one number: return the loss first"):
        read_training(module, ONE_ROW)


def test_a_row_of_one_number_before_a_scalar_is_told_to_become_one() -> None:
    """It may be the loss of one card, which already comes first."""
    module = OneNumber(lambda scores, loss: (loss.reshape(1), scores.sum()))
    with pytest.raises(InputError, match=r"the loss first, as a scalar \(loss\.squeeze\(\)\)"):
        read_training(module, ONE_ROW)


def test_a_matrix_of_one_number_behind_more_scores_may_be_the_loss() -> None:
    """The step would train on the sum of both."""
    module = OneNumber(lambda scores, loss: (scores, loss.reshape(1, 1)))
    with pytest.raises(InputError, match="'output_1' is one number: return the loss first"):
        read_training(module, (torch.linspace(-1, 1, 12).reshape(2, 6),))


def test_a_value_of_one_sample_is_told_to_take_more_samples() -> None:
    """The value of an actor and critic at batch 1 looks as a loss, and is none."""
    module = OneNumber(lambda scores, loss: (torch.cat([scores, -scores], 1), scores))
    with pytest.raises(InputError, match="no loss, use a batch above 1 or return the sum to train"):
        read_training(module, ONE_ROW)
    two = read_training(module, (torch.linspace(-1, 1, 12).reshape(2, 6),))
    assert two.source.options["loss"] == SUM_OF_MEANS


def test_an_output_without_a_value_is_no_loss() -> None:
    matrix = torch.zeros(1, 1)
    assert not begins_with_loss([None, torch.zeros(())])
    assert not begins_with_loss([])
    assert losses_behind([None, matrix, None]) == [1]
    assert losses_behind([matrix, None, matrix]) == []
    assert losses_behind([]) == []


def test_matrices_of_one_number_train_as_larger_ones() -> None:
    module = OneNumber(lambda scores, loss: (scores, 2 * scores))
    assert eager_step(module, ONE_ROW) is None
    assert read_training(module, ONE_ROW).source.options["loss"] == SUM_OF_MEANS


@pytest.mark.parametrize(
    "result",
    [
        lambda scores, loss: loss,
        lambda scores, loss: (scores - 1).square().mean(0),
        lambda scores, loss: (scores - 1).square(),
        lambda scores, loss: (loss, scores),
        lambda scores, loss: ((scores - 1).square().mean(0), scores),
        lambda scores, loss: (loss, scores.sum()),
    ],
)
def test_one_number_in_front_is_the_loss(
    result: Callable[[torch.Tensor, torch.Tensor], Any],
) -> None:
    module = OneNumber(result)
    eager = eager_step(module, ONE_ROW)
    assert eager is not None
    expected = (module.layer(ONE_ROW[0]).detach() - 1).square()
    assert float(eager.loss) == pytest.approx(float(expected), rel=1e-5)
    assert "loss" not in read_training(module, ONE_ROW).source.options


def test_a_buffer_that_a_part_replaces_is_refused_in_inference() -> None:
    module = nn.Sequential(Counting()).eval()
    with pytest.raises(InputError, match="a part of the module replaces buffer"):
        pw.place(module, example_inputs=batch_of()[:1], devices="cpu:0", quick=True, evaluations=1)


def test_the_reason_of_a_failed_export_is_told() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(InputError, match="cannot be exported") as caught:
        pw.place(Branching(), example_inputs=batch_of()[:1], devices="cpu:0", quick=True)
    assert "error above" not in str(caught.value)


class Scaled(Loss):
    """It changes its inputs in place."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul_(2), labels.clamp_(max=2))


def test_a_module_that_changes_its_inputs_trains_and_the_example_stays() -> None:
    x, labels = batch_of()
    read_training(Scaled(nn.Linear(6, 4)), (x, labels))
    assert all(map(torch.equal, (x, labels), batch_of()))


def frozen() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5).eval(), nn.Linear(5, 4))


def normalised() -> nn.Module:
    layers = nn.Conv1d(2, 4, 1), nn.InstanceNorm1d(4, track_running_stats=True)
    return nn.Sequential(nn.Unflatten(1, (2, 3)), *layers, nn.Flatten(), nn.Linear(12, 4))


class Counted(nn.Module):
    """It counts its calls in a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.calls = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1.0)
        return self.layer(x) + self.calls * torch.arange(4.0)


@pytest.mark.parametrize("body", [frozen, normalised, Regularised, Recurrent, Counted])
@pytest.mark.parametrize("is_whole_off", [False, True])
def test_a_step_has_the_modes_of_the_module(
    body: Callable[[], nn.Module], is_whole_off: bool
) -> None:
    """As a plain loop; a module that is in evaluation mode as a whole trains as after train()."""
    torch.manual_seed(0)
    module = Loss(body())
    module.body.register_buffer("unused", torch.zeros(1))
    modes = [part.training for part in module.modules()]
    if is_whole_off:
        module.eval()
        modes = [False] * len(modes)
    plan = pw.place(
        module,
        example_inputs=batch_of(),
        objective="training",
        optimizer="sgd:learning_rate=0.1",
        devices="cpu:0",
        quick=True,
        evaluations=1,
    )
    assert [part.training for part in module.modules()] == modes
    with pw.load(plan) as step:
        losses = [step(*batch_of()) for _ in range(3)]
    if is_whole_off:
        module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for found in losses:
        loss = module(*batch_of())
        assert found == pytest.approx(float(loss.detach()), rel=1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_frozen_normalisation_stays_frozen_in_evaluation_mode() -> None:
    """The rest is put into evaluation mode, since layers are left out at random."""
    body = nn.Sequential(LayersAtRandom(), nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    module = Loss(body).train()
    body[1].eval()
    updates = read_training(module, batch_of()).program.updates
    assert [name for name in updates if "running_mean" in name] == ["b_body_2_running_mean"]
