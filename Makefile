# kafkad: `make run` starts a broker, `make test` proves it. Everything lands in .venv, build and .cache.
#
#   make run     environment, build, and a broker on 127.0.0.1:9092 with its data in ./data
#   make build   the native extensions, in place
#   make test    all that the tests need (jars, Java), then the tests; PYTEST_ARGS="-k groups" narrows them,
#                PARALLEL=1 runs one file at a time
#   make check   ruff, mypy and the tests that read the source
#   make bench   kafkad beside JVM Kafka and a bare C loop: tables, JSON, a plot; BENCH_ARGS="--quick --check"
#   make sanitize  the data plane's tests with AddressSanitizer and UBSan; SANITIZE_ARGS="-k mailbox" narrows them
#   make demo    336,776 flights through kafkad and Spark into Parquet, with a kill -9 in the middle, proved
#   make soak    the long versions of the kill, power-loss and fuzz tests, and all clients over SASL_SSL
#   make wheels  a source distribution and a wheel for each Python and machine, in dist/, each tried; WHEELS=3.12-x86_64
#   make clean   removes what was built (not ./data)
#
# A stamp file says that a step is done, so a second call costs nothing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check --quiet
BUILDS := DIST_EXTRA_CONFIG=$(CURDIR)/tools/pip_builds.cfg
LOGGED := > $(VENV)/install.log 2>&1 || { cat $(VENV)/install.log >&2; exit 1; }
# compiled modules are kept: each process of kafkad and of pytest would compile them again
unexport PYTHONDONTWRITEBYTECODE
NATIVE := $(wildcard kafkad/_native/*/*.pyx kafkad/_native/*/*.pxd kafkad/_native/*/*.h)

DATA_DIR ?= ./data
LISTEN   ?= 127.0.0.1:9092
PYTEST_ARGS ?=
PARALLEL ?= 4
BENCH_ARGS ?=
SANITIZE_ARGS ?=
WHEELS ?=

# most tests wait most of the time; the tests of one file share a broker, and stay together
SIDE_BY_SIDE = $(if $(filter-out 1,$(PARALLEL)),-n $(PARALLEL) --dist loadfile --no-loadscope-reorder)

.PHONY: help run build test collect check sanitize bench demo soak wheels clean jars java

help:
	@sed -n '3,14s/^# *//p' Makefile

# -- the environment

$(VENV)/.stamp-venv: tools/preflight.py
	@$(PYTHON) tools/preflight.py
	@[ -x $(PY) ] || { echo "making the environment in $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(PIP) install "setuptools>=77" "cython>=3.1" $(LOGGED)
	@touch $@

# KAFKAD_ONLY=none: register the package without building it here; the build is a step of its own
$(VENV)/.stamp-run: $(VENV)/.stamp-venv pyproject.toml
	@echo "installing what kafkad needs"
	@KAFKAD_ONLY=none $(PIP) install --no-build-isolation --editable . $(LOGGED)
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-venv pyproject.toml
	@echo "installing what the tests need (PySpark is large: a minute or two)"
	@KAFKAD_ONLY=none $(BUILDS) $(PIP) install --no-build-isolation --editable ".[test]" $(LOGGED)
	@touch $@ $(VENV)/.stamp-run

# Debian's packages for Kerberos, beside what pip does; empty if they cannot be installed
$(VENV)/.stamp-debian: $(VENV)/.stamp-venv tools/ensure_kerberos.py
	@if $(PY) tools/ensure_kerberos.py; then echo installed > $@; else : > $@; fi

$(VENV)/.stamp-kerberos: $(VENV)/.stamp-test $(VENV)/.stamp-debian
	@if [ -s $(VENV)/.stamp-debian ]; then CFLAGS=-O0 $(BUILDS) $(PIP) install "gssapi>=1.9" $(LOGGED); fi
	@touch $@

# -- the native extensions

build: build/.stamp-native

build/.stamp-native: $(VENV)/.stamp-venv setup.py $(NATIVE)
	@mkdir -p build
	@echo "building the native extensions"
	@$(PY) setup.py --quiet build_ext --inplace > build/native.log 2>&1 || { tail -40 build/native.log; exit 1; }
	@[ -n "$${KAFKAD_ONLY:-}" ] || touch $@

# -- what the tests need beside Python

jars: $(VENV)/.stamp-test java
	@$(PY) tools/fetch_jars.py

java: $(VENV)/.stamp-debian  # of two calls of apt-get the second one would fail
	@$(PY) tools/ensure_java.py

# -- commands

run: $(VENV)/.stamp-run build/.stamp-native
	@exec $(VENV)/bin/kafkad serve --data-dir $(DATA_DIR) --listen $(LISTEN)

# the files with a mark: the other ones would be imported by each process, and not run
WITH_MARK = $(shell grep -l 'mark\.$(1)' tests/integration/test_*.py)

# all with one worker; then what is marked `workers`, again with more, and what is marked `secured(short=True)`, with
# logins, also after a failure. PYTEST_ARGS picks: once, as it says
test: $(VENV)/.stamp-kerberos build/.stamp-native java jars
ifeq ($(strip $(PYTEST_ARGS)),)
	@failed=0; \
	$(PY) -m pytest $(SIDE_BY_SIDE) --durations=20 || failed=1; \
	$(PY) -m pytest $(SIDE_BY_SIDE) --durations=10 --marked --workers 2 $(call WITH_MARK,workers) || failed=1; \
	$(PY) -m pytest $(SIDE_BY_SIDE) --marked --workers 4 $(call WITH_MARK,workers) || failed=1; \
	$(PY) -m pytest $(SIDE_BY_SIDE) --marked --secured $(call WITH_MARK,secured.short) || failed=1; \
	exit $$failed
else
	@$(PY) -m pytest $(SIDE_BY_SIDE) --durations=20 $(PYTEST_ARGS)
endif

# pytest compiles the tests once, before its processes run side by side and each would do it
collect: $(VENV)/.stamp-kerberos build/.stamp-native
	@$(PY) -m pytest --collect-only --quiet --quiet > build/collected.log || { tail -40 build/collected.log; exit 1; }

# all four speak, also after one has failed
check: $(VENV)/.stamp-kerberos
	@failed=0; \
	$(VENV)/bin/ruff check --output-format=concise . || failed=1; \
	$(VENV)/bin/ruff format --check . || failed=1; \
	$(VENV)/bin/mypy || failed=1; \
	$(PY) -m pytest tests/test_source.py || failed=1; \
	exit $$failed

sanitize: $(VENV)/.stamp-kerberos
	@$(PY) tools/sanitize.py $(SANITIZE_ARGS)

bench: $(VENV)/.stamp-test build/.stamp-native java jars
	@$(PY) -m bench $(BENCH_ARGS)

demo: $(VENV)/.stamp-test build/.stamp-native java
	@$(PY) -m kafkad.demo

soak: $(VENV)/.stamp-kerberos build/.stamp-native java jars
	@KAFKAD_SOAK=1 $(PY) -m pytest -m "soak or soak_only" --timeout=7200 $(PYTEST_ARGS)
ifeq ($(strip $(PYTEST_ARGS)),)
	@$(PY) -m pytest $(SIDE_BY_SIDE) --secured --workers 2 tests/integration
endif

wheels: $(VENV)/.stamp-test java
	@$(PIP) install ziglang wheel $(LOGGED)
	@$(PY) tools/build_wheels.py --only "$(WHEELS)"
	@$(PY) tools/try_wheels.py

clean:
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	@rm -f kafkad/_native/*/*.so $(patsubst %.pyx,%.c,$(wildcard kafkad/_native/*/*.pyx))
	@find kafkad tests bench tools -name __pycache__ -prune -exec rm -rf {} +
	@echo "removed what was built; $(VENV), .cache and ./data are still there"
