"""Inputs that the fuzzer found to be neither read nor refused are refused now."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.errors import PlacewrightError
from placewright.session.models import load_model

FINDINGS = sorted((Path(__file__).parents[1] / "data" / "fuzz-findings").iterdir())


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.name)
def test_a_finding_is_refused(path: Path) -> None:
    with pytest.raises(PlacewrightError, match=path.name) as caught:
        load_model(str(path))
    assert len(str(caught.value)) <= 300
