"""Devices that an engine has measured on this machine, kept in the store of costs."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

from placewright.core.cluster import Cluster
from placewright.execution.processor import processor_text
from placewright.files.cluster_file import ClusterDocument, cluster_data, cluster_of
from placewright.profiling.store import CostStore

_LOG = logging.getLogger(__name__)
_KEY = "token rates of random weights"  # of the store


def keep_engine_cluster(cluster: Cluster, how: str) -> Cluster:
    """Keep the measured devices of an engine, by processor and cores, engine, options and cards.

    Args:
        cluster: of devices with measured rates.
        how: version of the engine, its options and its cards.

    Returns:
        The devices with the formats that were measured before, too.
    """
    store, names = CostStore(), ",".join(cluster.device_names)
    key = f"{_KEY} {processor_text()} {how} {names}"

    def merged(before: str | None) -> str:
        earlier = None if before is None else _stored(before)
        new = cluster if earlier is None else _with_formats(cluster, earlier)
        return json.dumps(cluster_data(new))

    kept = _stored(store.change_fact(key, merged))
    store.put_fact(f"{_KEY} {processor_text()}", key)
    assert kept is not None  # it was just written
    return kept


def _with_formats(cluster: Cluster, before: Cluster) -> Cluster:
    devices = []
    for device, old in zip(cluster.devices, before.devices, strict=True):
        sheet, earlier = device.data_sheet, old.data_sheet
        assert sheet is not None
        assert sheet.tokens is not None
        if earlier is not None and earlier.tokens is not None:
            products = {**earlier.tokens.products, **sheet.tokens.products}
            sheet = replace(sheet, tokens=replace(sheet.tokens, products=products))
        devices.append(replace(device, data_sheet=sheet))
    return replace(cluster, devices=tuple(devices))


def kept_engine_cluster() -> Cluster | None:
    """The devices that an engine measured last on this processor; None without readable ones."""
    store = CostStore()
    key = store.fact(f"{_KEY} {processor_text()}")
    kept = None if key is None else store.fact(key)
    return None if kept is None else _stored(kept)


def _stored(text: str) -> Cluster | None:
    """The devices of a kept text; None, with a warning, if it is damaged."""
    try:
        return cluster_of(ClusterDocument.model_validate(json.loads(text)))
    except ValueError as error:
        _LOG.warning(
            "the kept measurement of an engine is damaged and is left out (%s); "
            "`placewright profile MODEL --engine llama.cpp` measures again",
            str(error).partition("\n")[0],
        )
        return None
