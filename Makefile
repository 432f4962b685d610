# Two commands on a fresh machine: `make demo` and `make test`. They need Python 3.11+ and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_DIR ?= runs/digits-$(shell date +%Y%m%d-%H%M%S)

# As many workers as there are cores and memory for (tests/conftest.py); a file of tests stays with one worker.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile

# Releases are pinned in pyproject.toml; this is the first of them.
JAX ?= 0.10.0

.PHONY: demo test numbers extras check test-exhaustive lint format docs pictures dist benchmarks accelerator mutants clean

demo: $(STAMP)
	$(BIN)/python train/digits.py --run-dir $(RUN_DIR)

# Every function by itself, and every bound against oracles on its own side; of long tests some cases.
test: $(STAMP)
	$(PYTEST) --quick tests/unit tests/bounds

# What a change must pass: all tiers (commands, kills, runs, the theory too), lint, types, pages, the built package.
check: lint docs dist $(STAMP)
	$(PYTEST) tests

# The tests of `make test` with another release of jax, the oldest supported one if none is given. The newest wants a newer
# Python: make numbers JAX=0.11.2 PYTHON=python3.13
numbers:
	$(PYTHON) -m venv build/jax-$(JAX)
	build/jax-$(JAX)/bin/python -m pip install --quiet --upgrade pip
	build/jax-$(JAX)/bin/python -m pip install --quiet --editable ".[train]" --group test "jax==$(JAX)" "jaxlib==$(JAX)"
	CHECKIN_JAX_TESTS_CACHE=build/jax-$(JAX)/kernels build/jax-$(JAX)/bin/python -m pytest --quick tests/unit tests/bounds

# Against flwr, jax_privacy, equinox and haiku themselves, in an environment of their own: flwr wants older releases than the tests do.
extras:
	$(PYTHON) -m venv build/extras
	build/extras/bin/python -m pip install --quiet --upgrade pip
	build/extras/bin/python -m pip install --quiet --editable ".[train,flower,jax-privacy]" polars equinox dm-haiku --group test
	build/extras/bin/python -m pytest -n 0 tests/extras tests/unit/test_flower.py

# The large runs too: brute force of every theorem, hours.
test-exhaustive: $(STAMP)
	$(PYTEST) -m "slow or not slow" --every-turn tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --pythonpath $(BIN)/python --project tests

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir build/site

# Figures of README.md and the pages; the census is drawn by benchmarks/census.py.
FIGURE := $(BIN)/checkin figure --width 6 --text 10
CURVES := $(FIGURE) --source docs/pictures
pictures: $(STAMP)
	$(BIN)/python benchmarks/pictures.py
	$(CURVES)/mnist_paper_network.csv shuffled-check-in-figure-3 --out docs/pictures/mnist_paper_network.svg
	$(CURVES)/mnist_paper_network.csv shuffled-check-in-figure-4 --out docs/pictures/mnist_paper_network_rounds.svg
	$(CURVES)/mnist_public_features.csv shuffled-check-in-figure-3 --out docs/pictures/mnist_public_features.svg

# The wheel and the archive; the wheel must install and run where nothing else is.
dist: $(STAMP)
	rm -rf dist build/empty
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet "$$(ls $(CURDIR)/dist/*.whl)[train]"
	cd build/empty && bin/checkin epsilon --num-clients 1000 --check-in-prob 0.1 --epsilon0 1
	cd build/empty && bin/checkin train digits --run-dir run --num-rounds 2 --num-clients 1000

benchmarks: $(STAMP)
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/mechanisms.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/sweeps.py

# Small errors in the arithmetic that the tests should notice; MUTANTS="numerics/convex.py --minutes 10" for less.
mutants: $(STAMP)
	$(BIN)/python benchmarks/mutants.py $(MUTANTS)

# On a machine with a GPU, in less than nine minutes; MNIST=folder for its IDX files, SMALL=--small on a CPU.
accelerator: $(STAMP)
	$(BIN)/python benchmarks/accelerator.py $(SMALL) $(if $(MNIST),--mnist $(MNIST))

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[train]" --group test --group lint --group docs
	touch $(STAMP)

clean:
	rm -rf $(VENV) .ci-venv dist build .pytest_cache .ruff_cache .hypothesis
