"""The architecture, enforced: imports run one way, files and functions stay readable."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from placewright.frameworks.registry import (
    READERS,
    framework_named,
    framework_names,
    frameworks,
    readers,
)

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "placewright"
EVERYTHING = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name[0] != "_"}
MAY_IMPORT = {
    "errors": set[str](),
    "core": {"errors"},
    "io": {"errors"},
    "files": {"core", "io", "errors"},
    "isolation": {"io", "errors"},
    "workers": {"isolation", "io", "errors"},
    "simulation": {"core", "io", "errors"},
    "writers": {"core", "simulation", "io", "errors"},
    "placers": {"core", "simulation", "io", "errors"},
    "report": {"core", "simulation", "io", "errors"},
    "execution": {"core", "simulation", "io", "errors"},
    "frameworks": {"core", "simulation", "execution", "io", "errors"},
    "profiling": {"core", "simulation", "execution", "io", "errors"},
    "zoo": {"io", "errors"},
    "suites": (EVERYTHING | {"errors"}) - {"cli"},
    "testing": (EVERYTHING | {"errors"}) - {"cli"},
    "session": (EVERYTHING | {"errors"}) - {"cli", "isolation", "suites", "testing"},
    "cli": EVERYTHING | {"errors"},
    "__init__": EVERYTHING | {"errors"},
    "__main__": {"cli"},
}
HEAVY = ("torch", "openvino", "onnxruntime", "onnx", "ortools", "ray", "transformers", "highspy")
HEAVY += (
    "accelerate",
    "torch_geometric",
    "pymetis",
    "mtkahypar",
    "matplotlib",
    "gguf",
)
FILES = sorted(SOURCE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def _trees_are_let_go() -> Iterator[None]:
    """Later tests of this process would be slower by what a collection of garbage looks at."""
    yield
    tree_of.cache_clear()


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.append(node.module)
            if node.module == "placewright":
                names += [f"placewright.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    room = room_of(path)
    allowed = MAY_IMPORT[room] | {room}  # a new room needs a row in MAY_IMPORT and a decision
    for module in imported_modules(tree_of(path)):
        if module.startswith("placewright."):
            assert module.split(".")[1] in allowed, f"{path.name} imports {module}"


FRAMEWORKS = "placewright.frameworks"
# What names a framework elsewhere, and why it must.
NAMES_A_FRAMEWORK = {
    "writers/openvino_affinity.py": "writes what OpenVINO alone reads, by its own names of nodes",
    "writers/onnx_layers.py": "writes what ONNX Runtime alone reads, by its own names of nodes",
    "writers/onnx_segments.py": "names the files that it writes",
    "writers/llama_cpp.py": "writes options that llama.cpp takes with files of its own format",
    "writers/layer_partition.py": "its engines load all weights that a configuration names",
    "zoo/__init__.py": "tells which Python packages build a model",
    "suites/llm_ab/costs.py": "counts the work of language models that no file holds",
    "suites/llm_ab/documents.py": "makes language models from published sizes",
    "suites/papers/suite.py": "its graphs are PyTorch's capture of a training step",
}
# What is to be installed.
ABOUT_PACKAGES = ("MissingExtraError", "optional_library", "require_packages")


def texts_about_packages(tree: ast.AST) -> set[int]:
    """Numbers of the nodes inside what tells of Python packages, not of frameworks."""
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if (isinstance(node, ast.Call) and ast.unparse(node.func) in ABOUT_PACKAGES) or (
            isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "requires"
        ):
            found.append(node)
    return {id(inner) for node in found for inner in ast.walk(node)}


def named_frameworks(path: Path, texts: set[str]) -> list[str]:
    """Constants of a file that name a framework, a format or a suffix, and imports of a folder."""
    tree = tree_of(path)
    of_packages = texts_about_packages(tree)
    found = [
        repr(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in of_packages and node.value in texts
    ]
    folders = {f"{FRAMEWORKS}.{name}" for name in (*framework_names(), *READERS)}
    found += [
        module
        for module in imported_modules(tree)
        if any(f"{module}.".startswith(f"{folder}.") for folder in folders)
    ]
    return found


def test_no_other_room_names_a_framework() -> None:
    """Neither its name, nor a format or suffix of its models, nor its folder."""
    every = (*frameworks(), *readers())
    texts = {text for one in every for text in (one.name, *one.formats, *one.suffixes)}
    assert {"torch", "openvino", "onnx", ".pt2", ".xml", ".gguf"} <= texts
    naming: set[str] = set()
    for path in FILES:
        own = str(path.relative_to(SOURCE))
        if room_of(path) not in ("frameworks", "cli") and named_frameworks(path, texts):
            naming.add(own)
    assert naming == set(NAMES_A_FRAMEWORK)


def test_frameworks_do_not_import_each_other() -> None:
    for path in FILES:
        room, *folders = path.relative_to(SOURCE).parent.parts or ("",)
        if room == "frameworks":
            named = (*framework_names(), *READERS)
            others = {f"{FRAMEWORKS}.{name}" for name in named if name not in folders}
            for module in imported_modules(tree_of(path)):
                assert ".".join(module.split(".")[:3]) not in others, f"{path} imports {module}"


def test_every_folder_of_frameworks_is_listed() -> None:
    folders = {path.parent.name for path in SOURCE.glob("frameworks/*/__init__.py")}
    assert folders == {*framework_names(), *READERS}
    assert tuple(one.name for one in readers()) == READERS
    for one in (*frameworks(), *readers()):
        assert one.name in READERS or framework_named(one.name) is one
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert one.extra in extras["optional-dependencies"]


def test_folders_of_tests_are_rooms() -> None:
    """Except tests of several rooms, and what tests share."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    folders = {name for name in folders if name[0] not in "_."}
    assert folders - EVERYTHING == {"benchmarks", "data", "golden", "guard", "own_order", "support"}


