"""Published comparisons: shapes, seconds by hand and by the simulator, held-out constants."""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest
from cli.runner import InProcess
from pydantic import BaseModel
from support.comparisons import DENSE, SPARSE, SPLIT, comparison, device, part

from placewright.core.placement import Placement
from placewright.errors import FileFormatError
from placewright.profiling.catalogue import speed_interval
from placewright.simulation.model import Simulator
from placewright.suites.llm_ab import documents
from placewright.suites.llm_ab.costs import (
    Constants,
    NotExpressible,
    Option,
    options_of,
    seconds_of,
    ways_between,
)
from placewright.suites.llm_ab.documents import (
    DeviceFields,
    Heads,
    Latent,
    Linear,
    LinkFields,
    PublishedComparison,
    Shapes,
    language_model,
    read_comparisons,
)
from placewright.suites.llm_ab.judging import (
    best_rates,
    columns_beside,
    fitted_constants,
    held_out,
    judge_comparisons,
    problem_of,
    scored_rows,
)


def row_of(parts: dict[str, list[dict[str, Any]]], **more: Any) -> PublishedComparison:
    return PublishedComparison.model_validate(comparison(parts, **more))


def options(parts: dict[str, list[dict[str, Any]]], **more: Any) -> list[Option]:
    return options_of(row_of(parts, **more))


def test_parameters_are_those_that_publishers_state() -> None:
    """Llama 3 8B has 8.03 billion; Qwen3 235B 235.1, of which 22.2 are active (their cards)."""
    llama = Shapes(
        hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256,
        bits_per_weight=16,
    )  # fmt: skip
    assert language_model(llama).n_parameters == pytest.approx(8.03e9, rel=1e-3)
    assert language_model(llama).cache_bytes(1, "f16") == 32 * 2 * 8 * 128 * 2
    qwen = Shapes(
        hidden=4096, layers=94, heads=64, kv_heads=4, head_dim=128, vocab=151936, experts=128,
        experts_per_token=8, expert_ffn=1536, bits_per_weight=8,
    )  # fmt: skip
    assert language_model(qwen).n_parameters == pytest.approx(235.1e9, rel=1e-3)
    assert language_model(qwen).n_active_parameters == pytest.approx(22.2e9, rel=1e-2)


