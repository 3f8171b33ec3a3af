"""Reads public tables of ops that were measured on GPUs, as graphs without edges.

The tables are those of NeuSight (Lee et al., ASPLOS 2025; MIT licence): the ops of one layer of a
language model, with embedding and head, their shapes and measured milliseconds, and beside them the
milliseconds of the whole model, which repeats the layer. ``MODEL-MODE-SEQUENCE-BATCH.csv.gz`` is in
a folder for each GPU.

A training step has ops of its own for gradients. The table tells the seconds of an op's gradient,
not its kernels; they are these, in bytes of the op's output: a product has two products of its
size; a softmax and a normalisation move five times the output, other ops what they read, twice,
and what they write. A gradient of a weight is added to the one before.
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.builder import GraphBuilder
from placewright.core.graph import ComputationGraph
from placewright.errors import FileFormatError

_BYTES = {"torch.float32": 4, "torch.float16": 2, "torch.int64": 8, "torch.bool": 1}
_KINDS = {
    **dict.fromkeys(("Linear", "addmm", "matmul", "bmm"), "matmul"),
    **dict.fromkeys(("Embedding", "embedding"), "embedding"),
    **dict.fromkeys(("contiguous", "reshape"), "contiguous"),
    "LayerNorm": "layernorm",
}
_NO_KERNEL = frozenset(
    {
        *("view", "size", "getitem", "getattr", "permute", "transpose", "unsqueeze", "expand"),
        *("dim", "split", "finfo", "to", "type", "type_as", "long", "placeholder", "get_attr"),
        *("output",),
    }
)
_TINY = 100_000  # bytes that take no time next to a launch
_PASSES = {"softmax": 5.0, "layernorm": 5.0}  # of the output, in a backward pass
_LAYER = re.compile(r"\.(layer|h|layers)\.0(\.|$)")
_TRUSTED = (0.8, 1.25)  # seconds of a whole forward pass over those of its ops
_ACCUMULATED = 3.0  # passes over a weight: its gradient, the sum, the sum again

Made = TypeVar("Made")


@dataclass(frozen=True)
class OpTable:
    """The ops of a model on a GPU, and measured seconds.

    Attributes:
        gpu: name of the folder, as PyTorch has it with ``_`` for spaces.
        model: name of the file.
        graph: ops without edges.
        repeats: how often each op runs in the whole model, shape (n_ops,).
        measured: seconds of each forward op without those of timing and launch; nan for others.
        alone: seconds of timing and launch of an op on an idle GPU: those of the smallest kernels.
        whole: measured seconds of the whole model.
        forward: of its forward pass, over the sum of its ops.
    """

    gpu: str
    model: str
    graph: ComputationGraph
    repeats: FloatArray
    measured: FloatArray
    alone: float
    whole: float
    forward: float

    @property
    def is_doubtful(self) -> bool:
        """Whether the forward pass of the whole model contradicts its ops."""
        return not _TRUSTED[0] <= self.forward <= _TRUSTED[1]

    @property
    def is_training(self) -> bool:
        """Whether the model is a training step."""
        return "-train-" in self.model


def read_tables(folder: Path, gpus: Sequence[str] | None = None) -> list[OpTable]:
    """Read all tables with ops below a folder, in the order of their names.

    Args:
        folder: with a folder for each GPU.
        gpus: names of folders to read; None reads all.

    Raises:
        FileFormatError: there is no table, or one is damaged; the message names it.
    """
    names = sorted(path for path in folder.glob("*/*.csv.gz"))
    chosen = [path for path in names if gpus is None or path.parent.name in gpus]
    if not chosen:
        raise FileFormatError(f"'{folder}' has no GPU/MODEL.csv.gz; give the folder of the tables")
    return [_read_file(path, _table) for path in chosen]


@dataclass(frozen=True)
class MeasuredLayers:
    """The measured ops of a model on a GPU, with the edges of its layer.

    Attributes:
        model: name of the file.
        seconds: of each op over all its repetitions, gradients included; 0 without a kernel.
        edges: producer, readers and bytes of each tensor.
        whole: measured seconds of the whole model.
    """

    model: str
    seconds: dict[str, float]
    edges: list[tuple[str, list[str], float]]
    whole: float


def read_layers(folder: Path, gpu: str) -> list[MeasuredLayers]:
    """Read the tables of one GPU as graphs with edges.

    Raises:
        FileFormatError: there is no table, or one is damaged; the message names it.
    """
    paths = sorted((folder / gpu).glob("*.csv.gz"))
    if not paths:
        raise FileFormatError(
            f"'{folder}' has no {gpu}/MODEL.csv.gz; give the folder of the tables"
        )
    return [_read_file(path, _layers) for path in paths]


def _layers(path: Path, rows: list[dict[str, str]], whole: dict[str, float]) -> MeasuredLayers:
    seconds, edges = {}, []
    known = {row["Name"] for row in rows}
    for row in rows:
        times = sum(float(row[key] or 0) for key in ("fw_latency", "bw_latency", "acc_latency"))
        repeats = _repeats(row, whole)
        seconds[row["Name"]] = repeats * times * 1e-3 if _has_kernel(row) else 0.0
        readers = [name for name in re.findall(r"(\w+): None", row["users"]) if name in known]
        if readers:
            size = float(math.prod(_shape(row["output_shape"])) * _BYTES.get(row["dtype"], 0))
            edges.append((row["Name"], readers, size))
    return MeasuredLayers(
        path.name.removesuffix(".csv.gz"), seconds, edges, whole["e2e_latency"] * 1e-3
    )


def _repeats(row: dict[str, str], whole: dict[str, float]) -> float:
    """How often an op of the table runs in the whole model."""
    return float(whole["num_layer"]) if any(_LAYER.search(x) for x in _modules(row)) else 1.0


@dataclass
class _Made:
    """A graph under construction, with what is known of each op."""

    builder: GraphBuilder = field(default_factory=GraphBuilder)
    repeats: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)

    def add(self, kind: str, *, repeats: float, seconds: float = math.nan, **has: float) -> None:
        """Add an op that moves `read` bytes and writes `written`."""
        builder = self.builder
        source = builder.add_input(has["read"], shape=(), dtype="f32")
        op = builder.add_op(f"op {len(self.repeats)}", kind, inputs=[source])
        builder.add_tensor(op, has["written"], shape=(), dtype="f32", is_output=True)
        self.repeats.append(repeats)
        self.measured.append(seconds)

    def product(self, extents: Sequence[int], repeats: float, seconds: float = math.nan) -> None:
        """Add a product: batch, rows, columns and the length of its sums."""
        batch, rows, columns, inner = extents
        builder = self.builder
        read = 4.0 * batch * inner * (rows + columns)
        source = builder.add_input(read, shape=(), dtype="f32")
        op = builder.add_op(
            f"op {len(self.repeats)}",
            "matmul",
            inputs=[source],
            flops=2.0 * batch * rows * columns * inner,
        )
        shape = (batch, rows, columns)
        builder.add_tensor(op, 4.0 * math.prod(shape), shape=shape, dtype="f32", is_output=True)
        self.repeats.append(repeats)
        self.measured.append(seconds)


def _read_file(
    path: Path, make: Callable[[Path, list[dict[str, str]], dict[str, float]], Made]
) -> Made:
    try:
        with gzip.open(path, "rt", newline="") as lines:
            rows = list(csv.DictReader(lines))
        whole = json.loads(path.with_name(path.name.removesuffix(".csv.gz") + ".json").read_text())
        return make(path, rows, whole)
    except (OSError, KeyError, ValueError, SyntaxError, IndexError, EOFError) as error:
        raise FileFormatError(
            f"table '{path}' is damaged: {type(error).__name__} {error}"
        ) from None


def _table(path: Path, rows: list[dict[str, str]], whole: dict[str, float]) -> OpTable:
    alone = float(np.median([_seconds(row) for row in rows if _is_tiny(row)]))
    is_training = "-train-" in path.name
    made, ops = _Made(), 0.0
    for row in rows:
        repeats = _repeats(row, whole)
        ops += repeats * _seconds(row)
        _add(made, row, repeats, max(_seconds(row) - alone, 1e-7), is_training)
    return OpTable(
        gpu=path.parent.name,
        model=path.name.removesuffix(".csv.gz"),
        graph=made.builder.build(),
        repeats=np.array(made.repeats),
        measured=np.array(made.measured),
        alone=alone,
        whole=whole["e2e_latency"] * 1e-3,
        forward=whole["fw_latency"] * 1e-3 / ops,
    )


def _add(
    made: _Made, row: dict[str, str], repeats: float, seconds: float, is_training: bool
) -> None:
    """Add the ops of one row; a row without a kernel adds none."""
    kind, dtype = _kind(row), row["dtype"]
    read, shape = _shapes(row["input_shapes"]), _shape(row["output_shape"])
    if not _has_kernel(row):
        return
    if kind.lower() == "dropout" and not is_training:
        return
    if kind in ("contiguous", "reshape") and row["input_contiguous"].startswith("[True"):
        return
    plain = _KINDS.get(kind, kind.lower())
    written = float(math.prod(shape) * _BYTES[dtype])
    if plain == "matmul":
        extents = _extents(kind, read, shape)
        made.product(extents, repeats, seconds)
        if is_training:
            batch, rows, columns, inner = extents
            made.product((batch, rows, inner, columns), repeats)
            made.product((batch, columns, inner, rows), repeats)
            if kind in ("Linear", "addmm"):
                weight = 4.0 * inner * columns
                made.add("add", repeats=repeats, read=(_ACCUMULATED - 1) * weight, written=weight)
        return
    numbers = written if plain == "embedding" else sum(4.0 * math.prod(one) for one in read)
    made.add(plain, repeats=repeats, seconds=seconds, read=numbers, written=written)
    if is_training and float(row["bw_latency"]) > 0 and plain != "add":
        passes = _PASSES.get(plain)
        moved = 2.0 * numbers if passes is None else (passes - 1.0) * written
        made.add(plain, repeats=repeats, read=moved, written=written)


def _has_kernel(row: dict[str, str]) -> bool:
    shape = _shape(row["output_shape"])
    return _kind(row) not in _NO_KERNEL and row["dtype"] in _BYTES and math.prod(shape) > 1


def _is_tiny(row: dict[str, str]) -> bool:
    """Whether a row is an arithmetic kernel on few bytes."""
    kind = _kind(row)
    is_plain = kind not in _KINDS and kind.lower() not in _PASSES and "dropout" not in kind.lower()
    return is_plain and _has_kernel(row) and math.prod(_shape(row["output_shape"])) * 4 < _TINY


def _extents(kind: str, read: list[tuple[int, ...]], shape: tuple[int, ...]) -> tuple[int, ...]:
    if kind == "Linear":
        return 1, math.prod(shape[:-1]), shape[-1], read[0][-1]
    if kind == "addmm":
        return 1, shape[0], shape[1], read[1][1]
    return math.prod(shape[:-2]), shape[-2], shape[-1], read[0][-1]


def _kind(row: dict[str, str]) -> str:
    """Last part of the name of what a row calls."""
    if row["op"] == "call_module":
        classes = re.findall(r"<class '([^']+)'>", row["meta"])
        return str(classes[-1]).split(".")[-1] if classes else "module"
    if row["op"] not in ("call_function", "call_method"):
        return row["op"]
    called = re.search(r"(?:built-in (?:function|method)|function|class) '?([\w.]+)", row["target"])
    return (called.group(1) if called else row["target"]).split(".")[-1]


def _modules(row: dict[str, str]) -> list[str]:
    return re.findall(r"\('([^']+)'", row["meta"])


def _seconds(row: dict[str, str]) -> float:
    return float(row["fw_latency"]) * 1e-3


def _shapes(text: str) -> list[tuple[int, ...]]:
    found = ast.literal_eval(text) if text else []
    return [tuple(one) for one in found if isinstance(one, list | tuple)]


def _shape(text: str) -> tuple[int, ...]:
    found = ast.literal_eval(text)
    return tuple(found[0] if found and isinstance(found[0], list | tuple) else found)
