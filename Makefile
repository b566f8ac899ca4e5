# Everything a contributor does, by name. It needs Python 3.11 or newer, make and git; the rest comes into .venv.

PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/ready
CODE    = $(wildcard src tests bench tools)

.DEFAULT_GOAL := help
.PHONY: help demo cluster cluster-down controlplane browser test check fix bench histories clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## show what Fairlease does, on this machine, in a minute
	@$(BIN)/python tools/demo.py

cluster: $(READY) ## a Kubernetes API server with fake GPU nodes, in the background (needs Go, or KUBEBUILDER_ASSETS)
	@$(BIN)/python -m tools.controlplane up

cluster-down: $(READY) ## stop it
	@$(BIN)/python -m tools.controlplane down

controlplane: $(READY) ## build what the cluster and the tests on Kubernetes run, once
	@$(BIN)/python -m tools.controlplane build

browser: $(READY) ## find the Chromium that draws our pages in tests; in CI, install it
	@$(BIN)/python -m tools.browser

test: check controlplane browser ## check, then run every test on all cores
	$(BIN)/pytest -n auto

check: $(READY) ## read only: lint, format, types, layers, generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo
	@if [ -f tools/generate.py ]; then echo "$(BIN)/python tools/generate.py --check"; $(BIN)/python tools/generate.py --check; fi

fix: $(READY) ## write: what the linter and the formatter can mend, and the generated files
	-$(BIN)/ruff check --fix
	$(BIN)/ruff format
	@if [ -f tools/generate.py ]; then echo "$(BIN)/python tools/generate.py"; $(BIN)/python tools/generate.py; fi

bench: $(READY) ## measure, and compare with the ranges we promise
	$(BIN)/python -m bench

histories: $(READY) ## 10,000 random films with the auditor, on two processors; prints the seed of each that breaks a claim
	$(BIN)/python -m tools.histories

clean: ## remove all that make has made
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: exactly the pinned files, then the project itself, editable. Made again when a pin changes.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Fairlease needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv && $(BIN)/python -m pip --version >/dev/null \
		|| { echo "This Python makes no environment with pip in it. On Debian or Ubuntu: apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --compile --only-binary=:all: --require-hashes --requirement constraints.txt
	$(BIN)/python -m pip install --quiet --compile --no-deps --no-build-isolation --editable .
	@touch $@