@pytest.mark.parametrize(
    ("sizes", "whole"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"sliding_window": 64}, []),
        ({"sliding_window": 64, "full_attention_every": 3}, [2, 5]),
        ({"sliding_window": 64, "full_attention_layers": 3}, [2, 4, 6]),
        ({"sliding_window": 64, "full_attention_layers": 9}, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_layers_that_attend_to_the_whole_context(sizes: dict[str, Any], whole: list[int]) -> None:
    model = language_model(Shapes.model_validate({**DENSE, "layers": 7, **sizes}))
    assert [at for at, cache in enumerate(model.caches) if not cache.window] == whole


def links_of(*kinds: tuple[str, float]) -> list[LinkFields]:
    return [
        LinkFields(a="gpu0", b="gpu1", GBps=1.0, latency_us=latency, kind=kind)
        for kind, latency in kinds
    ]


def test_of_parallel_links_the_quickest_is_taken() -> None:
    ends = [DeviceFields.model_validate(device(name)) for name in ("gpu0", "gpu1")]
    links = links_of(("Ethernet", 100.0), ("NVLink", 5.0), ("NVLink", 2.0))
    assert ways_between(links, ends, None)["gpu0", "gpu1"].latency == pytest.approx(2e-6)
    assert ways_between(links, ends, "Eth")["gpu0", "gpu1"].latency == pytest.approx(1e-4)
    with pytest.raises(NotExpressible, match="link_kind 'PCIe' is the kind of none"):
        ways_between(links, ends, "PCIe")


@pytest.mark.parametrize("shapes", [DENSE, SPARSE])
def test_seconds_are_those_of_the_simulator(shapes: dict[str, Any]) -> None:
    found = options(SPLIT, model={"config": shapes})
    columns, constants = columns_beside(found), Constants("llama.cpp", link=0.5, message=3.0)
    for each in found:
        problem = problem_of(each, columns, constants, limits=False)
        placement = Placement.of([columns.index(column) for column in each.columns])
        value = Simulator(problem).value(placement)
        assert seconds_of(each, constants) == pytest.approx(value)


def test_seconds_of_one_device_by_hand() -> None:
    (alone, *_), rates = options(SPLIT), Constants("llama.cpp").rates("gpu")
    attention = 1024 * (1024 + 512 + 1024) * 4.5 / 8
    network = 3 * 1024 * 4096 * 4.5 / 8
    weights = 4 * (attention + network) + 32000 * 1024 * 4.5 / 8
    cache = 4 * 2 * 2 * 128 * 2 * 101
    kernels = 1 + 4 * (11 + 5) + 3
    by_hand = (weights + cache) / (900e9 * rates.bandwidth) + kernels * rates.launch_seconds
    assert seconds_of(alone, Constants("llama.cpp")) == pytest.approx(by_hand)


@pytest.mark.parametrize("engine", ["vLLM 0.9", "distributed-llama 0.11"])
def test_sums_over_devices_by_hand(engine: str) -> None:
    """Shares take half of what each device would; eight sums add a ring or a star each."""
    halves, whole = [part("all", "gpu0", share=0.5), part("all", "gpu1", share=0.5)], SPLIT["A"]
    links = [{"a": "gpu0", "b": "gpu1", "GBps": 10, "latency_us": 100, "kind": "x"}]
    both = [device("gpu0"), device("gpu1")]
    split, alone = options({"A": halves, "B": whole}, engine=engine, links=links, devices=both)
    constants = Constants(split.engine)
    between, rates = constants.between, constants.rates("gpu")
    n_bytes = 1024 * between.element_bytes
    one_way = n_bytes / (10e9 * between.link)
    ring = between.collective_seconds + one_way
    star = 2 * (100e-6 + rates.message_seconds + one_way)
    kernels = (1 + 4 * (11 + 5) + 3) * rates.launch_seconds
    halved = (seconds_of(alone, constants) - kernels) / 2 + kernels
    sums = 8 * (ring if between.form == "ring" else star)
    assert seconds_of(split, constants) == pytest.approx(halved + sums)


def test_a_range_of_experts_is_their_share() -> None:
    """Twelve of sixteen experts lie on a card, in the first layer alone."""
    front = [
        *(part(name, "gpu0") for name in ("attention", "router", "head")),
        part("experts", "gpu0", layers=[0, 0], experts=[0, 11]),
        part("experts", "cpu0", layers=[0, 0], experts=[12, 15]),
        part("experts", "cpu0", layers=[1, 3], experts=[0, 15]),
    ]
    found = options({"A": front, "B": SPLIT["A"]}, model={"config": SPARSE})[0]
    kinds = found.work.graph.op_kinds
    columns = [
        column for kind, column in zip(kinds, found.columns, strict=True) if kind == "Experts"
    ]
    assert columns == [(("cpu0", 0.25), ("gpu0", 0.75)), *[(("cpu0", 1.0),)] * 3]


def test_no_option_is_better_than_the_limit() -> None:
    found = options(SPLIT, model={"config": SPARSE})
    constants = Constants("llama.cpp")
    best, limit = best_rates(found, {"llama.cpp": constants})
    assert best <= limit * (1 + 1e-9)
    assert max(each.rate(constants) for each in found) <= best * (1 + 1e-6)


def test_copied_weights_cross_the_link() -> None:
    stream = {"from": "cpu0", "to": "gpu0"}
    rows = comparison(SPLIT, phase="prefill", context_tokens=512, batch=512)
    rows["options"][2]["plan"]["stream"] = stream
    found = {each.key: each for each in options_of(PublishedComparison.model_validate(rows))}
    constants = Constants("llama.cpp")
    network = 4 * (3 * 1024 * 4096 * 4.5 / 8 + 4096)
    copies = network / 32e9 + 4 * 10e-6
    extra = seconds_of(found["C"], constants) - seconds_of(found["A"], constants)
    assert extra == pytest.approx(copies, rel=1e-3)


def test_options_that_cannot_be_told_apart() -> None:
    with pytest.raises(NotExpressible, match="options A and B are one placement"):
        options({"A": SPLIT["A"], "B": SPLIT["A"]})
    with pytest.raises(NotExpressible, match="no whole placement of 'embedding'"):
        options({"A": [part("all", "gpu0", share=0.7)], "B": SPLIT["A"]})
    with pytest.raises(NotExpressible, match="no rates of engine 'unheard'"):
        options(SPLIT, engine="unheard")
    with pytest.raises(NotExpressible, match="no placements"):
        options(SPLIT, usable=False)
    link = {"a": "cpu0", "b": "gpu0", "GBps": 32, "kind": "PCIe"}
    with pytest.raises(NotExpressible, match="a link names 'gpu9', which is no device of it"):
        options(SPLIT, links=[{**link, "b": "gpu9"}])
    with pytest.raises(NotExpressible, match="no link joins 'gpu0' and 'gpu1'"):
        options({"A": SPLIT["A"], "B": SPLIT["D"]}, links=[link])
    with pytest.raises(NotExpressible, match="option A places nothing"):
        options({"A": [], "B": SPLIT["A"]})
    with pytest.raises(NotExpressible, match="sequences: must be 1 to 4096, got 1000000"):
        options(SPLIT, batch=10**6)


def test_options_without_an_order_are_all_compared() -> None:
    found = options(SPLIT, expected={"same_plan": [["A", "B"]]})
    assert [each.key for each in found] == ["A", "C", "D"]


@pytest.mark.parametrize(
    ("batch", "sequences"), [({}, 1), ({"batch": 8}, 8), ({"batch": "served"}, 64)]
)
def test_only_a_text_stands_for_many_sequences(batch: dict[str, Any], sequences: int) -> None:
    rows = comparison(SPLIT)
    del rows["batch"]
    found = options_of(PublishedComparison.model_validate({**rows, **batch}))
    assert {each.work.request.sequences for each in found} == {sequences}


def test_options_that_differ_in_who_copies_are_two() -> None:
    rows = comparison(
        {"A": SPLIT["C"], "B": SPLIT["C"]}, phase="prefill", context_tokens=512, batch=512
    )
    rows["options"][1]["plan"]["stream"] = {"from": "cpu0", "to": "gpu0"}
    assert len(options_of(PublishedComparison.model_validate(rows))) == 2


def three_sources(factor: float) -> list[PublishedComparison]:
    """Three sources whose speeds are those of a memory that is slower by a factor."""
    rows = []
    for number in range(3):
        raw = comparison(SPLIT, id=f"row{number}", source=f"source{number}")
        raw["model"] = {"config": {**DENSE, "layers": 40 + 10 * number, "hidden": 4096}}
        for each in raw["options"][1]["plan"]["parts"]:
            each["layers"] = {"[0, 1]": [0, 19], "[2, 3]": [20, 99]}.get(
                str(each["layers"]), each["layers"]
            )
        slow = Constants("llama.cpp", bandwidth=factor)
        rates = {
            each.key: each.rate(slow)
            for each in options_of(PublishedComparison.model_validate(raw))
        }
        for each in raw["options"]:
            each["measured"] = rates[each["key"]]
        rows.append(PublishedComparison.model_validate(raw))
    return rows


def test_fitted_factors_are_those_that_made_the_speeds() -> None:
    scored, _ = scored_rows(three_sources(0.5))
    assert fitted_constants(scored, "llama.cpp").bandwidth == pytest.approx(0.5, rel=0.1)


def test_constants_do_not_see_the_source_that_they_judge() -> None:
    rows = three_sources(0.5)
    before = held_out(scored_rows(rows)[0])
    faster = [each.model_copy(update={"measured": 9 * each.rate}) for each in rows[0].options]
    rows[0] = rows[0].model_copy(update={"options": faster})
    after = held_out(scored_rows(rows)[0])
    assert before["llama.cpp", "source0"] == after["llama.cpp", "source0"]
    assert before["llama.cpp", "source1"] != after["llama.cpp", "source1"]


def test_results_hold_none_of_the_sources_figures() -> None:
    found = judge_comparisons(three_sources(0.7))
    text = json.dumps(found.data())
    assert len(found.rows) == 3
    assert all(row.right for row in found.rows)
    assert not any(repr(rate) in text for row in found.measured.values() for rate in row.values())
    assert "somebody" not in text
    assert "source0" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "must hold a JSON list"),
        ('[1], "more": [2]', "is not valid JSON"),
        ("[1]", "0: expected an entry with fields"),
        ('[{"id": "a"}]', "0.source: Field required"),
        (json.dumps([comparison(SPLIT), comparison(SPLIT)]), "has comparison 'a' twice"),
        (
            json.dumps([comparison(SPLIT, model={"config": {**DENSE, "layers": 10**9}})]),
            "less than or equal to 1000",
        ),
        (
            json.dumps([comparison({"A": [part("all", "gpu0", layers="0-1")]})]),
            """parts.0.layers: expected "all", or the first and last number, got '0-1'""",
        ),
        (
            json.dumps([comparison({"A": [part("all", "gpu0", layers=[1])]})]),
            'parts.0.layers: expected "all", or the first and last number, got [1]',
        ),
    ],
)
def test_faults_of_a_file_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(text)
    with pytest.raises(FileFormatError, match=r"rows\.json") as fault:
        read_comparisons(file)
    assert message in str(fault.value)
    assert "\n" not in str(fault.value)


