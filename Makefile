# Each target does its own set-up on a fresh clone.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
SOURCES := $(shell find src -name '*.pyx' -o -name '*.pxd' 2>/dev/null)

.PHONY: run ready test screenshots install build lint bench lab pages soak stalls sim sweep cluster mutants hostile fuzz fuzz-build sanitize dist dist-check clean

# Without Java everything but the channels runs, and the page says what is missing.
run: .venv/.packages-run .venv/.built
	@tools/need java=default-jre-headless || true
	@$(BIN)/holdfast up

# Everything that `make run` needs, and starts nothing.
ready: .venv/.packages-run .venv/.built
	@tools/need java=default-jre-headless && $(BIN)/python tools/prepare spark || true
	@echo "ready: make run"

# What measures time, or counts failovers, goes before the rest, which has what is left of the machine. Attacks have
# it to themselves.
ALONE := tests/benchmarks tests/cli/test_up.py tests/cli/test_up_ends.py tests/client tests/dashboard/test_browser.py tests/failover tests/hostile \
  $(addprefix tests/lab/test_,flow.py links.py peers.py subscribe.py systems.py twins.py) tests/runtime

SLOWEST := --durations=15 --durations-min=10

# Spark is prepared once on a machine, in half a minute: tests that need it would do so themselves, and all wait.
test: build tools-test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/prepare spark & $(BIN)/mypy; found=$$?; wait; exit $$found
	@tools/tests $(SLOWEST) -n 2 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(ALONE)) -- $(SLOWEST) $(filter-out tests/hostile,$(ALONE))
	@$(BIN)/python -m pytest $(SLOWEST) tests/hostile

# What docs/dashboard.md shows, from the whole example with Spark: some minutes.
screenshots: build tools-test
	@PYTHONPATH=tests $(BIN)/python tools/screenshots

install: .venv/.packages .venv/.built

build: .venv/.packages-dev .venv/.built

.PHONY: tools-test
tools-test:
	@tools/need mosquitto_pub=mosquitto-clients mosquitto=mosquitto nats-server=nats-server \
	  /usr/share/zookeeper/bin/zkServer.sh=zookeeper java=default-jre-headless curl=curl
	@tools/need chromium=chromium || echo "NO CHROMIUM: THE PAGES OF THE DASHBOARD ARE NOT TESTED" >&2

.venv/bin/python:
	@tools/need gcc=gcc make=make
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Holdfast needs Python 3.11 or newer as $(PYTHON). On Debian: apt-get install python3, or make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || tools/need no-such-command=python3-venv
	@test -e "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || tools/need no-such-command=python3-dev
	@echo "making .venv"
	@$(PYTHON) -m venv .venv

# A mark for each set of packages; no module is compiled for their sake. All of a set go in by one call of pip.
EXTRAS-run := dashboard pipeline
EXTRAS-bench := bench lab pipeline

.venv/.packages: .venv/bin/python pyproject.toml
	@$(BIN)/python tools/prepare packages
	@touch $@

.venv/.packages-%: .venv/bin/python pyproject.toml
	@$(BIN)/python tools/prepare packages $(or $(EXTRAS-$*),$*)
	@touch $@

.venv/.built: setup.py pyproject.toml $(SOURCES) | .venv/bin/python
	@$(BIN)/python -c 'import Cython, setuptools' 2>/dev/null || $(BIN)/python tools/prepare packages
	@$(BIN)/python tools/prepare modules
	@touch $@

.PHONY: tools-bench tools-lab tools-pipeline
tools-pipeline:
	@tools/need java=default-jre-headless

tools-bench:
	@tools/need mosquitto=mosquitto nats-server=nats-server valgrind=valgrind

tools-lab: tools-bench tools-pipeline

# Everything that the experiments and their analysis need: Spark, the other brokers, the figures.
lab: .venv/.packages-lab .venv/.built tools-lab

bench: .venv/.packages-bench .venv/.built tools-lab
	@$(BIN)/python -m benchmarks

# Every page and figure in docs/ that shows what was measured, from the JSON in docs/results.
pages: .venv/.packages-lab .venv/.built
	@$(BIN)/python -m benchmarks.page
	@$(BIN)/python -m holdfast.lab.report.pages docs

