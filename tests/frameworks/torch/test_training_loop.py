"""A loaded plan trains: split loops equal plain PyTorch loops, also after a crash and a resume."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.training_loops import Gpt, Residual, batches, loaded, made, plan_of_step
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, StepLR

import placewright as pw
from placewright.errors import FieldError, FileFormatError, InputError, RuntimeFailure
from placewright.frameworks.torch.running.functions import Draws
from placewright.frameworks.torch.running.instances import TorchInstance
from placewright.frameworks.torch.running.step_state import TorchStepState
from placewright.frameworks.torch.training.step import read_training
from placewright.session.loaded.plans import LoadedPlan
from placewright.session.loaded.steps import LoadedStep

# A split sums gradients in another order than eager PyTorch does, and AdamW divides small sums by
# their size, so that rounding grows from step to step.
LOSS_TOLERANCE, PARAMETER_TOLERANCE = 1e-4, 2e-3


def losses_of(step: LoadedStep, kind: type[nn.Module], count: int) -> list[float]:
    return [step(*batch) for batch in batches(kind, count)]


def require_equal(step: LoadedStep, module: nn.Module) -> None:
    """Parameters and buffers, written back into another module, are those of a plain loop."""
    other = made(type(module))
    step.write_back(other)
    for name, value in module.state_dict().items():
        found = other.state_dict()[name]
        torch.testing.assert_close(found, value, rtol=0.0, atol=PARAMETER_TOLERANCE, msg=name)


@pytest.mark.parametrize("kind", [Residual, Gpt])
def test_a_hundred_steps_are_those_of_a_plain_loop(kind: type[nn.Module]) -> None:
    module = made(kind)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    with loaded(kind, optimizer="adamw") as step:
        for batch in batches(kind, 100):
            optimizer.zero_grad()
            loss = module(*batch)
            loss.backward()
            optimizer.step()
            assert step(*batch) == pytest.approx(float(loss.detach()), rel=LOSS_TOLERANCE)
        assert step.steps == 100
        require_equal(step, module)


@pytest.mark.parametrize("kind", [Residual, Gpt])
def test_schedule_accumulation_and_clipping_are_those_of_a_plain_loop(
    kind: type[nn.Module],
) -> None:
    """The rate falls with each update; a gradient is the mean of three batches, cut to 0.3."""
    module = made(kind)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.9)
    falling = LambdaLR(optimizer, lambda update: 0.1 / (1 + update))
    said = "sgd:clip=0.3,accumulate=3"
    with loaded(kind, optimizer=said, learning_rate=lambda update: 0.1 / (1 + update)) as step:
        for number, batch in enumerate(batches(kind, 12)):
            loss = module(*batch)
            (loss / 3).backward()
            if number % 3 == 2:
                nn.utils.clip_grad_norm_(module.parameters(), 0.3)
                optimizer.step()
                optimizer.zero_grad()
                falling.step()
            assert step(list(batch)) == pytest.approx(float(loss.detach()), rel=LOSS_TOLERANCE)
        require_equal(step, module)


class Dead(nn.Module):
    """A layer of which half has a gradient of 0, as behind a ReLU that never opens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(x)[:, :2], labels)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_warm_up_begins_at_zero(name: str) -> None:
    """The formula of Adam divides by the rate, and 0 / 0 where a gradient is 0."""
    module, batch = made(Dead), (torch.linspace(-1, 1, 48).reshape(8, 6), torch.arange(8) % 2)
    optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.1, weight_decay=0.1)
    plan = plan_of_step(module, batch, seed=1, optimizer=optimizer)
    warm = LambdaLR(optimizer, lambda update: min(1, update / 3))
    other = made(Dead)
    with pw.load(plan, learning_rate=lambda update: 0.1 * min(1, update / 3)) as step:
        for update in range(6):  # the first of them at a rate of 0
            optimizer.zero_grad()
            module(*batch).backward()
            optimizer.step()
            warm.step()
            step(*batch)
            step.write_back(other)
            tolerance = 1e-5 if update else 0.0
            for mine, wanted in zip(other.parameters(), module.parameters(), strict=True):
                torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=tolerance)


