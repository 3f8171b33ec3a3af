"""What devices exchange to sum their shares: publishers' own counts, and rings by hand."""

from __future__ import annotations

import pytest
from support.comparisons import DENSE, SPLIT, comparison, device, part

from placewright.profiling.catalogue import device_entry
from placewright.suites.llm_ab.costs import (
    Constants,
    Option,
    engine_version,
    options_of,
    seconds_of,
)
from placewright.suites.llm_ab.documents import PublishedComparison
from placewright.suites.llm_ab.sums import slices, star

# layers, numbers of the state, of queries with keys and values, and in the middle
LLAMA2_7B, LLAMA2_13B = (32, 4096, 3 * 4096, 11008), (40, 5120, 3 * 5120, 13824)
LLAMA2_70B, LLAMA3_8B = (80, 8192, 8192 + 2 * 1024, 28672), (32, 4096, 4096 + 2 * 1024, 14336)
Q80 = 34 / 32  # bytes of a number in a buffer


@pytest.mark.parametrize(
    ("shape", "kilobytes"),
    [
        (LLAMA2_7B, {2: 1112, 4: 2830, 8: 6008}),
        (LLAMA2_13B, {2: 1742, 4: 4430, 8: 9407}),
        (LLAMA2_70B, {2: 5525, 4: 14917, 8: 32873}),
        (LLAMA3_8B, {2: 646 + 476, 4: 2295 + 714}),
    ],
)
def test_slices_have_the_bytes_that_the_engine_counts(
    shape: tuple[int, int, int, int], kilobytes: dict[int, int]
) -> None:
    """Transfers of a token: README of distributed-llama 0.3.1, and its pull request 46."""
    layers, hidden, attention, middle = shape
    for devices, counted in kilobytes.items():
        both = [
            slices("Attention", devices, hidden, attention),
            slices("FeedForward", devices, hidden, middle),
        ]
        found = layers * Q80 * sum(each.elements for each in both) / 1024
        assert found == pytest.approx(counted, abs=2)


def test_sums_have_the_bytes_that_the_engine_counts() -> None:
    """Transfers of a token in pull request 64 of distributed-llama, before and after it."""
    layers, hidden, _, middle = LLAMA3_8B
    for devices, before, after in [(2, 510 + 442, 272 + 272), (4, 1887 + 867, 816 + 816)]:
        summed = star(devices, hidden).elements
        sliced = slices("FeedForward", devices, hidden, middle).elements
        assert layers * Q80 * 2 * summed / 1024 == pytest.approx(after, abs=1)
        assert layers * Q80 * (summed + sliced) / 1024 == pytest.approx(before, abs=1)


def test_messages_of_slices_grow_with_the_square() -> None:
    """Each of eight devices lacks seven slices, which the first one sends one by one."""
    assert slices("FeedForward", 8, 4096, 11008).messages == 7 * (1 + 1 + 7 + 1)
    assert slices("Attention", 8, 4096, 3 * 4096).messages == 7 * (1 + 3 + 1 + 1)
    assert star(8, 4096).messages == 7 * 2


def shared(engine: str, kind: str, names: list[str], link: str = "x") -> Option:
    """An option whose devices have equal shares; all of them are linked."""
    ids = [f"{kind}{number}" for number in range(len(names))]
    links = [
        {"a": a, "b": b, "GBps": 10, "latency_us": 100, "kind": link}
        for at, a in enumerate(ids)
        for b in ids[:at]
    ]
    devices = [{**device(one, kind), "name": name} for one, name in zip(ids, names, strict=True)]
    parts = [part("all", one, share=1 / len(ids)) for one in ids]
    row = comparison(
        {"A": parts, "B": [part("all", ids[0])]}, engine=engine, links=links, devices=devices
    )
    return options_of(PublishedComparison.model_validate(row))[0]


@pytest.mark.parametrize(
    ("name", "kind", "staged"),
    [
        ("RTX 3090", "PCIe, no NVLink", True),
        ("RTX 3090", "NVLink", False),
        ("RTX 4000 Ada", "PCIe, no NVLink", False),
        ("A40", "PCIe, through the host", True),
    ],
)
def test_cards_without_peer_access_share_the_memory_of_the_host(
    name: str, kind: str, staged: bool
) -> None:
    """Four cards write and read each byte there: 8 bytes for one, of 50 GB/s."""
    reached = Constants("vllm").between.link
    four = shared("vLLM 0.9", "gpu", [name] * 4, kind)
    nowhere = shared("vLLM 0.9", "gpu", ["A40"] * 4, "NVLink")
    more = seconds_of(four, Constants("vllm")) - seconds_of(nowhere, Constants("vllm"))
    n_bytes, sums = 2 * DENSE["hidden"], 2 * DENSE["layers"]
    slower = 8 / 50e9 - 1 / 10e9
    assert more == pytest.approx(
        sums * 1.5 * n_bytes * slower / reached if staged else 0.0, abs=1e-12
    )


def test_early_versions_exchange_slices_and_compute_the_head_alone() -> None:
    boards = ["Raspberry Pi 4B"] * 8
    early, middle, late = (
        shared(f"distributed-llama {version}", "cpu", boards)
        for version in ("0.3.1", "0.5", "0.11")
    )
    assert set(early.sliced) == {"Attention", "FeedForward"}
    assert set(middle.sliced) == {"FeedForward"}
    assert not late.sliced
    assert [len(each.columns[-1]) for each in (early, middle, late)] == [1, 1, 8]
    assert shared("distributed-llama", "cpu", boards).sliced == {}
    assert engine_version("distributed-llama 0.10.6") == (0, 10)


def test_messages_take_the_time_of_the_processor() -> None:
    """Two boards of one kind differ from unnamed ones by their messages alone."""
    named, unnamed = (
        shared("distributed-llama 0.11", "cpu", [name] * 2) for name in ("Raspberry Pi 5", "")
    )
    constants = Constants("distributed-llama", message=2.0)
    own = device_entry("Raspberry Pi 5").message_seconds or 0.0
    more = 2.0 * own - constants.rates("cpu").message_seconds
    found = seconds_of(named, constants) - seconds_of(unnamed, constants)
    assert found == pytest.approx(2 * DENSE["layers"] * 2 * more)


def test_one_device_has_no_sums() -> None:
    row = comparison({"A": SPLIT["A"], "C": SPLIT["C"]}, engine="distributed-llama 0.1.0")
    alone = options_of(PublishedComparison.model_validate(row))[0]
    assert {column for column in alone.columns} == {(("gpu0", 1.0),)}
