# Everything a person needs; each target sets up what it needs by itself.
#   make demo        a small cluster of network namespaces, real traffic (MODE=iptables picks a mode)
#   make test        all tests        make check       formatting, lint, types, layers
#   make test-kernel kernel tests     make test-kernels   in Debian's kernels 6.1 and 6.12, under QEMU
#   make test-api    tests against a real API server
#   make test-cluster   the smoke test of a real cluster   make test-e2e   upstream's own tests in it (MODE=…)
#   make test-browser tests of the dashboard in Chromium
#   make bench       the benchmarks   make docs        the documentation as a site
#   make fuzz        fuzzing, MINUTES=60   make soak   a day of churn in minutes, in every mode
#   make image       an OCI image     make zipapp, deb, dist   one file; a Debian package; wheel and sdist

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
MODE ?= nftables
# Every process of a parallel run imports all tests: their bytecode is kept, even where Python is
# told not to write any.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

# Processes that run tests side by side; JOBS=0 is one test after the other. Most tests wait for
# something else than a processor, so there may be more than processors.
JOBS ?= $(shell n=$$(nproc); echo $$((n < 3 ? 3 * n : 8)))
PARALLEL := -n $(JOBS) --dist loadscope --no-loadscope-reorder

# ARCH=arm64 builds for another machine. Packages come from where this machine's apt and pip are
# configured to get them, or APT_SOURCE=FILE (sources of apt), PIP_OPTIONS="PIP_INDEX_URL=…".
ARCH ?= amd64
APT_SOURCE ?=
PIP_OPTIONS ?=
PIP := $(PIP_OPTIONS) $(BIN)/python -m pip install --quiet --disable-pip-version-check
PACK := $(PIP_OPTIONS) $(BIN)/python -m scripts.pack

.DEFAULT_GOAL := help
.PHONY: help setup packages programs demo-packages cluster-packages demo check format test test-fast test-kernel test-kernels \
	test-api test-versions test-image test-cluster test-e2e test-browser transcript docs reference recording screenshots image image-twice zipapp deb dist \
	bench fuzz soak requirements clean

help:
	@sed -n '2,10p' Makefile | cut -c3-

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp is newer than the pinned requirements exactly when the environment holds them.
$(VENV)/runtime: requirements/runtime.txt | $(BIN)/python
	$(PIP) --require-hashes -r $<
	touch $@

$(VENV)/stamp: requirements/dev.txt requirements/docs.txt pyproject.toml | $(BIN)/python
	$(PIP) --require-hashes -r requirements/dev.txt -r requirements/docs.txt
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

# Bytecode as an installation has it, even where Python is told not to write any by itself:
# without it every start compiles two hundred modules.
setup: $(VENV)/stamp
	@$(BIN)/python -m compileall -q src

# Debian packages the lab and the kernel tests use; installed when root and missing.
packages:
	@PYTHON=$(PYTHON) sh scripts/packages.sh test

# What tests run against and Go must build first.
programs: setup
	@$(BIN)/python -m scripts.programs

# The demo runs from the source and fetches nothing but what it uses.
demo-packages:
	@PYTHON=$(PYTHON) sh scripts/packages.sh demo

demo: demo-packages $(VENV)/runtime
	PYTHONPATH=src $(BIN)/python -c 'from kpctl.cli import main; main()' demo --mode $(MODE)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What a real cluster uses beside the programs that are built with Go.
cluster-packages:
	@PYTHON=$(PYTHON) sh scripts/packages.sh cluster

# What people can get is built and run by test-image: that takes minutes and a package source.
test: packages programs
	$(PYTEST) $(PARALLEL) -m "not image and not kernels"

# The quick part: no root, no kernel, no API server.
test-fast: setup
	$(PYTEST) $(PARALLEL) -m "not kernel and not api and not uml and not image and not kernels and not cluster"

# KUBEPROXY_VARIANTS=all runs each flow in each family alone as well, not only in both at once.
test-kernel: packages programs
	$(PYTEST) $(PARALLEL) -m "kernel or uml"

# Every mode in kernels that operators run. KERNELS names packages of Debian, or .deb files where apt
# has none: make test-kernels KERNELS="linux-image-amd64 /tmp/linux-image-5.10.0-35-amd64_….deb".
# ARGUMENTS="-k 'nftables and drift'" runs a part. Results are kept, and docs/kernels.md is made of them.
# KUBEPROXY_VARIANTS=all runs each flow in each family alone as well. Where the processor
# cannot virtualise it takes an hour or more per kernel; `make test` has a short part.
KERNELS ?=
test-kernels: packages setup
	$(if $(KERNELS),KUBEPROXY_KERNELS="$(KERNELS)") KUBEPROXY_KERNEL_RESULTS=docs/kernels.json \
	  $(PYTEST) tests/kernels $(ARGUMENTS); code=$$?; $(BIN)/python -m scripts.docs && exit $$code

