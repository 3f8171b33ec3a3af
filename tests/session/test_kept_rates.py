"""Kept rates of an engine are those of its cards, whatever their names here."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from placewright.core.cluster import Cluster
from placewright.execution.engine.probe import Probe
from placewright.execution.engine.programs import Finished, Programs
from placewright.execution.processor import processor_text
from placewright.profiling.store import CostStore
from placewright.session.language import engine_profile
from placewright.session.language.engine_profile import profile_engine
from placewright.session.language.kept_rates import kept_engine_cluster

_LAYER, _ROW = 1e-4, 1e-5  # seconds of a layer's launches and of a token in it


class Engine(Programs):
    """An engine with one card, whose benchmark prints made-up seconds."""

    card, name = "", "CUDA0"

    @property
    def version(self) -> str:
        return "1 (made up)"

    def run(
        self, name: str, words: Sequence[str], *, explain: Callable[[], None] | None = None
    ) -> Finished:
        if "--list-devices" in words:
            return Finished(f"  {self.name}: {self.card}\n".encode(), "")
        given = dict(itertools.pairwise(words))
        probe = PROBES[given["-m"]]
        size = probe.layers * probe.hidden / 64

        def row(prompt: int, steps: int) -> dict[str, Any]:
            seconds = _LAYER * probe.layers + _ROW * size * max(1, prompt)
            return {
                "n_prompt": prompt,
                "n_gen": steps,
                "samples_ns": [seconds * 1e9 * (steps or 1)],
            }

        rows = [row(int(text), 0) for text in given["-p"].split(",") if text != "0"]
        return Finished(json.dumps([*rows, row(0, int(given["-n"]))]).encode(), "")


PROBES: dict[str, Probe] = {}


@pytest.fixture
def _no_probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Probes without weights, and a store of the test's own."""

    def write(path: Path, probe: Probe) -> None:
        PROBES[str(path)] = probe
        path.write_bytes(bytes(1000))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine_profile, "write_probe", write)


def profiled(card: str, dtype: str, name: str = "CUDA0", servers: Sequence[str] = ()) -> Cluster:
    engine = Engine()
    object.__setattr__(engine, "card", card)
    object.__setattr__(engine, "name", name)
    return profile_engine({dtype: False}, engine, servers=servers, threads=2)


def formats(cluster: Cluster) -> set[str]:
    sheet = cluster.devices[0].data_sheet
    assert sheet is not None
    assert sheet.tokens is not None
    return set(sheet.tokens.products)


@pytest.mark.usefixtures("_no_probes")
def test_rates_of_another_card_are_kept_apart() -> None:
    """Both are the only visible card: `cuda:0` had formats of the two."""
    first = "A card (81079 MiB, 80552 MiB free)"
    assert formats(profiled(first, "f16")) == {"f16"}
    assert formats(profiled("A card (40000 MiB, 39000 MiB free)", "q8_0")) == {"q8_0"}
    assert formats(profiled("Another card (81079 MiB, 80552 MiB free)", "q8_0")) == {"q8_0"}
    again = profiled(first.replace("80552", "70000"), "q8_0")  # another program holds memory
    assert formats(again) == {"f16", "q8_0"}
    kept = kept_engine_cluster()
    assert kept is not None
    assert formats(kept) == {"f16", "q8_0"}


@pytest.mark.usefixtures("_no_probes")
def test_rates_of_another_server_at_an_address_are_kept_apart() -> None:
    """A port of this machine may lead to another card each day, and is no fact of the processor."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def measured(total: int, dtype: str) -> set[str]:
            card = f"{address} ({total} MiB, {total - 500} MiB free)"
            return formats(profiled(card, dtype, "RPC0", [address]))

        assert measured(81_079, "f16") == {"f16"}
        assert measured(40_000, "q8_0") == {"q8_0"}
        assert measured(81_079, "q8_0") == {"f16", "q8_0"}


@pytest.mark.usefixtures("_no_probes")
@pytest.mark.parametrize(("name", "left"), [("MTL0", 10.0), ("CUDA0", 32.0)])
def test_memory_that_a_card_shares_with_the_host_counts_once(
    name: str, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_profile, "memory_bytes", lambda: 32 * 2.0**30)
    found = profiled("A card (22528 MiB, 22528 MiB free)", "f16", name)
    card, host = (
        found.memory_bytes[found.device(each)] for each in (f"{name[:-1].lower()}:0", "cpu")
    )
    assert (card, host) == (22 * 2.0**30, left * 2.0**30)


@pytest.mark.usefixtures("_no_probes")
def test_rates_of_fewer_cores_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two virtual machines on one kind of processor may share a home folder."""
    assert formats(profiled("A card (81079 MiB, 80552 MiB free)", "f16")) == {"f16"}
    monkeypatch.setattr("placewright.execution.processor.usable_cores", lambda: (0,))
    assert kept_engine_cluster() is None


@pytest.mark.usefixtures("_no_probes")
def test_a_damaged_measurement_is_measured_again(caplog: pytest.LogCaptureFixture) -> None:
    card, store = "A card (81079 MiB, 80552 MiB free)", CostStore()
    profiled(card, "f16")
    key = store.fact(f"token rates of random weights {processor_text()}")
    assert key is not None
    store.put_fact(key, '{"devices": 3}')
    assert kept_engine_cluster() is None
    assert "the kept measurement of an engine is damaged" in caplog.messages[0]
    assert formats(profiled(card, "q8_0")) == {"q8_0"}
    assert kept_engine_cluster() is not None
