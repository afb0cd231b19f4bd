# `make demo` and `make test` are all that a newcomer needs; `make` alone lists the rest.
#
# Without anything said, targets use .venv, made on first use from constraints-cpu.txt. An interpreter that is named
# (TILEWRIGHT_PYTHON=/path/to/python) or an environment that is active (VIRTUAL_ENV) is used instead, and keeps the
# torch and Triton that it has: scripts/environment.py only adds tools that are missing.

PYTHON ?= python3
VENV := .venv
ARGS ?=

ifneq ($(TILEWRIGHT_PYTHON),)
  GIVEN := $(TILEWRIGHT_PYTHON)
else ifneq ($(VIRTUAL_ENV),)
  ifneq ($(realpath $(VIRTUAL_ENV)),$(realpath $(VENV)))
    GIVEN := $(VIRTUAL_ENV)/bin/python
  endif
endif

ifdef GIVEN
  PY := $(GIVEN)
  READY := given
  DOCS_READY := given
  export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
else
  PY := $(VENV)/bin/python
  READY := $(VENV)/.ready
  DOCS_READY := $(VENV)/.docs
endif

PIP := -m pip install -qq --disable-pip-version-check -c constraints-cpu.txt
NEEDS := dev

.PHONY: help demo test lint format types mutants docs wheel smoke bench clean given
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

demo: NEEDS := demo
demo: $(READY)  ## products verified, compiled for four targets, explained, and measured where there is a GPU
	$(PY) -m tilewright demo $(ARGS)

test: NEEDS := test
test: $(READY)  ## every test: interpreted, compiled offline, PyTorch alone, and on the GPU if any; ARGS go to pytest
	$(PY) scripts/run_tests.py $(ARGS)

lint: $(READY)  ## ruff: rules and format
	$(PY) -m ruff check
	$(PY) -m ruff format --check

format: $(READY)  ## ruff, mending what it can
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

types: $(READY)  ## mypy, strict
	$(PY) -m mypy
	$(PY) scripts/untyped.py src

mutants: NEEDS := test
mutants: $(READY)  ## break one kernel line at a time, and see the tests go red for each
	$(PY) tests/mutants.py $(ARGS)

bench: NEEDS := demo
bench: $(READY)  ## measure one suite on this machine's GPU: make bench SUITE=gemm-bf16
	$(PY) -m tilewright bench $(or $(SUITE),gemm-bf16) $(ARGS)

docs: NEEDS := docs
docs: $(DOCS_READY)  ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

wheel: $(READY)  ## dist/tilewright-VERSION-py3-none-any.whl
	rm -rf dist
	$(PY) -m build --wheel --no-isolation --outdir dist .
	$(PY) scripts/check_wheel.py dist

smoke: wheel  ## install that wheel elsewhere, and use it
	scripts/smoke.sh $(PY)

clean:  ## remove .venv and everything that was built or cached
	rm -rf $(VENV) build dist site out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

given:
	@"$(PY)" scripts/environment.py $(NEEDS)

$(VENV)/.ready: pyproject.toml constraints.txt constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "tilewright: $(PYTHON) must be Python 3.10 or newer; name another one with make PYTHON=..."; exit 2; }
	@echo "tilewright: installing into $(VENV), once: PyTorch, Triton and the tools; this takes a few minutes"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python $(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.ready
	@echo "tilewright: adding the documentation tools to $(VENV)"
	@$(VENV)/bin/python $(PIP) -e '.[dev,docs]'
	@touch $@
