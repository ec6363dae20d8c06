# Each target does its own set-up on a fresh clone.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
SOURCES := $(shell find src -name '*.pyx' -o -name '*.pxd' 2>/dev/null)

.PHONY: run test install build lint bench soak clean

run: install
	@$(BIN)/holdfast demo

test: build tools-test
	@$(BIN)/ruff check src tests benchmarks setup.py
	@$(BIN)/ruff format --check src tests benchmarks setup.py
	@$(BIN)/mypy
	@$(BIN)/python -m pytest

install: .venv/.built

build: .venv/.dev .venv/.built

.PHONY: tools-test
tools-test:
	@tools/need mosquitto_pub=mosquitto-clients mosquitto=mosquitto

.venv/bin/python:
	@tools/need gcc=gcc make=make
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Holdfast needs Python 3.11 or newer as $(PYTHON). On Debian: apt-get install python3, or make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || tools/need no-such-command=python3-venv
	@test -e "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || tools/need no-such-command=python3-dev
	@$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml
	@echo "installing Holdfast and what it needs into .venv"
	@$(BIN)/pip install --quiet --disable-pip-version-check 'setuptools>=77' 'cython>=3.1'
	@HOLDFAST_COMPILE=later $(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -e .
	@touch $@

.venv/.dev: .venv/.installed
	@HOLDFAST_COMPILE=later $(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

.venv/.built: .venv/.installed setup.py $(SOURCES)
	@$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	@touch $@

.venv/.bench: .venv/.installed
	@HOLDFAST_COMPILE=later $(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[bench]'
	@touch $@

.PHONY: tools-bench
tools-bench:
	@tools/need mosquitto=mosquitto nats-server=nats-server

bench: install .venv/.bench tools-bench
	@$(BIN)/python -m benchmarks

soak: install
	@$(BIN)/python -m benchmarks soak --against holdfast

clean:
	rm -rf build dist src/*.egg-info .venv
	find src -name '*.so' -delete
