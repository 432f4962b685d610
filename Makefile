# Two commands on a fresh machine: `make demo` and `make test`. They need Python 3.11+ and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_DIR ?= runs/digits-$(shell date +%Y%m%d-%H%M%S)

.PHONY: demo test test-exhaustive lint format benchmarks clean

demo: $(STAMP)
	$(BIN)/python train/digits.py --run-dir $(RUN_DIR)

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 tests

test-exhaustive: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "slow or not slow" tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmarks: $(STAMP)
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/training.py

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[train]" --group test --group lint
	touch $(STAMP)

clean:
	rm -rf $(VENV) .ci-venv dist build .pytest_cache .ruff_cache .hypothesis
