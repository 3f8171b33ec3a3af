"""A check of traces against the Chrome trace format."""

from __future__ import annotations

import json
from typing import Any

import pytest

_NUMBERS = (int, float)


def check_trace(text: str) -> list[dict[str, Any]]:
    """The complete events of a trace in the JSON object format, after a check of it.

    Keys and types as the format asks for them; events of one track (pid, tid) lie apart or one
    within the other; every process has one name.
    """
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert isinstance(document["traceEvents"], list)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    named: list[int] = []
    complete = []
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] == "process_name"
            assert isinstance(event["args"]["name"], str)
            named.append(event["pid"])
            continue
        assert event["ph"] == "X"
        assert isinstance(event["cat"], str)
        assert isinstance(event["ts"], _NUMBERS)
        assert isinstance(event["dur"], _NUMBERS)
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        track = tracks.setdefault((event["pid"], event["tid"]), [])
        track.append((event["ts"], event["ts"] + event["dur"]))
        complete.append(event)
    assert len(named) == len(set(named))
    assert all(event["pid"] in named for event in complete)
    for spans in tracks.values():
        _check_nesting(spans)
    return complete


def _check_nesting(spans: list[tuple[float, float]]) -> None:
    slack = 1e-6  # microseconds: times are rounded when they are scaled
    open_until: list[float] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1] <= start + slack:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + slack, "events of a track overlap"
        open_until.append(end)
