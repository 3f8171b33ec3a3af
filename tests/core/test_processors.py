"""Cluster files with processors, what is printed of them, and what is not measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest

from placewright.cli.inspect import _print_cluster
from placewright.core.cluster import Cluster, Device
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.processors import check_spelling, sets_at_once
from placewright.errors import ClusterError, FieldError
from placewright.files.cluster_file import read_cluster, write_cluster
from placewright.profiling.discover import completed_cluster
from placewright.report.explain import _of_load
from placewright.report.page_document import why_no_what_if
from placewright.report.timeline_text import load_rows
from placewright.simulation.model import Simulator

CARDS = Cluster(
    (
        Device("gpu:0", "gpu"),
        Device("gpu:1", "gpu"),
        Device("gpu:0-f16", "gpu", processors=("gpu:0",)),
        Device("pair", "gpu", processors=("gpu:0", "gpu:1")),
    )
)


def test_a_device_without_names_has_a_processor_of_its_own_name() -> None:
    assert CARDS.shared_processors == {"gpu:0": (0, 2, 3), "gpu:1": (1, 3)}
    assert CARDS.excludes.tolist() == [
        [False, False, True, True],
        [False, False, False, True],
        [True, False, False, True],
        [True, True, True, False],
    ]


@pytest.mark.parametrize("seed", range(30))
def test_sets_that_compute_at_once_are_those_that_brute_force_finds(seed: int) -> None:
    """Sets without an excluded pair to which no device can be added; each is found once."""
    rng = np.random.default_rng(seed)
    n, share = int(rng.integers(0, 8)), rng.random()
    upper = np.triu(rng.random((n, n)) < share, 1)
    excludes = upper | upper.T
    order = rng.permutation(n).tolist()

    def fits(members: Sequence[int]) -> bool:
        return not any(excludes[a, b] for a in members for b in members)

    all_sets = [one for k in range(n + 1) for one in combinations(range(n), k) if fits(one)]
    largest = [one for one in all_sets if not any(set(one) < set(other) for other in all_sets)]
    found = list(sets_at_once(excludes, order))
    assert sorted(tuple(sorted(one)) for one in found) == sorted(largest)
    places = [[order.index(device) for device in one] for one in found]
    assert places == sorted(places)


def test_thousands_of_devices_have_a_set_that_computes_at_once() -> None:
    """2,000 alone, and 1,000 cards with two modes each."""
    excludes = np.zeros((4000, 4000), dtype=np.bool_)
    modes = np.arange(2000, 4000)
    excludes[modes, modes ^ 1] = True
    first = next(sets_at_once(excludes, range(4000)))
    assert first == (*range(2000), *range(2000, 4000, 2))


def test_a_cluster_file_keeps_them(tmp_path: Path) -> None:
    write_cluster(tmp_path / "c.yaml", CARDS)
    assert read_cluster(tmp_path / "c.yaml").devices == CARDS.devices
    assert "processors" not in (tmp_path / "c.yaml").read_text().split("gpu:0-f16")[0]


def test_a_pair_of_cards_is_not_measured_next_to_each_card() -> None:
    runtime: Any = SimpleNamespace(name="openvino")
    with pytest.raises(
        ClusterError, match=r"'gpu:0' and 'pair' share .* 'gpu:0', but not all .* 'openvino' does"
    ):
        completed_cluster(CARDS, runtime)


def test_shared_processors_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    _print_cluster(CARDS, "Devices")
    printed = capsys.readouterr().out
    assert "Processor 'gpu:0': gpu:0, gpu:0-f16, pair never compute at once" in printed
    assert "Processor 'gpu:1': gpu:1, pair never compute at once" in printed


def test_the_busiest_processor_is_printed_and_explained() -> None:
    """Two ops of 2 and 3 s in two modes of a card: its load is all compute."""
    graph = nx.DiGraph()
    graph.add_nodes_from("ab")
    names, processors = CARDS.device_names, {"gpu:0-f16": ["gpu:0"], "pair": ["gpu:0", "gpu:1"]}
    seconds, links = [[2.0] * 4, [3.0] * 4], (0.0, math.inf)
    whole = Problem.from_costs(graph, seconds, links, devices=names, processors=processors)
    assert whole.cluster.shared_processors == CARDS.shared_processors
    with pytest.raises(FieldError, match="processors: names 'card', which is no device"):
        Problem.from_costs(graph, seconds, links, processors={"card": ["p"]})
    assert "share a processor" in (why_no_what_if(whole) or "")
    problem = replace(whole, objective="throughput", execution_model=MaxLoad(0))
    placement, simulator = Placement.of([0, 2]), Simulator(problem)
    rows = load_rows(problem, simulator.loads(placement.device_of))
    assert rows[-2:] == [["processor 'gpu:0'", "5", "100%"], ["processor 'gpu:1'", "0", "0%"]]
    parts = _of_load(problem, simulator, placement)
    assert parts["compute"] == 5.0
    assert parts["transfers"] == 0.0


@pytest.mark.parametrize("given", ["gpu:0", ["gpu:0"], {"a": "gpu:0"}, {"a": 0}, {"a": [0]}])
def test_processors_that_are_no_lists_of_names_are_refused(given: Any) -> None:
    """A text would count as a list of its letters."""
    graph = nx.DiGraph()
    graph.add_node("op")
    links = (0.0, math.inf)
    with pytest.raises(FieldError, match="processors"):
        Problem.from_costs(graph, [[1.0, 1.0]], links, devices=["a", "b"], processors=given)
    whole = Problem.from_costs(graph, [[1.0, 1.0]], links, devices=["a", "b"], processors=None)
    assert not whole.cluster.shared_processors


@pytest.mark.parametrize(
    ("processors", "message"),
    [
        ({"f16": ("gpuu",)}, r"'f16' names processor 'gpuu', .*; did you mean 'gpu'\?"),
        ({"f16": ("card",)}, r"'f16' names processor 'card', .*; processors of others: gpu, npu"),
        ({"gpu": ("card",), "f16": ("gpu",)}, "'gpu' names processor 'card', on which no other"),
        ({"f16": ("gpu", "npuu")}, r"names processor 'npuu', .*; did you mean 'npu'\?"),
    ],
)
def test_a_processor_that_no_other_device_has_is_refused_where_people_write_it(
    processors: dict[str, tuple[str, ...]], message: str, tmp_path: Path
) -> None:
    """Its device would be independent of all others, and nobody would notice."""
    names = ["gpu", "npu", "f16"]
    devices = tuple(Device(name, processors=processors.get(name, ())) for name in names)
    write_cluster(tmp_path / "c.yaml", Cluster(devices))
    with pytest.raises(ClusterError, match=message):
        read_cluster(tmp_path / "c.yaml")
    graph = nx.DiGraph()
    graph.add_node("op")
    links = (0.0, math.inf)
    with pytest.raises(ClusterError, match=message):
        Problem.from_costs(graph, [[1.0] * 3], links, devices=names, processors=processors)


@pytest.mark.parametrize(
    "processors",
    [
        {"f16": ("gpu:0",)},
        {"pair": ("gpu:0", "gpu:1")},
        {"gpu:0": ("card",), "f16": ("card",)},
        {"gpu:0": ("gpu:0",)},
        {"pair": ("gpu:0", "gpu:7")},
        {"pair": ("left", "right")},
    ],
)
def test_names_of_processors_that_make_sense_are_kept(
    processors: dict[str, tuple[str, ...]],
) -> None:
    names = ["gpu:0", "f16", "pair", *(["gpu:1"] if "gpu:1" in str(processors) else [])]
    check_spelling([Device(name, processors=processors.get(name, ())) for name in names])
