"""Files that try to take the machine, leave their folder or end a command without a reason."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

from model_makers import WEIGHT, saved_model, write_onnx
from support.model_files import CHAIN, make_onnx, make_pt2, make_xml

CLUSTER = "format: placewright.cluster/1\ndevices: "
Maker = Callable[[Path], list[object]]  # folder -> words of the command


def _length(data: bytes) -> bytes:
    return bytes([data[0], len(data) - 2, *data[2:]])


def external_entry_twice(folder: Path) -> list[object]:
    """A number under the field of the key hides `location` from a check that takes the last."""
    folder.joinpath("inner").mkdir()
    path = folder / "inner" / "m.onnx"
    write_onnx(path, external="../secret.bin")
    (folder / "secret.bin").write_bytes(WEIGHT.tobytes())
    entry = b"\x0a\x08location\x12\x0d../secret.bin"
    content = path.read_bytes()
    assert content.count(entry) == 1
    at = content.index(entry)
    grown = bytearray(content[:at] + entry + b"\x08\x01" + content[at + len(entry) :])
    for begin in _messages_around(content, at):
        grown[begin] += 2  # every message that holds the entry, none longer than 127 bytes
    path.write_bytes(bytes(grown))
    return ["graph", path, "--runtime", "onnxruntime"]


def _messages_around(content: bytes, at: int) -> list[int]:
    """Where the lengths of the messages stand that hold the byte at `at`."""
    found, begin, end = [], 0, len(content)
    while begin < at - 1:
        position = begin
        while True:
            tag, position = content[position], position + 1
            if tag & 7 == 0:
                while content[position] > 127:
                    position += 1
                position += 1
                continue
            assert tag & 7 == 2
            where = position
            length, shift = 0, 0
            while True:
                byte = content[position]
                length |= (byte & 127) << shift
                position, shift = position + 1, shift + 7
                if byte < 128:
                    break
            if position <= at < position + length:
                assert content[where] & 127 < 126
                found.append(where)
                begin, end = position, position + length
                break
            position += length
        assert end > at
        if position == at:
            break
    return found


def memory_address(folder: Path) -> list[object]:
    place = folder / "*" / "_ORT_MEM_ADDR_"
    place.mkdir(parents=True)
    (place / "*").write_bytes(WEIGHT.tobytes())
    write_onnx(folder / "m.onnx", external="*/_ORT_MEM_ADDR_/*")
    return ["graph", "m.onnx", "--runtime", "onnxruntime"]


def linked_weights(folder: Path) -> list[object]:
    (folder / "model").mkdir()
    path = make_xml(folder / "model")
    weights = path.with_suffix(".bin")
    weights.rename(folder / "elsewhere.bin")
    weights.symlink_to(folder / "elsewhere.bin")
    return ["graph", path]


def linked_folder(folder: Path) -> list[object]:
    (folder / "saved").mkdir()
    (folder / "saved" / "saved_model.pb").write_bytes(saved_model())
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").write_text("secret")
    (folder / "saved" / "variables").symlink_to(folder / "outside")
    return ["graph", "saved"]


def linked_file_of_folder(folder: Path) -> list[object]:
    (folder / "saved" / "variables").mkdir(parents=True)
    (folder / "saved" / "saved_model.pb").write_bytes(saved_model())
    (folder / "secret").write_text("secret")
    (folder / "saved" / "variables" / "variables.index").symlink_to(folder / "secret")
    return ["graph", "saved"]


def _named(suffix: str, make: Callable[[Path], None]) -> Maker:
    def words(folder: Path) -> list[object]:
        make(folder / f"m.{suffix}")
        return ["graph", f"m.{suffix}"]

    return words


def endless(suffix: str) -> Maker:
    return _named(suffix, lambda path: path.symlink_to("/dev/zero"))


def pipe(suffix: str) -> Maker:
    return _named(suffix, lambda path: os.mkfifo(path))


def sparse(suffix: str) -> Maker:
    def make(path: Path) -> None:
        with path.open("wb") as stream:
            stream.truncate(100 << 30)

    return _named(suffix, make)


def sparse_data(folder: Path) -> list[object]:
    write_onnx(folder / "m.onnx", external="w.bin")
    with (folder / "w.bin").open("wb") as stream:
        stream.write(WEIGHT.tobytes())
        stream.truncate(100 << 30)
    return ["graph", "m.onnx"]


def inflating_pt2(folder: Path) -> list[object]:
    path = make_pt2(folder)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
        weight = next(name for name in members if name.endswith("weight_0"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members.items():
            if name != weight:
                archive.writestr(name, data)
        with archive.open(weight, "w", force_zip64=True) as stream:
            for _ in range(300):
                stream.write(bytes(1 << 20))
    return ["graph", "m.pt2", "--runtime", "torch"]


def cluster(devices: str) -> Maker:
    def words(folder: Path) -> list[object]:
        make_onnx(folder)
        (folder / "c.yaml").write_text(CLUSTER + devices)
        return ["place", "m.onnx", "--cluster", "c.yaml", "--no-check"]

    return words


def anchors(folder: Path) -> list[object]:
    rows = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    for row in range(1, 12):
        rows.append(f"a{row}: &a{row} [{','.join([f'*a{row - 1}'] * 9)}]")
    words = cluster("[{name: cpu:0}]\n" + "\n".join(rows))
    return words(folder)


def workload(change: Callable[[str], str], suffix: str = "json") -> Maker:
    def words(folder: Path) -> list[object]:
        (folder / f"w.{suffix}").write_text(change(json.dumps(CHAIN)))
        return ["place", f"w.{suffix}", "--placer", "single"]

    return words


def saved_graph(change: Callable[[dict[str, object]], None]) -> Maker:
    def words(folder: Path) -> list[object]:
        ops = {
            "name": ["a"], "kind": ["Relu"], "flops": [1.0], "phase": ["forward"], "module": [""],
            "colocation": [-1], "weights": [[]],
        }  # fmt: skip
        tensors = {
            "bytes": [4.0, 4.0], "producer": [-1, 0], "consumers": [[0], []],
            "is_output": [False, True], "shape": [[1], [1]], "dtype": ["f32", "f32"],
        }  # fmt: skip
        columns: dict[str, object] = {"ops": ops, "tensors": tensors, "weight_bytes": []}
        change(columns)
        document = {"format": "placewright.graph/1", "source": None, "graph": columns}
        (folder / "g.json").write_text(json.dumps(document))
        return ["graph", "g.json", "-o", "again.json"]

    return words


def _set(key: str, column: str, value: object) -> Maker:
    def change(columns: dict[str, object]) -> None:
        part = columns[key]
        assert isinstance(part, dict)
        part[column] = value

    return saved_graph(change)


def xml(old: str, new: str) -> Maker:
    def words(folder: Path) -> list[object]:
        path = make_xml(folder)
        text = path.read_text()
        assert old in text, text[:400]
        path.write_text(text.replace(old, new))
        return ["graph", path.name]

    return words


LONG = "9" * 5000
NASTY: dict[str, tuple[Maker, str]] = {
    "a varint hides the location": (external_entry_twice, "twice"),
    "a location that is a memory address": (memory_address, "no file name"),
    "weights linked from elsewhere": (linked_weights, "outside its own folder"),
    "a linked folder of a SavedModel": (linked_folder, "link to a folder"),
    "a linked file of a SavedModel": (linked_file_of_folder, "outside its own folder"),
    **{
        f"{name} as .{suffix}": (make(suffix), told)
        for suffix in ("onnx", "xml", "pb", "tflite", "pt2", "json")
        for name, make, told in (
            ("/dev/zero", endless, "is a device"),
            ("a pipe", pipe, "is a pipe"),
            ("100 GB of nothing", sparse, "bytes"),
        )
    },
    "external data of 100 GB of nothing": (sparse_data, "sparse"),
    "a .pt2 that inflates": (inflating_pt2, "would inflate to"),
    "YAML anchors": (anchors, "stands for more than"),
    "YAML that stands for itself": (cluster("&a [*a]"), "stands for what holds it"),
    "YAML nested deeply": (cluster("[" * 5000), "nested"),
    "memory that is a list": (cluster("[{name: cpu:0, memory: [1]}]"), "memory"),
    "memory that is no date": (cluster("[{name: cpu:0, memory: 2024-13-45}]"), "YAML"),
    "memory of 5,000 digits": (cluster(f"[{{name: cpu:0, memory: {LONG}}}]"), "YAML"),
    "10^30 streams": (cluster("[{name: cpu:0, streams: 1" + "0" * 30 + "}]"), "64 bits"),
    "a name of two lines": (cluster('[{name: "cpu\\n0"}]'), "line"),
    "an integer of 5,000 digits": (workload(lambda t: t.replace("40.0", LONG)), "64 bits"),
    "half of a surrogate pair": (workload(lambda t: t.replace('"maxCPUs"', '"\\ud800"')), "pair"),
    "JSON nested deeply": (workload(lambda t: '{"a":' + "[" * 100_000), "JSON"),
    "a producer of 10^30": (_set("tensors", "producer", [-1, 10**30]), "64 bits"),
    "a producer below all": (_set("tensors", "producer", [-7, 0]), "producer outside"),
    "a name of a surrogate": (_set("ops", "name", ["\ud800"]), "pair"),
    "a name of 100,000 letters": (_set("ops", "phase", ["x" * 100_000]), "phases"),
    "an unknown encoding": (xml('version="1.0"', 'version="1.0" encoding="banana"'), "XML"),
    "an offset of 5,000 digits": (xml('offset="0"', f'offset="{LONG}"'), "where no file"),
}
