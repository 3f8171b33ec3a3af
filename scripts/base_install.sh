#!/usr/bin/env bash
# Installs the package without extras into a fresh environment and uses it there.
# usage: scripts/base_install.sh [lowest]
#   With "lowest": the lowest versions that pyproject.toml allows, not those of requirements.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=$PWD/build/base
constraints=requirements.lock
rm -rf "$folder" build/lib # a module that was removed from src must not come back from build/lib
mkdir -p "$folder"
if [ "${1:-}" = lowest ]; then
    constraints=$folder/lowest.txt
    "$python" - > "$constraints" <<'PYTHON'
import re
import tomllib

with open("pyproject.toml", "rb") as stream:
    for dependency in tomllib.load(stream)["project"]["dependencies"]:
        name, version = re.match(r"([\w-]+)>=([\d.]+)", dependency).groups()
        print(f"{name}=={version}.*")
PYTHON
fi
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$constraints" . || {
    echo "base install: pip could not install the package with the versions of $constraints (no package index?)" >&2
    exit 1
}
cd "$folder"
venv/bin/python -c "import placewright"
venv/bin/placewright --help > help.txt
venv/bin/placewright placers > placers.txt # imports every placer that the base install has
if [ "${1:-}" = lowest ]; then # compiles kernels and calls the solvers, which takes minutes
    venv/bin/placewright place "$OLDPWD/tests/golden/small_workload.json" --objective throughput \
        --evaluations 50 --quiet -o plan.json > place.txt
fi
echo "base install: it works with the versions of ${constraints#"$OLDPWD/"}"
