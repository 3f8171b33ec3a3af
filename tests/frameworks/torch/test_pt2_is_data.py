"""A ``.pt2`` file is data: whatever its texts say, nothing of it runs."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from placewright.errors import FileFormatError  # noqa: E402
from placewright.frameworks.torch.pt2.file import load_program  # noqa: E402
from placewright.frameworks.torch.pt2.program import (  # noqa: E402
    checked_program,
    is_admitted,
    listed_operators,
)

CODE = '__import__("pathlib").Path("PWNED").touch()'
PAYLOADS = (
    f"x={CODE}",
    CODE,
    f"x):\n    {CODE}\n    def f(y",
    f'a"].b or {CODE} or ["',
    f"s0 + {CODE}",
)
Keys = tuple[str | int, ...]


class Model(torch.nn.Module):
    """Uses most of what a program may hold: branches, buffers, constants, texts, keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU("tanh"))
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("shift", torch.ones(4), persistent=False)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any, pair: Any, *, mask: Any) -> Any:
        """Of tensors."""
        self.count.add_(1)
        y = torch.cond(mask.any(), lambda v: v.sin(), lambda v: v.cos(), (x,))
        first, second = torch.split(self.layers(y) * self.scale + self.shift, 2, dim=1)
        z = torch.einsum("ij,kj->ik", first, second) + torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        return {"z": z, "pair": [pair[0] + pair[1], self.layers(x).to(torch.float64)]}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that `torch.export.save` wrote."""
    path: Path = tmp_path_factory.mktemp("pt2") / "model.pt2"
    x = torch.arange(8.0).reshape(2, 4)
    program = torch.export.export(Model().eval(), (x, (x, x)), {"mask": x > 3})
    torch.export.save(program, path)
    return path


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def program_of(path: Path) -> Any:
    members = members_of(path)
    return json.loads(next(data for name, data in members.items() if name.endswith("model.json")))


def written(path: Path, original: Path, ending: str, data: bytes) -> Path:
    """The archive with another member."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, kept in members_of(original).items():
            archive.writestr(name, data if name.endswith(ending) else kept)
    return path


def places(value: Any, at: Keys = ()) -> Iterator[tuple[Keys, bool]]:
    """Where texts stand in JSON: the way to each, and whether it is a key."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield (*at, key), True
            yield from places(entry, (*at, key))
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from places(entry, (*at, number))
    elif isinstance(value, str):
        yield at, False


def kinds_of_places(document: Any) -> list[tuple[Keys, bool]]:
    """One place of each kind: list indices, and names that the model gave, do not count."""
    found: dict[object, tuple[Keys, bool]] = {}
    for at, is_key in places(document):
        named = ("tensor_values", "config", "sym_int_values")
        kind = [
            "*" if isinstance(key, int) or (place and at[place - 1] in named) else key
            for place, key in enumerate(at)
        ]
        found.setdefault((tuple(kind), is_key), (at, is_key))
    return list(found.values())


def replaced(document: Any, at: Keys, is_key: bool, text: str) -> Any:
    changed = copy.deepcopy(document)
    parent = changed
    for key in at[:-1]:
        parent = parent[key]
    if is_key:
        entries = {(text if key == at[-1] else key): entry for key, entry in parent.items()}
        parent.clear()
        parent.update(entries)
    else:
        parent[at[-1]] = text
    return changed


def refusal(path: Path) -> str | None:
    """What the reader says, None where it takes the file."""
    try:
        load_program(path)
    except FileFormatError as error:
        return str(error)
    return None


def in_trees(document: Any, old: str, new: str) -> Any:
    """Tree specifications are JSON in a text."""
    changed = copy.deepcopy(document)
    call = changed["graph_module"]["module_call_graph"][0]["signature"]
    assert old in call["in_spec"] + call["out_spec"]
    for spec in ("in_spec", "out_spec"):
        call[spec] = call[spec].replace(old, new)
    return changed


def test_without_the_check_the_payload_runs(original: Path, tmp_path: Path, here: None) -> None:
    """The control: PyTorch's own loader executes the name of an input."""
    renamed = json.dumps(program_of(original)).replace('"mask"', json.dumps(f"mask={CODE}"))
    path = written(tmp_path / "bad.pt2", original, "model.json", renamed.encode())
    with contextlib.suppress(Exception):  # it notices afterwards
        torch.export.load(path)
    assert Path("PWNED").exists()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_text_of_a_program_is_checked(original: Path, tmp_path: Path, here: None) -> None:
    document = program_of(original)
    kinds = kinds_of_places(document)
    assert len(kinds) > 100
    passed = []
    for at, is_key in kinds:
        for payload in PAYLOADS:
            data = json.dumps(replaced(document, at, is_key, payload)).encode()
            path = written(tmp_path / "bad.pt2", original, "model.json", data)
            told = refusal(path)
            if told is None:
                passed.append(at[-1])
            else:
                assert "\n" not in told
                assert len(told) - len(str(path)) <= 280
            assert not Path("PWNED").exists(), (at, payload)
    # Notes that are dropped, and a text that stays a literal: the equation of einsum is wrong then.
    assert {*passed} <= {"stack_trace", "torch_fn", "torch_version", "source_fn_stack", "as_string"}


