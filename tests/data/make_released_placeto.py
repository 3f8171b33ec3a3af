"""Makes the outputs in ``released_placeto.npz`` again, from a checkout of Placeto's code.

The file holds inputs that were drawn at random (graphs, placements, start times, features and
weights) and what the authors' modules make of them: ``ProgressiveGraph`` of ``model/pgraph.py``,
and the network of ``model/mp_progressive_nn.py`` with ``model/nn_primitives.py``, in
github.com/aravic/generalizable-device-placement at the commit below. This script reads the inputs,
runs their code, and writes inputs and outputs.

Their TensorFlow 1 is stood in for by PyTorch functions of the same meaning, in double precision:
a variable takes the next weight of the file, and a placeholder the next input.

    git clone https://github.com/aravic/generalizable-device-placement placeto
    python tests/data/make_released_placeto.py placeto tests/data/released_placeto.npz NEW.npz

With ``draw`` in place of the second file it draws new inputs.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

COMMIT = "d9a81a9f6cb05bfc94773722a4e7ead793ca7fd1"
Arrays = dict[str, Any]
DEVICES, ROUNDS = 2, 8
WIDTH = 4 + 2 * DEVICES  # of our features; their network takes any
SIZES = (9, 14)  # nodes of the graphs


class Fed:
    """The stand-in for TensorFlow: values of variables and placeholders, in order of creation."""

    def __init__(self) -> None:
        self.weights: Iterator[Any] = iter(())
        self.inputs: Iterator[Any] = iter(())

    def variable(self, first: Tensor, dtype: Any = None) -> Tensor:
        value = torch.as_tensor(next(self.weights)).to(torch.float64)
        assert value.shape == torch.as_tensor(first).shape
        return value

    def placeholder(self, dtype: Any, shape: Any = None) -> Tensor:
        return torch.as_tensor(next(self.inputs))

    @staticmethod
    @contextlib.contextmanager
    def scope(name: str) -> Iterator[None]:
        yield

    def module(self) -> ModuleType:
        """A module ``tensorflow`` with what their two files call."""
        module = ModuleType("tensorflow")
        vars(module).update(
            float32=torch.float64,
            variable_scope=self.scope,
            name_scope=self.scope,
            Variable=self.variable,
            placeholder=self.placeholder,
            random_uniform=lambda shape, **_: torch.zeros(shape),
            matmul=lambda a, b: a @ b,
            reshape=lambda x, shape: torch.reshape(torch.as_tensor(x), shape),
            shape=lambda x: x.shape,
            transpose=lambda x: x.T,
            concat=lambda parts, axis: torch.cat(parts, dim=axis),
            cast=lambda x, dtype: torch.as_tensor(x).to(dtype),
            nn=SimpleNamespace(relu=torch.relu),
        )
        return module


class NoAgent:
    """In place of their agent with its optimiser."""

    def __init__(self, *_: Any) -> None:
        self.tanhc_decay_func = None

    def build_train_ops(self, logits: Tensor) -> None:
        """Nothing is trained here."""


def authors_modules(checkout: Path, folder: Path, fed: Fed) -> tuple[Any, Any]:
    """Put their files into `folder`, and import the network and the graph."""
    archive = subprocess.run(
        ["git", "-C", str(checkout), "archive", COMMIT], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    stand_ins: dict[str, ModuleType] = {
        "tensorflow": fed.module(),
        **{f"tensorflow.{name}": ModuleType(name) for name in ("python", "python.framework")},
        "rl_agent": ModuleType("rl_agent"),
        "progressive_nn": ModuleType("progressive_nn"),
        "global_config": ModuleType("global_config"),
    }
    vars(stand_ins["tensorflow.python.framework"])["ops"] = None
    vars(stand_ins["progressive_nn"])["ProgressiveNN"] = NoAgent
    vars(stand_ins["global_config"])["use_mem_attr"] = False
    sys.modules.update(stand_ins)
    sizes = lambda x: [SimpleNamespace(value=size) for size in x.shape]  # noqa: E731
    Tensor.get_shape = sizes  # type: ignore[attr-defined]
    # Names of networkx as of 2019.
    nx.DiGraph.node = property(lambda graph: graph.nodes)
    nx.to_numpy_matrix = lambda graph, nodelist=None: nx.to_numpy_array(graph, nodelist)
    sys.path[:0] = [str(folder / "model")]
    return __import__("mp_progressive_nn").MessagePassingProgressiveNN, __import__("pgraph")


def graph_of(arrays: Arrays, at: str, pgraph: Any) -> Any:
    """Their graph, with nodes in the order of our numbers."""
    graph = nx.DiGraph()
    for node, (cost, size) in enumerate(
        zip(arrays[f"{at}/cost"], arrays[f"{at}/out_size"], strict=True)
    ):
        graph.add_node(node, cost=cost, out_size=size, mem=0.0)
    graph.add_edges_from(arrays[f"{at}/edges"].T.tolist())
    return pgraph.ProgressiveGraph(graph, DEVICES, "topo")


def states(arrays: Arrays, at: str, pgraph: Any) -> Arrays:
    """Features of one state, and the masks of all nodes, in their order of nodes."""
    theirs = graph_of(arrays, at, pgraph)
    order, n = theirs.nodes(), theirs.n_nodes()
    theirs.reset_placement(dict(enumerate(arrays[f"{at}/placement"].tolist())))
    theirs.set_start_times(arrays[f"{at}/start"][order][None])
    for node in order[: int(arrays[f"{at}/n_done"])]:
        theirs.inc_done_node(node)
    theirs.set_cur_node(order[int(arrays[f"{at}/n_done"])])
    never = np.zeros((1, n))
    return {
        f"{at}/order": np.array(order),
        f"{at}/features": theirs.get_embeddings(),
        f"{at}/ancestors": np.array([theirs.get_ancestral_mask(node) for node in order]),
        f"{at}/descendants": np.array([theirs.get_progenial_mask(node) for node in order]),
        f"{at}/parallel": np.array([theirs.get_peer_mask(node, never, None)[0] for node in order]),
    }


def logits(arrays: Arrays, at: str, network: Any, pgraph: Any, fed: Fed) -> Arrays:
    """The network's messages, and its logits for every node as the current one."""
    theirs = graph_of(arrays, at, pgraph)
    config = {"dont_repeat_ff": True, "tri_agg": True}
    weights = [arrays[name] for name in sorted(arrays) if name.startswith("weight/")]
    rows, messages = [], None
    for node in theirs.nodes():
        masks = [
            theirs.get_ancestral_mask(node)[None],
            theirs.get_progenial_mask(node)[None],
            theirs.get_peer_mask(node, np.zeros((1, theirs.n_nodes())), None),
            theirs.get_self_mask(node),
        ]
        fed.weights = iter(weights)
        fed.inputs = iter([arrays[f"{at}/state"][None], *(np.float64(mask) for mask in masks)])
        built = network(WIDTH, theirs.n_nodes(), DEVICES, theirs, config, radial_mp=ROUNDS)
        messages = built.mp_out
        rows.append(built.no_noise_logits[0].numpy())
    assert messages is not None
    return {f"{at}/messages": messages.numpy(), f"{at}/logits": np.stack(rows)}


