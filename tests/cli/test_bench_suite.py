"""`bench suite` and `bench auto` from rows that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.runner import InProcess

from placewright.suites.suite.runs import FORMAT


def row(placer: str, value: float) -> dict[str, object]:
    fields = {"version": 1, "problem": "layered 1000 x 4", "kind": "layered", "units": 1000}
    fields |= {"devices": 4, "seed": 0, "budget": 20.0, "status": "feasible"}
    return {**fields, "placer": placer, "value": value}


def test_commands_go_on_from_their_results(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are there already, so that nothing runs and nothing depends on the machine."""
    monkeypatch.setenv("COLUMNS", "200")
    rows = [row("auto", 1.0), row("heft", 1.25)]
    lines = ", ".join(json.dumps(one) for one in rows)
    (tmp_path / "auto.json").write_text(f'{{"format": "{FORMAT}", "rows": [{lines}]}}')
    arguments = ("--problems", "layered 1000 x 4", "--seconds", 20, "--results", "auto.json")
    done = cli("bench", "auto", *arguments, "--placers", "heft", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["comparisons"][0]["ratio"] == 0.8
    assert [one["is_met"] for one in found["figures"]] == [True, True, None]
    done = cli("bench", "auto", *arguments, "--placers", "heft", cwd=tmp_path)
    assert "heft 1250" in done.stdout
    done = cli("bench", "suite", *arguments, "--placers", "auto,heft", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "within 1.2 " in done.stdout
