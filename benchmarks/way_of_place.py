"""The way of the data through `placewright place`: stays in modules, files, and climbs.

    python -m benchmarks.way_of_place [WORDS OF THE COMMAND]

The program profiles the calls of one command in its main thread. Two consecutive calls of functions
in different modules of the package are a *stay*; each pair of modules counts once. A *climb* is a
stay whose second module lies in a room that imports the room of the first one, so that the reader
goes back up. The second line counts the same for pairs of a caller and the function that it calls:
its climbs are callbacks. The order of the rooms is read from the imports in the source. Code of
modules and classes does not count.

The published figures come from the default command: `place` of a small convolutional network on two
devices of the catalogue, `local-search` with 50 evaluations.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import placewright
from placewright.cli import main

_SOURCE = Path(placewright.__file__).parent
_PACKAGE = "placewright"
_WORDS = (
    "place", "zoo:resnet50/tiny", "--devices", "catalogue:2gpu", "--placer", "local-search",
    "--evaluations", "50", "--quiet",
)  # fmt: skip
_FUNCTION = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS  # flags that code of modules lacks


def room_of(module: str) -> str:
    """The room of a module: ``"session"`` for ``placewright.session.search``."""
    return module.split(".")[1] if "." in module else "__init__"


def rooms_below() -> dict[str, set[str]]:
    """Room -> all rooms that it imports, directly or through others."""
    direct: dict[str, set[str]] = {}
    for path in _SOURCE.rglob("*.py"):
        room = path.relative_to(_SOURCE).parts[0].removesuffix(".py")
        names = direct.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module.split(".")[1]} if f"{_PACKAGE}." in node.module else set()
    below = {room: set(names) - {room} for room, names in direct.items()}
    for _ in below:
        for names in below.values():
            names |= {far for near in names for far in below.get(near, ())}
    return below


Pairs = dict[tuple[str, str], None]  # of modules, in the order of their first call


def pairs_of(words: list[str]) -> tuple[Pairs, Pairs]:
    """Pairs of modules of one command: by consecutive calls, and by caller and called function."""
    stays: Pairs = {}
    calls: Pairs = {}
    last = ""

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal last
        module = _module_of(frame) if event == "call" else ""
        if not module:
            return
        stays[last, module] = None
        last = module
        caller = frame.f_back
        while caller is not None and not _module_of(caller):
            caller = caller.f_back
        if caller is not None:
            calls[_module_of(caller), module] = None

    sys.argv = [_PACKAGE, *words]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.setprofile(note)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
    return stays, calls


def _module_of(frame: FrameType) -> str:
    """The module of a function of the package; "" for other frames."""
    if frame.f_code.co_flags & _FUNCTION != _FUNCTION:
        return ""
    module = str(frame.f_globals.get("__name__", ""))
    return module if module.startswith(f"{_PACKAGE}.") else ""


def way_text(pairs: Pairs, what: str) -> str:
    """The figures of some pairs in a line, and the rooms between which they climb in another."""
    below = rooms_below()
    changes = [(one, other) for one, other in pairs if one and one != other]
    climbs = [
        (room_of(one), room_of(other))
        for one, other in changes
        if room_of(one) in below.get(room_of(other), ())
    ]
    rooms = Counter(f"{one} -> {other}" for one, other in climbs).most_common()
    files = len({module for pair in changes for module in pair})
    listed = ", ".join(f"{text} {count}" for text, count in rooms)
    return f"{len(changes)} {what} in {files} files, {len(climbs)} climbs: {listed}"


if __name__ == "__main__":
    consecutive, called = pairs_of(sys.argv[1:] or list(_WORDS))
    sys.stdout.write(f"{way_text(consecutive, 'stays')}\n{way_text(called, 'calls')}\n")
