"""Makes the outputs in ``released_hsdag.npz`` again, from a checkout of HSDAG's code.

The file holds inputs that were drawn at random (graphs, features, weights, edge scores, times and
actions) and what the authors' modules make of them: ``model.py``, ``layer.py``,
``layers/gcn_conv.py``, and ``PPO`` and ``train`` of ``main.py`` in github.com/hping666/HSDAG at the
commit below. This script reads the inputs, runs their code, and writes inputs and outputs.

Index arithmetic of the same meaning stands in for torch_sparse, torch_scatter and their copy of
PyTorch Geometric's message passing (``mp.py``), and a clock that adds up a table for the devices.

    git clone https://github.com/hping666/HSDAG && git -C HSDAG checkout 9d5caf77
    python tests/data/make_released_hsdag.py HSDAG tests/data/released_hsdag.npz NEW.npz
"""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import to_dense_adj

COMMIT = "9d5caf7770cd50f975e014d19920873c112df095"
Arrays = dict[str, Any]


class SparseTensor:
    """A matrix as rows, columns and values (or none), in row-major order; repeats stay."""

    def __init__(self, row: Tensor, col: Tensor, sparse_sizes: Any, value: Any = None) -> None:
        row, col = row.long(), col.long()
        order = torch.from_numpy(np.lexsort((col.numpy(), row.numpy())))
        self.row, self.col, self.sizes = row[order], col[order], sparse_sizes
        self.value = None if value is None else value[order]

    @classmethod
    def from_dense(cls, dense: Tensor) -> SparseTensor:
        row, col = dense.nonzero().T
        return cls(row, col, tuple(dense.shape), dense[row, col])

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, sparse_sizes: Any) -> SparseTensor:
        return cls(edge_index[0], edge_index[1], sparse_sizes)

    def coo(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.row, self.col, self.value

    def sparse_sizes(self) -> Any:
        return self.sizes

    def to(self, _: Any) -> SparseTensor:
        return self

    to_device = to

    def has_value(self) -> bool:
        return self.value is not None

    def fill_value(self, value: float, dtype: Any = None) -> SparseTensor:
        filled = torch.full((len(self.row),), value, dtype=dtype or torch.get_default_dtype())
        return SparseTensor(self.row, self.col, self.sizes, filled)

    def t(self) -> SparseTensor:
        return SparseTensor(self.col, self.row, tuple(self.sizes)[::-1], self.value)

    def is_symmetric(self) -> bool:
        other = self.t()
        same = torch.equal(self.row, other.row) and torch.equal(self.col, other.col)
        return same and (self.value is None or torch.equal(self.value, other.value))

    def __matmul__(self, dense: Tensor) -> Tensor:
        parts = dense[self.col]
        if self.value is not None:
            parts = self.value[:, None] * parts
        out = torch.zeros(int(self.sizes[0]), dense.shape[1], dtype=dense.dtype)
        return out.index_add(0, self.row, parts)


def _fill_diag(matrix: SparseTensor, value: float) -> SparseTensor:
    off, n = matrix.row != matrix.col, int(matrix.sizes[0])
    ends = [torch.cat([side[off], torch.arange(n)]) for side in (matrix.row, matrix.col)]
    diagonal = torch.full((n,), value, dtype=matrix.value.dtype)
    return SparseTensor(*ends, matrix.sizes, torch.cat([matrix.value[off], diagonal]))


def _mul(matrix: SparseTensor, factor: Tensor) -> SparseTensor:
    at = matrix.row if factor.shape[1] == 1 else matrix.col
    return SparseTensor(matrix.row, matrix.col, matrix.sizes, matrix.value * factor.view(-1)[at])


def _sum(matrix: SparseTensor, dim: int) -> Tensor:
    assert dim == 1
    zeros = torch.zeros(int(matrix.sizes[0]), dtype=matrix.value.dtype)
    return zeros.index_add(0, matrix.row, matrix.value)


def _coalesce(index: Tensor, value: None, m: Any = None, n: Any = None) -> tuple[Tensor, None]:
    return torch.unique(index, dim=1) if index.shape[1] else index, value


def _transpose(index: Tensor, value: None, m: int, n: int) -> tuple[Tensor, None]:
    return _coalesce(index.flip(0), value)


def _scatter(src: Tensor, index: Tensor, reduce: str) -> Tensor:
    out = torch.zeros(int(index.max()) + 1 if len(index) else 0, dtype=src.dtype)
    return out.scatter_reduce(0, index, src, {"min": "amin"}[reduce], include_self=False)


def _segment_csr(src: Tensor, ptr: Tensor, reduce: str) -> Tensor:
    parts = [src[a:b] for a, b in zip(ptr.tolist(), ptr.tolist()[1:], strict=False)]
    return torch.stack([getattr(part, reduce)(0) for part in parts]) if parts else src[:0]


class MessagePassing(nn.Module):
    """Their base class, for sparse matrices and sums alone."""

    def __init__(self, aggr: str = "add") -> None:
        super().__init__()
        self.aggr, self.node_dim = aggr, -2

    def propagate(self, matrix: SparseTensor, x: Tensor, **_: Any) -> Any:
        return self.message_and_aggregate(matrix, x)


def authors_modules(checkout: Path, folder: Path) -> Arrays:
    """Put their files into `folder`, and import and execute what is needed of them."""
    archive = subprocess.run(
        ["git", "-C", str(checkout), "archive", COMMIT], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    stand_ins: dict[str, Arrays] = {
        "torch_sparse": {
            "SparseTensor": SparseTensor, "transpose": _transpose, "coalesce": _coalesce,
            "fill_diag": _fill_diag, "mul": _mul, "sum": _sum,
            "matmul": lambda matrix, x, reduce: matrix @ x,
        },
        "torch_scatter": {"scatter": _scatter, "segment_csr": _segment_csr, "scatter_add": None},
        "mp": {"MessagePassing": MessagePassing},
    }  # fmt: skip
    for name, members in stand_ins.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(members)
    sys.path[:0] = [str(folder)]
    tree = ast.parse((folder / "main.py").read_text())
    wanted = ("PPO", "train", "RolloutBuffer")
    tree.body = [n for n in tree.body if getattr(n, "name", "") in wanted]
    names: Arrays = {
        **vars(__import__("model")), "torch": torch, "nn": nn, "np": np, "tqdm": iter,
        "Data": Data, "to_dense_adj": to_dense_adj, "SparseTensor": SparseTensor,
        "json": __import__("json"), "Categorical": torch.distributions.Categorical,
    }  # fmt: skip
    exec(compile(tree, "main.py", "exec"), names)
    return names


def config_of(weights: dict[str, Tensor]) -> Any:
    """Their configuration with the widths of the weights, and without dropout."""
    config = __import__("config").Config()
    hidden, inputs = weights["gpnn.input_trans.mlp.0.weight"].shape
    config.in_channel = config.output_channel = inputs
    config.hidden_channel, config.dropout_network = hidden, 0.0
    config.num_devices = len(weights["classifier.2.bias"])
    return config


def weights_in(arrays: Arrays, prefix: str) -> dict[str, Tensor]:
    """Parameters by their names."""
    return {
        name.removeprefix(prefix): torch.tensor(value)
        for name, value in arrays.items()
        if name.startswith(prefix)
    }


def layers(arrays: Arrays, theirs: Arrays) -> Arrays:
    """Every module's output, round by round."""
    weights = weights_in(arrays, "layers/weight/")
    config = config_of(weights)
    model = theirs["PPO"](config, config.num_devices)
    model.load_state_dict(weights)
    x, edges = torch.tensor(arrays["layers/x"]), torch.tensor(arrays["layers/edges"])
    seen: Arrays = {}
    at, g = [0], model.gpnn

    def keep(what: str) -> Any:
        return lambda _, __, out: seen.__setitem__(f"layers/{at[0]}/{what}", out.detach().numpy())

    def parsed(_: Any, __: Any, out: Any) -> None:
        seen[f"layers/{at[0]}/community_of"] = out[0].coo()[1].numpy()
        seen[f"layers/{at[0]}/factor"] = (out[6] * out[7]).detach().numpy()
        seen[f"layers/{at[0]}/edges_after"] = torch.stack(out[1].coo()[:2]).numpy()

    g.gnn1.register_forward_pre_hook(lambda *_: at.__setitem__(0, at[0] + 1))
    at[0] = -1
    g.gnn1.register_forward_hook(keep("gnn1"))
    g.parsing_net.register_forward_hook(parsed)
    g.gnn2.register_forward_hook(keep("gnn2"))
    g.deepsets_pre.register_forward_hook(keep("before_sum"))
    g.deepsets_post.register_forward_hook(keep("after_sum"))
    g.input_trans.register_forward_hook(
        lambda _, __, out: seen.__setitem__("layers/input_trans", out.detach().numpy())
    )
    matrix = SparseTensor.from_dense(to_dense_adj(edges, max_num_nodes=len(x)).squeeze(0))
    batch = torch.zeros(len(x), dtype=torch.long)
    output, clusters = g(Data(x=x, edge_index=edges, batch=batch, adj_t=matrix))
    cluster_of = np.empty(len(x), dtype=np.int64)
    for number, nodes in enumerate(clusters):
        cluster_of[nodes] = number
    return {
        **seen,
        "layers/rounds": np.array(at[0] + 1),
        "layers/output": output.detach().numpy(),
        "layers/probabilities": model.classifier(output).detach().numpy(),
        "layers/cluster_of": cluster_of,
    }


def parses(arrays: Arrays, theirs: Arrays) -> Arrays:
    """Communities of three graphs whose edges have given scores."""
    from layer import ParsingNet_GPU

    found: Arrays = {}
    for at in sorted({name.rpartition("/")[0] for name in arrays if name.startswith("parse/")}):
        n, edges = int(arrays[f"{at}/n"]), torch.tensor(arrays[f"{at}/edges"])
        net = ParsingNet_GPU(1, 0.0, 0.0, 2, True)
        logits = torch.logit(torch.tensor(arrays[f"{at}/score"]))[:, None]
        net.edge_net = Fixed(logits)
        matrix = SparseTensor.from_edge_index(edges, (n, n))
        assert torch.equal(torch.stack(matrix.coo()[:2]), edges)
        out = net(torch.zeros(n, 1), matrix, torch.zeros(n, dtype=torch.long))
        found[f"{at}/community_of"] = out[0].coo()[1].numpy()
        found[f"{at}/factor"] = (out[6] * out[7]).numpy()
        found[f"{at}/edges_after"] = torch.stack(out[1].coo()[:2]).numpy()
    return found


class Fixed(nn.Module):
    """A network that answers the same for every input."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, _: Tensor) -> Tensor:
        return self.answer


class TableOfTimes:
    """OpenVINO's core and Python's clock: a placement takes the sum of its ops' table entries."""

    def __init__(self, table: Any) -> None:
        self.table, self.now = table, 0.0
        self.ops = [SimpleNamespace(info={}) for _ in table]
        for op in self.ops:
            op.get_rt_info = lambda op=op: op.info

    def perf_counter(self) -> float:
        return self.now

    def read_model(self, model: str) -> Any:
        return SimpleNamespace(get_ops=lambda: self.ops)

    def compile_model(self, *_: Any) -> Any:
        return self

    def input(self, _: int) -> Any:
        return SimpleNamespace(any_name="x")

    def output(self, _: int) -> str:
        return "y"

    def __call__(self, _: Any) -> dict[str, None]:
        devices = [0 if op.info["affinity"] == "CPU" else 1 for op in self.ops]
        self.now += float(self.table[np.arange(len(devices)), devices].sum())
        return {"y": None}


def training(arrays: Arrays, theirs: Arrays) -> Arrays:
    """Three episodes of four steps with given actions: states, clusters, times, new weights."""
    torch.set_default_dtype(torch.float64)
    weights = weights_in(arrays, "train/start/")
    config, core = config_of(weights), TableOfTimes(arrays["train/table"])
    config.max_episodes, config.update_timestep = 3, 4
    actions = iter(arrays["train/actions_of_steps"])
    seen: dict[str, list[Any]] = {"x": [], "cluster": [], "logp": [], "runtime": []}

    class Played(theirs["PPO"]):  # type: ignore[misc]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.load_state_dict(weights)
            seen["model"] = [self]

        def act(self, state: Any) -> Any:
            seen["x"].append(state.x.detach().numpy().copy())
            out = super().act(state)
            seen["logp"].append(float(out[1].sum()))
            cluster_of = np.empty(len(state.x), dtype=np.int64)
            for number, nodes in enumerate(out[4]):
                cluster_of[nodes] = number
            seen["cluster"].append(cluster_of)
            return out

        def get_runtime(self, *given: Any) -> Any:
            seen["runtime"].append(super().get_runtime(*given))
            return seen["runtime"][-1]

    class Chosen(torch.distributions.Categorical):
        def sample(self, *_: Any) -> Tensor:
            chosen = next(actions)
            return torch.tensor(chosen[chosen >= 0], dtype=torch.int64)

    theirs |= {"Categorical": Chosen, "time": core}
    train = FunctionType(theirs["train"].__code__, {**theirs, "PPO": Played})
    graph, n = nx.DiGraph(), len(arrays["train/x"])
    for node in range(n):
        graph.add_node(f"Group_{node}", x=torch.tensor(arrays["train/x"][node]))
    graph.add_edges_from((f"Group_{a}", f"Group_{b}") for a, b in arrays["train/edges"].T)
    members = {f"Group_{node}": [node] for node in range(n)}
    plain = nx.DiGraph()
    plain.add_nodes_from(range(n))
    train(graph, config, core, members, plain)
    end = seen["model"][0].state_dict()
    return {
        **{f"train/end/{name}": value.numpy() for name, value in end.items()},
        "train/x_of_steps": np.stack(seen["x"]),
        "train/runtime_of_steps": np.array(seen["runtime"]),
        "train/cluster_of_steps": np.stack(seen["cluster"]),
        "train/logp_of_steps": np.array(seen["logp"]),
    }


def main(checkout: Path, source: Path, target: Path) -> None:
    with np.load(source) as file:
        arrays = {name: file[name] for name in file.files}
    target = target.absolute()
    with tempfile.TemporaryDirectory() as folder:
        theirs = authors_modules(checkout.absolute(), Path(folder))
        os.chdir(folder)  # their training writes its records here
        made = layers(arrays, theirs) | parses(arrays, theirs) | training(arrays, theirs)
        os.chdir("/")
    assert set(made) < set(arrays)
    np.savez_compressed(target, **{name: made.get(name, old) for name, old in arrays.items()})
    moved = {n: np.abs(made[n] - arrays[n]).max(initial=0.0) for n in made}
    print(f"{len(made)} outputs, the largest change is {max(moved.values()):.2g}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