def test_the_learning_rate_can_be_set_between_steps() -> None:
    module = made(Gpt)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    with loaded(Gpt, optimizer="adamw:learning_rate=1e-2") as step:
        for number, batch in enumerate(batches(Gpt, 6)):
            if number == 3:
                step.learning_rate = optimizer.param_groups[0]["lr"] = 1e-3
            optimizer.zero_grad()
            module(*batch).backward()
            optimizer.step()
            step(*batch)
        require_equal(step, module)
        wrong: tuple[Any, ...] = (-1, "1e-3", None, lambda update: 0.1)
        for rate in wrong:
            with pytest.raises(InputError, match="learning rate must be >= 0 and finite, got"):
                step.learning_rate = rate


@pytest.mark.parametrize(
    "make",
    [
        lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.8, nesterov=True),
        lambda given: torch.optim.Adam(given, lr=1e-2, betas=(0.8, 0.99), weight_decay=0.1),
        lambda given: torch.optim.AdamW(given, lr=1e-2, eps=1e-6, weight_decay=0.3),
    ],
)
def test_an_optimizer_of_pytorch_says_its_rule(make: Callable[[Any], Any]) -> None:
    module = made(Gpt)
    optimizer = make(module.parameters())
    with pw.load(plan_of_step(module, next(batches(Gpt, 1)), seed=1, optimizer=optimizer)) as step:
        for batch in batches(Gpt, 5):
            optimizer.zero_grad()
            module(*batch).backward()
            optimizer.step()
            step(*batch)
        require_equal(step, module)


def test_an_optimizer_that_no_rule_describes_is_refused() -> None:
    module, batch = made(Gpt), next(batches(Gpt, 1))
    every = list(module.parameters())
    begun = torch.optim.Adam(every)
    module(*batch).backward()
    begun.step()
    for optimizer, message in (
        (torch.optim.RMSprop(every), "unknown optimizer 'rmsprop'; .*sgd, adam, adamw"),
        (torch.optim.Adam(every, amsgrad=True), "adam: there is no setting amsgrad, got True"),
        (torch.optim.SGD(every, dampening=0.1), "sgd: there is no setting dampening, got 0.1"),
        (torch.optim.SGD(every[1:]), "SGD: lacks parameter 'embedding.weight'"),
        (torch.optim.SGD([*every, nn.Parameter(torch.ones(1))]), "has 1 of [0-9]+ parameters from"),
        (torch.optim.SGD([{"params": every[:1]}, {"params": every[1:], "lr": 1.0}]), "2 groups"),
        (begun, "Adam: has state of earlier steps"),
        (SGD(every), "SGD: is of .*test_training_loop, which may compute otherwise; make it with"),
        (7, "expects a text such as adamw:learning_rate=1e-3, or, .* got int"),
    ):
        with pytest.raises(InputError, match=message):
            pw.read(module, batch, objective="training", optimizer=optimizer)


@pytest.mark.parametrize(("kind", "count"), [
    (Gpt, 8),
    pytest.param(Gpt, 100, marks=pytest.mark.slow),
    pytest.param(Residual, 100, marks=pytest.mark.slow),
])  # fmt: skip
def test_dropout_draws_the_same_masks_in_every_split(kind: type[nn.Module], count: int) -> None:
    """Losses of all steps, and all state at their end, are those of our unsplit step."""
    losses, states = [], []
    for seed in (None, 1, 2):
        with loaded(kind, seed=seed, optimizer="adamw", dropout=True) as step:
            losses.append(losses_of(step, kind, count))
            states.append(step.state_dict())
    with loaded(kind, optimizer="adamw") as step:
        plain = losses_of(step, kind, 8)
    assert losses[0][:8] != pytest.approx(plain, rel=1e-3)
    for found, state in zip(losses[1:], states[1:], strict=True):
        assert found == pytest.approx(losses[0], rel=1e-5)
        for name, value in states[0].items():
            torch.testing.assert_close(state[name], value, rtol=0.0, atol=1e-5, msg=name)


