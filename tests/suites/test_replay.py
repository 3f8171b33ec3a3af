"""Plans of others: values by hand, the line through copies, the choice of a rule, bad files."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from placewright.errors import FileFormatError, InputError
from placewright.report.replay_text import Decision
from placewright.suites.replay import copy_line, replay

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def example() -> Any:
    """The example of the documentation."""
    text = (REFERENCE / "replay-file.md").read_text()
    found = re.search(r"```json\n(.*?)```", text, re.S)
    assert found is not None
    return json.loads(found[1])


def written(folder: Path, document: Any) -> Path:
    path = folder / "data.json"
    path.write_text(json.dumps(document))
    return path


def test_the_line_ignores_a_copy_that_took_far_too_long() -> None:
    samples = [(float(size), 2e-4 + size / 1e9) for size in (1e3, 1e4, 1e5, 1e6, 5e6)]
    latency, per_byte = copy_line([*samples, (4e3, 10.0)])
    assert latency == pytest.approx(2e-4, rel=1e-6)
    assert per_byte == pytest.approx(1e-9, rel=1e-6)


def test_values_and_the_rule_that_fits(tmp_path: Path) -> None:
    """Copies take 1 ms + 1 ns a byte, so those of 1 MB take 2 ms.

    On the GPU, `a` takes 4 ms. On the CPU, `b` takes 3 ms after it, `c` takes 5 ms at once. The GPU
    makes `d` in 2 ms behind `a`. With free devices, b begins at 6 ms and ends at 9 ms, and d ends
    at 6 ms. An occupied receiver begins b at 5 ms and ends at 10 ms. An occupied sender ends a at
    6 ms, and b ends at 9 ms.
    """
    line = [[0, 1e-3], [1e6, 2e-3], [2e6, 3e-3]]
    document = example()
    document["copies"] = [
        {"from": "cpu", "to": "gpu", "samples": line},
        {"from": "gpu", "to": "cpu", "samples": line},
    ]
    seconds = {"a": (9e-3, 4e-3), "b": (3e-3, 3e-3), "c": (5e-3, 5e-3), "d": (2e-3, 2e-3)}
    case = document["cases"][0]
    case["ops"] = [
        {"name": n, "seconds": {"cpu": cpu, "gpu": gpu}} for n, (cpu, gpu) in seconds.items()
    ]
    case["edges"] = [{"from": "a", "to": ["b"], "bytes": 1e6}]
    split = {"a": "gpu", "b": "cpu", "c": "cpu", "d": "gpu"}
    case["plans"] = [
        {"name": "split", "placement": split, "measured": 10e-3},
        {"name": "cpu", "placement": "cpu", "measured": 19e-3},
    ]
    found = replay(written(tmp_path, document))
    predicted = found.plans[0].predicted
    assert predicted["nobody"] == pytest.approx(9e-3)
    assert predicted["receiver"] == pytest.approx(10e-3)
    assert predicted["sender"] == pytest.approx(9e-3)
    assert predicted["both"] == pytest.approx(11e-3)
    assert found.best_rule == "receiver"
    assert found.plans[1].predicted["both"] == pytest.approx(19e-3)
    assert [one.verdict for one in found.decisions("receiver")] == ["right"]
    assert replay(written(tmp_path, document), "both").rule == "both"
    assert found.data()["rules"]["both"]["median"] == pytest.approx(0.1)
    assert "copies occupy receiver, which fits best" in found.lines()[0]


def test_a_decision_is_right_wrong_or_close() -> None:
    assert Decision("x", -0.2, -0.01).verdict == "right"
    assert Decision("x", 0.2, -0.01).verdict == "wrong"
    assert Decision("x", 0.04, -0.5).verdict == "close"


def test_the_example_follows_the_schema(tmp_path: Path) -> None:
    schema = json.loads((REFERENCE / "replay.schema.json").read_text())
    check = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in check.iter_errors(example())] == []
    assert len(replay(written(tmp_path, example())).plans) == 2


def broken(change: Any) -> Any:
    document = copy.deepcopy(example())
    change(document, document["cases"][0])
    return document


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d, c: d.update(format="placewright.replay/9"), "has format"),
        (lambda d, c: d.update(more=1), "more"),
        (lambda d, c: c["plans"][0].update(measured=0), "greater than 0"),
        (lambda d, c: c["plans"][0].update(placement="npu"), "npu"),
        (lambda d, c: c["plans"][1]["placement"].pop("b"), "lacks op 'b'"),
        (lambda d, c: c["plans"][1].update(order=["a", "a"]), "given twice"),
        (lambda d, c: c["edges"][0].update(to=["z"]), "'z'"),
        (lambda d, c: c["edges"].append({"from": "b", "to": ["a"], "bytes": 1}), "cycle"),
        (lambda d, c: c["edges"][0].update(to=["a"]), "its own output"),
        (lambda d, c: c["ops"][1]["seconds"].update(cpu=-1), "greater than or equal to 0"),
        (lambda d, c: c["ops"][1]["seconds"].update(cpu=1e300), "less than or equal to"),
        (lambda d, c: d["devices"].append("cpu"), "given twice"),
        (lambda d, c: d["copies"][0].update(samples=[[1, 1]]), "at least 2"),
        (lambda d, c: d["copies"][0].update(to="cpu"), "must differ"),
        (lambda d, c: c["plans"][1]["placement"].update(b="gpu"), "'b' has no seconds on 'gpu'"),
        (lambda d, c: d["copies"].pop(), "no copies from 'gpu' to 'cpu'; add some"),
        (lambda d, c: c["plans"][1].update(order=["b", "a"]), "order has 'b' before 'a'"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, change: Any, text: str) -> None:
    with pytest.raises((InputError, FileFormatError)) as caught:
        replay(written(tmp_path, broken(change)))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_rule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean sender"):
        replay(written(tmp_path, example()), "senders")


def test_a_copy_without_seconds_is_told() -> None:
    with pytest.raises(FileFormatError, match="a copy took less than 1e-12 s"):
        copy_line([(1.0, 1e-310), (2.0, 1e-3)])
