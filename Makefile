# `make demo` and `make test` are all that a newcomer needs; both set up .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests of language models run the programs of llama.cpp that `make engine` built, if it did.
export PLACEWRIGHT_LLAMA_CPP ?= $(abspath $(wildcard build/llama.cpp/bin))

.PHONY: help setup demo test test-slow test-all engine fuzz fuzz-proofs check lint docs site dist format base lowest clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

setup: $(STAMP)  ## install everything, pinned, into .venv

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24" "setuptools>=77" wheel
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m benchmarks.compile_kernels
	@touch $(STAMP)

demo: setup  ## fit a model into two devices that are each too small for it, and run it
	$(BIN)/python -m benchmarks.demo

test: setup  ## all fast tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(PYTEST_OPTIONS)

test-slow: setup  ## the slow tests alone
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(PYTEST_OPTIONS)

test-all: setup  ## all tests, the slow ones too
	$(BIN)/python -m pytest -n 2 --dist worksteal

engine: setup  ## build llama.cpp, with which the tests of language models are run
	scripts/build_engine.sh

fuzz: setup  ## mutate files of every format; FUZZ="--count 20000 --formats pt2"
	$(BIN)/python -m benchmarks.fuzz $(FUZZ)

fuzz-proofs: setup  ## bounds and proofs against brute force; PROOFS="--problems 10000 --results FILE"
	$(BIN)/python -m benchmarks.proofs $(or $(PROOFS),--problems 40)

check: lint docs  ## ruff, mypy strict, documentation

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup  ## check that the documents name real commands, files and placers
	$(BIN)/python -m pytest -q tests/test_docs.py

site: setup  ## build the documentation site into build/site, warnings are errors
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site

dist:  ## build the source archive and the wheel into dist, and check that an index would render them
	$(PYTHON) -m venv build/dist-tools
	build/dist-tools/bin/python -m pip install --quiet "build>=1.2" "twine>=6.1"
	rm -rf dist
	build/dist-tools/bin/python -m build
	build/dist-tools/bin/twine check --strict dist/*

format: setup  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

base:  ## install without extras into a fresh environment and use it
	PYTHON=$(PYTHON) scripts/base_install.sh

lowest:  ## the same with the lowest versions that pyproject.toml allows
	PYTHON=$(PYTHON) scripts/base_install.sh lowest

clean:  ## remove what was built
	rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache
