# make demo: install and watch FedPolyak and FedSPS train next to FedAvg.   make test: the suite.   make help: the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-real browser database smoke mutants fuzz chaos lint types docs generate notebooks lock locked wheel \
  federation bench bench-table1 bench-peers clean

help:
	@echo "make demo       install into .venv and compare FedPolyak, FedSPS and FedAvg on digits (demo/compare.png)"
	@echo "make test       install with the test extra and run the suite"
	@echo "make test-real  the tests that need real processes, signals or browsers (installs chromium and postgresql)"
	@echo "make mutants    change the source in one line, many times over: a test must notice each (an hour; not in CI)"
	@echo "make fuzz       100 000 damaged inputs for all that fedsps reads (minutes; the suite tries 3 000)"
	@echo "make chaos      50 sites of a federation, killed and late by a seed, against the local engine (15 minutes)"
	@echo "make smoke      every page of the reproduction, as small as it gets"
	@echo "make lint       ruff format and lint          make types   mypy, strict"
	@echo "make docs       the documentation as a site, build/site/index.html"
	@echo "make generate   write the tables that the classes give into the documentation"
	@echo "make notebooks run the notebooks of the tutorials again, and keep their outputs"
	@echo "make lock       write requirements.lock: all of constraints.txt with hashes      make locked  install by it"
	@echo "make wheel      build the wheel, install it elsewhere and run it"
	@echo "make federation two nodes with TLS train the example; compared with the local engine"
	@echo "make bench      milliseconds a round of the engines, of sweeps and of workers"
	@echo "make bench-table1 the searches of the paper's table 1 for logistic regression, at paper scale: seconds"
	@echo "make bench-peers  the same of FedJAX, FedLab, pfl and Flower's simulation, each installed below build/peers (4 GB)"

# Each stamp stands for an installed set of extras; torch comes from the constraint, so that the CPU build is taken.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[plot]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[test]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[docs]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/fedsps compare --data digits --clients 10 --partition two-class --rounds 200 \
	  --runs demo/runs --figure demo/compare.png --fresh \
	  fedpolyak fedsps fedavg:client_stepsize=0.001/0.01/0.1/1

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 -m "not real"

test-real: $(VENV)/.test browser database
	$(BIN)/python -m pytest -m real

# the report is tested in a real one
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  echo "installing chromium and its driver by apt"; \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$sudo apt-get update -qq && \
	  $$sudo apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	} || { echo "that failed: install chromium and chromedriver yourself, so that both are on the PATH"; exit 1; }

# a search is shared through a real one; Debian keeps its programs off the PATH
database:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
	  echo "installing postgresql by apt"; \
	  sudo=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$sudo apt-get update -qq && \
	  $$sudo apt-get install -y -qq --no-install-recommends postgresql >/dev/null; \
	} || { echo "that failed: install PostgreSQL yourself, so that initdb is on the PATH"; exit 1; }

smoke: $(VENV)/.test
	FEDSPS=$(BIN)/fedsps ./.ci/check-smoke

# ARGUMENTS='--only secagg --jobs 2'
mutants: $(VENV)/.test
	$(BIN)/python tests/mutants.py $(ARGUMENTS)

# ARGUMENTS='--inputs 5000 csv npz'
fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz.py $(ARGUMENTS)

# ARGUMENTS='--sites 20 --seed 3'
chaos: $(VENV)/.test
	$(BIN)/python tests/chaos.py $(ARGUMENTS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

# from scratch, warnings are errors; then no page may need a network or link to nothing
docs: $(VENV)/.docs
	rm -rf build/site
	$(BIN)/python -m sphinx -q -E -W -n --keep-going -c docs -d build/doctrees . build/site
	$(BIN)/python .ci/check_site.py build/site

generate: $(VENV)/.demo
	$(BIN)/python docs/generate.py

# the tutorials, run again
notebooks: $(VENV)/.test
	$(BIN)/python docs/run_notebooks.py

# ARGUMENTS='--torch-backend cpu' takes torch's CPU build, '--find-links FOLDER' the one that lies there
lock: $(VENV)/.dev
	$(BIN)/uv pip compile pyproject.toml --quiet --extra dev --extra docs -c constraints.txt --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --python $(BIN)/python $(ARGUMENTS) -o requirements.lock

# every package by its hash; pip cannot do that for the checkout itself, so that comes last, by itself
locked: requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .

wheel: $(VENV)/.dev
	PYTHON=$(BIN)/python ./.ci/check-wheel

# two nodes with TLS and node keys, three rounds of the example, against the local engine
federation: $(VENV)/.test
	BIN=$(BIN) ./.ci/check-federation

# ARGUMENTS=--write puts the tables into docs/benchmarks.md
bench: $(VENV)/.demo
	$(BIN)/python benchmarks/engines.py $(ARGUMENTS)
	$(BIN)/python benchmarks/sweeps.py $(ARGUMENTS)
	$(BIN)/python benchmarks/workers.py $(ARGUMENTS)

# needs the data sets: FEDSPS_DATA, or a network
bench-table1: $(VENV)/.test
	$(BIN)/python benchmarks/table1.py $(ARGUMENTS)

# ARGUMENTS='--repeats 3 --write'
bench-peers: $(VENV)/.demo
	$(BIN)/python benchmarks/peers.py $(ARGUMENTS)

clean:
	rm -rf $(VENV) demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
