# `make train` and `make test` do everything from a bare checkout: Python 3.11+, pip, a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
CONFIG ?= exabooster_ppo
MINUTES ?= 10
BENCH ?= --quick
# MPI=0 leaves out mpi4py, mpi4jax and the MPI library itself: everything for one process still works
MPI ?= 1
# nvcc without CUDA headers breaks mpi4jax's build; this forces its CPU build
MPI4JAX_ENV := CUDA_PATH=/dev/null PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: help train test test-all test-slow chaos bench lint types docs lock clean install
.DEFAULT_GOAL := help

help:
	@echo "make train       train CONFIG=$(CONFIG) and write its report (runs/)"
	@echo "make test        the quick tests: every part once, in minutes"
	@echo "make test-all    the other tests of the gate: all cases, kills, jobs of many ranks"
	@echo "make test-slow   long runs: learning curves, soak tests"
	@echo "make chaos       random kills, full disks, damaged files and bad inputs for MINUTES=$(MINUTES)"
	@echo "make bench       training speed beside other libraries, which get .venv-bench (BENCH=$(BENCH))"
	@echo "make lint types  ruff and mypy"
	@echo "make docs        the site, in docs/_build/html"

install: .venv/.installed

.venv/.uv:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet uv
	@touch $@

.venv/.dependencies: .venv/.uv requirements.lock
	awk -v mpi=$(MPI) '/^[A-Za-z]/ {keep = mpi || !/^(mpi4py|mpich)==/} keep' requirements.lock > .venv/requirements.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r .venv/requirements.txt
ifeq ($(MPI),1)
	$(MPI4JAX_ENV) $(BIN)/uv pip install --quiet --python $(BIN)/python --no-build-isolation --no-cache \
	  "$$(sed -n 's/.*"\(mpi4jax==[^"]*\)".*/\1/p' pyproject.toml)"
endif
	@touch $@

COMPILED := $(shell find jaxrl_hpc -name '*.cc' -o -name '*.h')
.venv/.installed: .venv/.dependencies pyproject.toml setup.py $(COMPILED)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps -e .
	@touch $@

train: install
	$(BIN)/jaxrl-hpc train $(CONFIG) --overwrite
	$(BIN)/jaxrl-hpc report runs/$(CONFIG)

# Slurm and Chromium are used where they are installed; else the tests that need them are skipped and listed as such.
# Where the time went: python -m tests.times .pytest_cache/test.xml .pytest_cache/test-all.xml
PYTEST = $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 15 \
  --junitxml .pytest_cache/$@.xml
test: install
	$(PYTEST)

test-all: install
	$(PYTEST) -m "full and not slow"

test-slow: install
	$(BIN)/python -m pytest -q -m slow --timeout 7200

# every outcome is classified and added to docs/results/chaos.md; a case is repeated by --case
chaos: install
	$(BIN)/python scripts/chaos.py --minutes $(MINUTES)

# The peers have requirements of their own. torch: the CPU build if pip finds one; else set TORCH_INDEX to
# PyTorch's index of CPU builds, or plain torch brings gigabytes of CUDA libraries
PEERS := .venv-bench/bin
TORCH := torch==2.13.0
.venv-bench/.installed: requirements.lock
	$(PYTHON) -m venv .venv-bench
	$(PEERS)/pip install --quiet "$(TORCH)+cpu" || \
	  $(PEERS)/pip install --quiet $(TORCH_INDEX:%=--index-url %) "$(TORCH)"
	$(PEERS)/pip install --quiet "$$(sed -n 's/^\(jax==[^ ]*\).*/\1/p' requirements.lock)" \
	  "$$(sed -n 's/^\(gymnax==[^ ]*\).*/\1/p' requirements.lock)" rejax==0.1.3 sbx-rl==0.28.0 stable-baselines3==2.9.2 flashbax \
	  "gymnasium[atari]" opencv-python-headless
	@touch $@

bench: install .venv-bench/.installed
	$(BIN)/jaxrl-hpc bench train $(BENCH)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# strict: a warning is an error; no network. tests/test_site.py does the same in the gate
docs: install
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

# every dependency pinned with hashes; mpi4jax apart, because it is built against the MPI in the venv
lock: .venv/.uv
	$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --no-emit-package mpi4jax pyproject.toml --extra mpi --extra dev --extra external --extra peers \
	  --extra tracking --extra report --extra elastic --extra build --extra docs -o requirements.lock

clean:
	rm -rf .venv .venv-bench build *.egg-info
