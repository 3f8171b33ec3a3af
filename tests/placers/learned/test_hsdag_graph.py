"""HSDAG's view of the graph and its co-location groups, against the authors' on the same files.

``released_hsdag_groups.npz`` holds what ``xml2graph``, ``merge_operations`` and ``merge_nodes`` of
github.com/hping666/HSDAG at commit 9d5caf7770cd50f975e014d19920873c112df095 made of the OpenVINO
files of our zoo (``make_released_hsdag_groups.py`` does so again): the group of each op, and the
numbers of nodes, edges, groups, groups that hold something else than constants, and edges between
groups. The narrow variants of Inception-V3 and ResNet-50 have the same graph as the wide ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from support import toys

from placewright import zoo
from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.frameworks.openvino.conversion import OpenVinoConverter
from placewright.frameworks.openvino.reader import read_openvino
from placewright.placers.learned.hsdag.graph import (
    GraphView,
    coarsened,
    kind_shares,
    trees_of_single_predecessors,
    vocabulary_of,
)

FILE = Path(__file__).parents[2] / "data" / "released_hsdag_groups.npz"
MODELS = [
    ("inception_v3", "tiny", 396, 204),
    ("resnet50", "tiny", 237, 127),
    pytest.param("bert_base", "default", 591, 326, marks=pytest.mark.slow),
    pytest.param("rnnlm", "default", 515, 346, marks=pytest.mark.slow),
    pytest.param("gnmt", "default", 2381, 1691, marks=pytest.mark.slow),
]


def file_of(name: str, variant: str, folder: Path) -> Path:
    model = zoo.build(name, variant=variant)
    arguments = (f"{name}/{variant}", model.module, model.example_inputs, model.input_names)
    return OpenVinoConverter().file_of_module(*arguments, folder=folder)


@pytest.mark.parametrize(("name", "variant", "groups", "with_ops"), MODELS)
def test_groups_are_those_of_the_released_code(
    name: str, variant: str, groups: int, with_ops: int, converted: Path
) -> None:
    graph, _ = read_openvino(file_of(name, variant, converted))
    view = GraphView.of(graph)
    opener = trees_of_single_predecessors(view)
    with np.load(FILE) as arrays:
        theirs, counts = arrays[name], arrays[f"{name}_counts"].tolist()
    assert np.array_equal(classes_of(opener[: view.n_units]), classes_of(theirs))
    holds_more = np.unique(opener[[kind != "Const" for kind in view.kinds]])
    ends = np.unique(opener[view.edges], axis=1)
    between = np.count_nonzero(ends[0] != ends[1])
    found = [view.n_nodes, view.edges.shape[1], len(np.unique(opener)), len(holds_more), between]
    assert found == counts
    assert found[2:4] == [groups, with_ops]


def test_constants_that_a_file_computes_are_one_constant_of_ours(converted: Path) -> None:
    """Two weights of moe are broadcast to a constant shape: our reader computes them first.

    The ops then have the released groups, and the file has two groups more, of the ops that compute
    the constants. With the constants as they are in the file, all counts are the released ones.
    """
    file = file_of("moe", "tiny", converted)
    with np.load(FILE) as arrays:
        theirs, counts = arrays["moe"], arrays["moe_counts"].tolist()
    graph, _ = read_openvino(file)
    opener = trees_of_single_predecessors(GraphView.of(graph))
    assert np.array_equal(classes_of(opener[: graph.n_ops]), classes_of(theirs))
    assert len(np.unique(opener)) == counts[2] - 2
    raw, _ = read_openvino(file, fold_constants=False)
    view = GraphView.of(raw)
    of_file = trees_of_single_predecessors(view)
    ends = np.unique(of_file[view.edges], axis=1)
    assert [view.n_nodes, view.edges.shape[1], len(np.unique(of_file))] == counts[:3]
    assert np.count_nonzero(ends[0] != ends[1]) == counts[4]


def classes_of(labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    """Labels numbered by first appearance."""
    number: dict[int, int] = {}
    return [number.setdefault(int(label), len(number)) for label in labels]


def test_the_view_is_the_file_with_constants_as_nodes(converted: Path) -> None:
    """Kinds of nodes and edges, against the reader that keeps constants as ops."""
    file = file_of("resnet50", "tiny", converted)
    view = GraphView.of(read_openvino(file)[0])
    raw, _ = read_openvino(file, fold_constants=False)
    kinds = [kind.replace("Constant", "Const") for kind in raw.op_kinds]
    assert sorted(view.kinds) == sorted(kinds)
    ours = sorted((view.kinds[a], view.kinds[b]) for a, b in view.edges.T)
    successors = raw.successors
    theirs = zip(successors.row_of_each(), successors.indices, strict=True)
    assert ours == sorted((kinds[a], kinds[b]) for a, b in theirs)


@pytest.mark.parametrize(
    ("name", "nodes", "edges"), [("inception_v3", 694, 728), ("resnet50", 396, 411)]
)
def test_conversions_of_half_weights_are_nodes_of_the_file_and_no_groups(
    name: str, nodes: int, edges: int, converted: Path, tmp_path: Path
) -> None:
    """The paper's 396 nodes of ResNet-50 count them; a conversion joins its constant's group.

    Its 728 nodes of Inception-V3 also count a normalisation of the input
    (docs/results/learned.md).
    """
    file = file_of(name, "tiny", converted)
    compressed = tmp_path / "compressed.xml"
    ov.save_model(ov.Core().read_model(str(file)), str(compressed), compress_to_fp16=True)
    raw, _ = read_openvino(compressed, fold_constants=False)
    assert (raw.n_ops, raw.n_edges) == (nodes, edges)
    view = GraphView.of(read_openvino(compressed)[0])
    with np.load(FILE) as arrays:
        groups = int(arrays[f"{name}_counts"][2])
    assert len(np.unique(trees_of_single_predecessors(view))) == groups


def chain_problem(memory_bytes: float = np.inf) -> Problem:
    """input -> conv0 (weight) -> relu0 -> conv1 (weight) -> relu1 -> output."""
    builder = GraphBuilder()
    tensor = builder.add_input(4.0, shape=(4,))
    for layer in range(2):
        weight = builder.add_weight(100.0)
        builder.add_op(f"conv{layer}", "Convolution", inputs=[tensor], weights=[weight])
        tensor = builder.add_tensor(2 * layer, 4.0, shape=(1, 2, 3, layer + 1))
        builder.add_op(f"relu{layer}", "ReLU", inputs=[tensor])
        tensor = builder.add_tensor(2 * layer + 1, 4.0, shape=(1, 2, 3, 4), is_output=layer == 1)
    costs = CostTable(frozen_floats(np.ones((4, 2))))
    return Problem.of_ops(builder.build(), toys.cluster_of(2, memory_bytes), costs)


def test_a_convolution_opens_a_group_because_its_weight_is_a_node() -> None:
    """Groups {conv0 relu0}, {conv1 relu1 output}, {input}, {weight} twice.

    Without weights the chain would be one group, since each op then has one predecessor.
    """
    coarse = coarsened(chain_problem(), 0, weights_as_nodes=True)
    assert coarse.space.grouping.group_of.tolist() == [0, 0, 1, 1]
    assert coarse.n_nodes == 5
    assert coarse.node_of.tolist() == [0, 0, 1, 1, 2, 3, 4, 1]  # ops, weights, input, output
    assert coarse.edges.T.tolist() == [[0, 1], [2, 0], [3, 1], [4, 0]]
    # The released list of groups is in the order of the last visit to a member: weights and input
    # come first, then the chain.
    assert coarse.position.argsort().tolist() == [2, 3, 4, 0, 1]
    shares = kind_shares(coarse, ("Const", "Convolution", "Parameter", "ReLU", "Result"))
    np.testing.assert_allclose(shares[1], [0, 1 / 3, 0, 1 / 3, 1 / 3])
    assert vocabulary_of(chain_problem()) == (
        "Const", "Convolution", "Parameter", "ReLU", "Result",
    )  # fmt: skip


def test_a_node_joins_its_only_predecessor() -> None:
    """Both branches of a diamond join what they read; the join has two predecessors and opens."""
    coarse = coarsened(problem_of([(0, 1), (0, 2), (1, 3), (2, 3)], 4), 0, weights_as_nodes=True)
    assert coarse.space.grouping.group_of.tolist() == [0, 0, 0, 1]


def test_what_is_left_beyond_the_limit_is_merged() -> None:
    """A ladder of joins keeps nearly every node: each has two predecessors."""
    rungs = [(i, i + 2) for i in range(38)] + [(i, i + 1) for i in range(39)]
    problem = problem_of(rungs, 40)
    untouched = coarsened(problem, 0, weights_as_nodes=True)
    assert untouched.n_nodes > 20
    assert coarsened(problem, 20, weights_as_nodes=True).n_nodes == 20
    limited = coarsened(problem, untouched.n_nodes, weights_as_nodes=True)
    assert np.array_equal(limited.node_of, untouched.node_of)


def problem_of(edges: list[tuple[int, int]], n: int) -> Problem:
    builder = GraphBuilder()
    tensors: list[int] = []
    for op in range(n):
        builder.add_op(f"op{op}", "Op", inputs=[tensors[a] for a, b in edges if b == op])
        tensors.append(builder.add_tensor(op, 8.0, shape=(2,), is_output=op == n - 1))
    costs = CostTable(frozen_floats(np.ones((n, 2))))
    return Problem.of_ops(builder.build(), toys.cluster_of(2), costs)


def test_nodes_without_units_can_be_left_out_after_coarsening() -> None:
    coarse = coarsened(chain_problem(), 0, weights_as_nodes=False)
    assert coarse.n_nodes == coarse.space.n_groups == 2
    assert coarse.edges.T.tolist() == [[0, 1]]
    assert coarse.node_of.tolist() == [0, 0, 1, 1, -1, -1, -1, 1]


def test_a_limit_merges_nodes_without_units_first_and_then_groups() -> None:
    assert coarsened(chain_problem(), 4, weights_as_nodes=True).n_nodes == 2
    assert coarsened(chain_problem(), 1, weights_as_nodes=True).n_nodes == 1
    assert coarsened(chain_problem(), 5, weights_as_nodes=True).n_nodes == 5


def test_units_that_no_device_could_hold_together_stay_apart() -> None:
    """A group may fill a quarter of a device; a relu weighs nothing and stays with its conv."""
    coarse = coarsened(chain_problem(memory_bytes=410.0), 1, weights_as_nodes=True)
    assert coarse.space.grouping.group_of.tolist() == [0, 0, 1, 1]
