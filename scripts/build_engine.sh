#!/usr/bin/env bash
# Build the programs of llama.cpp that Placewright calls into build/llama.cpp/bin.
set -euo pipefail
cd "$(dirname "$0")/.."
pins=requirements-engine.txt
target=build/llama.cpp
programs="llama-bench llama-completion llama-fit-params ggml-rpc-server"
stamp="$(cat "$pins" scripts/build_engine.sh | cksum)"
if [ "$stamp" = "$(cat "$target/built" 2> /dev/null)" ]; then
    exit 0
fi
for tool in cmake c++; do
    if ! command -v "$tool" > /dev/null; then
        echo "no $tool here: the tests of llama.cpp will be skipped" >&2
        exit 0
    fi
done
rm -rf "$target"
mkdir -p "$target/source"
"${PYTHON:-.venv/bin/python}" -m pip download --quiet --no-deps --no-binary :all: --require-hashes \
    -r "$pins" -d "$target"
tar -xzf "$target"/llama_cpp_python-*.tar.gz -C "$target/source" --strip-components=3 \
    --wildcards '*/vendor/llama.cpp/*'
# Kernels of llama.cpp for AMX end with an illegal instruction on a processor that has it.
flags=""
if echo | c++ -mno-amx-tile -mno-amx-int8 -mno-amx-bf16 -x c++ -E - > /dev/null 2>&1; then
    flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
fi
trap 'tail "$target/log" >&2' ERR
cmake -S "$target/source" -B "$target" -DCMAKE_BUILD_TYPE=Release -DGGML_RPC=ON \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_OPENSSL=OFF -DCMAKE_C_FLAGS="${CFLAGS:-} $flags" \
    -DCMAKE_CXX_FLAGS="${CXXFLAGS:-} $flags" > "$target/log" 2>&1
# shellcheck disable=SC2086
cmake --build "$target" --parallel "$(nproc)" --target $programs >> "$target/log" 2>&1
echo "$stamp" > "$target/built"
