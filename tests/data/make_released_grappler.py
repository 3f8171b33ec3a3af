"""Makes the outputs in ``released_grappler.npz`` again, from TensorFlow's hierarchical controller.

The file holds random graphs and groupings, and what ``create_op_embeddings`` and
``create_group_embeddings`` make of them: methods of ``HierarchicalController`` in
``tensorflow/python/grappler/hierarchical_controller.py`` at commit
2311595ded89e99907023b707afa5c1226bc514f. They compute with NumPy; this script takes the two methods
from that file and gives them a graph. It also holds the loss of ``build_controller`` for random
rewards and negative log-probabilities: the lines that compute it, with NumPy for TensorFlow.

    python tests/data/make_released_grappler.py hierarchical_controller.py \\
        tests/data/released_grappler.npz NEW.npz

With ``draw`` in place of the second file it draws new inputs.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

Arrays = dict[str, Any]
GROUPS = 4
KINDS = 3
SIZES = (8, 13)  # ops of the graphs
METHODS = ("create_op_embeddings", "create_group_embeddings")
HPARAMS = SimpleNamespace(
    max_num_outputs=5, max_output_size=5, adj_embed_dim=20, stop_updating_after_steps=1000
)
LOSS = ("mask", "selected_loss", "ctr['loss']")  # what the lines of the loss set
FAILING = 10.0  # square root of the failing signal of 100 s
STEPS = {"early": 0, "late": 1000}
CHILDREN = 6  # placements of an update


class Controller:
    """Their controller, as far as the two methods use it."""

    def __init__(self, arrays: Arrays, at: str) -> None:
        kinds, self.edges = arrays[f"{at}/kinds"], arrays[f"{at}/edges"].T.tolist()
        self.hparams, self.num_groups = HPARAMS, GROUPS
        self.important_ops = [
            SimpleNamespace(name=f"op{i}", op=f"Kind{kind}") for i, kind in enumerate(kinds)
        ]
        self.important_op_names = {op.name for op in self.important_ops}
        self.node_properties = {
            f"op{i}": [self.output(shape)] for i, shape in enumerate(arrays[f"{at}/shapes"])
        }
        names = [f"Kind{kind}" for kind in range(KINDS)]
        self.cluster = SimpleNamespace(ListAvailableOps=lambda: names)

    def get_node_fanout(self, op: Any) -> list[Any]:
        """The ops that read an op's output."""
        return [self.important_ops[b] for a, b in self.edges if f"op{a}" == op.name]

    @staticmethod
    def output(shape: Any) -> Any:
        """An output with the extents of a row that are above 0."""
        dims = [SimpleNamespace(size=int(size)) for size in shape if size > 0]
        return SimpleNamespace(shape=SimpleNamespace(dim=dims))


def controller_class(file: Path) -> ast.ClassDef:
    """Syntax tree of their class."""
    classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    (theirs,) = (node for node in classes if node.name == "HierarchicalController")
    return theirs


def authors_loss(file: Path) -> Any:
    """Compile the lines that compute the loss, from rewards to the mean."""
    nodes = [
        node
        for method in controller_class(file).body
        if getattr(method, "name", "") == "build_controller"
        for node in ast.walk(method)
        if (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in LOSS)
        or (isinstance(node, ast.AugAssign) and ast.unparse(node.target) in LOSS)
    ]
    nodes.sort(key=lambda node: node.lineno)
    return compile(ast.Module(nodes, []), file.name, "exec")


def loss(code: Any, arrays: Arrays, step: int) -> Any:
    """Their loss of the stored rewards at a global step."""
    ctr = {
        "reward": {"value": arrays["loss/rewards"]},
        "baseline": arrays["loss/baseline"],
        "log_probs": {"sample": arrays["loss/placements"]},
        "grouping_log_probs": {"sample": arrays["loss/groupings"]},
    }
    names: Arrays = {
        "ctr": ctr,
        "failing_signal": FAILING,
        "self": SimpleNamespace(global_step=step, hparams=HPARAMS),
        "math_ops": SimpleNamespace(less=np.less, reduce_any=np.any, reduce_mean=np.mean),
        "array_ops": SimpleNamespace(boolean_mask=lambda values, mask: values[mask]),
        "control_flow_ops": SimpleNamespace(cond=lambda is_so, a, b: a() if is_so else b()),
        "constant_op": SimpleNamespace(constant=lambda value, dtype: value),
        "dtypes": SimpleNamespace(float32=None),
    }
    exec(code, names)
    return ctr["loss"]


def authors_methods(file: Path) -> Arrays:
    """Compile the two methods of their class."""
    body = [node for node in controller_class(file).body if getattr(node, "name", "") in METHODS]
    constant = SimpleNamespace(constant=lambda value, dtype: value)
    names: Arrays = {"np": np, "constant_op": constant, "dtypes": SimpleNamespace(float32=None)}
    exec(compile(ast.Module(body, []), file.name, "exec"), names)
    return names


def outputs(arrays: Arrays, methods: Arrays) -> Arrays:
    """Rows of ops, and of the groups of each grouping."""
    made: Arrays = {}
    for at in (f"graph/{index}" for index in range(len(SIZES))):
        theirs = Controller(arrays, at)
        methods["create_op_embeddings"](theirs)
        made[f"{at}/ops"] = theirs.op_embeddings  # type: ignore[attr-defined]
        made[f"{at}/groups"] = methods["create_group_embeddings"](
            theirs, arrays[f"{at}/grouping"][None]
        )
    return made


def drawn() -> Arrays:
    """Random inputs. Each op has one output of rank 1 to 4."""
    rng = np.random.default_rng(0)
    arrays: Arrays = {}
    for index, n in enumerate(SIZES):
        possible = np.argwhere(np.triu(np.ones((n, n)), 1))
        shapes = rng.integers(1, 300, (n, 4))
        shapes[np.arange(4) >= rng.integers(1, 5, n)[:, None]] = 0
        arrays |= {
            f"graph/{index}/edges": possible[rng.random(len(possible)) < 2.5 / n].T,
            f"graph/{index}/kinds": rng.integers(0, KINDS, n),
            f"graph/{index}/shapes": shapes,
            f"graph/{index}/grouping": rng.integers(0, GROUPS, n),
        }
    arrays |= {
        "loss/rewards": np.where(rng.random(CHILDREN) < 0.4, FAILING, rng.random(CHILDREN)),
        "loss/baseline": rng.random(()),
        "loss/placements": rng.random(CHILDREN) * GROUPS,
        "loss/groupings": np.full(CHILDREN, rng.random() * max(SIZES)),
    }
    return arrays


def main(file: str, source: str, target: str) -> None:
    if source == "draw":
        arrays = drawn()
    else:
        with np.load(source) as stored:
            arrays = {name: stored[name] for name in stored.files}
    made = outputs(arrays, authors_methods(Path(file)))
    code = authors_loss(Path(file))
    made |= {f"loss/{name}": loss(code, arrays, step) for name, step in STEPS.items()}
    moved = {n: np.abs(v - arrays[n]).max() for n, v in made.items() if n in arrays}
    np.savez_compressed(target, **{**arrays, **made})
    print(f"{len(made)} outputs, the largest change is {max(moved.values(), default=0.0):.2g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
