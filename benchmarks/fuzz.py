"""Mutate files of every readable format, and check that each is read or refused.

    python -m benchmarks.fuzz [--count 1000] [--formats onnx,xml] [--seed 0] [--results FILE]
                           [--seconds 60]

The results file adds up the inputs of all seeds of a format. A format whose seed is in the file is
not run again. With `--seconds` a format ends early, and the finished inputs count.

A child process reads the inputs. The program counts these outcomes:

- read, or refused by an error of the package;
- an exception of another type, or a crash of the child;
- a hang: more than 5 s of processor time for one input, or five minutes in which the child waits;
- an event that no reader may cause: a new process, a changed file, a socket.

Inputs that are neither read nor refused are stored beside the results for another run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HANG_SECONDS = 5.0  # of the processor
WAIT_SECONDS = 300.0
FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
    "subprocess.Popen", "socket.connect", "socket.bind", "os.remove", "os.rename", "os.rmdir",
    "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
)  # fmt: skip
INTERESTING = (b"\x00", b"\xff", b"\x80", b"\xff\xff\xff\xff", b"\x7f", b"9" * 30, b"[" * 300)
WORDS = (b'"', b"{", b"}", b"null", b"-1", b"1e999", b"NaN", b"../x", b"\\u0000", b"\\ud800", b"0")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Change an input in one to eight places: bits, runs, deletions, repetitions, nasty parts."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(found) + 1)
        length = min(rng.choice((1, 1, 2, 4, 16, 64)), len(found) - at)
        match rng.randrange(7):
            case 0 if length:
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                found[at : at + length] = rng.randbytes(length)
            case 2:
                del found[at : at + length]
            case 3:
                found[at:at] = found[at : at + length] * rng.choice((1, 2, 50))
            case 4:
                found[at : at + length] = rng.choice(INTERESTING)
            case 5:
                found[at:at] = rng.choice(WORDS)
            case 6:
                other = rng.randrange(len(found) + 1)
                found[at:at] = found[other : other + 32]
    return bytes(found)


def corpus(folder: Path) -> dict[str, tuple[Callable[[], list[bytes]], str]]:
    """Format -> function that makes its seeds, and the suffix of the files."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.model_files import CHAIN, make_onnx, make_pb, make_pt2, make_tflite, make_xml

    def bytes_of(make: Callable[[Path], Path]) -> Callable[[], list[bytes]]:
        return lambda: [make(folder).read_bytes()]

    def held(*contents: bytes) -> Callable[[], list[bytes]]:
        return lambda: list(contents)

    def make_gguf(folder: Path) -> Path:
        from dataclasses import replace

        import numpy as np
        from support.gguf_files import MADE, write_gguf

        made = replace(MADE["latent"], dtype="Q8_0")
        write_gguf(folder / "m.gguf", made, np.random.default_rng(0), vocabulary=64)
        return folder / "m.gguf"

    plans = ROOT / "tests" / "data" / "plans"
    cluster = b"format: placewright.cluster/1\ndevices:\n- {name: cpu:0, memory: 2GiB}\n"
    cluster += b"- {name: cpu:1, streams: 2}\nlinks:\n- {from: cpu:0, to: cpu:1, both: true}\n"
    return {
        "onnx": (bytes_of(make_onnx), ".onnx"),
        "onnx-nodes": (bytes_of(make_onnx), ".onnx"),
        "xml": (bytes_of(make_xml), ".xml"),
        "tflite": (bytes_of(make_tflite), ".tflite"),
        "pb": (bytes_of(make_pb), ".pb"),
        "pt2": (bytes_of(make_pt2), ".pt2"),
        "gguf": (bytes_of(make_gguf), ".gguf"),
        "workload": (held(json.dumps(CHAIN).encode()), ".json"),
        "problem": (held((plans / "pinned.problem.json").read_bytes()), ".json"),
        "plan": (held(*((plans / f"{n}.json").read_bytes() for n in ("pinned", "lost"))), ".json"),
        "cluster": (held(cluster), ".yaml"),
    }


def reader(name: str) -> Callable[[Path], object]:
    """The reader of a format, imported in the child."""
    from placewright.files.cluster_file import read_cluster
    from placewright.session.models import load_model
    from placewright.session.plans import read_plan

    if name == "plan":
        return read_plan
    if name == "cluster":
        return read_cluster
    runtime = {"onnx-nodes": "onnxruntime", "pt2": "torch"}.get(name)
    return lambda path: load_model(str(path), runtime=runtime)


