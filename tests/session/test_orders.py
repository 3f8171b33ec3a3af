"""Orders of the devices of a language model that are faster than the one that was asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess
from support.gguf_files import MADE, write_gguf

import placewright as pw
from placewright.core.plan import Plan
from placewright.session.language.answer import FasterOrder, token_answer
from placewright.session.session import Session

CARD, SMALL = "rtx-4090", "rtx-3060"
ASKED = {"prompt": 16, "generate": 20}
SIZES = {CARD: 24 * 2**30, SMALL: 12 * 2**30}


@pytest.fixture
def model(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    return str(write_gguf(tmp_path / "model.gguf", MADE["experts"], rng, vocabulary=512))


@pytest.fixture
def limits(model: str) -> dict[str, str]:
    """Memory of each card for 60 % of the model."""
    roomy = Session(model, devices=f"{CARD},{SMALL}", **ASKED).profile()
    room, kept = roomy.cluster.memory_bytes.tolist(), float(roomy.kept.total)
    pairs = zip(SIZES.items(), room, strict=True)
    return {name: f"{size - left + 0.6 * kept:.0f}B" for (name, size), left in pairs}


def faster_order(plan: Plan) -> FasterOrder | None:
    answer = token_answer(plan, contexts=False, orders=True)
    assert answer is not None
    return answer.faster_order


def test_a_pinned_first_layer_wants_its_card_first(model: str, limits: dict[str, str]) -> None:
    """Attention lies on the second card alone, and experts on the first: a message for each."""
    pins = {"layers.0.attention": CARD}
    plan = pw.place(model, devices=f"{SMALL},{CARD}", memory=limits, pins=pins, **ASKED)
    found = faster_order(plan)
    assert found is not None
    assert found.devices == (CARD, SMALL)
    better = pw.place(model, devices=",".join(found.devices), memory=limits, pins=pins, **ASKED)
    assert found.times == pytest.approx(plan.lower_bound / better.value)
    assert found.times > 1.5
    assert faster_order(better) is None
    stopped = replace(plan.placer, stop=type(plan.placer.stop).INTERRUPTED)
    assert faster_order(replace(plan, placer=stopped)) is None
    slow = replace(plan, lower_bound=better.value)  # its own order may have one as fast
    assert faster_order(slow) is None


def test_orders_that_are_as_fast_are_not_named(model: str, limits: dict[str, str]) -> None:
    for devices in (f"{SMALL},{CARD}", f"{CARD},{CARD}"):
        memory = limits if SMALL in devices else {}
        assert faster_order(pw.place(model, devices=devices, memory=memory, **ASKED)) is None


def test_place_names_the_order(
    model: str, limits: dict[str, str], tmp_path: Path, cli: InProcess
) -> None:
    words = ["place", model, "--devices", f"{SMALL},{CARD}", "--pin", f"layers.0.attention={CARD}"]
    for name, size in (*limits.items(), *ASKED.items()):
        words += ["--memory", f"{name}={size}"] if name in limits else [f"--{name}", str(size)]
    text = cli(*words, cwd=tmp_path).stdout
    assert f" times as fast: --devices {CARD},{SMALL}\n" in text
    order = json.loads(cli(*words, "--json", cwd=tmp_path).stdout)["tokens"]["faster_order"]
    assert order["devices"] == [CARD, SMALL]
    assert "times as fast" not in cli("simulate", "plan.json", cwd=tmp_path).stdout
