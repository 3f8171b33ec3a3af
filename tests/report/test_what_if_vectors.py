"""The page's own simulation against the simulator, without a browser.

The same moves are asked of the plain oracle, so that both are held against rules, not each other.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from report.report_problems import N_MOVES, N_PROBLEMS, moved_rows

from placewright.core.placement import Placement
from placewright.report.page import EVENT_MODEL, asset
from placewright.report.page_document import event_data
from placewright.simulation.model import Simulator
from tests.report.report_problems import odd_problem
from tests.simulation.oracle import Reference

_ASK = """
const cases = JSON.parse(require("fs").readFileSync(process.argv[2]));
const { eventModel, simulate } = globalThis.placewright;
const answers = cases.map(({ model, rows }) => {
  const read = eventModel(model);
  return rows.map((row) => {
    const { value, peaks, broken } = simulate(read, row, read.order);
    return { value: Number.isFinite(value) ? value : null, peaks, broken };
  });
});
process.stdout.write(JSON.stringify(answers));
"""


def test_five_hundred_moves_have_the_value_that_python_says(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; the browser test asks the same")
    cases, expected = [], []
    for seed in range(N_PROBLEMS):
        problem = odd_problem(seed)
        order = problem.unit_graph.topological_order if seed % 4 == 3 else None
        simulator = Simulator(problem)
        rows = moved_rows(problem, seed, N_MOVES)
        cases.append(
            {"model": event_data(problem, Placement.of(rows[0], order)), "rows": rows.tolist()}
        )
        expected.append([simulator.value_and_peaks(Placement.of(row, order)) for row in rows])
    answers = _answers(tmp_path, cases)
    n_feasible = 0
    for wanted, found in zip(expected, answers, strict=True):
        for (value, peaks), answer in zip(wanted, found, strict=True):
            assert (answer["value"] is None) == math.isinf(value)
            assert (answer["broken"] is None) == math.isfinite(value)
            if math.isfinite(value):
                n_feasible += 1
                assert answer["value"] == pytest.approx(value, rel=1e-12, abs=0.0)
                assert answer["peaks"] == pytest.approx(peaks.tolist(), rel=1e-12)
    assert n_feasible > N_PROBLEMS * N_MOVES / 4


@pytest.mark.parametrize("seed", range(N_PROBLEMS))
def test_the_oracle_says_the_same_of_these_moves(seed: int) -> None:
    problem = odd_problem(seed)
    order = problem.unit_graph.topological_order if seed % 4 == 3 else None
    simulator = Simulator(problem)
    for row in moved_rows(problem, seed, 6):
        placement = Placement.of(row, order)
        assert simulator.value(placement) == Reference(problem, placement).value()


def _answers(folder: Path, cases: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    script, given = folder / "ask.js", folder / "cases.json"
    script.write_text("\n".join(asset(f"{name}.js") for name in EVENT_MODEL) + _ASK)
    given.write_text(json.dumps(cases))
    command = ["node", str(script), str(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    answers: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return answers