soak: install
	@$(BIN)/python -m benchmarks soak --against holdfast

# A member stopped for 35 to 70 ms once a second, five minutes each: the primary and its heir, with contracts that
# bear it and with some that do not.
stalls: .venv/.packages-bench .venv/.built
	@$(BIN)/python -m benchmarks stalls --against holdfast

# Every law in virtual time, with faults, on seeds that nobody has run, or on SIM_SEEDS=A..B; and every mutant found.
SIM_SEEDS ?=

sim: build
	@$(BIN)/holdfast sim $(if $(SIM_SEEDS),--seeds $(SIM_SEEDS),--fresh 20000)
	@HOLDFAST_SIM_MUTANTS=all $(BIN)/python -m pytest --timeout=3600 tests/sim/test_mutants.py

# 100,000 fresh seeds, or SIM_SEEDS=A..B, faster: see tools/sweep.
sweep: build
	@$(BIN)/python tools/sweep $(or $(SIM_SEEDS),100000)

# A wheel with everything compiled, for this machine's Python and processor.
dist: .venv/.packages
	@rm -rf dist
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist

# The wheel in an empty venv: the command, a broker, a message.
dist-check: dist
	@tools/dist-check

# A worker that dies under a job, a cluster that is gone, a stream whose driver is killed: waits of minutes.
cluster: build tools-test
	@HOLDFAST_CLUSTER=all $(BIN)/python -m pytest --timeout=600 tests/pipeline/test_cluster.py \
	  tests/pipeline/test_cluster_gone.py tests/pipeline/test_sink.py

# Takes every protection of docs/security.md out once, and sees its test fail.
mutants: build tools-test
	@$(BIN)/python tests/security/mutants.py

# Every attack of tests/hostile beside a good pair of clients, and what the pair noticed, which it writes into
# docs/security.md: ten minutes. `make hostile ATTACKS="half-requests will-storm"` runs some.
hostile: build
	@PYTHONPATH=tests $(BIN)/python -m hostile $(ATTACKS)

# Fuzzing and tests with the address and undefined-behaviour sanitizers on the compiled modules, in a venv and a
# build directory of their own.
FUZZ_RUNS ?= 200000
FUZZ_TARGETS ?= codec publish broker
CLANG = $(shell command -v clang || ls /usr/bin/clang-[0-9]* 2>/dev/null | tail -n 1)

fuzz: fuzz-build
	@set -e; for target in $(FUZZ_TARGETS); do tools/fuzz $$target $(FUZZ_RUNS); done
	@tools/fuzz --python -m fuzz.leaks $(filter codec broker,$(FUZZ_TARGETS))

sanitize: fuzz-build
	@tools/fuzz --python -m pytest --timeout=600 tests/mqtt $(wildcard tests/broker) tests/fuzz

# Before fuzz-build, whose lines name the compiler that is there when it begins.
.PHONY: tools-fuzz
tools-fuzz:
	@test -n "$(CLANG)" || tools/need clang=clang

fuzz-build: .venv-fuzz/.installed tools-fuzz
	@HOLDFAST_SANITIZE=1 CC=$(CLANG) LDSHARED="$(CLANG) -shared" .venv-fuzz/bin/python setup.py --quiet \
	  build_py --build-lib build/fuzz build_ext --parallel 2 --build-lib build/fuzz --build-temp build/fuzz-objects

.venv-fuzz/.installed: pyproject.toml
	@echo "installing what fuzzing needs into .venv-fuzz"
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || tools/need no-such-command=python3-venv
	@echo "making .venv"
	@$(PYTHON) -m venv .venv-fuzz
	@.venv-fuzz/bin/pip install --quiet --disable-pip-version-check 'atheris>=3.0' 'cython>=3.1' 'setuptools>=77' \
	  'msgspec>=0.19' 'hypothesis>=6.115' 'pytest>=8.3' 'pytest-timeout>=2.3'
	@touch $@

clean:
	rm -rf build dist src/*.egg-info .venv .venv-fuzz
	find src -name '*.so' -delete
