"""Reading PyTorch modules and .pt2 files, and refusing files that bring code along."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import struct
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch_programs import functional_program, read_torch
from torch_programs import read_torch as read

from placewright.core.builder import GraphBuilder
from placewright.errors import FileFormatError, InputError
from placewright.execution.framework import BuiltModule, ModelInMemory
from placewright.frameworks.torch.programs import TorchOptions, read_torch_model
from placewright.frameworks.torch.reading import reader
from placewright.frameworks.torch.reading.fx_graph import FxRules, add_fx_graph
from placewright.frameworks.torch.reading.reader import exported_module, fixed_program


class Small(torch.nn.Module):
    """Two layers with one tied weight, an in-place activation and a split."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.arange(2.0))

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        torch.nn.functional.relu(y, inplace=True)
        left, right = self.second(y).chunk(2, 1)
        return left * right + torch.sqrt(self.shift), y


EXAMPLE = (torch.ones(3, 4),)


def saved(folder: Path) -> Path:
    path = folder / "small.pt2"
    torch.export.save(torch.export.export(Small().eval(), EXAMPLE), path)
    return path


class TestModule:
    def test_ops_tensors_and_weights(self) -> None:
        graph, source = read_torch(Small().eval(), EXAMPLE, name="small")
        assert graph.op_kinds == ("linear", "relu", "linear", "split", "mul", "add")
        assert graph.op_flops.tolist() == [2 * 3 * 4 * 4 + 12, 12, 2 * 3 * 4 * 4, 0, 6, 6]
        # The tied weight is one; the square root of the buffer is computed once and kept.
        tied = graph.op_weights.row(0).tolist()
        assert tied[0] == graph.op_weights.row(2).tolist()[0]
        assert graph.op_weight_bytes.tolist() == [64 + 16, 0, 64, 0, 0, 8]
        assert set(graph.weight_dtypes) == {"f32"}
        assert graph.op_modules[2] == "second"
        outputs = [graph.op_kinds[graph.tensor_producers[t]]
                   for t in range(graph.n_tensors) if graph.tensor_is_output[t]]  # fmt: skip
        assert outputs == ["relu", "add"]
        assert graph.op_outputs.row(3).size == 2
        assert source.shapes == {"x": (3, 4)}
        assert source.path == "small"

    def test_parts_of_one_storage_are_weights_of_their_own(self) -> None:
        class Parts(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                whole = torch.ones(2, 4, 4)
                self.a, self.b = torch.nn.Parameter(whole[0]), torch.nn.Parameter(whole[1])
                self.tied = torch.nn.Parameter(self.a.data.t())

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x @ self.a @ self.b @ self.tied

        graph, _ = read_torch(Parts().eval(), (torch.ones(2, 4),))
        assert graph.weight_bytes.tolist() == [64.0, 64.0]

    def test_weights_have_the_type_of_the_module(self) -> None:
        graph, _ = read_torch(torch.nn.Linear(4, 4).bfloat16(), (torch.ones(3, 4).bfloat16(),))
        assert graph.weight_dtypes == ("bf16", "bf16")
        assert graph.op_weight_bytes.tolist() == [2 * (16 + 4)]

    def test_constants_stay_where_asked(self) -> None:
        graph, source = read_torch(Small().eval(), EXAMPLE, fold_constants=False)
        assert "sqrt" in graph.op_kinds
        assert source.options == {"fold_constants": "no"}

    def test_the_hash_follows_the_weights(self) -> None:
        module = Small().eval()
        first = read_torch(module, EXAMPLE)[1].sha256
        assert read_torch(module, EXAMPLE)[1].sha256 == first
        with torch.no_grad():
            module.first.bias[0] += 1
        assert read_torch(module, EXAMPLE)[1].sha256 != first

    def test_a_module_that_cannot_be_traced_is_named(self) -> None:
        class Branching(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x if x.sum() > 0 else -x

        with pytest.raises(InputError, match="Branching cannot be exported") as caught:
            read_torch(Branching().eval(), EXAMPLE)
        assert "\n" not in str(caught.value)

    def test_phases_and_colocation_come_from_the_caller(self) -> None:
        program = functional_program(Small().eval(), EXAMPLE)
        builder = GraphBuilder()
        rules = FxRules(phase_of=lambda node: int("mul" in node.name), colocation_of=lambda node: 4)
        add_fx_graph(builder, program.graph, rules)
        graph = builder.build()
        assert [int(kind == "mul") for kind in graph.op_kinds] == graph.op_phases.tolist()
        assert set(graph.op_colocation.tolist()) == {4}


class TestBodies:
    """Operations of branches and loops: the rules are those of the other readers."""

    PRODUCT = 2 * 4 * 4 * 4

    def counted(self, module: Any, *examples: torch.Tensor) -> dict[str, float]:
        graph, _ = read_torch(module, examples)
        return dict(zip(graph.op_kinds, graph.op_flops.tolist(), strict=True))

    def test_of_two_branches_the_more_expensive_counts(self) -> None:
        class Choice(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return torch.cond(x.any(), lambda v: v @ v @ v, lambda v: v @ v, (x,))

        assert self.counted(Choice(), torch.ones(4, 4))["cond"] == 2 * self.PRODUCT

    @pytest.mark.parametrize("steps", [1, 7])
    def test_a_scan_counts_each_step(self, steps: int) -> None:
        class Scan(torch.nn.Module):
            def forward(self, held: Any, x: Any) -> Any:
                def step(held: Any, row: Any) -> Any:
                    added = held @ held + row
                    return added, added.clone()

                return scan(step, held, x)

        counts = self.counted(Scan(), torch.ones(4, 4), torch.ones(steps, 4, 4))
        assert counts["scan"] == steps * (self.PRODUCT + 16)

    def test_a_map_counts_each_row_and_choices_inside_their_dearer_branch(self) -> None:
        class Map(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                def body(row: Any) -> Any:
                    return torch.cond(row.any(), lambda v: v @ v @ v, lambda v: v @ v, (row,))

                return map_rows(body, x)

        counts = self.counted(Map(), torch.ones(5, 4, 4))
        assert counts["map_impl"] == 5 * (2 * self.PRODUCT + 16)

    def test_a_loop_of_unknown_length_counts_once(self) -> None:
        class Loop(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return while_loop(
                    lambda n, v: n < 5, lambda n, v: (n + 1, v @ v), (torch.tensor(0), x)
                )

        assert self.counted(Loop(), torch.ones(4, 4))["while_loop"] == self.PRODUCT + 2


class TestFile:
    def test_a_saved_program_gives_the_graph_of_its_module(self, tmp_path: Path) -> None:
        path = saved(tmp_path)
        graph, source = read(path)
        expected, _ = read_torch(Small().eval(), EXAMPLE)
        assert graph.op_names == expected.op_names
        assert graph.weight_bytes.tolist() == expected.weight_bytes.tolist()
        assert source.path == str(path)
        assert source.format == "torch"

    @pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 not an archive"])
    def test_other_content_is_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "wrong.pt2"
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"wrong\.pt2.*no archive"):
            read(path)

    def test_a_truncated_file_is_refused(self, tmp_path: Path) -> None:
        path = saved(tmp_path)
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(FileFormatError, match=r"small\.pt2"):
            read(path)

    def test_an_archive_of_something_else_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "other.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "hello")
        with pytest.raises(FileFormatError, match="no exported program"):
            read(path)

    def test_an_archive_that_goes_on_on_another_disk_is_refused(self, tmp_path: Path) -> None:
        """The question whether it is an archive raises, too."""
        path = saved(tmp_path)
        data = path.read_bytes()
        end = data.rfind(b"PK\x05\x06")
        locator = b"PK\x06\x07" + struct.pack("<LQL", 0, 0, 2)
        path.write_bytes(data[:end] + locator + data[end:])
        with pytest.raises(FileFormatError, match="multiple disks"):
            read(path)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def replaced(path: Path, ending: str, change: Any) -> None:
    """Rewrite the archive with `change` applied to the member whose name ends in `ending`."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in members if name.endswith(ending))
    members[name] = change(members[name])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for key, value in members.items():
            archive.writestr(key, value)


class TestFilesThatBringCode:
    def test_pickled_sample_inputs(self, tmp_path: Path) -> None:
        path, target = saved(tmp_path), tmp_path / "made"
        buffer = io.BytesIO()
        torch.save(((Payload(target),), {}), buffer, pickle_module=pickle)
        replaced(path, "sample_inputs/model.pt", lambda _: buffer.getvalue())
        with pytest.raises(FileFormatError, match="not made of tensors alone"):
            read(path)
        assert not target.exists()

    def test_pickled_weights(self, tmp_path: Path) -> None:
        path, target = saved(tmp_path), tmp_path / "made"
        buffer = io.BytesIO()
        torch.save(Payload(target), buffer)

        def as_pickle(content: bytes) -> bytes:
            config = json.loads(content)
            config["config"]["first.bias"]["use_pickle"] = True
            return json.dumps(config).encode()

        replaced(path, "model_weights_config.json", as_pickle)
        replaced(path, "weights/weight_1", lambda _: buffer.getvalue())
        replaced(path, "weights/weight_0", lambda _: buffer.getvalue())
        with pytest.raises(FileFormatError, match="not made of tensors alone"):
            read(path)
        assert not target.exists()

    @pytest.mark.parametrize("prefix", ["custom_obj_0", "opaque_obj_0", "../weights/weight_0"])
    def test_constants_that_are_no_tensors(self, tmp_path: Path, prefix: str) -> None:
        path = saved(tmp_path)

        def changed(content: bytes) -> bytes:
            return json.dumps({"config": {"c": {"path_name": prefix}}}).encode()

        replaced(path, "model_constants_config.json", changed)
        with pytest.raises(FileFormatError, match="is no tensor"):
            read(path)

    @pytest.mark.parametrize(
        "member",
        [
            "small/data/aotinductor/model/code.so",  # compiled code
            "small/data/constants/model.pt",  # constants of an older format, unpickled in full
            "small/data/constants/opaque_obj_0",
            "small/models/other.json",
            "version",  # marks the oldest format
            "serialized_constants.pt",
        ],
    )
    def test_members_that_no_program_needs(self, tmp_path: Path, member: str) -> None:
        path = saved(tmp_path)
        with zipfile.ZipFile(path, "a") as archive:
            root = archive.namelist()[0].partition("/")[0]
            archive.writestr(member.replace("small/", f"{root}/"), b"anything")
        with pytest.raises(
            FileFormatError, match=r"no exported program needs|more than one folder"
        ):
            read(path)

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_a_member_that_is_there_twice(self, tmp_path: Path) -> None:
        path = saved(tmp_path)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(archive.namelist()[0], b"another")
        with pytest.raises(FileFormatError, match="twice"):
            read(path)

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("guards_code", ["__import__('os').mkdir('made')"], "brings code"),
            ("range_constraints", {"open('made', 'w')": {}}, "computes sizes"),
            ("range_constraints", {"s0": {"expr_str": "open('made', 'w')"}}, "expr_str"),
            ("verifiers", ["evil.Verifier"], "none of TRAINING"),
            ("extra", [{"target": "torch.ops.evil.run"}], "'extra', which no exported program"),
        ],
    )
    def test_expressions_and_foreign_calls(
        self, tmp_path: Path, key: str, value: object, message: str
    ) -> None:
        path = saved(tmp_path)

        def changed(content: bytes) -> bytes:
            return json.dumps({**json.loads(content), key: value}).encode()

        replaced(path, "models/model.json", changed)
        with pytest.raises(FileFormatError, match=message):
            read(path)
        assert not Path("made").exists()


class Meeting:
    """A place in which two threads are at once if nothing keeps them apart."""

    def __init__(self) -> None:
        self.both = threading.Barrier(2)
        self.met: list[int] = []

    def wait(self) -> None:
        with suppress(threading.BrokenBarrierError):
            self.met.append(self.both.wait(timeout=0.2))

    def of_two_calls(self, call: Callable[[], object]) -> list[int]:
        """Call in two threads; return who met the other."""
        with ThreadPoolExecutor(2) as pool:
            for made in [pool.submit(call) for _ in range(2)]:
                made.result()
        return self.met


def test_threads_export_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each puts back the method of modules that it found, which was that of another export."""
    plain, meeting = torch.nn.Module.__setattr__, Meeting()

    def export(*_: Any) -> Any:
        meeting.wait()
        return SimpleNamespace(graph_signature=SimpleNamespace(buffers_to_mutate={}))

    monkeypatch.setattr(torch.export, "export", export)
    assert not meeting.of_two_calls(lambda: exported_module(Small(), EXAMPLE))
    assert torch.nn.Module.__setattr__ is plain


def test_threads_fix_dimensions_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is an export, too."""
    layer, batch = torch.nn.Linear(4, 4), torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(layer, EXAMPLE, dynamic_shapes=({0: batch},))
    meeting = Meeting()
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: meeting.wait())
    assert not meeting.of_two_calls(lambda: fixed_program(program, {}))


def test_threads_read_modules_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading hooks a module, sets its modes and runs it, and puts all back as it was found."""
    meeting, read_inference = Meeting(), reader.read_inference

    def met(*given: Any, **said: Any) -> Any:
        meeting.wait()
        return read_inference(*given, **said)

    monkeypatch.setattr(reader, "read_inference", met)
    module = torch.nn.Linear(4, 4)
    versions = itertools.count()

    def find(name: str) -> ModelInMemory:
        return ModelInMemory(name, str(next(versions)), lambda _: BuiltModule(module, EXAMPLE))

    assert not meeting.of_two_calls(
        lambda: read_torch_model("module:Met", find, TorchOptions()).source.sha256
    )


def test_threads_that_ask_for_one_model_read_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one, which waits, finds the model that the first has read."""
    meeting, read_inference, models = Meeting(), reader.read_inference, list[Any]()

    def met(model: Any, *given: Any, **said: Any) -> Any:
        models.append(model)
        meeting.wait()
        return read_inference(model, *given, **said)

    monkeypatch.setattr(reader, "read_inference", met)
    module = torch.nn.Linear(4, 4)

    def find(name: str) -> ModelInMemory:
        return ModelInMemory(name, "1", lambda _: BuiltModule(module, EXAMPLE))

    meeting.of_two_calls(lambda: read_torch_model("module:Once", find, TorchOptions()))
    assert models == [module]
