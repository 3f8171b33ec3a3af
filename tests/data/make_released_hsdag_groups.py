"""Makes ``released_hsdag_groups.npz`` from a checkout of the code of HSDAG; needs networkx.

The groups are those of the authors' own functions: ``xml2graph``, ``merge_operations`` and
``merge_nodes`` of ``main.py`` in github.com/hping666/HSDAG at the commit below, run on the OpenVINO
files of our zoo. Only these three functions are executed, so that nothing else of their program
needs to be installed.

    git clone https://github.com/hping666/HSDAG && git -C HSDAG checkout 9d5caf77
    python tests/data/make_released_hsdag_groups.py HSDAG tests/data/released_hsdag_groups.npz
"""

from __future__ import annotations

import ast
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from placewright import zoo
from placewright.frameworks.openvino.conversion import OpenVinoConverter
from placewright.frameworks.openvino.reader import read_openvino

COMMIT = "9d5caf7770cd50f975e014d19920873c112df095"
FUNCTIONS = ("xml2graph", "merge_operations", "merge_nodes")
# The narrow variants have the same graph as the wide ones.
MODELS = {
    "inception_v3": "tiny",
    "resnet50": "tiny",
    "bert_base": "default",
    "gnmt": "default",
    "rnnlm": "default",
    "moe": "tiny",
}


def authors_functions(checkout: Path) -> dict[str, Any]:
    """The three functions of ``main.py`` as it is in the commit."""
    show = ["git", "-C", str(checkout), "show", f"{COMMIT}:main.py"]
    tree = ast.parse(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
    tree.body = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS
    ]
    names: dict[str, Any] = {"nx": nx, "ET": ET}
    exec(compile(tree, "main.py", "exec"), names)
    return names


def groups_of(name: str, variant: str, theirs: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The group of each op, and the numbers of nodes, edges and groups (see the test)."""
    model = zoo.build(name, variant=variant)
    file = OpenVinoConverter().file_of_module(
        f"{name}/{variant}", model.module, model.example_inputs, model.input_names
    )
    graph = theirs["xml2graph"](None, str(file))
    groups = theirs["merge_operations"](graph)
    merged, _ = theirs["merge_nodes"](graph, groups)
    of_name = {graph.nodes[node]["name"]: at for at, group in enumerate(groups) for node in group}
    with_ops = sum(any(graph.nodes[node]["type"] != "Const" for node in group) for group in groups)
    counts = [
        graph.number_of_nodes(),
        graph.number_of_edges(),
        len(groups),
        with_ops,
        merged.number_of_edges(),
    ]
    ops = read_openvino(file)[0].op_names
    return {
        name: np.array([of_name[op] for op in ops], dtype=np.int16),
        f"{name}_counts": np.array(counts, dtype=np.int64),
    }


def main(checkout: Path, target: Path) -> None:
    theirs, arrays = authors_functions(checkout), {}
    for name, variant in MODELS.items():
        arrays |= groups_of(name, variant, theirs)
    np.savez_compressed(target, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
