# The commands of this project. `make help` lists them. All use the virtual environment .venv, and none needs a terminal.
.DEFAULT_GOAL := help
.PHONY: help serve test setup setup-serve native native-test test-aarch64 sanitize lint format types imports docs docs-check check wheel clean

MODEL ?= smollm2
PORT ?= 8000
ARGS ?=

BIN := .venv/bin
PY := $(BIN)/python

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: setup-serve ## Install Octavo, get the model and serve it (MODEL=smollm2 PORT=8000 ARGS="--max-num-seqs 8")
	@exec $(PY) -m octavo serve $(MODEL) --port $(PORT) $(ARGS)

test: setup ## Set up and run every test (ARGS="-k sampler" picks some)
	@exec $(PY) -m pytest $(ARGS)

setup: ## Make .venv with Octavo and the development tools; quick when nothing changed
	@scripts/setup.sh dev

setup-serve: ## Make .venv with Octavo alone
	@scripts/setup.sh serve

native: setup ## Build the C++ module again after a change (setup does so too)
	@scripts/native.sh module

native-test: setup ## Build and run the C++ tests
	@scripts/native.sh test

test-aarch64: ## Build the C++ tests for 64-bit Arm and run them in an emulator (needs g++-aarch64-linux-gnu and qemu-user)
	@scripts/aarch64.sh

sanitize: setup ## C++ tests and the tests of the native backend with address, undefined-behaviour and thread sanitizers
	@scripts/sanitize.sh

lint: setup ## Check style and format (ruff)
	$(PY) -m ruff check
	$(PY) -m ruff format --check

format: setup ## Fix style and format (ruff)
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

types: setup ## Check types (mypy, strict)
	$(PY) -m mypy

imports: setup ## Check who imports whom (import-linter)
	$(BIN)/lint-imports

docs: setup ## Write the generated pages of docs/
	$(PY) scripts/gen_docs.py

docs-check: setup ## Fail when a generated page is stale
	$(PY) scripts/gen_docs.py --check

check: lint types imports docs-check test ## Lint, types, imports, docs, tests; CI also runs native-test, sanitize and test-aarch64

wheel: setup ## Build a wheel into dist/
	$(PY) -m pip wheel -q --no-deps -w dist .

clean: ## Remove .venv and everything built
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
