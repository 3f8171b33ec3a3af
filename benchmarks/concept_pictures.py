"""Draw the diagrams of the concept pages from real values: a timeline, a gap over time, ideals.

python -m benchmarks.concept_pictures
"""

from __future__ import annotations

import itertools
from html import escape
from pathlib import Path

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

ROOT = Path(__file__).parents[1]
BLUE, ORANGE, GREY, TEXT = "#2b7bba", "#d98200", "#6e7781", "#57606a"
EDGES = (("read", "left"), ("read", "right"), ("left", "join"), ("right", "join"), ("join", "out"))
NAMES = ("read", "left", "right", "join", "out")


def five_ops() -> Problem:
    """A fork and a join on a fast and a slow device."""
    import networkx as nx

    graph = nx.DiGraph()
    for name in NAMES:
        graph.add_node(name, flops=1e9)
    graph.add_edges_from(EDGES, bytes=1e6)
    seconds = np.array([[1, 2], [3, 4], [3, 4], [2, 3], [1, 2]]) * 1e-3
    links = (np.full((2, 2), 1e-4), np.full((2, 2), 2e9))
    return Problem.from_costs(graph, seconds=seconds, links=links, devices=["fast", "slow"])


def main() -> None:
    """Write the three pictures into docs/pictures."""
    folder = ROOT / "docs" / "pictures"
    for name, text in (("timeline", timeline()), ("gap", gap()), ("ideals", ideals())):
        (folder / f"{name}.svg").write_text(text)


def timeline() -> str:
    """The event timeline of the five ops, with `right` on the slow device."""
    problem = five_ops()
    names = problem.unit_graph.op_names
    placement = Placement.of([1 if name == "right" else 0 for name in names])
    played = Simulator(problem).timeline(placement)
    scale = 560 / played.value
    shapes = [_label(4, 45, "fast"), _label(4, 105, "link"), _label(4, 165, "slow")]
    for index, name in enumerate(names):
        row = 20 if played.device_of[index] == 0 else 140
        left, right = played.start[index], played.end[index]
        shapes.append(_box(70 + left * scale, row, (right - left) * scale, 40, BLUE, name))
    for hop in played.transfers:
        width = (hop.end - hop.start) * scale
        shapes.append(_box(70 + hop.start * scale, 80, width, 40, ORANGE, ""))
    end = 70 + 560
    shapes.append(f'<path d="M{end} 10V190" stroke="{GREY}" stroke-dasharray="4 4"/>')
    shapes.append(_label(end, 206, f"makespan {played.value * 1e3:.1f} ms", "end"))
    return _picture(660, 215, "Timeline of five units on two devices", shapes)


def gap() -> str:
    """Incumbent of local search by evaluations, and the bound of `auto`, on a layered graph."""
    problem = _layered()
    evaluator = Evaluator(problem, Budget(evaluations=3000))
    solution = make_placer("local-search").place(problem, evaluator, np.random.default_rng(0))
    history = [(point.evaluations, point.value) for point in solution.history]
    proving = Evaluator(problem, Budget(evaluations=3000))
    bound = make_placer("auto").place(problem, proving, np.random.default_rng(0)).lower_bound
    top = history[0][1]
    last = max(history[-1][0], 1) * 1.15

    def place(at: float, value: float) -> tuple[float, float]:
        return 70 + 560 * np.log1p(at) / np.log1p(last), 180 - 150 * (value - bound) / (top - bound)

    points = [place(*history[0])]
    for at, value in history[1:]:
        x, y = place(at, value)
        points += [(x, points[-1][1]), (x, y)]
    points.append((630, points[-1][1]))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    low = points[-1][1]
    shapes = [
        f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2.5"/>',
        f'<path d="M70 180H630" stroke="{ORANGE}" stroke-width="2.5"/>',
        f'<path d="M600 {low + 3:.1f}V177" stroke="{GREY}" stroke-width="2"/>',
        _label(590, (low + 186) / 2, "gap", "end"),
        _label(points[0][0], points[0][1] - 8, "incumbent"),
        _label(76, 172, "lower bound"),
        _label(350, 206, "evaluations (logarithmic)", "middle"),
    ]
    return _picture(660, 215, "The incumbent falls towards the lower bound", shapes)


def _layered() -> Problem:
    import networkx as nx

    rng = np.random.default_rng(4)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(60), flops=1e9)
    for node in range(6, 60):
        for source in rng.choice(np.arange(node - node % 6 - 6, node - node % 6), 2, False):
            graph.add_edge(int(source), node, bytes=2e6)
    seconds = rng.uniform(1e-3, 4e-3, (60, 1)) * rng.uniform(0.8, 1.6, (60, 3))
    links = (np.full((3, 3), 1e-5), np.full((3, 3), 4e9))
    return Problem.from_costs(graph, seconds=seconds, links=links)


def ideals() -> str:
    """All ideals of the five ops, joined where one op makes the difference."""
    sets = [
        frozenset(chosen) for size in range(6) for chosen in itertools.combinations(NAMES, size)
    ]
    closed = [each for each in sets if all(a in each for a, b in EDGES if b in each)]
    columns: dict[int, list[frozenset[str]]] = {}
    for each in closed:
        columns.setdefault(len(each), []).append(each)
    at = {
        each: (60 + 108 * size, 100 + 70 * (row - (len(column) - 1) / 2))
        for size, column in columns.items()
        for row, each in enumerate(column)
    }
    shapes = []
    for small, large in itertools.product(closed, closed):
        if small < large and len(large) == len(small) + 1:
            (x, y), (to_x, to_y) = at[small], at[large]
            shapes.append(f'<path d="M{x} {y}L{to_x} {to_y}" stroke="{GREY}"/>')
            (added,) = large - small
            middle = (y + to_y) / 2
            away = -8 if y == to_y else -16 if middle < 100 else 28
            shapes.append(_label((x + to_x) / 2, middle + away, f"+{added}", "middle"))
    for x, y in at.values():
        shapes.append(f'<circle cx="{x}" cy="{y}" r="9" fill="{BLUE}"/>')
    shapes.append(_label(60, 134, "nothing", "middle"))
    shapes.append(_label(600, 134, "all ops", "middle"))
    return _picture(
        660, 185, "Ideals: sets that contain every predecessor of their members", shapes
    )


def _box(x: float, y: float, width: float, height: float, color: str, text: str) -> str:
    shape = (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="3" fill="{color}"/>'
    )
    if not text:
        return shape
    middle = x + width / 2
    return (
        f'{shape}<text x="{middle:.1f}" y="{y + height / 2 + 6}" text-anchor="middle" '
        f'fill="#fff">{escape(text)}</text>'
    )


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{TEXT}">{escape(text)}</text>'
    )


def _picture(width: int, height: int, title: str, shapes: list[str]) -> str:
    style = "font:18px system-ui,sans-serif;background:#fff;border-radius:6px"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="{style}" role="img"><title>{escape(title)}</title>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
