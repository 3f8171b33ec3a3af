"""The script that measures a GPU runs on any devices, and does not measure twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "measure_cuda.py"


@pytest.mark.slow
def test_measuring_on_two_cores(tmp_path: Path) -> None:
    """One tiny model: its costs, the record with machine and versions, the table; then resumed."""
    command = [
        sys.executable, str(SCRIPT), "--devices", "cpu:0,cpu:1", "--models", "rnnlm/tiny",
        "--accuracy-models", "rnnlm/tiny", "--placements", "3", "--budget", "2s",
        "-o", str(tmp_path / "record"),
    ]  # fmt: skip
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert Path(first.stdout.strip()) == tmp_path / "record" / "table.md"
    record = json.loads((tmp_path / "record" / "record.json").read_text())
    text = json.dumps(record)
    assert "torch" in text
    assert "rnnlm/tiny" in text
    table = (tmp_path / "record" / "table.md").read_text()
    assert "rnnlm/tiny" in table
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "record" / "record.json").read_text()) == record