def work(name: str, path: Path, channel: Connection) -> None:
    """Read inputs in the child and send the outcomes."""
    import logging
    import resource

    from placewright.errors import PlacewrightError

    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    read = reader(name)
    seen: list[str] = []
    watching = False

    scratch = path.parent / "scratch"  # where readers may put what they remove again
    scratch.mkdir(exist_ok=True)
    tempfile.tempdir = str(scratch)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching or str(arguments[:1]).startswith(f"('{scratch}/"):
            return
        if event in FORBIDDEN:
            seen.append(f"{event} {str(arguments)[:200]}")
        is_file = event == "open" and isinstance(arguments[0], str | bytes)
        if is_file and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            seen.append(f"wrote {arguments[0]!r}")

    sys.addaudithook(watch)
    while is_watched := channel.recv():
        seen.clear()
        watching = is_watched == "watched"  # not the first one: libraries make caches when imported
        try:
            read(path)
            answer = "read"
        except PlacewrightError as error:
            answer = "refused" if len(str(error)) < 100_000 else "a message without end"
        except BaseException as error:
            answer = f"exception {type(error).__name__}: {str(error)[:200]}"
        watching = False
        if left := sorted(scratch.iterdir()):
            seen.append(f"left {left[0].name}")
        channel.send(f"event {seen[0]}" if seen else answer)


def children(name: str, path: Path) -> Iterator[tuple[Any, Connection]]:
    """Yield a child that has read the unchanged file; a new child on each request."""
    context = multiprocessing.get_context("spawn")
    while True:
        mine, its = context.Pipe()
        process = context.Process(target=work, args=(name, path, its), daemon=True)
        process.start()
        its.close()
        yield process, mine


def answers(process: Any, channel: Connection, limit: float) -> bool:
    """Wait for an answer of a child; False after its limit of processor time or waiting."""
    used, ends = processor_seconds(process.pid), time.monotonic() + WAIT_SECONDS + limit
    while not channel.poll(1.0):
        if processor_seconds(process.pid) - used > limit or time.monotonic() > ends:
            return channel.poll(0.0)
    return True


def processor_seconds(process: int) -> float:
    """Processor seconds of all threads of a process; 0 if unknown."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def campaign(name: str, seeds: list[bytes], suffix: str, wanted: Any, folder: Path) -> Counter[str]:
    """Count the outcomes of mutated inputs."""
    rng = random.Random(f"{wanted.seed} {name}")
    path = folder / f"input{suffix}"
    found: Counter[str] = Counter()
    started = children(name, path)
    process, channel = next(started)
    ends = time.monotonic() + wanted.seconds
    for number in range(-1, wanted.count):
        if number > 0 and time.monotonic() > ends:
            break
        data = seeds[0] if number < 0 else mutated(rng.choice(seeds), rng)
        path.write_bytes(data)
        begin = time.monotonic()
        try:
            limit = 600.0 if number < 0 else HANG_SECONDS  # the first one imports the libraries
            channel.send("first" if number < 0 else "watched")
            answer = channel.recv() if answers(process, channel, limit) else "hang"
        except (EOFError, OSError):
            process.join()
            answer = f"crash {process.exitcode}"
        if number < 0:
            if answer != "read":
                raise SystemExit(f"{name}: the unchanged seed is not read: {answer}")
            continue
        found[answer if answer in ("read", "refused") else answer.split(" ")[0]] += 1
        if answer not in ("read", "refused"):
            kept = wanted.kept / f"{name}-{number}{suffix}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data)
            took = time.monotonic() - begin
            sys.stdout.write(f"{name} {number}: {answer} ({took:.1f} s), {kept}\n")
        if answer == "hang" or answer.startswith("crash"):
            process.kill()
            process, channel = next(started)
            path.write_bytes(seeds[0])
            channel.send("first")
            channel.recv()
    process.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="inputs of each format")
    parser.add_argument("--formats", default="", help="names between commas; all without")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="of each format, at most")
    parser.add_argument("--results", type=Path, help="JSON file of the counts, added to")
    parser.add_argument("--kept", type=Path, default=Path("fuzz-findings"))
    wanted = parser.parse_args()
    from placewright.io.written import write_text

    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, (make, suffix) in corpus(folder).items():
            if wanted.formats and name not in wanted.formats.split(","):
                continue
            seeds = make()
            within = folder / name
            within.mkdir()
            for beside in (*folder.glob("m.bin"), *(ROOT / "tests/data/plans").iterdir()):
                target = "input.bin" if beside.name == "m.bin" else beside.name
                (within / target).write_bytes(beside.read_bytes())
            known: dict[str, Any] = {}
            if wanted.results is not None and wanted.results.exists():
                known = json.loads(wanted.results.read_text())
            row = known.setdefault(name, {"inputs": 0, "seconds": 0, "seeds": []})
            if wanted.seed in row["seeds"]:
                continue
            begin = time.monotonic()
            found = campaign(name, seeds, suffix, wanted, within)
            bad += sum(count for what, count in found.items() if what not in ("read", "refused"))
            took = round(time.monotonic() - begin)
            sys.stdout.write(f"{name}: {dict(sorted(found.items()))} in {took} s\n")
            sys.stdout.flush()
            row["seeds"].append(wanted.seed)
            for what, count in (("inputs", found.total()), ("seconds", took), *found.items()):
                row[what] = row.get(what, 0) + count
            if wanted.results is not None:
                write_text(wanted.results, json.dumps(known, indent=1) + "\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
