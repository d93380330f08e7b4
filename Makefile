# `make run` and `make test` are all a newcomer needs. Both set up .venv on their first call.
PYTHON ?= python3
VENV   ?= .venv
DOMAIN ?= stocks
ARGS   ?=
BIN    := $(VENV)/bin

# TensorFlow's import costs twice the CPU where nothing may be kept compiled.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.PHONY: run test quick soak bench lint setup clean
.DEFAULT_GOAL := run

run: $(VENV)/ready                      ## casebook run DOMAIN (stocks, xray, climate)
	@$(BIN)/casebook run $(DOMAIN) $(ARGS)

test: $(VENV)/ready-dev                 ## the tests; under 10 minutes on 2 cores
	$(BIN)/python -m pytest -m "not soak"

quick: $(VENV)/ready-dev                ## the inner loop; under 2 minutes
	$(BIN)/python -m pytest -m "not soak and not slow" -x

soak: $(VENV)/ready-dev                 ## crashes, schedules, long runs; under 30 minutes
	$(BIN)/python -m pytest -m soak

bench: $(VENV)/ready-dev                ## ratios against peers; asserts nothing
	@for file in tests/benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

lint: $(VENV)/ready-dev                 ## ruff, mypy, import contracts
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

setup: $(VENV)/ready-dev                ## the environment, for people who want to look around

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("Casebook needs Python 3.11 to 3.13, %s is %d.%d. Remedy: make PYTHON=python3.12 ..." % (sys.executable, *v))'
	@echo "Setting up $(VENV) (once; a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/ready-dev: $(VENV)/ready
	@echo "Adding the tools of developers to $(VENV) (once)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

clean:                                  ## removes the environment; leaves runs/ alone
	rm -rf $(VENV)
