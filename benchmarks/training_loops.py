"""Training loops of PyTorch beside steps of plans: one core, two cores, DDP with gloo, memory."""

from __future__ import annotations

import os
import resource
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import nn

import placewright as pw
from benchmarks.command import Results, run
from placewright.cli.command import command
from placewright.cli.output import print_line
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.execution.processor import processor_text, usable_cores
from placewright.files.results import write_rows
from placewright.session.plans import plan_of
from placewright.session.request import Request

FORMAT = "placewright.training-loops/1"
CALLS = 2000  # over which memory must not grow
_SAMPLES = 8  # of a batch; each of two processes takes half
_RECORD = PlacerRecord("benchmarks.training_loops", "1", 0, 0, 0.0)


class Residual(nn.Module):
    """Twelve convolutions of width 32 in residual blocks, with the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32, 10)
        self.convs = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(12))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        for conv in self.convs:
            x = x + torch.relu(conv(x))
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), labels)


class Gpt(nn.Module):
    """Four layers of width 128 over 64 words, with the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(512, 128), nn.Linear(128, 512)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(128), "inner": nn.Linear(128, 384),
                    "outer": nn.Linear(128, 128), "between": nn.LayerNorm(128),
                    "up": nn.Linear(128, 512), "down": nn.Linear(512, 128),
                }
            )
            for _ in range(4)
        )  # fmt: skip

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        layer: Any  # a dictionary of modules, which typed lists do not promise
        for layer in self.layers:
            parts = layer["inner"](layer["before"](x)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["outer"](mixed.transpose(1, 2).flatten(2))
            x = x + layer["down"](torch.relu(layer["up"](layer["between"](x))))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


KINDS: dict[str, Callable[[], nn.Module]] = {"residual": Residual, "gpt": Gpt}


@dataclass(frozen=True)
class LoopRow:
    """Medians of a model: milliseconds of a step of 8 samples with AdamW.

    Attributes:
        model: of `KINDS`.
        steps: timed, in turns.
        plain: PyTorch's loop on one core.
        unsplit: a step of a plan with everything on that core.
        unsplit_above: median of `unsplit` - `plain`, by round.
        unsplit_above_cpu: the same, in milliseconds of processor time of all threads.
        plain_two: PyTorch's loop on two cores.
        split: a step of the plan that `heft` found for two cores.
        used: devices of that plan.
        ddp: two processes of one core each, gloo, four samples each.
        growth: bytes by which the process grows in `CALLS` steps of the unsplit plan.
        machine: name of the processor.
    """

    model: str
    steps: int
    plain: float
    unsplit: float
    unsplit_above: float
    unsplit_above_cpu: float
    plain_two: float
    split: float
    used: int
    ddp: float
    growth: float
    machine: str


def batch_of(kind: str, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels."""
    if kind == "residual":
        return torch.randn(samples, 3, 16, 16), torch.randint(0, 10, (samples,))
    words = torch.randint(0, 512, (samples, 65))
    return words[:, :-1].clone(), words[:, 1:].clone()


def made(kind: str) -> nn.Module:
    """The module with its seeded weights, in training mode."""
    torch.manual_seed(1)
    return KINDS[kind]().train()


def plain_step(module: nn.Module, batch: Any, threads: int) -> Callable[[], None]:
    """One step of PyTorch's own loop."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def step() -> None:
        torch.set_num_threads(threads)
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def _of_process(rank: int, kind: str, port: int, steps: int, answer: Any) -> None:
    """Train one half of the batch beside another process."""
    cores = usable_cores()
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    module = nn.parallel.DistributedDataParallel(made(kind))
    step = plain_step(module, batch_of(kind, _SAMPLES // 2), 1)
    seconds = []
    for _ in range(steps + 5):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        answer.put(statistics.median(seconds[5:]))
    torch.distributed.destroy_process_group()


def ddp_seconds(kind: str, steps: int) -> float:
    """Median seconds of a step of two processes."""
    context = torch.multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn: Any = vars(torch.multiprocessing)["spawn"]
    spawn(_of_process, (kind, port, steps, answer), nprocs=2)
    return float(answer.get())


def _alone(problem: Problem) -> Plan:
    placement = Placement.on_one_device(problem.n_units, 0)
    found = Solution(placement, 0.0, "feasible", 0.0)
    return plan_of(problem, found, _RECORD, "torch")


def loop_row(kind: str, steps: int) -> LoopRow:
    """Measure a model; one core, then two, then two processes."""
    batch = batch_of(kind, _SAMPLES)
    model = pw.read(made(kind), batch, objective="training", optimizer="adamw", runtime="torch")
    devices = pw.discover("cpu:0,cpu:1", runtime="torch")
    problem = pw.profile(model, devices, objective="training", quick=True)
    searched = pw.place(problem, placer="heft", check=False)
    module = made(kind)
    own = usable_cores()
    os.sched_setaffinity(0, {own[0]})
    with pw.load(_alone(problem)) as step:
        contenders = [plain_step(module, batch, 1), lambda: step(*batch)]
        rows = _rounds(contenders, steps, time.perf_counter)
        busy = _rounds(contenders, steps, time.process_time)
        before = _bytes_in_use()
        for _ in range(CALLS):
            step(*batch)
        growth = _bytes_in_use() - before
    os.sched_setaffinity(0, set(own))
    with pw.load(searched) as step:
        two = _rounds(
            [plain_step(made(kind), batch, 2), lambda: step(*batch)], steps, time.perf_counter
        )
    plain, unsplit = 1e3 * rows.T
    plain_two, split = 1e3 * np.median(two, axis=0)
    return LoopRow(
        kind,
        steps,
        plain=float(np.median(plain)),
        unsplit=float(np.median(unsplit)),
        unsplit_above=float(np.median(unsplit - plain)),
        unsplit_above_cpu=1e3 * float(np.median(busy[:, 1] - busy[:, 0])),
        plain_two=float(plain_two),
        split=float(split),
        used=len(np.unique(searched.placement.device_of)),
        ddp=1e3 * ddp_seconds(kind, steps),
        growth=growth,
        machine=processor_text(),
    )


def _rounds(
    contenders: list[Callable[[], Any]], rounds: int, clock: Callable[[], float]
) -> np.ndarray[Any, Any]:
    """Seconds of a clock, shape (rounds, contenders)."""
    found = np.empty((rounds + 10, len(contenders)))
    for row in found:
        for at, call in enumerate(contenders):
            start = clock()
            call()
            row[at] = clock() - start
    return found[10:]


def _bytes_in_use() -> float:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * resource.getpagesize())


@command(model=None)
def training_loops(
    request: Request,
    steps: Annotated[int, typer.Option(min=1, help="In which contenders take turns.")] = 100,
    results: Results = Path("training-loops.json"),
) -> None:
    """Time steps of plans beside PyTorch's own loop and beside DDP with gloo."""
    rows: list[LoopRow] = []
    for kind in KINDS:
        row = loop_row(kind, steps)
        rows.append(row)
        write_rows(results, FORMAT, rows)
        best = min(row.plain_two, row.split, row.ddp)
        winner = {row.plain_two: "PyTorch's loop", row.split: "the split", row.ddp: "DDP"}[best]
        print_line(
            f"{row.model}: one core {row.plain:.2f} ms, unsplit plan {row.unsplit_above:+.2f} ms "
            f"({row.unsplit_above_cpu:+.2f} ms of processor time); "
            f"two cores {row.plain_two:.2f} ms, split on {row.used} {row.split:.2f} ms, DDP "
            f"{row.ddp:.2f} ms: {winner} is fastest; {CALLS} steps grow by "
            f"{row.growth / 2**20:.1f} MiB"
        )


if __name__ == "__main__":
    run(training_loops)