def test_command(tmp_path: Path, cli: InProcess) -> None:
    left_out = {**comparison(SPLIT), "id": "b", "usable": False, "links": "by hand"}
    (tmp_path / "rows.json").write_text(json.dumps([comparison(SPLIT), left_out]))
    answer = cli("bench", "llm-ab", "--data", "rows.json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "no placements of it that can be read" in answer.stdout
    document = json.loads((tmp_path / "llm-ab.json").read_text())
    scored, other = document["rows"]
    assert scored["winner"] in "ABCD"
    assert scored["optimum"] <= scored["bound"] * (1 + 1e-9)
    assert other["reason"]
    assert math.isfinite(document["engines"][0]["error"])


def test_ranges_of_the_catalogue_are_those_of_the_results() -> None:
    """Other sources' interval holds nine of ten options of the source that is left out."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "results"
    document = json.loads((folder / "llm-ab.json").read_text())
    engines = {each["engine"]: each for each in document["engines"]}
    for phase, own in engines["llama.cpp"]["intervals"].items():
        low, high = speed_interval("llama.cpp", phase) or (0.0, 0.0)
        assert (low, high) == (round(own["low"], 3), round(own["high"], 3))
        assert own["held_out"] >= 0.9 * own["options"]
    assert speed_interval("vllm", "decode") is None


PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "published-comparisons.md"


def test_the_file_of_the_page_is_predicted_as_a_whole(tmp_path: Path, cli: InProcess) -> None:
    """Half of the layers on the card are faster than none."""
    example = PAGE.read_text().partition("```json\n")[2].partition("```")[0]
    (tmp_path / "rows.json").write_text(example)
    answer = cli("bench", "llm-ab", "--data", "rows.json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (row,) = json.loads((tmp_path / "llm-ab.json").read_text())["rows"]
    assert row["winner"] == "B"


def test_the_page_names_every_key() -> None:
    """In the example or in a table; sizes of other kinds of attention are those of their papers."""
    page, models = PAGE.read_text(), vars(documents).values()
    read = [each for each in models if inspect.isclass(each) and issubclass(each, BaseModel)]
    fields = [
        field.alias or name
        for each in read
        if each not in (Latent, Heads, Linear)
        for name, field in each.model_fields.items()
    ]
    assert {"engine", "graph_splits", "from"} <= set(fields)
    assert [key for key in fields if f'"{key}"' not in page and f"`{key}`" not in page] == []
