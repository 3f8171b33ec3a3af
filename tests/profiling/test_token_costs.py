"""Costs of language models: rows of the head in prefill and of attention, and room of cards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placewright.core.cluster import Cluster, Device, Link
from placewright.core.data_sheet import DataSheet, TokenRates
from placewright.core.source import ModelSource
from placewright.execution.token_work import Phase, RequestedWork, TokenRequest
from placewright.frameworks.language.modules import Cache, LanguageModel, Part, Weight
from placewright.frameworks.language.work import requested_work
from placewright.profiling.token_costs import token_problem

HIDDEN, VOCABULARY = 256, 1000
SHEET = DataSheet({"f32": 1e12, "f16": 1e12}, 1e11)
CPU = Device("cpu", "cpu", 64e9, data_sheet=SHEET)
CARD = Device("card", "gpu", 24e9, data_sheet=SHEET)
LINKS = (Link("cpu", "card", 1e-5, 1e10), Link("card", "cpu", 1e-5, 1e10))
BOTH = Cluster((CARD, CPU), LINKS, host="cpu")


def matrices(count: int, elements: int) -> tuple[Weight, ...]:
    return (Weight(elements, elements * 34 // 32, "q8_0", multiplies=True),) * count


def work_of(request: TokenRequest) -> RequestedWork:
    """Two layers with a matrix of each size, whose caches keep 512 elements a token."""
    own = matrices(4, HIDDEN * HIDDEN)
    each: dict[Part, tuple[Weight, ...]] = {"attention": own, "feed-forward": own}
    end = matrices(1, VOCABULARY * HIDDEN)
    model = LanguageModel(
        "llama", HIDDEN, VOCABULARY, 4096, 0, 0, (each,) * 2,
        (Cache(2 * HIDDEN, 0, 4.0 * HIDDEN),) * 2, end, end, tied=False,
    )  # fmt: skip
    return requested_work(model, ModelSource("", "", "gguf"), request)


def seconds_of(op: str, device: str, request: TokenRequest, phase: Phase) -> float:
    problem = token_problem(work_of(request), BOTH, (phase,))
    at = problem.cluster.device(device)
    return float(problem.costs.seconds[problem.graph.op_index[op], at])


def test_the_cpu_computes_a_head_in_ram_in_prefill() -> None:
    """llama.cpp copies weights for products of 32 rows; in prefill, the head has one."""
    request = TokenRequest(1024, 1, 2048)
    head, feed = (
        [seconds_of(op, column, request, "prefill") for column in ("cpu", "cpu+card")]
        for op in ("head", "layers.0.feed-forward")
    )
    assert head[0] == head[1]
    assert feed[0] != feed[1]
    many = TokenRequest(1024, 1, 2048, sequences=32)
    in_ram, copied = (seconds_of("head", name, many, "decode") for name in ("cpu", "cpu+card"))
    assert copied != pytest.approx(in_ram)


@pytest.mark.parametrize("sequences", [4, 8])
def test_attention_of_each_sequence_has_one_row_in_decode(sequences: int) -> None:
    """Sequences have caches of their own: eight take eight times as long as one."""
    products = {"q8_0": (1e-12, 1e-12)}
    rates = TokenRates((1.0, 64.0), products, (4e-9, 1e-9), 0.0, 0.0, "here")
    device = replace(CPU, data_sheet=DataSheet(SHEET.peak, SHEET.bandwidth, rates))
    cluster = Cluster((device,), host="cpu")
    one, many = (
        token_problem(work_of(TokenRequest(1, 10, 64, sequences=n)), cluster, ("decode",))
        for n in (1, sequences)
    )
    op = one.graph.op_index["layers.0.attention"]
    assert many.costs.seconds[op, 0] == pytest.approx(sequences * one.costs.seconds[op, 0])


def test_cards_keep_room_for_keys_and_values_in_f16() -> None:
    """Those of a layer, for four sequences of 4096 tokens, besides five states of attention.

    A feed-forward module has six states of 512 tokens. The processor makes no copy in f16.
    """
    half, small = (
        token_problem(work_of(TokenRequest(10, 2, 4096, sequences=4, cache=cache)), BOTH).cluster
        for cache in ("f16", "q8_0")
    )
    assert half.device_names == ("card", "cpu")
    more = half.memory_bytes - small.memory_bytes
    state = 4.0 * 512 * HIDDEN
    assert more.tolist() == pytest.approx(
        [4 * 4096 * 2 * HIDDEN * 2 + (5 - 6) * state, 0.0], abs=1.0
    )
    assert half.pools == pytest.approx(small.pools)
