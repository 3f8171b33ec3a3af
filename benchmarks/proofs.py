"""Check the simulator, bounds, `optimal` and `infeasible` on random problems.

    python -m benchmarks.proofs [--models event,max-load] [--problems 10000] [--changes 200]
                                [--mutations 1000] [--simulator 2000]
                                [--methods cp-sat,maxload-ip]
                                [--results docs/results/proofs.json]

Each problem is solved by brute force over all placements and, under `event`, all orders. Every
method that proves something must agree. The results file is written during the campaign, and the
same command resumes it. `--changes N` counts, over N problems, those whose best value changes
without a feature. `--mutations N` breaks each implication of a program in turn, and counts the
problems until a false claim appears, at most N. `--simulator N` compares the simulator with plain
references (`tests/simulation/oracle.py`, `published_oracles.py`,
`tests/testing/sequential_truth.py`) on placements of N problems. `--methods NAMES` asks these
alone, about problems without the features that one of them refuses.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
MODELS = "event,max-load,subgraph,subgraph-ip,placeto,sequential"
BATCH = 20  # problems between two writes


def main() -> None:
    """Run the campaign; exit with 1 if a claim is false."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--problems", type=int, default=0, help="of each execution model, in all")
    parser.add_argument("--methods", type=known_methods, default=(), help="to ask; default all")
    parser.add_argument("--changes", type=int, default=0, help="problems without each feature")
    parser.add_argument("--mutations", type=int, default=0, help="problems at most for each")
    parser.add_argument("--simulator", type=int, default=0, help="problems of each model")
    parser.add_argument("--results", type=Path, help="JSON file, added to")
    wanted = parser.parse_args()
    models = wanted.models.split(",")
    known: dict[str, Any] = {}
    if wanted.results is not None and wanted.results.exists():
        known = json.loads(wanted.results.read_text())
    for model in models if wanted.changes else ():
        count_changes(model, wanted, known)
    if wanted.mutations:
        break_each(models, wanted, known)
    for batch in (compare_simulator, one_batch):
        while any([batch(model, wanted, known) for model in models]):
            pass  # by turns, so that all models have as many problems at any time
    parts = [known.get(part, {}) for part in ("problems", "simulator")]
    names = [*models, *(drawn_for(model, wanted) for model in models)]
    rows = [part.get(name, {}) for part in parts for name in names]
    sys.exit(1 if any(row.get("faults") for row in rows) else 0)


def known_methods(text: str) -> tuple[str, ...]:
    """Methods by name."""
    from testing.proof_methods import METHODS

    names = tuple(text.split(","))
    for name in names:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(
                f"unknown method '{name}'; available: {', '.join(METHODS)}"
            )
    return names


def drawn_for(model: str, wanted: Any) -> str:
    """Name of the row of an execution model's problems."""
    return f"{model} for {', '.join(wanted.methods)}" if wanted.methods else model


def compare_simulator(model: str, wanted: Any, known: dict[str, Any]) -> bool:
    """Compare the simulator with the reference on further problems; False if all are done."""
    from testing.proof_campaign import disagreements
    from testing.proof_problems import drawn_features

    row = known.setdefault("simulator", {}).setdefault(
        model,
        {"problems": 0, "placements": 0, "feasible": 0, "features": {}, "faults": []},
    )
    first, features = row["problems"], Counter(row["features"])
    stop = min(first + BATCH, wanted.simulator)
    if first >= stop:
        return False
    for seed in range(first, stop):
        tried, feasible, found = disagreements(model, seed)
        row["placements"] += tried
        row["feasible"] += feasible
        row["faults"] += found
        features.update(drawn_features(seed, model))
    row["problems"], row["features"] = stop, dict(sorted(features.items()))
    write(wanted, known)
    return True


def one_batch(model: str, wanted: Any, known: dict[str, Any]) -> bool:
    """Check further problems of an execution model; False if all are done."""
    from testing.proof_campaign import Tally, look_at
    from testing.proof_methods import METHODS
    from testing.proof_problems import LOAD, REFUSED

    if not wanted.problems:
        return False
    row = known.setdefault("problems", {}).setdefault(
        drawn_for(model, wanted),
        {"problems": 0, "without a placement": 0, "core-seconds": 0.0, "methods": {}, "faults": []},
    )
    first = row["problems"]
    stop = min(first + BATCH, wanted.problems)
    if first >= stop:
        return False
    refused = {what: None for name in wanted.methods for what in REFUSED.get(name, ())}
    without = tuple(refused) if model == LOAD else ()
    tally, began = Tally(), time.process_time()
    for seed in range(first, stop):
        look_at(model, seed, tally, wanted.methods or METHODS, without)
    row["problems"] = stop
    row["without a placement"] += tally.infeasible
    row["core-seconds"] = round(row["core-seconds"] + time.process_time() - began, 1)
    row["faults"] += tally.faults
    for fault in tally.faults:
        sys.stdout.write(f"{fault}\n")
    for name, counts in tally.counts.items():
        if counts:
            row["methods"][name] = dict(Counter(row["methods"].get(name, {})) + counts)
    for counts in row["methods"].values():
        share = counts.get("optimal", 0) / max(1, counts.get("with a placement", 0))
        counts["share optimal"] = round(share, 3)
    write(wanted, known)
    return True


def count_changes(model: str, wanted: Any, known: dict[str, Any]) -> None:
    """Share of problems that each feature changes."""
    from testing.proof_campaign import changes

    if known.get("changes", {}).get(model, {}).get("problems") == wanted.changes:
        return
    found = changes(model, range(wanted.changes))
    shares = {name: round(share, 3) for name, share in sorted(found.items())}
    known.setdefault("changes", {})[model] = {"problems": wanted.changes, "shares": shares}
    write(wanted, known)


def break_each(models: list[str], wanted: Any, known: dict[str, Any]) -> None:
    """Problems until a broken implication shows a false claim."""
    from testing.proof_campaign import Tally, ask, least_value, look_at
    from testing.proof_mutations import MUTATIONS

    rows = known.setdefault("mutations", {})
    for name, mutation in MUTATIONS.items():
        if mutation.model not in models or rows.get(name, {}).get("seen by"):
            continue
        tally, seed = Tally(), mutation.first - 1
        own = None if mutation.problem is None else mutation.problem()
        best = 0.0 if own is None else least_value(own)
        with mutation.patch():
            if own is not None:
                ask("its own problem", own, best, tally, mutation.methods)
            while not any(": false " in fault for fault in tally.faults):
                seed += 1
                if seed >= mutation.first + wanted.mutations:
                    break
                look_at(mutation.model, seed, tally, mutation.methods)
        seen = [fault for fault in tally.faults if ": false " in fault]
        if tally.faults and not seen:
            raise RuntimeError(
                f"mutation '{name}' shows nothing, for it ends in an error: {tally.faults[0]}"
            )
        rows[name] = {
            "execution model": mutation.model,
            "problems": tally.problems,
            "seen by": seen[0] if seen else None,
        }
        sys.stdout.write(f"{name}: {rows[name]}\n")
        sys.stdout.flush()
        write(wanted, known)


def write(wanted: Any, known: dict[str, Any]) -> None:
    """Write the results file."""
    from placewright.io.written import write_text

    if wanted.results is not None:
        write_text(wanted.results, json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