def drawn() -> Arrays:
    """Random inputs."""
    rng = np.random.default_rng(0)
    arrays: Arrays = {}
    d, both = WIDTH, 2 * WIDTH
    widths = [
        *([(d, d)] * 11),  # both directions of messages, with two layers each side; the transform
        *([(both, both)] * 12),  # three aggregations
        *[(4 * both, 8 * both), (8 * both, 4 * both), (4 * both, DEVICES)],
    ]
    for number, (inputs, outputs) in enumerate(widths):
        scale = 0.6 / np.sqrt(inputs)
        arrays[f"weight/{number:02}/a"] = rng.normal(0.0, scale, (inputs, outputs))
        arrays[f"weight/{number:02}/b"] = rng.normal(0.0, 0.1, (1, outputs))
    arrays = {name: value.astype(np.float32) for name, value in arrays.items()}
    for index, n in enumerate(SIZES):
        possible = np.argwhere(np.triu(np.ones((n, n)), 1))
        edges = possible[rng.random(len(possible)) < 2.5 / n].T
        at = f"graph/{index}"
        arrays |= {
            f"{at}/edges": edges,
            f"{at}/cost": rng.uniform(0.1, 2.0, n),
            f"{at}/out_size": rng.uniform(1.0, 9.0, n),
            f"{at}/placement": rng.integers(0, DEVICES, n),
            f"{at}/start": rng.uniform(0.0, 5.0, n),
            f"{at}/n_done": np.array(n // 2),
            f"{at}/state": rng.uniform(-1.0, 1.0, (n, WIDTH)),
        }
    return arrays


def main(checkout: str, source: str, target: str) -> None:
    if source == "draw":
        arrays = drawn()
    else:
        with np.load(source) as file:
            arrays = {name: file[name] for name in file.files}
    with tempfile.TemporaryDirectory() as folder:
        fed = Fed()
        network, pgraph = authors_modules(Path(checkout).absolute(), Path(folder), fed)
        made: Arrays = {}
        for index in range(len(SIZES)):
            at = f"graph/{index}"
            made |= states(arrays, at, pgraph) | logits(arrays, at, network, pgraph, fed)
    moved = {n: np.abs(np.float64(v) - arrays[n]).max() for n, v in made.items() if n in arrays}
    np.savez_compressed(target, **{**arrays, **made})
    print(f"{len(made)} outputs, the largest change is {max(moved.values(), default=0.0):.2g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
