"""The isolated process: ``python -m placewright.cli.isolated_process JSON WORDS...``.

It confines itself before anything but Python's and this package's own code is imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from placewright.isolation.confined import Limits, confine

_EXIT_WRONG_INPUT = 2


def main() -> None:
    """Confine this process, then run the command."""
    told = json.loads(sys.argv[1])
    readable = [Path(name) for name in told["readable"]]
    try:
        confine(readable, [Path(told["writable"])], Limits(**told["limits"]), told["parent"])
    except (OSError, ValueError) as error:
        sys.stderr.write(f"placewright: --isolate is not possible here: {error}; leave it out\n")
        sys.stderr.flush()
        os._exit(_EXIT_WRONG_INPUT)
    from placewright.cli import isolate
    from placewright.cli import main as run
    from placewright.io.written import tell_final_folders

    tell_final_folders(told["final"])
    isolate.within_isolation({name: Path(path) for name, path in told["outputs"].items()})
    sys.argv = ["placewright", *sys.argv[2:]]
    run()


if __name__ == "__main__":
    main()
