"""Training loops of PyTorch beside steps of plans: one core, two cores, DDP with gloo, memory."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import nn

import placewright as pw
from benchmarks.command import Results, run
from benchmarks.own_nets import WORDS, WithLoss, own_net
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

FORMAT = "placewright.training-loops/2"
SHARE = 0.75  # of the memory of the whole step, for each core of a split
_SAMPLES = 8  # of a batch; each of two processes takes half
_TURN = 5  # steps of a way on two cores, before the next one's
_ON_TWO = ("plain_two", "split", "ddp")
_RECORD = PlacerRecord("benchmarks.training_loops", "1", 0, 0, 0.0)


KINDS = ("residual", "gpt")


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
        split: a step of a plan of `auto` within memory limits that no core satisfies alone.
        limit: memory of each core, in bytes.
        segments: of that plan.
        ddp: two processes of one core each, gloo, four samples each.
        winner: the fastest on two cores, by its median: ``plain``, ``split`` or ``ddp``.
        wins: share of rounds in which the winner was faster than the second.
        calls: further steps of the unsplit plan.
        growth: bytes by which the process grows in them.
        load: processes that wanted a core, mean of the last minute; about 2 are ours.
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
    limit: float
    segments: int
    ddp: float
    winner: str
    wins: float
    calls: int
    growth: float
    load: float
    machine: str


def batch_of(kind: str, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels."""
    if kind == "residual":
        return torch.randn(samples, 3, 16, 16), torch.randint(0, 10, (samples,))
    words = torch.randint(0, WORDS, (samples, 65))
    return words[:, :-1].clone(), words[:, 1:].clone()


def made(kind: str) -> nn.Module:
    """The module with its seeded weights and the loss, in training mode."""
    return WithLoss(own_net(kind)[0]).train()


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


def _of_process(rank: int, kind: str, port: int, asked: Any, answer: Any) -> None:
    """Train one half of the batch beside another process, as many steps as asked; 0 ends."""
    cores = usable_cores()
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    module = nn.parallel.DistributedDataParallel(made(kind))
    step = plain_step(module, batch_of(kind, _SAMPLES // 2), 1)
    while steps := asked.get():
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if rank == 0:
            answer.put((time.perf_counter() - start) / steps)
    torch.distributed.destroy_process_group()


@contextmanager
def ddp_processes(kind: str) -> Iterator[Callable[[int], float]]:
    """Two processes that wait until they are asked for steps; gives the seconds of a step."""
    context = torch.multiprocessing.get_context("spawn")
    asked, answer = [context.SimpleQueue() for _ in range(2)], context.SimpleQueue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        context.Process(target=_of_process, args=(rank, kind, port, asked[rank], answer))
        for rank in range(2)
    ]
    for process in processes:
        process.start()

    def seconds(steps: int) -> float:
        for queue in asked:
            queue.put(steps)
        return float(answer.get())

    try:
        yield seconds
    finally:
        for queue, process in zip(asked, processes, strict=True):
            queue.put(0)
            process.join()


def _alone(problem: Problem) -> Plan:
    placement = Placement.on_one_device(problem.n_units, 0)
    found = Solution(placement, 0.0, "feasible", 0.0)
    return plan_of(problem, found, _RECORD, "torch")


def loop_row(kind: str, steps: int, calls: int) -> LoopRow:
    """Measure a model: ways on one core take turns, then those on two cores."""
    batch = batch_of(kind, _SAMPLES)
    model = pw.read(made(kind), batch, objective="training", optimizer="adamw", runtime="torch")
    devices = pw.discover("cpu:0,cpu:1", runtime="torch")
    problem = pw.profile(model, devices, objective="training", quick=True)
    alone = _alone(problem)
    limit = SHARE * max(alone.memory.values())
    tight = replace(problem, cluster=problem.cluster.with_limit("cpu:*", limit))
    searched = pw.place(tight, budget="20s", check=False)
    module = made(kind)
    own = usable_cores()
    os.sched_setaffinity(0, {own[0]})
    with pw.load(alone) as step:
        contenders = [plain_step(module, batch, 1), lambda: step(*batch)]
        rows = _rounds(contenders, steps, time.perf_counter)
        busy = _rounds(contenders, steps, time.process_time)
        before = _bytes_in_use()
        for _ in range(calls):
            step(*batch)
        growth = _bytes_in_use() - before
    os.sched_setaffinity(0, set(own))
    plain, unsplit = 1e3 * rows.T
    two = _on_two_cores(kind, searched, batch, steps)
    order = np.argsort(np.median(two, axis=0))
    return LoopRow(
        kind,
        steps,
        plain=float(np.median(plain)),
        unsplit=float(np.median(unsplit)),
        unsplit_above=float(np.median(unsplit - plain)),
        unsplit_above_cpu=1e3 * float(np.median(busy[:, 1] - busy[:, 0])),
        **dict(zip(_ON_TWO, np.median(two, axis=0).tolist(), strict=True)),
        limit=limit,
        segments=len(searched.segments or ()),
        winner=_ON_TWO[order[0]].removesuffix("_two"),
        wins=float(np.mean(two[:, order[0]] < two[:, order[1]])),
        calls=calls,
        growth=growth,
        load=os.getloadavg()[0],
        machine=processor_text(),
    )


def _on_two_cores(kind: str, plan: Plan, batch: Any, steps: int) -> np.ndarray[Any, Any]:
    """Milliseconds of a step, shape (rounds, 3); ways take turns of a few steps each."""
    with pw.load(plan) as split, ddp_processes(kind) as ddp:
        plain = plain_step(made(kind), batch, 2)

        def seconds(step: Callable[[], Any]) -> float:
            start = time.perf_counter()
            for _ in range(_TURN):
                step()
            return (time.perf_counter() - start) / _TURN

        found = [
            (seconds(plain), seconds(lambda: split(*batch)), ddp(_TURN))
            for _ in range(1 + -(-steps // _TURN))
        ]
    return 1e3 * np.array(found[1:])


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
    repeats: Annotated[
        int, typer.Option(min=0, help="Calls over which memory must not grow.")
    ] = 2000,
    results: Results = Path("training-loops.json"),
) -> None:
    """Time steps of plans beside PyTorch's own loop and beside DDP with gloo."""
    rows: list[LoopRow] = []
    for kind in KINDS:
        row = loop_row(kind, steps, repeats)
        rows.append(row)
        write_rows(results, FORMAT, rows)
        print_line(
            f"{row.model}: one core {row.plain:.2f} ms, unsplit plan {row.unsplit_above:+.2f} ms "
            f"({row.unsplit_above_cpu:+.2f} ms of processor time); "
            f"two cores {row.plain_two:.2f} ms, split of {row.segments} segments "
            f"{row.split:.2f} ms, DDP {row.ddp:.2f} ms: {row.winner} is "
            f"fastest in {row.wins:.0%} of rounds; "
            f"{row.calls} steps grow by "
            f"{row.growth / 2**20:.1f} MiB"
        )


if __name__ == "__main__":
    run(training_loops)
