"""Makes ``released_placeto_simulator.npz`` again, from a checkout of Placeto's code.

The file holds graphs and placements that were drawn at random, and the runtimes, start times and
peaks of memory that the authors' simulator finds for them: ``tf_sim.py`` and ``tf_pl_simulator.py``
of ``sim/tf_placement_sim``, in github.com/aravic/generalizable-device-placement at the commit
below. They need no package. Names of ops and devices sort in the order of their numbers.

    git clone https://github.com/aravic/generalizable-device-placement placeto
    python tests/data/make_released_placeto_simulator.py placeto NEW.npz

The arrays have a row for each op, output or read of each graph. Columns:

    ops: graph, microseconds, device
    outputs: graph, op that makes it, bytes
    reads: graph, reader, op that makes the tensor, number of the output within that op
    runtime: microseconds of each graph
    start: microseconds of each op
    peaks: bytes of each graph on each device
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

COMMIT = "d9a81a9f6cb05bfc94773722a4e7ead793ca7fd1"
FOLDER = "sim/tf_placement_sim"
DEVICES, GRAPHS, MOST_OPS = 3, 150, 9
# Few values, so that much happens at one instant.
MICROSECONDS = (0, 1, 2, 10, 10, 10, 40)
BYTES = (0, 0, 7600, 7600, 76000, 123457)
Ints = NDArray[np.int64]


def drawn(seed: int, graphs: int = GRAPHS) -> dict[str, Ints]:
    """Random graphs and placements."""
    rng = np.random.default_rng(seed)
    ops, outputs, reads = [], [], []
    for graph in range(graphs):
        made: list[tuple[int, int]] = []  # op, number of the output
        density = rng.choice([0.15, 0.3, 0.6])
        for op in range(int(rng.integers(2, MOST_OPS + 1))):
            ops.append((graph, rng.choice(MICROSECONDS), rng.integers(DEVICES)))
            for maker, output in made:
                if rng.random() < density:
                    reads.append((graph, op, maker, output))
            for output in range(int(rng.choice([0, 1, 1, 1, 2, 3]))):
                made.append((op, output))
                outputs.append((graph, op, rng.choice(BYTES)))
    named = {"ops": ops, "outputs": outputs, "reads": reads}
    return {name: np.array(rows, dtype=np.int64) for name, rows in named.items()}


def authors_simulator(checkout: Path, folder: Path) -> Any:
    """Put their two files into `folder`, and import the class."""
    package = folder / "authors"
    package.mkdir()
    for name in ("__init__.py", "tf_sim.py", "tf_pl_simulator.py"):
        show = ["git", "-C", str(checkout), "show", f"{COMMIT}:{FOLDER}/{name}"]
        text = subprocess.run(show, check=True, capture_output=True).stdout
        (package / name).write_bytes(b"" if name == "__init__.py" else text)
    sys.path[:0] = [str(folder)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # they compare texts and 0 with `is`
        return __import__("authors.tf_pl_simulator").tf_pl_simulator.ImportantOpsSimulator


def name_of(op: int) -> str:
    """Of an op of theirs."""
    return f"op{op:03}"


def simulated(simulator: Any, ops: Ints, outputs: Ints, reads: Ints) -> tuple[float, Any, Any]:
    """Their runtime, start of each op and peak of each device, of one graph."""
    sizes, inputs = defaultdict(list), defaultdict(list)
    for _, maker, size in outputs.tolist():
        sizes[maker].append(size)
    for _, reader, maker, output in reads.tolist():
        inputs[reader].append(f"{name_of(maker)}:{output}")
    nodes, stats, memory = [], [], []
    for op, (_, micros, _) in enumerate(ops.tolist()):
        name = name_of(op)
        nodes.append(SimpleNamespace(name=name, op="Op", device="/gpu:0", input=inputs[op]))
        took = {"all_start_micros": 0, "op_start_rel_micros": 0, "all_end_rel_micros": micros}
        stats.append(SimpleNamespace(node_name=name, output=[], **took))
        kept = SimpleNamespace(output_memory=sizes[op])
        memory.append(SimpleNamespace(node=name, op_memory=kept))
    metagraph = SimpleNamespace(graph_def=SimpleNamespace(node=nodes))
    steps = SimpleNamespace(dev_stats=[SimpleNamespace(device="all", node_stats=stats)])
    names = [f"/gpu:{device}" for device in range(DEVICES)]
    theirs = simulator(metagraph, memory, steps, names)
    placement = {name_of(op): device for op, device in enumerate(ops[:, 2].tolist())}
    runtime, peaks = theirs.simulate(placement, sim_mem_usage=True)
    starts = [theirs.f[name_of(op)].start_time for op in range(len(ops))]
    return runtime, starts, peaks


def answers(checkout: Path, inputs: dict[str, Ints]) -> dict[str, Any]:
    """What their code makes of all graphs."""
    runtimes, starts, peaks = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        simulator = authors_simulator(checkout, Path(folder))
        for graph in range(int(inputs["ops"][-1, 0]) + 1):
            parts = [inputs[part] for part in ("ops", "outputs", "reads")]
            own = simulated(simulator, *(part[part[:, 0] == graph] for part in parts))
            runtimes.append(own[0])
            starts += own[1]
            peaks.append(own[2])
    return {
        "runtime": np.array(runtimes, dtype=np.float64),
        "start": np.array(starts, dtype=np.float64),
        "peaks": np.array(peaks, dtype=np.float64),
    }


def main(checkout: str, target: str) -> None:
    inputs = drawn(0)
    made = answers(Path(checkout).absolute(), inputs)
    np.savez_compressed(target, **inputs, **made)
    print(f"{len(made['runtime'])} graphs with {len(made['start'])} ops")


if __name__ == "__main__":
    main(*sys.argv[1:])
