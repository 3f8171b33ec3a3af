"""More files that were made to do harm, by somebody who had not seen those of `nasty_files`."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cli.nasty_files import Maker, cluster, workload
from model_makers import WEIGHT, write_onnx
from support.model_files import CHAIN, make_onnx, make_pt2, make_tflite, make_xml

ORT = ["--runtime", "onnxruntime"]
CALLS = "evil"  # the domain of functions that a model defines


def _node(kind: str, inputs: list[str], outputs: list[str], **said: Any) -> Any:
    from onnx import helper

    return helper.make_node(kind, inputs, outputs, **said)


def onnx(
    nodes: Callable[[], Sequence[Any]],
    shape: Sequence[int] = (1, 4),
    functions: Callable[[], Sequence[Any]] = list,
    words: Sequence[object] = ("graph", "m.onnx", *ORT),
) -> Maker:
    """A model of these nodes from `x` to `y`, and the words of a command that reads it."""

    def make(folder: Path) -> list[object]:
        from onnx import TensorProto, helper

        values = [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape) for x in "xy"]
        graph = helper.make_graph(list(nodes()), "g", values[:1], values[1:])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CALLS, 1)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=9, functions=list(functions())
        )
        (folder / "m.onnx").write_bytes(model.SerializeToString())
        return list(words)

    return make


def relu() -> list[Any]:
    return [_node("Relu", ["x"], ["y"], name="r")]


def call_of(name: str) -> Callable[[], list[Any]]:
    return lambda: [_node(name, ["x"], ["y"], domain=CALLS, name="f")]


def function(name: str, first: tuple[str, str], second: tuple[str, str]) -> Any:
    """It calls one after the other; each is a kind and its domain."""
    from onnx import helper

    nodes = [
        _node(first[0], ["a"], ["m"], domain=first[1]),
        _node(second[0], ["m"], ["b"], domain=second[1]),
    ]
    opsets = [helper.make_opsetid(CALLS, 1), helper.make_opsetid("", 17)]
    return helper.make_function(CALLS, name, ["a"], ["b"], nodes, opsets)


def doubling() -> list[Any]:
    """40 functions of two calls each: 2^40 operators in 4 KB."""
    kinds = [("Relu", ""), *((f"F{at}", CALLS) for at in range(39))]
    return [function(f"F{at}", kind, kind) for at, kind in enumerate(kinds)]


def branches_that_miss_a_value() -> list[Any]:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    body = helper.make_graph([_node("Neg", ["missing"], ["o"])], "b", [], [value])
    return [
        _node("ReduceSum", ["x"], ["s"], keepdims=0),
        _node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
        _node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=body),
    ]


def external(
    location: str, prepare: Callable[[Path], object], offset: str = "0", length: str = "48"
) -> Maker:
    def words(folder: Path) -> list[object]:
        import onnx as library

        path = folder / "m.onnx"
        write_onnx(path, external=location)
        model = library.load(str(path), load_external_data=False)
        said = {"offset": offset, "length": length}
        for entry in model.graph.initializer[0].external_data:
            entry.value = said.get(entry.key, entry.value)
        path.write_bytes(model.SerializeToString())
        prepare(folder)
        return ["graph", "m.onnx", *ORT]

    return words


def _weights(folder: Path) -> None:
    (folder / "w.bin").write_bytes(WEIGHT.tobytes())


def pt2(rename: Callable[[str], str] = str, **added: bytes) -> Maker:
    """A `.pt2` with other names of its members, or more of them (``__`` stands for ``/``)."""

    def words(folder: Path) -> list[object]:
        path = make_pt2(folder)
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(rename(name)), data)
            for name, data in added.items():
                archive.writestr(zipfile.ZipInfo("m/" + name.replace("__", "/")), data)
        return ["graph", "m.pt2", "--runtime", "torch"]

    return words


def _bomb() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(8 << 20))
    return stream.getvalue()


def xml(doctype: str, inserted: str = "") -> Maker:
    def words(folder: Path) -> list[object]:
        path = make_xml(folder)
        (folder / "secret").write_text("SECRET")
        head, net, body = path.read_text().partition("<net")
        path.write_text(head + doctype + net + body.replace("<layers>", f"<layers>{inserted}", 1))
        return ["graph", "m.xml"]

    return words


LAUGHS = "".join(f'<!ENTITY a{at} "{f"&a{at - 1};" * 10}">' for at in range(1, 12))


def tflite(at: Callable[[bytes], int], value: int) -> Maker:
    def words(folder: Path) -> list[object]:
        path = make_tflite(folder)
        content = bytearray(path.read_bytes())
        struct.pack_into("<I", content, at(bytes(content)), value)
        path.write_bytes(content)
        return ["graph", "m.tflite"]

    return words


def policy(header: bytes, size: int | None = None) -> Maker:
    def words(folder: Path) -> list[object]:
        (folder / "w.json").write_text(json.dumps(CHAIN))
        length = struct.pack("<Q", len(header) if size is None else size)
        (folder / "p.safetensors").write_bytes(length + header + bytes(64))
        return ["place", "w.json", "--policy", "p.safetensors", "--placer", "zero-shot"]

    return words


def _tensors(**places: tuple[int, int]) -> bytes:
    said = {
        name: {"dtype": "F32", "shape": [4], "data_offsets": list(place)}
        for name, place in places.items()
    }
    return json.dumps(said).encode()


def changed(old: str, new: str) -> Maker:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return workload(change)


def output(name: str, prepare: Callable[[Path], object]) -> Maker:
    def words(folder: Path) -> list[object]:
        (folder / "w.json").write_text(json.dumps(CHAIN))
        prepare(folder / name)
        return ["place", "w.json", "--placer", "single", "--evaluations", "1", "-o", name]

    return words


def said(*words: object) -> Maker:
    def make(folder: Path) -> list[object]:
        make_onnx(folder)
        return list(words)

    return make


PLACE = ("place", "m.onnx", "--devices", "cpu:0,cpu:1", "--no-check", "--quick", *ORT)
STRANGERS: dict[str, tuple[Maker, str]] = {
    "ONNX nodes in a circle": (
        onnx(lambda: [_node("Add", ["x", "z"], ["y"]), _node("Relu", ["y"], ["z"])]),
        "reads 'z', which nothing before it makes",
    ),
    "an ONNX node that reads itself": (
        onnx(lambda: [_node("Add", ["y", "x"], ["y"])]),
        "reads 'y', which nothing before it makes",
    ),
    "a name that writes to the terminal": (
        onnx(lambda: [_node("Add", ["x", "\x1b]0;mine\x07\x9b31m\u202e"], ["y"])]),
        r"\x1b]0;mine\x07\x9b31m\u202e",
    ),
    "functions that double": (onnx(call_of("F39"), functions=doubling), "stand for more than"),
    "a function that calls itself": (
        onnx(call_of("F"), functions=lambda: [function("F", ("F", CALLS), ("Relu", ""))]),
        "calls itself",
    ),
    "a branch that misses a value": (onnx(branches_that_miss_a_value), "do not fit"),
    "a size below zero": (onnx(relu, (1, -4)), "those of 'x' [1, ?] are open"),
    "an input of 2^80 numbers": (
        onnx(relu, (2**40, 2**40), words=PLACE), "the model cannot run here",
    ),
    "external data that is a pipe": (
        external("w.bin", lambda folder: os.mkfifo(folder / "w.bin")), "is a pipe",
    ),
    "external data that is a folder": (
        external("w.bin", lambda folder: (folder / "w.bin").mkdir()), "is a folder",
    ),
    "external data in the folder itself": (external(".", _weights), "outside its own folder"),
    "external data without a name": (external("", _weights), "no file name"),
    "external data that is a link to itself": (
        external("w.bin", lambda folder: (folder / "w.bin").symlink_to("w.bin")), "leads nowhere",
    ),
    "external data of other letters": (external("W.bin", _weights), "is missing"),
    "an offset below zero": (external("w.bin", _weights, "-8"), "which is no number"),
    "an offset with an exponent": (external("w.bin", _weights, "1e3"), "which is no number"),
    "a length below zero": (external("w.bin", _weights, "0", "-1"), "which is no number"),
    "a size that is no number": (changed('"size": 40.0', '"size": NaN'), "must be >= 0, got nan"),
    "seconds beyond all numbers": (changed("4.0", "1e999"), "must be >= 0, got inf"),
    "seconds below zero": (changed("4.0", "-4.0"), "must be >= 0, got -4"),
    "bytes that add up to infinity": (changed('"size": 1.0', '"size": 1e308'), "add up to more"),
    "an edge to its own node": (changed('"destId": 2', '"destId": 1'), "cycle"),
    "an edge to a node that is none": (changed('"destId": 2', '"destId": 1e30'), "names no node"),
    "two nodes of one name": (changed('"id": 1', '"id": 2'), "two nodes have the id"),
    "a billion devices": (changed('"maxFPGAs": 2', '"maxFPGAs": 1000000000'), "up to 1000"),
    "YAML that calls Python": (
        cluster("!!python/object/apply:os.system ['touch mine']"), "could not determine",
    ),
    "a device outside the folder": (cluster("[{name: ../../x}]"), "unknown device '../../x'"),
    "a device that writes to the terminal": (cluster('[{name: "\\e[31m"}]'), r"\x1b[31m"),
    "a link slower than nothing": (
        cluster("[{name: cpu:0}]\nlinks: [{from: a, to: b, latency: -1, bandwidth: 0}]"), "latency",
    ),
    "two YAML documents": (cluster("[{name: cpu:0}]\n---\nformat: x"), "single document"),
    "a .pt2 with absolute names": (pt2("/tmp/{}".format), "which no exported program needs"),
    "a .pt2 with names above its folder": (pt2("../{}".format), "no exported program needs"),
    "a .pt2 with two folders": (pt2(lambda name: name.replace("m/data", "n/data")), "one folder"),
    "a bomb in a .pt2": (pt2(extra__bomb=_bomb()), "no exported program needs"),
    "a pickle in a .pt2": (pt2(data__pkl=b"cos\nsystem\n(S'id'\ntR."), "no exported program needs"),
    "a .pt2 of 10,000 members": (
        pt2(**{f"f{at}": b"" for at in range(10_000)}), "no exported program needs",
    ),
    "an external entity": (
        xml('<!DOCTYPE net [<!ENTITY x SYSTEM "secret">]>', "&x;"), "declares a document type",
    ),
    "a billion laughs": (
        xml(f'<!DOCTYPE net [<!ENTITY a0 "lol">{LAUGHS}]>', "&a11;"), "declares a document type",
    ),
    "a TFLite file whose root is itself": (tflite(lambda content: 0, 0), "corrupted"),
    "a TFLite root behind its end": (tflite(lambda content: 0, 1 << 31), "ends before its own"),
    "a TFLite table without an index": (
        tflite(lambda content: struct.unpack_from("<I", content)[0], 0), "OpenVINO cannot read",
    ),
    "a policy whose tensors overlap": (policy(_tensors(a=(0, 16), b=(8, 24))), "invalid offset"),
    "a policy with a hole": (policy(_tensors(a=(0, 16), b=(32, 48))), "invalid offset"),
    "a policy header of 2^63 bytes": (policy(b"{}", 2**63), "header too large"),
    "a policy nested deeply": (policy(b"[" * 100_000), "invalid JSON"),
    "an output that is a link to itself": (
        output("loop", lambda path: path.symlink_to("loop")), "leads nowhere",
    ),
    "an output that is a pipe": (output("pipe", os.mkfifo), "a pipe that nobody reads"),
    "an output behind a link to no folder": (
        output("link", lambda path: path.symlink_to("no/file")), "no' of 'file' does not exist",
    ),
    "a seed below zero": (said(*PLACE, "--seed", "-1"), "from 0 to 2^63 - 1"),
    "a seed of 50 digits": (said(*PLACE, "--seed", "9" * 50), "from 0 to 2^63 - 1"),
    "a million processes": (said(*PLACE, "--workers", "1000000"), "can be at most"),
}  # fmt: skip