@pytest.mark.parametrize("name", ["weights", "constants"])
def test_every_text_of_a_list_of_tensors_is_checked(
    name: str, original: Path, tmp_path: Path, here: None
) -> None:
    ending = f"model_{name}_config.json"
    document = json.loads(
        next(data for key, data in members_of(original).items() if key.endswith(ending))
    )
    for at, is_key in kinds_of_places(document):
        for payload in PAYLOADS:
            data = json.dumps(replaced(document, at, is_key, payload)).encode()
            with pytest.raises(FileFormatError):
                load_program(written(tmp_path / "bad.pt2", original, ending, data))
            assert not Path("PWNED").exists()


FACTORY = (
    '"{\\"default_factory_module\\": \\"evil\\", \\"default_factory_name\\": \\"f\\", '
    '\\"dict_context\\": []}"'
)


ENUM = '"[{\\"__enum__\\": true, \\"fqn\\": \\"evil:A\\", \\"name\\": \\"a\\"}]"'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('\\"mask\\"', '\\"mask=1\\"'),  # becomes the name of a parameter
        ('"builtins.dict"', '"collections.defaultdict"'),  # imports the module of its factory
        ('"[\\"mask\\"]"', FACTORY),
        (
            '"[\\"mask\\"]"',
            '"[{\\"__enum__\\": true, \\"fqn\\": \\"evil:A\\", \\"name\\": \\"a\\"}]"',
        ),
        ('"builtins.list"', '"collections.namedtuple"'),
        ('"builtins.list"', '"evil.Type"'),
        ('"[\\"mask\\"]"', '"null"'),
        ("[1, ", "[2, "),
    ],
)
def test_trees_of_containers(
    old: str, new: str, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(f"{CODE}\nf = dict\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = json.dumps(in_trees(program_of(original), old, new)).encode()
    with pytest.raises(FileFormatError):
        load_program(written(tmp_path / "bad.pt2", original, "model.json", data))
    assert not Path("PWNED").exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.save.default",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.set_.source_Storage",
        "torch.ops.aten.pin_memory.default",
        "torch.ops.aten.add.Tensor.__class__",
        "torch.ops.aten.add.Nothing",
        "torch.ops.aten.add",
        "torch.ops.evil.run.default",
        "torch.ops.higher_order.call_torchbind",
        "torch.hub.load",
        "torch.load",
        "torch.serialization.pickle.loads",
        "_operator.methodcaller",
        "_operator.attrgetter",
        "_operator.call",
        "math.sqrt",
        "#evil:run",
        "print",
        "",
    ],
)
def test_operators_that_do_more_than_compute(target: str, original: Path, tmp_path: Path) -> None:
    assert not is_admitted(target)
    document = program_of(original)
    document["graph_module"]["graph"]["nodes"][0]["target"] = target
    data = json.dumps(document).encode()
    with pytest.raises(FileFormatError, match="no ATen operator"):
        load_program(written(tmp_path / "bad.pt2", original, "model.json", data))


def test_every_listed_operator_exists() -> None:
    """A misspelt name in the list would refuse a good file."""
    operators = listed_operators()
    listed = operators["public"] + operators["internal"]
    missing = [name for name in listed if not hasattr(torch.ops.aten, name)]
    missing += [name for name in operators["prims"] if not hasattr(torch.ops.prims, name)]
    assert missing == []
    for name in listed:
        overloads = getattr(torch.ops.aten, name).overloads()
        assert any(is_admitted(f"torch.ops.aten.{name}.{overload}") for overload in overloads), name


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph["custom_obj_values"].update(
            c={"name": "c", "class_fqn": "__torch__.torch.classes.evil.Run"}
        ),
        lambda graph: graph["nodes"][0]["inputs"][0].update(arg={"as_operator": "torch.hub.load"}),
        lambda graph: graph["nodes"][0]["inputs"][0].update(
            arg={"as_custom_obj": {"name": "c", "class_fqn": "evil"}}
        ),
        lambda graph: graph["sym_int_values"].update(
            n={"as_expr": {"expr_str": CODE, "hint": None}}
        ),
        lambda graph: graph["sym_int_values"].update(n={"as_expr": {"expr_str": "s0*2"}}),
        lambda graph: graph["sym_int_values"].update(n={"as_expr": {"expr_str": "exec"}}),
        lambda graph: graph["sym_int_values"].update(n={"as_expr": {"expr_str": "u" + "9" * 12}}),
        lambda graph: graph["nodes"][0].update(name="lambda"),
        lambda graph: graph["nodes"][0].update(name="ｅxec"),
    ],
)
def test_objects_expressions_and_keywords(
    change: Callable[[Any], None], original: Path, tmp_path: Path, here: None
) -> None:
    document = program_of(original)
    change(document["graph_module"]["graph"])
    data = json.dumps(document).encode()
    with pytest.raises(FileFormatError, match="is not a valid"):
        load_program(written(tmp_path / "bad.pt2", original, "model.json", data))
    assert not Path("PWNED").exists()