TESTS = sorted((ROOT / "tests").rglob("*.py"))


def test_no_two_files_of_tests_have_one_name() -> None:
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_no_test_imports_another() -> None:
    """Tests share helpers in modules that are no tests; only conftest.py extends the path."""
    importing = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (*TESTS, *sorted((ROOT / "benchmarks").rglob("*.py")))
        for module in imported_modules(tree_of(path))
        if module.split(".")[-1].startswith("test_")
    }
    assert importing == set()
    extending = {
        path.name
        for path in TESTS
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.path.insert"
    }
    assert extending == {"conftest.py"}


def replaced_names(path: Path) -> list[str]:
    """Dotted names of the package that a test replaces through `monkeypatch`, as far as known."""
    tree = tree_of(path)
    module_of: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module_of[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".setattr"):
            first, second, *_ = [*node.args, None]
            if isinstance(first, ast.Constant):
                names.append(str(first.value))
            elif isinstance(first, ast.Name) and isinstance(second, ast.Constant):
                names.append(f"{module_of.get(first.id, '')}.{second.value}")
    return [name for name in names if name.startswith("placewright.")]


def test_no_test_replaces_a_private_name_of_another_room() -> None:
    replaced = {
        f"{path.relative_to(ROOT)} replaces {name}"
        for path in TESTS
        for name in replaced_names(path)
        if name.split(".")[-1].startswith("_")
        and name.split(".")[1] != path.relative_to(ROOT / "tests").parts[0]
    }
    assert replaced == set()


def test_no_file_and_no_function_grows_too_long() -> None:
    long: list[str] = []
    for path in FILES:
        text = path.read_text()
        if text.count("\n") > 600:  # a cap that never cuts one idea in two
            long.append(f"{path.relative_to(ROOT)} has {text.count(chr(10))} lines")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and (body[-1].end_lineno or 0) - body[0].lineno + 1 > 50:
                    long.append(f"{path.relative_to(ROOT)}:{node.name}")
    assert not long, long


KERNELS = ("njit", "compiled", "inlined", "uncounted")  # decorators of what Numba compiles
COMPILERS = {"jit", "njit", "vectorize", "guvectorize"}  # Numba's own
MOST_PARAMETERS = 8


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [each.arg for each in named if each.arg not in ("self", "cls")]


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = [ast.unparse(each).partition("(")[0].split(".")[-1] for each in function.decorator_list]
    return any(name in KERNELS for name in names)


def own_compilers(tree: ast.AST) -> list[str]:
    """What a file takes of Numba to compile with."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numba":
            found += [alias.name for alias in node.names if alias.name in COMPILERS]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "numba":
            found += [node.attr] if node.attr in COMPILERS else []
    return found


def test_kernels_are_compiled_in_one_place() -> None:
    """Others would hold the interpreter lock, so that searches beside them stand still."""
    naming = {str(p.relative_to(SOURCE)) for p in FILES if own_compilers(tree_of(p))}
    assert naming == {"simulation/compiled.py"}


def test_no_function_has_many_parameters() -> None:
    """But for kernels, which take arrays only, and commands, which have one for each option."""
    many: list[str] = []
    for path in FILES:
        if room_of(path) == "cli":
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_kernel(node):
                names = parameters_of(node)
                if len(names) > MOST_PARAMETERS:
                    many.append(f"{path.relative_to(ROOT)}:{node.name} {names}")
    assert not many, many


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """Our modules that a file names, those that it imports late or for types alone among them."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else node.module for name in whole}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules.keys()


MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}


def test_no_module_imports_itself_in_the_end() -> None:
    """Also inside rooms, and for types alone."""
    graph = {name: imports_of(path, MODULES) - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # a CycleError tells the circle


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=str)
def test_no_import_runs_upward(folder: Path) -> None:
    """In each folder, its modules and subfolders, each taken as one, import without a circle.

    So a module in a subfolder imports from the folders around it only what does not, directly or in
    the end, import the subfolder; and two subfolders do not import each other.
    """
    own = {name: path for name, path in MODULES.items() if path.is_relative_to(folder)}
    own = {name: path for name, path in own.items() if path != folder / "__init__.py"}
    part = {name: path.relative_to(folder).parts[0] for name, path in own.items()}
    graph: dict[str, set[str]] = {}
    for name, path in own.items():
        graph.setdefault(part[name], set()).update(part[to] for to in imports_of(path, own))
    for name, others in graph.items():
        others.discard(name)
    TopologicalSorter(graph).prepare()  # a CycleError tells the circle


# What facade, command line and session say once each, for the same thing.
VIEWS = {"cli", "session", "__init__"}


@pytest.mark.parametrize("kind", [ast.FunctionDef, ast.ClassDef], ids=["functions", "classes"])
def test_what_has_one_name_is_of_one_room(kind: type[ast.FunctionDef | ast.ClassDef]) -> None:
    """A name means one thing; in the files of one room it may be the same step of each of them."""
    rooms: dict[str, set[str]] = {}
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, kind) and not node.name.startswith("_"):
                rooms.setdefault(node.name, set()).add(room_of(path))
    views = VIEWS if kind is ast.FunctionDef else set[str]()
    shared = {name: sorted(where - views) for name, where in rooms.items()}
    assert not {name: where for name, where in shared.items() if len(where) > 1}


FLAG = re.compile(r"(?<![\w-])--[a-z]")
# Texts that hold whole commands but do not begin with one.
PARTS_OF_A_COMMAND = {"--objective training", "--runtime "}


def texts_of(tree: ast.AST) -> list[str]:
    """All texts of a file but docstrings."""
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.body[0] if node.body else None, ast.Expr)
    }
    whole: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            told |= {id(part) for part in node.values}
            whole.append("".join(getattr(part, "value", "X") for part in node.values
                                 if not isinstance(part, ast.FormattedValue)))  # fmt: skip
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
        ):
            whole.append(node.value)
    return whole


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_text_of_the_library_names_an_option(path: Path) -> None:
    """A caller in Python types arguments; `cli/options.py` makes options of them.

    Whole commands, ``placewright ...``, may show what is typed.
    """
    if room_of(path) in ("cli", "__main__"):
        return
    for text in texts_of(tree_of(path)):
        of_command = re.sub(r"placewright .*?(?=[`)]|$)", "", text)
        assert not FLAG.search(of_command) or text in PARTS_OF_A_COMMAND, text


def test_help_starts_without_heavy_libraries() -> None:
    code = (
        "import sys\nimport placewright, placewright.cli\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
        "import placewright.session.session\n"  # what every command of a model needs
        "print([name for name in ('scipy.optimize', 'scipy.sparse') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["[]", "[]"]


def test_all_but_frameworks_placers_and_zoo_load_without_optional_libraries() -> None:
    """Else a command fails for whoever installed one framework, or none."""
    rooms = {room_of(path) for path in FILES} - {"frameworks", "placers", "zoo", "__main__"}
    modules = [
        ".".join(("placewright", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in FILES
        if room_of(path) in rooms and path.name not in ("__init__.py", "__main__.py")
    ]
    assert "placewright.session.search" in modules
    code = (
        "import importlib, sys\n"
        f"for name in {HEAVY!r}: sys.modules[name] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_using_openvino_reports_nothing_to_anybody() -> None:
    """OpenVINO tells a web service of its import, in a process that it forks for that."""
    code = (
        "import sys, time\nforks = []\n"
        "sys.addaudithook(lambda event, _: forks.append(event) if event == 'os.fork' else None)\n"
        "import placewright, openvino\nopenvino.Core()\ntime.sleep(0.5)\nprint(forks)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_nothing_prints_outside_the_command_line() -> None:
    for path in FILES:
        if room_of(path) in {"cli"}:
            continue
        for node in ast.walk(tree_of(path)):
            called = node.func if isinstance(node, ast.Call) else None
            assert not (isinstance(called, ast.Name) and called.id == "print"), path
