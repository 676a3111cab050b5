# `make demo` and `make test` need Python 3.11 or newer and make, nothing else: they set up .venv themselves.
#
#   make test TORCH=2.14.1              another torch (any version pip can find)
#   make test PYTHON=python3.12         another Python for .venv
#   make test PIP_ARGS='--index-url URL'   where pip looks, e.g. an index of CPU builds of torch

PYTHON ?= python3
VENV ?= .venv
TORCH ?=
PIP_ARGS ?=
PYTEST_ARGS ?=
SUITE_ARGS ?=
PARITY_ARGS ?=
MOONCAKE_VENV ?= .venv-mooncake
MOONCAKE_ARGS ?=

BIN := $(VENV)/bin
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU')
CONSTRAINT := $(if $(TORCH),,$(if $(filter-out 0,$(HAS_GPU)),,--constraint constraints.txt))
STAMP := $(VENV)/.installed$(if $(TORCH),-torch-$(TORCH))

.PHONY: help install demo test test-gpu suite parity upstream parity-mooncake lint bench clean distclean

help:
	@echo 'make demo       set up .venv and show what hangcheck finds'
	@echo 'make test       set up .venv, lint, run the whole CPU suite'
	@echo 'make test-gpu   the GPU tests, on a machine with GPUs'
	@echo 'make suite      wrong and right programs: precision and recall, and those of plain gloo'
	@echo 'make parity     1,000 random programs, simulated and on real gloo'
	@echo 'make parity-mooncake  the Mooncake model and the real Mooncake backend, which it sets up in .venv-mooncake'
	@echo 'make upstream   SGLang, Megatron-core and vLLM from their wheels, unmodified; fetches them (about 1 GB)'
	@echo 'make lint       ruff and mypy'
	@echo 'make bench      time the bring-up and schedules a second, print tables'
	@echo 'make clean      remove caches and build output; distclean: .venv too'

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/hangcheck demo

test: lint
	$(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest --gpu tests/gpu $(PYTEST_ARGS)

suite: $(STAMP)
	$(BIN)/python -m tests.suite.run $(SUITE_ARGS)

parity: $(STAMP)
	$(BIN)/python -m tests.parity.run $(PARITY_ARGS)

parity-mooncake: $(STAMP)
	$(BIN)/python -m tests.parity_mooncake.run --venv $(MOONCAKE_VENV) --pip-args='$(PIP_ARGS)' $(MOONCAKE_ARGS)

upstream: $(STAMP)
	$(BIN)/python -m tests.upstream.fetch
	$(BIN)/python -m pytest -m upstream tests/upstream $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/bring_up.py
	$(BIN)/python benchmarks/isolation.py
	$(BIN)/python benchmarks/explore.py
	$(BIN)/python benchmarks/elastic.py

# The stamp lies inside .venv and is named after the torch that was asked for, so it goes with .venv, and another
# TORCH installs anew.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	rm -f $(VENV)/.installed*
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS) $(CONSTRAINT) \
		--editable '.[test,dev,kernels,dask]' $(if $(TORCH),'torch==$(TORCH)')
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "hangcheck needs Python 3.11 or newer, and $(PYTHON) is: $$($(PYTHON) --version 2>&1 || true)"; \
		echo 'name another one: make PYTHON=/path/to/python3.12'; exit 1; } >&2
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find simulator refimpl tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV) $(MOONCAKE_VENV)