class Touch:
    """Touches a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path("PWNED").touch, ()


class Buffer(torch.Tensor):
    """A subclass: only the full unpickler makes one."""


@pytest.mark.parametrize("inputs", [((Touch(),), {}), Touch(), ((1,), {"a=1": 2}), [1, 2]])
def test_example_inputs_are_not_unpickled(
    inputs: Any, original: Path, tmp_path: Path, here: None
) -> None:
    buffer = io.BytesIO()
    torch.save(inputs, buffer)
    path = written(tmp_path / "bad.pt2", original, "sample_inputs/model.pt", buffer.getvalue())
    with pytest.raises(FileFormatError, match="sample_inputs"):
        load_program(path)
    assert not Path("PWNED").exists()


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    """PyTorch reads them with its full unpickler, plain or not."""
    layer = torch.nn.BatchNorm1d(2).eval()
    program = torch.export.export(layer, (torch.ones(1, 2),))
    program.state_dict["running_mean"] = torch.ones(2).as_subclass(Buffer)
    torch.export.save(program, tmp_path / "bad.pt2")
    with pytest.raises(FileFormatError, match="not made of tensors alone"):
        load_program(tmp_path / "bad.pt2")


def test_a_program_passes_unchanged(original: Path) -> None:
    """Whatever a reader needs is still there: the same graph, signature, inputs and weights."""
    found, expected = load_program(original), torch.export.load(original)
    assert str(found.graph) == str(expected.graph)
    assert found.graph_signature == expected.graph_signature
    assert found.call_spec == expected.call_spec
    assert all(map(torch.equal, found.state_dict.values(), expected.state_dict.values()))
    for one, other in zip(found.graph.nodes, expected.graph.nodes, strict=True):
        stack = other.meta.get("nn_module_stack")
        assert one.meta.get("nn_module_stack") == stack
    assert found.module()(*found.example_inputs[0], **found.example_inputs[1])["z"].equal(
        expected.module()(*expected.example_inputs[0], **expected.example_inputs[1])["z"]
    )


def test_a_key_that_is_there_twice_is_what_was_checked(original: Path, tmp_path: Path) -> None:
    """Two readers of JSON may take different ones; PyTorch gets a new text."""
    text = json.dumps(program_of(original))
    doubled = re.sub(r'"verifiers": ', '"verifiers": ["evil"], "verifiers": ', text, count=1)
    load_program(written(tmp_path / "m.pt2", original, "model.json", doubled.encode()))


def test_deeply_nested_branches_are_refused(original: Path) -> None:
    document = program_of(original)
    graph = document["graph_module"]["graph"]
    inner = copy.deepcopy(graph)
    for _ in range(30):
        inner["nodes"][0]["inputs"][0]["arg"] = {"as_graph": {"name": "g", "graph": inner}}
        inner = copy.deepcopy(graph) | {"nodes": [copy.deepcopy(inner["nodes"][0])]}
    document["graph_module"]["graph"] = inner
    with pytest.raises(FileFormatError, match="nested more than"):
        checked_program(document)


def repeated_lists() -> Any:
    inner: list[Any] = []
    for _ in range(18):
        inner = [inner] * 4
    return ((inner,), {})


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (repeated_lists(), "more than 100000 example inputs"),
        (((torch.zeros(1).expand(1 << 40),), {}), r"repeats 4 bytes as 4398046511104"),
    ],
)
def test_example_inputs_are_bounded(inputs: Any, told: str, original: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(inputs, buffer)
    path = written(tmp_path / "bad.pt2", original, "sample_inputs/model.pt", buffer.getvalue())
    with pytest.raises(FileFormatError, match=told):
        load_program(path)