test-api: packages programs
	$(PYTEST) $(PARALLEL) -m api

# The dashboard in a real Chromium, which is installed first. `make test` runs the same where it is
# installed already.
test-browser: packages setup
	@PYTHON=$(PYTHON) sh scripts/packages.sh browser
	$(PYTEST) -m browser

# Against older API servers; builds them with Go first, which takes many minutes, once per machine.
# `make test` runs the same for those that are built already.
test-versions: packages setup
	KUBEPROXY_BUILD_VERSIONS=1 $(PYTEST) -m versions

# The smoke test of a real cluster; builds its programs with Go first, some twenty minutes once per
# machine. `make test` runs the same if they are built already.
test-cluster: packages cluster-packages setup
	KUBEPROXY_BUILD_CLUSTER=1 $(PYTEST) -m cluster

# Upstream's end-to-end tests with our image, in one MODE; keeps the results and writes docs/e2e.md.
# ARGUMENTS="--proxy=upstream --focus=…" runs some with upstream's program.
test-e2e: cluster-packages image
	$(BIN)/python -m kpctl.kubernetes.e2e --mode=$(MODE) --results=docs/e2e.json $(ARGUMENTS); \
	  code=$$?; $(BIN)/python -m scripts.docs && exit $$code

# A swap and the way back under load, as docs/guides/swap-transcript.md.
transcript: cluster-packages image
	$(BIN)/python -m scripts.docs.transcript

# The documentation as a site in build/site. Pages made by code are committed; a test compares them
# with what `make reference` writes. The variable silences an announcement of the theme.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

reference: setup
	$(BIN)/python -m scripts.docs

# The demo as a picture, docs/demo.svg; MODE picks the mode. Needs root.
recording: setup
	$(BIN)/python -m scripts.docs.recording $(MODE)

# Pictures of the dashboard, docs/dashboard/*.png, of a proxy in the lab. Needs root.
screenshots: packages setup
	@PYTHON=$(PYTHON) sh scripts/packages.sh browser
	$(BIN)/python -m scripts.docs.screenshots

# Fuzzing for MINUTES, divided over all targets. Atheris has no wheel for every Python and machine:
# without it a mutator of ours drives the same targets.
MINUTES ?= 60
fuzz: setup
	@$(PIP) --require-hashes -r requirements/fuzz.txt || echo "without atheris: not for this Python"
	$(BIN)/python -m tests.fuzz.run --minutes=$(MINUTES)

# A day of churn in minutes, with 2,000 Services, in every mode: fails if memory, descriptors, threads
# or latency grow, or if the kernel differs from what is wanted. ARGUMENTS="--mode=ipvs --hours=6".
soak: packages setup
	$(BIN)/python -m tests.soak.run $(ARGUMENTS)

bench: packages setup
	$(BIN)/kpctl bench

image: setup
	$(PACK).image --architecture=$(ARCH) $(if $(APT_SOURCE),--apt-source=$(APT_SOURCE))

# The proof that one commit gives one digest.
image-twice: setup
	$(PACK).image --output=build/again --architecture=$(ARCH) $(if $(APT_SOURCE),--apt-source=$(APT_SOURCE))
	$(PACK).image --architecture=$(ARCH) $(if $(APT_SOURCE),--apt-source=$(APT_SOURCE))
	cmp build/*-$(ARCH).digest build/again/*-$(ARCH).digest

zipapp: setup
	$(PACK).onefile

deb: setup
	$(PACK).deb --architecture=$(ARCH)

dist: setup
	$(PACK).distributions

# Everything people can get, built and run.
test-image: packages setup
	$(PYTEST) -m image

# Pin anew: hashes, no addresses.
requirements:
	$(PYTHON) -m venv build/pin && build/pin/bin/pip install --quiet pip-tools
	cd requirements && for name in runtime dev docs fuzz; do \
	  CUSTOM_COMPILE_COMMAND="make requirements" ../build/pin/bin/pip-compile --quiet --upgrade \
	    --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras \
	    --allow-unsafe --output-file $$name.txt $$name.in || exit 1; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