def test_a_step_without_dropout_is_that_of_the_module_in_evaluation() -> None:
    """Random operators of a module's own are refused, with the argument that allows them."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.head(x) * torch.rand_like(x)).sum()

    with pytest.raises(InputError, match="argument `dropout`"):
        pw.read(Noisy(), (torch.ones(2, 4),), objective="training", runtime="torch")


RESUMED = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from support.training_loops import *
kind, said = globals()[sys.argv[3]], {"optimizer": "adamw:accumulate=2", "dropout": True}
plan = plan_of_step(made(kind, 0.3), next(batches(kind, 1)), seed=1, **said)
pw.write_plan(sys.argv[4], plan)
with pw.load(plan) as step:
    for batch in batches(kind, int(sys.argv[5])):
        step(*batch)
        step.save(sys.argv[2])
        print(step.steps, flush=True)
"""


@pytest.mark.parametrize(("kind", "count"), [
    (Gpt, 12),
    pytest.param(Gpt, 100, marks=pytest.mark.slow),
    pytest.param(Residual, 100, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_killed_run_goes_on_from_its_checkpoint(
    kind: type[nn.Module], count: int, tmp_path: Path
) -> None:
    """Killed at a random moment of a random step: losses, masks and gradients are the same.

    Another process goes on with the files of checkpoint and plan, and the module of the plan.
    """
    rng = np.random.default_rng(count)
    path, last = tmp_path / "step.safetensors", int(rng.integers(1, count - 1))
    plan = tmp_path / "plan.json"
    folders = ":".join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", RESUMED, folders, path, kind.__name__, plan, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if int(line) == last:
                time.sleep(rng.uniform(0.0, 0.01))
                running.kill()
                break
    assert running.returncode == -9
    with loaded(kind, seed=2, optimizer="adamw:accumulate=2", dropout=True) as step:
        whole = losses_of(step, kind, count)
    with pw.load(plan, model=made(kind, 0.3), example_inputs=next(batches(kind, 1))) as step:
        step.restore(path)
        done = step.steps
        assert last <= done <= count
        found = [step(*batch) for batch in list(batches(kind, count))[done:]]
    assert found == pytest.approx(whole[done:], rel=1e-5)


def test_a_checkpoint_of_another_step_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "step.safetensors"
    with loaded(Gpt, optimizer="sgd") as other:
        other.save(path)
        values = other.state_dict()
        assert torch.equal(values["model.embedding.weight"], values["model.head.weight"])
    with loaded(Gpt, optimizer="adamw") as step:
        losses = losses_of(step, Gpt, 2)
        before = step.state_dict()
        with pytest.raises(InputError, match="the state has no 'optimizer"):
            step.load_state_dict(values)
        with pytest.raises(InputError, match=r"of optimizer sgd:momentum=0\.9.* has adamw:beta1="):
            step.restore(path)
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(FileFormatError, match="is no checkpoint"):
            step.restore(path)
        wrong = before | {"model.norms.0.weight": torch.ones(3)}
        with pytest.raises(InputError, match=r"'model.norms.0.weight' is torch.float32 \[3\]"):
            step.load_state_dict(wrong)
        wrong = before | {"model.head.weight": before["model.head.weight"] + 1}
        with pytest.raises(InputError, match=r"head\.weight' differs from 'model\.embedding"):
            step.load_state_dict(wrong)
        with pytest.raises(InputError, match="this step has no state 'more'"):
            step.load_state_dict(before | {"more": torch.ones(1)})
        for steps in (torch.tensor([1, 2]), torch.tensor(-1), torch.tensor(1.5)):
            with pytest.raises(InputError, match="state 'steps' must be"):
                step.load_state_dict(before | {"steps": steps})
        with pytest.raises(InputError, match=r"norms\.0\.weight' is a str, no tensor"):
            step.load_state_dict(before | {"model.norms.0.weight": "x"})
        for name, value in step.state_dict().items():
            assert torch.equal(value, before[name]), name
        with pytest.raises(InputError, match="the module has no parameter or buffer"):
            step.write_back(nn.Linear(2, 2))
        with pytest.raises(InputError, match=r"is torch.float64, that of the step torch.float32"):
            step.write_back(made(Gpt).double())
    with loaded(Gpt, optimizer="adamw") as again:
        assert losses_of(again, Gpt, 2) == losses  # each load starts from the module's values


def test_a_checkpoint_of_another_accumulation_is_refused() -> None:
    """Its mean gradient is of another number of steps, and so is its place in a schedule."""
    with loaded(Gpt, optimizer="sgd:accumulate=2") as other:
        losses_of(other, Gpt, 1)
        values = other.state_dict()
    with loaded(Gpt, optimizer="sgd:accumulate=4") as step:
        with pytest.raises(InputError, match="of a step with accumulate=2, and this one has acc"):
            step.load_state_dict(values)
        assert step.steps == 0
    del values["accumulate"]  # a file of an earlier version
    with loaded(Gpt, optimizer="sgd:accumulate=2") as step:
        step.load_state_dict(values)
        assert step.steps == 1


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    """Adam and AdamW have state of the same names; the rate may be another."""
    path = tmp_path / "step.safetensors"
    with loaded(Gpt, optimizer="adam") as other:
        losses_of(other, Gpt, 1)
        other.save(path)
    for text in ("adamw", "adam:beta1=0.8"):
        with loaded(Gpt, optimizer=text) as step:
            with pytest.raises(InputError, match=r"is a checkpoint of optimizer adam:beta1=0\.9,"):
                step.restore(path)
            assert step.steps == 0
    with loaded(Gpt, optimizer="adam:learning_rate=0.5") as step:
        step.restore(path)
        assert step.steps == 1
    save_file(load_file(path), path)  # a file of an earlier version
    with loaded(Gpt, optimizer="adamw") as step:
        step.restore(path)
        assert step.steps == 1


def test_a_checkpoint_that_counts_the_steps_of_f64_parameters_in_f32_is_taken() -> None:
    """Files of earlier versions do."""
    module, batch = made(Dead).double(), (torch.ones(2, 6).double(), torch.arange(2))
    with pw.load(plan_of_step(module, batch, seed=None, optimizer="adam")) as step:
        step(*batch)
        values = step.state_dict()
        assert values["optimizer.layer.weight.step"].dtype == torch.float64
        expected = step(*batch)
        narrow = {key: value.float() for key, value in values.items() if key.endswith(".step")}
        step.load_state_dict(values | narrow)
        assert step(*batch) == expected


class Frozen(nn.Module):
    """A backbone that does not train, with normalisation in evaluation mode, under a new head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
        self.backbone[1].running_mean.copy_(torch.randn(5))  # type: ignore[union-attr, operator]
        self.register_buffer("unread", torch.randn(2))
        self.head = nn.Linear(5, 4)
        self.requires_grad_(False).head.requires_grad_(True)
        self.backbone.eval()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.backbone(x)), labels)


def test_a_checkpoint_of_a_module_in_another_memory_format(tmp_path: Path) -> None:
    """A safetensors file has no strides."""

    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).square().mean()

    module = Convolved().to(memory_format=torch.channels_last)
    batch = (torch.ones(2, 3, 5, 5),)
    with pw.load(plan_of_step(module, batch, seed=None, optimizer="adamw")) as step:
        step(*batch)
        step.save(tmp_path / "step.safetensors")
        expected = step(*batch)
        step.restore(tmp_path / "step.safetensors")
        assert step(*batch) == expected


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (
            lambda given: LambdaLR(given, lambda update: min(1, update / 3)),
            "has a scheduler, which has set the learning rate to 0 of 0.001",
        ),
        (lambda given: StepLR(given, 10), "has a scheduler, and"),  # begins with its own rate
    ],
)
def test_a_rate_that_a_scheduler_has_set_is_refused(
    schedule: Callable[[torch.optim.Optimizer], Any], told: str
) -> None:
    module = Frozen(1)
    optimizer = torch.optim.AdamW(module.head.parameters(), lr=1e-3)
    schedule(optimizer)
    batch = torch.randn(8, 6), torch.arange(8) % 4
    with pytest.raises(InputError, match=told):
        plan_of_step(module, batch, seed=None, optimizer=optimizer)


class SGD(torch.optim.SGD):
    """An optimizer of another library under a name of PyTorch's."""


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_an_optimizer_with_hooks_is_refused(register: str) -> None:
    module, batch = made(Gpt), next(batches(Gpt, 1))
    optimizer = torch.optim.SGD(module.parameters())
    getattr(optimizer, register)(lambda *_: None)
    with pytest.raises(InputError, match="SGD: has hooks of its steps, which no plan runs"):
        pw.read(module, batch, objective="training", optimizer=optimizer)


def test_a_checkpoint_brings_back_what_does_not_train(tmp_path: Path) -> None:
    """Another process has another backbone, which stays its own until `write_back`."""
    batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4
    module, path = Frozen(1), tmp_path / "step.safetensors"
    plan = plan_of_step(module, batch, seed=1, optimizer="adamw")
    pw.write_plan(tmp_path / "plan.json", plan)
    with pw.load(plan) as step:
        step(*batch)
        step.save(path)
        expected = [step(*batch) for _ in range(3)]
    fresh = Frozen(2)
    own = {name: value.clone() for name, value in fresh.state_dict().items()}
    with pw.load(tmp_path / "plan.json", model=fresh, example_inputs=batch) as step:
        step.restore(path)
        assert [step(*batch) for _ in range(3)] == pytest.approx(expected, rel=1e-5)
        assert all(torch.equal(value, own[name]) for name, value in fresh.state_dict().items())
        step.write_back(fresh)
    for name, value in module.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value) is not name.startswith("head"), name


def test_a_step_that_failed_half_way_asks_for_a_state() -> None:
    with loaded(Gpt, optimizer="sgd") as step:
        state = step.state_dict()
        words, labels = next(batches(Gpt, 1))
        with pytest.raises(InputError, match="input"):
            step(words[:1], labels)  # refused before anything ran
        first = step(words, labels)
        with pytest.raises(RuntimeFailure):
            step(words + 100, labels)  # outside the embedding
        with pytest.raises(RuntimeFailure, match="call restore or load_state_dict"):
            step.save("never")
        with pytest.raises(RuntimeFailure, match="failed half-way"):
            step(words, labels)
        step.load_state_dict(state)
        assert step(words, labels) == first


def test_an_interrupted_step_asks_for_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while a segment runs; a checkpoint would hold half a step."""
    batch = next(batches(Gpt, 1))
    with loaded(Gpt, optimizer="sgd") as step:
        whole, sent = TorchInstance._call, list[bool]()

        def interrupted(instance: TorchInstance, entering: list[torch.Tensor]) -> Any:
            if not sent:
                sent.append(True)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return whole(instance, entering)

        step(*batch)
        state = step.state_dict()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        monkeypatch.setattr(TorchInstance, "_call", interrupted)
        try:
            with pytest.raises(KeyboardInterrupt):
                step(*batch)
        finally:
            signal.signal(signal.SIGINT, before)
            monkeypatch.undo()
        for use in (lambda: step(*batch), step.state_dict, lambda: step.write_back(made(Gpt))):
            with pytest.raises(RuntimeFailure, match=r"half-way \(Key.*load the plan again"):
                use()
        for take in (lambda: step.load_state_dict(state), lambda: step.restore("never")):
            # The worker that was left may write over the state that comes.
            with pytest.raises(RuntimeFailure, match="workers have ended; load the plan again"):
                take()
        with pytest.raises(RuntimeFailure, match=r"half-way \(Key"):
            step(*batch)
    for _ in range(2):
        with pytest.raises(RuntimeFailure, match="was closed; load it again"):
            step(*batch)


def test_a_closed_step_keeps_no_state(tmp_path: Path) -> None:
    """It tells its numbers, and neither gives nor takes what it has freed."""
    batch, path = next(batches(Gpt, 1)), tmp_path / "step.safetensors"
    with loaded(Gpt, optimizer="sgd", learning_rate=0.25) as step:
        step(*batch)
        values = step.state_dict()
        state = weakref.ref(step._state)
    gc.collect()
    assert state() is None
    assert (step.steps, step.learning_rate) == (1, 0.25)
    uses: tuple[Callable[[], Any], ...] = (
        lambda: step(*batch),
        step.state_dict,
        lambda: step.load_state_dict(values),
        lambda: step.write_back(made(Gpt)),
        lambda: step.save(path),
        lambda: step.restore(path),
    )
    for use in uses:
        with pytest.raises(RuntimeFailure, match="was closed; load it again"):
            use()
    assert not path.exists()
    step.close()  # once more


def test_training_goes_on_from_the_module_that_was_written_back() -> None:
    """The plan stays that of its module, whose weights are others now."""
    module = made(Gpt)
    batch = next(batches(Gpt, 1))
    plan = plan_of_step(module, batch, seed=1, optimizer="sgd:momentum=0")
    with pw.load(plan) as step:
        losses = [step(*batch) for _ in range(4)]
    with pw.load(plan) as step:
        found = [step(*batch) for _ in range(2)]
        step.write_back(module)
    module.eval()
    with torch.no_grad():
        assert float(module(*batch)) == pytest.approx(losses[2], rel=1e-5)  # evaluation in between
    again = plan_of_step(module, batch, seed=1, optimizer="sgd:momentum=0")
    with pw.load(again) as step:
        found += [step(*batch) for _ in range(2)]
    assert found == pytest.approx(losses, rel=1e-5)


def test_arguments_of_load_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of_step(made(Gpt), next(batches(Gpt, 1)), seed=1)
    with pytest.raises(FieldError, match="training step"):
        pw.load(plan, in_flight=2)
    wrong: tuple[Any, ...] = (-0.1, "x")
    closed, close = [], LoadedPlan.close
    monkeypatch.setattr(LoadedPlan, "close", lambda loaded: closed.append(close(loaded)))
    for rate in wrong:
        with pytest.raises(InputError, match="learning rate must be >= 0"):
            pw.load(plan, learning_rate=rate)
    assert len(closed) == len(wrong), "what was loaded is closed"
    seeds: tuple[Any, ...] = (2**63, -(2**63) - 1, 1.5, True, "1", None)
    for seed in seeds:
        with pytest.raises(InputError, match="seed must be a whole number of 64 bits, got"):
            pw.load(plan, seed=seed)
    for seed in (np.int64(3), -(2**63)):
        with pw.load(plan, seed=seed) as step:
            assert int(step.state_dict()["seed"]) == seed
    for text in ("sgd:clip=-1", "sgd:accumulate=0", "sgd:accumulate=1.5"):
        with pytest.raises(InputError, match="optimizer"):
            pw.read(made(Gpt), next(batches(Gpt, 1)), objective="training", optimizer=text)


def test_a_schedule_may_save_the_step(tmp_path: Path) -> None:
    saved: list[int] = []

    def rate(updates: int) -> float:
        step.save(tmp_path / "step.safetensors")
        saved.append(updates)
        return 0.1

    with loaded(Gpt, optimizer="sgd", learning_rate=rate) as step:
        losses_of(step, Gpt, 2)
    assert saved == [0, 1]


def test_a_restore_reaches_the_devices_that_an_interrupted_one_did_not() -> None:
    """A frozen parameter is read on two devices, of which one has the new value already."""
    module, batch = Frozen(1), (torch.ones(8, 6), torch.arange(8) % 4)
    program = read_training(module, batch).program
    (name,) = [n for n, p in program.step.paths.items() if p == ("model.backbone.0.weight",)]
    initial = program.state[name]
    devices = torch.device("cpu"), torch.device("cpu", 0)
    copies = {device: {id(initial): initial.clone()} for device in devices}
    state = TorchStepState(program, program.state, copies, Draws(seed=1), {})
    values = state.state_dict()
    new = values["model.backbone.0.weight"] = torch.full_like(initial, 2.0)
    copies[devices[0]][id(initial)].copy_(new)
    state.load_state_dict(values)
    assert all(torch.equal(held[id(initial)], new) for held in copies.values())
