"""Language models that llama.cpp runs on two servers of this machine, beside their predictions.

    python -m benchmarks.language_models [--results docs/results/language-models.json]
        [--placements 20] [--models dense,experts,half,large-experts] [--seconds 150]
        [--rounds 3] [--files FOLDER] [--unequal FOLDER | --cards]

Models with random weights are written: two dense ones and two mixtures of experts. For each model
the devices are measured as `placewright profile --engine` does. Then the engine runs drawn
placements, and the plan that `place` finds within limits that no card satisfies alone. Each row is
written when it is there, and a new start goes on after the last one; `--files` keeps the models for
it. The programs of llama.cpp are those that `run --engine` finds. The client and the first server
stay on one core, and the second server on another: processes that wander between cores are up to a
quarter slower. With `--unequal` the second server is a program of another folder, such as one built
without AVX2. With `--cards` the devices are the GPUs that the engine has here, and its processor.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

import placewright as pw
from placewright.core.cluster import Cluster
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.execution.engine.probe import Probe, probe_numbers, probe_tensors
from placewright.execution.engine.programs import Programs, engine_at, running_servers
from placewright.execution.processor import processor_text
from placewright.files.cluster_file import ClusterDocument, cluster_data, cluster_of
from placewright.io.written import write_text
from placewright.session.language.engine_profile import profile_engine
from placewright.session.language.engine_run import run_on_engine
from placewright.session.language.run_search import layer_runs, why_inexpressible
from placewright.session.plans import plan_of
from placewright.session.session import Session
from placewright.simulation.model import Simulator

FORMAT = "q8_0"
MODELS = {  # about 0.12, 0.22, 0.5 and 0.5 billion parameters
    "dense": Probe(10, 768, 2048, FORMAT, vocabulary=32_000),
    "experts": Probe(8, 768, 1024, FORMAT, has_experts=True, vocabulary=32_000),
    "half": Probe(22, 1024, 5632, FORMAT, vocabulary=32_000),
    "large-experts": Probe(10, 1024, 1536, FORMAT, has_experts=True, vocabulary=32_000),
}
OF_CARDS = {  # about 1 billion parameters; a few times the cache of a server's processor
    "card-dense": Probe(16, 2048, 5632, FORMAT, vocabulary=32_000),
    "card-experts": Probe(12, 2048, 1408, FORMAT, has_experts=True, vocabulary=32_000),
}
SERVERS = ("127.0.0.1:50652", "127.0.0.1:50653")
REQUEST: dict[str, Any] = {"prompt": 64, "generate": 16, "context": 512}
REQUEST_OF_CARDS: dict[str, Any] = {"prompt": 256, "generate": 32, "context": 1024}
SHARE, SHARE_OF_CARD = 0.7, 0.5  # of the model, that each card's limit is
_WIDE, _DRAWN_ROWS = 2048, 512  # elements of a state; rows of its matrices, which repeat
PLACEMENTS, RUNS, ROUNDS = 20, 3, 6  # rounds are those of a plan beside simpler ways
UNEQUAL = " unequal"  # in the names of rows, and of their cluster
_PIECES = ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]


def write_model(path: Path, model: Probe) -> None:
    """Write a model with random weights and a vocabulary of letters, bytes and unused tokens."""
    name = "qwen3moe" if model.has_experts else "llama"
    writer = GGUFWriter(str(path), name)
    for key, value in probe_numbers(model).items():
        writer.add_uint32(f"{name}.{key}", value)
    writer.add_float32(f"{name}.attention.layer_norm_rms_epsilon", 1e-5)
    known = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *_PIECES]
    others = [f"\u2581t{n}" for n in range(model.vocabulary - len(known))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(_PIECES), *[5] * len(others)]
    writer.add_string("tokenizer.ggml.model", "llama")
    writer.add_array("tokenizer.ggml.tokens", [*known, *others])
    writer.add_array("tokenizer.ggml.scores", [0.0] * model.vocabulary)
    writer.add_array("tokenizer.ggml.token_type", kinds)
    rng = np.random.default_rng(0)
    kind = GGMLQuantizationType[model.dtype.upper()]
    for tensor, shape in probe_tensors(model).items():
        rows = shape[-2] if len(shape) > 1 else 1
        # Not those of tokens: copies of a row are tokens of equal scores, of which any may win.
        is_large = model.hidden >= _WIDE and _DRAWN_ROWS < rows != model.vocabulary
        drawn = (*shape[:-2], _DRAWN_ROWS, shape[-1]) if is_large else shape
        data = rng.standard_normal(drawn, dtype=np.float32) * np.float32(0.03)
        if len(shape) == 1:
            writer.add_tensor(tensor, np.ones(shape, np.float32))
        elif "gate_inp" in tensor:
            writer.add_tensor(tensor, data)
        else:
            packed = quantize(data, kind)
            if is_large:
                times = -(-rows // _DRAWN_ROWS)
                packed = np.concatenate([packed] * times, axis=-2)[..., :rows, :]
            writer.add_tensor(tensor, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def drawn(problem: Problem, rng: np.random.Generator) -> Placement:
    """A placement that the engine can express: layers in runs, feed-forward parts anywhere."""
    graph, layers = problem.graph, layer_runs(problem)
    runs = sorted(rng.integers(0, len(layers.order), len(layers.ops)).tolist())
    own = {graph.op_modules[op]: layers.order[at] for op, at in zip(layers.ops, runs, strict=True)}
    chosen = [own.get(module, layers.order[-1]) for module in graph.op_modules]
    for op, kind in enumerate(graph.op_kinds):
        if kind in ("FeedForward", "Experts") and rng.random() < 0.25:
            chosen[op] = layers.order[int(rng.integers(len(layers.order)))]
    for op, at in problem.pins.items():
        chosen[op] = at
    return Placement.of(chosen)


def _alone(problem: Problem) -> Placement:
    """All modules on the last card; the embedding stays where the engine has it."""
    last = layer_runs(problem).order[-1]
    return Placement.of([problem.pins.get(op, last) for op in range(problem.graph.n_ops)])


def plan_at(problem: Problem, placement: Placement) -> Plan:
    """A plan with a placement."""
    value = Simulator(problem).value(placement)
    record = PlacerRecord("single", "0", 0, 1, 0.0, ())
    return plan_of(problem, Solution(placement, value, "feasible"), record, "openvino")


class Over(Exception):
    """The time of a campaign is over."""


class Campaign:
    """Rows in a file, each of them measured once.

    Args:
        path: of the file.
        engine: programs of the client and of the first server.
        second: programs of the second server if it differs.
        end: reading of `time.monotonic` after which no row begins.
        files: folder of the models.
        rounds: that measure each drawn placement.
        has_cards: devices are those of the engine here, and no servers.
    """

    def __init__(
        self,
        path: Path,
        engine: Programs,
        second: Programs | None,
        *,
        end: float,
        files: Path,
        rounds: int,
        has_cards: bool = False,
    ) -> None:
        self._path, self._engine, self._second, self._end = path, engine, second, end
        self._files, self._rounds = files, rounds
        self._has_cards, self._request = has_cards, REQUEST_OF_CARDS if has_cards else REQUEST
        self._mark = "" if second is None else UNEQUAL
        here = sorted(os.sched_getaffinity(0))
        self._cores = here[0], here[min(1, len(here) - 1)]
        self._document: dict[str, Any] = {"rows": []}
        if path.exists():
            self._document = json.loads(path.read_text())

    def run(self, models: Sequence[str], placements: int) -> None:
        """Measure all rows that are missing."""
        with self._servers():
            for name in models:
                path = self._files / f"{name}.gguf"
                if not path.exists():
                    write_model(path, (MODELS | OF_CARDS)[name])
                self._of_model(name, path, self._devices(name), placements)

    @contextmanager
    def _servers(self) -> Iterator[None]:
        """Two servers, each on its core, for a block; none for cards."""
        if self._has_cards:
            yield
            return
        first, second = ({address: 1} for address in SERVERS)
        with (
            running_servers(self._engine, first, may_answer=False) as one,
            running_servers(self._second or self._engine, second, may_answer=False) as other,
        ):
            for servers, core in zip((one, other), self._cores, strict=True):
                for server in servers.started:
                    os.sched_setaffinity(server.process.pid, {core})
            yield

    @contextmanager
    def _client(self) -> Iterator[None]:
        """Programs that a block starts are on the client's core; with cards they are anywhere."""
        before = os.sched_getaffinity(0)
        if not self._has_cards:
            os.sched_setaffinity(0, {self._cores[0]})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def _devices(self, model: str) -> Cluster:
        """The devices, measured shortly before a model's rows: the speed of a machine drifts."""
        key = "cluster of cards" if self._has_cards else f"cluster {model}{self._mark}"
        if key not in self._document:
            self._require_time()
            formats = {FORMAT: True}
            where: dict[str, Any] = {"servers": SERVERS, "threads": 1}
            with self._client():
                cluster = profile_engine(
                    formats, self._engine, **({} if self._has_cards else where)
                )
            self._document |= {
                "machine": processor_text(),
                "version": f"{version('placewright')}, llama.cpp {self._engine.version}",
                "date": datetime.now(UTC).date().isoformat(),
                key: cluster_data(cluster),
            }
            self._write()
        return cluster_of(ClusterDocument.model_validate(self._document[key]))

    def _of_model(self, name: str, path: Path, cluster: Cluster, placements: int) -> None:
        rng = np.random.default_rng(1)
        problem = Session(str(path), cluster=cluster, **self._request).profile()
        names = [device.name for device in cluster.devices]
        share = SHARE_OF_CARD if self._has_cards else SHARE
        limit = f"{share * problem.kept.total:.0f}B"
        memory = dict.fromkeys(names[:-1] if self._has_cards else names, limit)
        number, of = 0, f"{name}{self._mark}"
        found = pw.place(str(path), cluster=cluster, memory=memory, budget="5s", **self._request)
        self._row(f"{of} plan", name, replace(found, measured=None), compares=True)
        while number < placements:
            placement = drawn(problem, rng)
            if why_inexpressible(problem, placement) is None:
                self._row(f"{of} {number}", name, plan_at(problem, placement), compares=False)
                number += 1
        if self._mark:
            self._row(f"{of} alone", name, plan_at(problem, _alone(problem)), compares=False)

    def _row(self, key: str, model: str, plan: Plan, *, compares: bool) -> None:
        if any(row["key"] == key for row in self._document["rows"]):
            return
        self._require_time()
        sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {key}\n")
        servers = () if self._has_cards else SERVERS
        rounds = ROUNDS if compares else self._rounds
        with self._client():
            done = run_on_engine(
                plan, self._engine, servers=servers, runs=rounds, compares=compares
            )
        layers = layer_runs(plan.problem)
        names = plan.problem.cluster.device_names
        at = [names[int(plan.placement.device_of[op])] for op in layers.ops]
        data = {"key": key, "model": f"{model}{self._mark}", "attention_on": at, **done.data()}
        self._document["rows"].append(data)
        self._write()

    def _require_time(self) -> None:
        if time.monotonic() > self._end:
            raise Over

    def _write(self) -> None:
        write_text(self._path, json.dumps(self._document, indent=1) + "\n")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("docs/results/language-models.json"))
    parser.add_argument("--engine-folder", type=Path)
    parser.add_argument("--models", help="names between commas; default: all")
    parser.add_argument("--placements", type=int, default=PLACEMENTS, help="of each model")
    parser.add_argument("--rounds", type=int, default=RUNS, help="of each drawn placement")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no row begins later")
    parser.add_argument("--files", type=Path, help="folder that keeps the models")
    parser.add_argument("--unequal", type=Path, help="folder of the second server's program")
    parser.add_argument("--cards", action="store_true", help="take the engine's own devices")
    asked = parser.parse_args()
    known = OF_CARDS if asked.cards else MODELS
    models = list(known) if asked.models is None else asked.models.split(",")
    if unknown := sorted(set(models) - set(known)):
        parser.error(f"--models knows {', '.join(known)}, got '{unknown[0]}'")
    second = None if asked.unequal is None else Programs(asked.unequal)
    end = time.monotonic() + asked.seconds
    engine = engine_at(asked.engine_folder)
    with suppress(Over), tempfile.TemporaryDirectory() as folder:
        files = asked.files or Path(folder)
        files.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(
            asked.results,
            engine,
            second,
            end=end,
            files=files,
            rounds=asked.rounds,
            has_cards=asked.cards,
        )
        campaign.run(models, asked.placements)


if __name__ == "__main__":
    main()
