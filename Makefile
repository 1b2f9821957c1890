# Everything a person needs; each target sets up what it needs by itself.
#   make demo        a small cluster of network namespaces, real traffic (MODE=iptables picks a mode)
#   make test        all tests        make check       formatting, lint, types, layers
#   make test-kernel kernel tests     make test-api    tests against a real API server
#   make bench       the benchmarks

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
MODE ?= nftables
PYTEST := $(BIN)/pytest

.DEFAULT_GOAL := help
.PHONY: help setup packages demo check format test test-fast test-kernel test-api bench requirements clean

help:
	@sed -n '2,5p' Makefile | cut -c3-

# The stamp is newer than the pinned requirements exactly when the environment holds them.
$(VENV)/stamp: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Bytecode as an installation has it, even where Python is told not to write any by itself:
# without it every start compiles two hundred modules.
setup: $(VENV)/stamp
	@$(BIN)/python -m compileall -q src

# Debian packages the lab and the kernel tests use; installed when root and missing.
packages:
	@sh scripts/packages.sh

demo: setup packages
	$(BIN)/kpctl demo --mode $(MODE)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup packages
	$(PYTEST)

# The quick part: no root, no kernel, no API server.
test-fast: setup
	$(PYTEST) -m "not kernel and not api and not uml"

test-kernel: setup packages
	$(PYTEST) -m "kernel or uml"

test-api: setup packages
	$(PYTEST) -m api

bench: setup packages
	$(BIN)/kpctl bench

# Pin anew: hashes, no addresses.
requirements:
	$(PYTHON) -m venv build/pin && build/pin/bin/pip install --quiet pip-tools
	cd requirements && for name in runtime dev; do \
	  CUSTOM_COMPILE_COMMAND="make requirements" ../build/pin/bin/pip-compile --quiet --upgrade \
	    --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras \
	    --allow-unsafe --output-file $$name.txt $$name.in || exit 1; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
