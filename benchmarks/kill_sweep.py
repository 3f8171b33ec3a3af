"""End commands by signals at random moments, and check that nothing is lost or damaged.

    python -m benchmarks.kill_sweep [--count 60] [--commands place,run] [--seed 0] [--results FILE]

Each trial starts a command beside files of an earlier run and sends SIGINT, SIGTERM or SIGKILL. The
moment is drawn between the start and the duration of the last complete run, after the command has
set its handlers. The trial checks:

- the exit code is 130, 143 or -9; with 0 the command ended earlier, and the trial does not count;
- every earlier file is complete: unchanged, or as the command writes it;
- no process of the command is alive, and only SIGKILL leaves a temporary file;
- complete measured samples still exist;
- the same command, run again, ends with 0 and leaves no temporary file.

Trials continue until the requested number of signals has met each command. Trials in the results
file count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewright.io.written import write_text

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
TEMPORARY = (".partial", ".scratch", "-journal")
PATIENCE_SECONDS = 600.0  # a net: what has not ended by then hangs
TRIALS_PER_MET = 5  # a net: more than this, and moments are drawn wrongly
TWO = ["--runtime", "onnxruntime", "--devices", "cpu:0,cpu:1"]
COMMANDS: Mapping[str, Sequence[str]] = {
    "profile": ["profile", "m.onnx", *TWO, "--remeasure", "-o", "problem.json"],
    "place": ["place", "m.onnx", *TWO, "--remeasure", "--budget", "1s", "-o", "plan.json"],
    "run": ["run", "plan.json", "--runs", "40", "--trace", "trace.json"],
    "train": [
        "train", "--placer", "zero-shot", "--graphs", "problem.json", "--episodes", "40", "-o",
        "policy.safetensors",
    ],
    "bench learned": [
        "bench", "learned", "--models", "", "--data", "workloads", "--placers",
        "random,cem", "--no-controls", "--evaluations", "200", "--seeds", "3", "--workers",
        "2", "--results", "learned.json",
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """A folder with the files of complete runs, from which every trial starts."""

    folder: Path
    seconds: dict[str, float]  # command -> of its latest complete run: other load, other moments

    @classmethod
    def prepared(cls, folder: Path, commands: Sequence[str]) -> Sweep:
        """Run each command once without a signal; `run` and `train` need files of the first two."""
        sys.path.insert(0, str(ROOT / "tests"))
        from platformdirs import user_cache_path
        from support.model_files import CHAIN, make_onnx

        base = folder / "base"
        workloads = base / "work" / "workloads" / "latency" / "made"
        workloads.mkdir(parents=True)
        make_onnx(base / "work")
        (workloads / "chain.json").write_text(json.dumps(CHAIN))
        cache = base / "cache" / "placewright"
        cache.mkdir(parents=True)
        kernels = user_cache_path("placewright") / "kernels"
        kernels.mkdir(parents=True, exist_ok=True)
        (cache / "kernels").symlink_to(kernels.resolve())
        seconds = {}
        needed = ["profile", "place", *commands]
        for name in dict.fromkeys(needed):
            for _ in range(2):  # kernels may be compiled in the first one
                began = time.monotonic()
                done = started(base, name).wait(PATIENCE_SECONDS)
                seconds[name] = time.monotonic() - began
                if done != 0:
                    raise SystemExit(f"{name} ends with {done} undisturbed: {told(base)}")
        return cls(base, seconds)


def started(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start a command in ``work`` of a folder, with the cache beside it, in its own session."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environment["TMPDIR"] = str(folder)
    with (folder / "told").open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "placewright", *COMMANDS[name]],
            cwd=folder / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            start_new_session=True,
        )


def told(folder: Path) -> str:
    return (folder / "told").read_text(errors="replace")[-500:]


def trial(sweep: Sweep, name: str, rng: random.Random) -> dict[str, Any]:
    """Send a signal at a moment, and return the row with the faults as texts."""
    number = rng.choice(SIGNALS)
    moment = rng.uniform(0.0, sweep.seconds[name])
    folder = sweep.folder.parent / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sweep.folder, folder, symlinks=True)
    before = samples(folder)
    process = started(folder, name)
    try:
        code = process.wait(moment)
    except subprocess.TimeoutExpired:
        moment += wait_for_handlers(process)
        process.send_signal(number)
        try:
            code = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return {"signal": number.name, "moment": moment, "faults": ["it does not end"]}
    faults = []
    if code not in (0, CODES[number]):
        faults.append(f"exit code {code}: {told(folder)}")
    if number != signal.SIGKILL and len(told(folder).splitlines()) > 6:
        faults.append(f"more than a line: {told(folder)}")
    if alive := living(process.pid):
        faults.append(f"processes go on: {alive}")
        os.killpg(process.pid, signal.SIGKILL)
    left = temporary_files(folder)
    if left and number != signal.SIGKILL:
        faults.append(f"temporary files: {left}")
    faults += damage(folder, number)
    after = samples(folder)
    lost = [key for key, complete in before.items() if complete and not after.get(key)]
    if lost:
        faults.append(f"{len(lost)} complete samples are lost")
    began = time.monotonic()
    again = started(folder, name).wait(PATIENCE_SECONDS)
    if again != 0:
        faults.append(f"run again: exit code {again}: {told(folder)}")
    else:
        sweep.seconds[name] = time.monotonic() - began
    faults += [f"after the rerun: {fault}" for fault in damage(folder, signal.SIGINT)]
    if left := temporary_files(folder):
        faults.append(f"temporary files after the rerun: {left}")
    return {"signal": number.name, "moment": round(moment, 3), "code": code, "faults": faults}


def met(found: Mapping[str, Any]) -> bool:
    """Whether the signal arrived before the end of the command."""
    return found.get("code") != 0


def wait_for_handlers(process: subprocess.Popen[bytes]) -> float:
    """Wait until a process handles SIGTERM or has ended, and return the seconds.

    Before that, and while the interpreter ends, the interpreter handles signals.
    """
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < PATIENCE_SECONDS:
        status = Path(f"/proc/{process.pid}/status").read_text(errors="replace")
        caught = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
        if not caught or int(caught[0], 16) >> (signal.SIGTERM - 1) & 1:
            break
        time.sleep(0.001)
    return time.monotonic() - began


def living(session: int) -> list[str]:
    """Commands of the processes of a session that still run after a grace period."""
    for _ in range(100):
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                words = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(words)
        if not found:
            return []
        time.sleep(0.1)
    return found


def temporary_files(folder: Path) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.name.endswith(TEMPORARY) or path.name.startswith(("tmp", "placewright-"))
    ]


def samples(folder: Path) -> dict[str, bool]:
    """Key of each measured row -> whether it is complete."""
    store = folder / "cache" / "placewright" / "costs.sqlite"
    if not store.exists():
        return {}
    connection = sqlite3.connect(store)
    try:
        rows = connection.execute("SELECT key, complete FROM samples")
        return {key: bool(done) for key, done in rows}
    finally:
        connection.close()


def damage(folder: Path, number: signal.Signals) -> list[str]:
    """Faults of the files that the commands wrote."""
    from placewright.errors import PlacewrightError, StalePlanError
    from placewright.files.problem_file import read_problem
    from placewright.placers.learned.shared.checkpoint import load_checkpoint
    from placewright.session.plans import read_plan

    readers: dict[str, Callable[[Path], object]] = {
        "problem.json": read_problem,
        "plan.json": read_plan,
        "trace.json": lambda path: json.loads(path.read_text()),
        "learned.json": lambda path: json.loads(path.read_text()),
        "policy.safetensors": load_checkpoint,
    }
    faults = []
    for name, read in readers.items():
        path = folder / "work" / name
        if not path.exists():
            if (folder.parent / "base" / "work" / name).exists():
                faults.append(f"{name} is gone")
            continue
        try:
            read(path)
        except StalePlanError as error:
            if number != signal.SIGKILL:  # between two renames; SECURITY.md says so
                faults.append(f"{name}: {error}")
        except (PlacewrightError, ValueError) as error:
            faults.append(f"{name}: {error}")
    return faults


def campaign(sweep: Sweep, names: Sequence[str], count: int, seed: int, results: Path) -> int:
    """Run trials until `count` signals have met each command, and return rows with faults."""
    known: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}

    def done(name: str) -> int:
        return sum(met(row) for key, row in known.items() if key.startswith(f"{name} seed "))

    for at in range(TRIALS_PER_MET * count):
        for name in names:
            key = f"{name} seed {seed} trial {at}"
            if key in known or done(name) >= count:
                continue
            known[key] = trial(sweep, name, random.Random(key))
            write_text(results, json.dumps(known, indent=1) + "\n")
        counts = {name: done(name) for name in names}
        sys.stdout.write(f"signals that met work: {counts} of {count}\n")
        sys.stdout.flush()
        if min(counts.values()) >= count:
            break
    else:
        raise SystemExit(f"too few signals met work in {at + 1} trials of each command")
    bad = {key: row for key, row in known.items() if row["faults"]}
    for key, row in bad.items():
        sys.stdout.write(f"{key}: {row}\n")
    return len(bad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="signals that meet each command")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="between commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("kill-sweep.json"))
    wanted = parser.parse_args()
    names = wanted.commands.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        sweep = Sweep.prepared(Path(scratch), names)
        bad = campaign(sweep, names, wanted.count, wanted.seed, wanted.results)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
