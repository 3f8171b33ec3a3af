"""Questions about language models: each answer beside plans that are made one by one."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runner import InProcess
from support.gguf_files import MADE, write_gguf

import placewright as pw
from placewright.core.cluster import Cluster, Device
from placewright.core.data_sheet import DataSheet
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.errors import FieldError, InfeasibleError
from placewright.profiling.catalogue import entry_of
from placewright.profiling.token_costs import token_problem
from placewright.session.language.answer import token_answer
from placewright.session.language.problem import devices_of, tokens_of
from placewright.session.language.questions import (
    Questions,
    Variant,
    advice_lines,
    reach_lines,
    refused_lines,
    variants_table,
)
from placewright.session.language.run_search import why_inexpressible
from placewright.session.models import load_model
from placewright.session.parsing import parse_sweep
from placewright.session.request import Request, request_of
from placewright.session.session import Session
from placewright.simulation.model import Simulator

CARDS = "rtx-4090,rtx-3060,cpu"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # without rates that were measured here
    made = write_gguf(
        tmp_path / "a.gguf", MADE["experts"], np.random.default_rng(0), vocabulary=512
    )
    return str(made)


def placed(request: Request) -> Plan:
    return Session(request).place()


def questions(model: str, **said: Any) -> Questions:
    return Questions(request_of(model, {"devices": CARDS, **said}), placed)


def decode_of(model: str, **said: Any) -> float:
    answer = token_answer(pw.place(model, **said), contexts=False)
    assert answer is not None
    return answer.rate("decode")


def test_sweep_is_a_plan_for_each_value(model: str) -> None:
    rows = questions(model, prompt=100, generate=20).sweep("context", [256, 4096])
    for row, context in zip(rows, (256, 4096), strict=True):
        own = decode_of(model, devices=CARDS, prompt=100, generate=20, context=context)
        assert row.decode == pytest.approx(own)
        assert row.answer is not None
        assert row.answer.request.context == context


def test_without_each_device_is_the_plan_of_the_others(model: str) -> None:
    asked = questions(model)
    rows = {row.name: row.decode for row in asked.without_each()}
    assert rows == {
        "without rtx-4090": pytest.approx(decode_of(model, devices="rtx-3060,cpu")),
        "without rtx-3060": pytest.approx(decode_of(model, devices="rtx-4090,cpu")),
    }


def test_fewest_devices_reach_a_rate(model: str) -> None:
    none, small = (decode_of(model, devices=names) for names in ("cpu", "rtx-3060,cpu"))
    asked = questions(model)
    assert [row.name for row in asked.cheapest(none * 0.99)] == ["no card"]
    (best, *_) = found = asked.cheapest((none + small) / 2)
    assert {row.name for row in found} == {"rtx-4090", "rtx-3060"}
    assert best.name == "rtx-4090"
    (line,) = reach_lines((none + small) / 2, found)
    assert line.startswith("the fewest cards whose fastest plan for the request decodes ")
    assert line.endswith(" tokens/s")
    assert "tokens/s: rtx-4090 with " in line
    assert " or rtx-3060 with " in line
    both = replace(found[0], name="rtx-4090, rtx-3060 (price 4)")
    (line,) = reach_lines(both.decode, [both], is_priced=True)
    assert line.startswith("the cheapest cards whose fastest plan for the request decodes ")
    assert f": rtx-4090 and rtx-3060 (price 4) with {both.decode:.4g}" in line
    (line,) = reach_lines(none / 2, asked.cheapest(none / 2))
    assert line == f"no card is needed for {none / 2:g} tokens/s: cpu decodes {none:.4g}"
    (fastest,) = asked.cheapest(1e12)
    assert fastest.decode >= best.decode * 0.999
    (line,) = reach_lines(1e12, [fastest])
    assert line.startswith("no choice of these devices has a fastest plan for the request that ")
    assert " decodes 1e+12 tokens/s: the best one decodes " in line
    for wrong in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(FieldError, match="must be > 0 tokens/s"):
            asked.cheapest(wrong)


def test_cheapest_devices_reach_a_rate(model: str) -> None:
    none, small = (decode_of(model, devices=names) for names in ("cpu", "rtx-3060,cpu"))
    cluster = devices_of(request_of(model, {"devices": CARDS}))
    for prices, best in (((3.0, 1.0), "rtx-3060 (price 1)"), ((3.0, 5.0), "rtx-4090 (price 3)")):
        of_cards = dict(zip(("rtx-4090", "rtx-3060"), prices, strict=True))
        devices = [
            replace(each, price_per_hour=of_cards.get(each.name)) for each in cluster.devices
        ]
        priced = replace(cluster, devices=tuple(devices))
        asked = Questions(request_of(model, {"cluster": priced}), placed)
        assert [row.name for row in asked.cheapest((none + small) / 2)] == [best]
        assert [row.name for row in asked.cheapest(none * 0.99)] == ["no card (price 0)"]


def best_of_all(model: str, cluster: Cluster) -> float:
    """Decode of the quickest placement of all that the engine can express."""
    session = Session(model, cluster=cluster, prompt=20, generate=200)
    problem = session.profile()
    simulator = Simulator(problem)
    choices = [np.flatnonzero(row).tolist() for row in problem.allowed]
    every = [Placement.of(chosen) for chosen in itertools.product(*choices)]
    usable = [each for each in every if why_inexpressible(problem, each) is None]
    best = min(usable, key=simulator.value)
    works = load_model(model).works
    assert works is not None
    work = works(tokens_of(problem))
    return 200 / Simulator(token_problem(work, cluster, ("decode",))).value(best)


def test_the_upgrade_that_helps_most_beside_all_placements(tmp_path: Path) -> None:
    """One card that holds half of the model; every change is planned by listing placements."""
    path = tmp_path / "dense.gguf"
    model = str(write_gguf(path, MADE["dense"], np.random.default_rng(0), vocabulary=512))
    said: dict[str, Any] = {"devices": "rtx-3060,cpu", "prompt": 20, "generate": 200}
    problem = Session(model, **said).profile()
    reserve = 12 * 2**30 - float(problem.cluster.memory_bytes[0])
    half = f"{reserve + 0.5 * float(problem.kept.total):.0f}B"
    rows = questions(model, **said, memory={"rtx-3060": half}).upgrades()
    cluster = devices_of(request_of(model, said)).with_limit("rtx-3060", float(half[:-1]))
    card, cpu = cluster.devices

    def faster(device: Device) -> Device:
        sheet = entry_of(device)
        return replace(device, data_sheet=DataSheet(sheet.peak, 2 * sheet.bandwidth))

    pairs = [
        (replace(card, memory_bytes=2 * card.memory_bytes), cpu),
        (faster(card), cpu),
        (card, replace(cpu, memory_bytes=2 * cpu.memory_bytes)),
        (card, faster(cpu)),
    ]
    links = tuple(replace(link, bandwidth=2 * link.bandwidth) for link in cluster.links)
    changed = [replace(cluster, devices=pair) for pair in pairs]
    by_hand = [best_of_all(model, each) for each in (*changed, replace(cluster, links=links))]
    assert [row.decode for row in rows] == pytest.approx(by_hand, rel=0.01)
    assert len({round(rate, 3) for rate in by_hand}) > 2
    base = questions(model, **said, memory={"rtx-3060": half}).as_it_is()
    (line,) = advice_lines(base, [], rows)
    assert rows[int(np.argmax(by_hand))].name in line


def test_an_upgrade_is_never_slower(model: str) -> None:
    asked = questions(model)
    base, rows = asked.as_it_is(), asked.upgrades()
    assert len(rows) == 2 * 3 + 1
    for row in rows:
        assert row.decode >= base.decode * 0.98, row.name


def test_no_memory_is_added_to_a_device_without_a_limit(model: str) -> None:
    cluster = devices_of(request_of(model, {"devices": CARDS}))
    endless = cluster.with_limit(cluster.device_names[-1], math.inf)
    rows = Questions(request_of(model, {"cluster": endless}), placed).upgrades()
    assert len(rows) == 2 * 3
    assert not any("no limit" in row.name for row in rows)


def test_a_limit_holds_for_variants(model: str) -> None:
    rows = questions(model, memory={"rtx-4090": "1MiB", "rtx-3060": "1MiB"}).without_each()
    assert all(name.startswith("cpu") for row in rows for name in row.used)


def test_what_fits_nowhere_says_so(model: str) -> None:
    request = request_of(model, {"devices": "rtx-4090", "memory": {"rtx-4090": "1MiB"}})
    row = Questions(request, placed).as_it_is()
    assert row.answer is None
    assert row.decode == 0
    assert "fit" in row.reason
    assert row.is_proven
    assert variants_table("t", None, [row]).rows[0][1] == "does not fit"


def test_what_a_search_misses_is_not_said_to_fit_nowhere(model: str) -> None:
    def miss(request: Request) -> Plan:
        raise InfeasibleError("none was found: the budget ended first")

    asked = Questions(request_of(model, {"devices": CARDS}), miss)
    row = asked.without_each()[0]
    assert (row.answer, row.is_infeasible, row.is_proven) == (None, True, False)
    assert variants_table("t", None, [row]).rows[0][1] == "none found"
    base = Questions(request_of(model, {"devices": CARDS}), placed).as_it_is()
    assert advice_lines(base, [row], []) == ["no placement was found without rtx-4090"]
    (line,) = reach_lines(1.0, asked.cheapest(1.0))
    assert line.endswith(" decodes 1 tokens/s: no placement was found")


def test_lines_say_what_brings_nothing() -> None:
    def variant(name: str, decode: float, prefill: float = 1.0) -> Variant:
        class Answer:
            @staticmethod
            def rate(phase: str) -> float:
                return decode if phase == "decode" else prefill

        return Variant(name, Answer() if decode else None)  # type: ignore[arg-type]

    lines = advice_lines(
        variant("as it is", 10.0),
        [
            variant("without a", 9.99),
            variant("without b", 5.0),
            variant("without c", 0.0),
            variant("without d", 10.0, 0.5),
        ],
        [variant("more", 10.05), variant("faster", 14.0)],
    )
    assert lines == [
        "a brings nothing: prefill and decode are as fast without it; do not split",
        "b makes decode 2.00 times as fast",
        "c is needed: nothing fits without it",
        "d makes prefill 2.00 times as fast",
        "the single change that helps most: faster (decode +40.0%)",
    ]
    (line,) = advice_lines(variant("as it is", 10.0), [], [variant("more", 10.05)])
    assert line.startswith("no single change helps decode by more than 1%, in plans that are ")


@pytest.mark.parametrize("text", ["context", "=4k", "context=", "context=4k,,8k", "context=a"])
def test_a_wrong_sweep_is_refused(text: str) -> None:
    with pytest.raises(FieldError, match="expects"):
        parse_sweep(text)


def test_a_swept_value_beyond_the_model_is_a_row(model: str) -> None:
    near, far = questions(model).sweep("context", [4096, 1 << 22])
    assert near.answer is not None
    assert far.answer is None
    assert "is beyond the " in far.reason
    assert variants_table("t", None, [near, far]).rows[1][1] == "refused"
    assert refused_lines([near, far]) == [f"context {1 << 22} is refused: {far.reason}"]


def test_a_swept_prompt_beyond_the_context_is_a_row(model: str) -> None:
    near, far = questions(model, context=600, generate=20).sweep("prompt", [100, 700])
    assert near.answer is not None
    assert far.reason.startswith("context 600: 700 tokens of the prompt and 20 generated ones do")


def test_a_card_that_a_pin_names_is_needed(model: str) -> None:
    asked = questions(model, pins={"layers.1.experts": "rtx-3060"})
    found = {row.name: row for row in asked.without_each()}
    assert found["without rtx-4090"].answer is not None
    pinned = found["without rtx-3060"]
    assert (pinned.answer, pinned.is_infeasible) == (None, False)
    lines = advice_lines(asked.as_it_is(), [pinned], [])
    assert lines == ["rtx-3060 is needed: argument `pins` names 'rtx-3060'"]
    (one,) = asked.cheapest(1.0)
    assert one.name == "rtx-3060"


def test_fields_that_cannot_be_swept(model: str) -> None:
    with pytest.raises(FieldError, match="knows context, prompt"):
        questions(model).sweep("kv", [1])
    with pytest.raises(FieldError, match=r"knows context, prompt.*, got 'kv'"):
        parse_sweep("kv=f16,q8_0")


def test_command(model: str, tmp_path: Path, cli: InProcess) -> None:
    def run(*words: str) -> str:
        asked = ("advise", model, "--devices", "rtx-4090,cpu", "--quiet", *words)
        done = cli(*asked, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = run("--report", "page.html")
    assert "rtx-4090 makes decode" in text
    assert "without rtx-4090" in (tmp_path / "page.html").read_text()
    (tmp_path / "page.html").unlink()
    swept = ("--sweep", "context=4k,8k", "--reach", "1")
    data = json.loads(run(*swept, "--json", "--report", "page.html"))
    assert "context 8192" in (tmp_path / "page.html").read_text()
    assert [row["name"] for row in data["by context"]] == ["context 4096", "context 8192"]
    assert data["devices for 1 tokens/s"][0]["devices"] == ["cpu"]
    for rows in json.loads(run("--json")).values():
        assert rows[0]["name"] == "as it is"
    twice = ("--sweep", "context=4k", "--sweep", "context=8k")
    rows = json.loads(run(*twice, "--json", "--report", "json.html"))["by context"]
    assert [row["name"] for row in rows] == ["context 4096", "context 8192"]
    assert "context 8192" in (tmp_path / "json.html").read_text()


def test_a_sweep_without_any_plan_is_no(model: str, tmp_path: Path, cli: InProcess) -> None:
    """Refused values are wrong input, and what does not fit is an answer; one plan is enough."""
    codes = []
    beyond = ("--sweep", "context=4194304")
    small = ("--memory", "rtx-4090=1KiB", "--memory", "cpu=1KiB", "--sweep", "context=4k")
    for words in (beyond, small, ("--sweep", "context=4k,4194304")):
        asked = ("advise", model, "--devices", "rtx-4090,cpu", "--quiet", "--json", *words)
        done = cli(*asked, cwd=tmp_path)
        assert json.loads(done.stdout)["by context"]
        codes.append(done.returncode)
    assert codes == [2, 1, 0]


def test_equal_cards_count_apart_if_links_or_pins_tell_them_apart(model: str) -> None:
    cluster = devices_of(request_of(model, {"devices": "rtx-3060,rtx-3060,cpu"}))
    first, second = (each.name for each in cluster.devices if each.name != "cpu")

    def asked(**said: Any) -> list[str]:
        return [row.name for row in Questions(request_of(model, said), placed).without_each()]

    assert asked(cluster=cluster) == [f"without {first}"]
    slower = tuple(
        replace(link, bandwidth=link.bandwidth / 8) if second in (link.source, link.destination)
        else link
        for link in cluster.links
    )  # fmt: skip
    both = [f"without {first}", f"without {second}"]
    assert asked(cluster=replace(cluster, links=slower)) == both
    assert asked(cluster=cluster, pins={"layers.1.*": second}) == both
    rate = decode_of(model, cluster=cluster)
    wanted = Questions(request_of(model, {"cluster": cluster, "pins": {"head": second}}), placed)
    assert second in wanted.cheapest(0.5 * rate)[0].name or rate == 0


def test_wrong_questions_are_refused_before_any_plan(model: str) -> None:
    def never(request: Request) -> Plan:
        raise AssertionError(f"{request.name} was placed")

    asked = Questions(request_of(model, {"devices": CARDS}), never)
    with pytest.raises(FieldError, match="must be > 0 tokens/s"):
        asked.require(sweeps={"context": [256]}, rate=-1.0)
    with pytest.raises(FieldError, match="takes 1 to 20 values, got 21"):
        asked.require(sweeps={"context": [256], "prompt": list(range(1, 22))})


def test_cards_that_only_their_place_tells_apart_count_each(model: str) -> None:
    """Layers lie in runs, and the first card copies weights of the host."""
    cards = "rtx-3060,rtx-4090,rtx-3060,cpu"
    rows = Questions(request_of(model, {"devices": cards}), placed).without_each()
    assert len(rows) == 3
    alike = Questions(request_of(model, {"devices": "rtx-3060,rtx-3060,cpu"}), placed)
    assert len(alike.without_each()) == 1
