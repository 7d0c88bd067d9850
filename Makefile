# Every target creates what it needs. PYTHON chooses the interpreter of the environment (3.11 or later).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PREFIX ?= local_store
UV_VERSION := 0.13.8

# Where Python may not keep bytecode every process compiles JAX and all else again, for seconds.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help venv venv-dev browser hello test slow torture docs docs-commands eval lint types layers lock clean

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than 3.11: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Stamps record what an environment was made from, so that a changed lock file installs again.
$(VENV)/.installed: requirements.lock pyproject.toml | $(BIN)/uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements.lock
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/.installed-eval: requirements-eval.lock $(VENV)/.installed-dev
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements-eval.lock
	@touch $@

venv: $(VENV)/.installed  ## the environment that runs need
venv-dev: $(VENV)/.installed-dev  ## the environment that tests need

# Page tests use the system's Chromium and skip with a reason where there is none.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && echo "installing chromium for the page tests" \
	       && (apt-get install -qq -y chromium || (apt-get update -qq && apt-get install -qq -y chromium)) >/dev/null 2>&1; } \
	  || echo "no chromium: page tests will be skipped"

hello: venv  ## train, score and rank a first model: no account, no GPU, no network after the install
	$(BIN)/python -m experiments.speedrun.hello_world.main --force_run_failed true --prefix $(PREFIX)

test: venv-dev browser  ## all tests but the long ones
	$(BIN)/python -m pytest -m "not slow and not torture" -n auto --dist loadfile $(PYTEST_ARGS)

slow: venv-dev browser  ## the long tests, but for every command of the documents
	$(BIN)/python -m pytest -m slow --ignore tests/docs/test_commands_run.py -n auto --dist loadfile $(PYTEST_ARGS)

torture: venv-dev  ## kills, races and corruption: an hour or two
	$(BIN)/python -m pytest -m torture -s $(PYTEST_ARGS)

docs-commands: venv-dev  ## every command that the documents show, typed as a reader would
	$(BIN)/python -m pytest -m slow -s tests/docs/test_commands_run.py $(PYTEST_ARGS)

eval:  ## tests of `marin eval`, in an environment of their own that has lm-eval
	$(MAKE) VENV=.venv-eval .venv-eval/.installed-eval
	.venv-eval/bin/python -m pytest tests/evaluation/test_harness.py $(PYTEST_ARGS)

docs: venv-dev  ## the documentation site, in build/site
	$(BIN)/python -m scripts.docs

lint: venv-dev  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv-dev  ## static types
	$(BIN)/mypy

layers: venv-dev  ## who may import whom
	$(BIN)/lint-imports --no-cache

lock: $(BIN)/uv  ## resolve the lock files again
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --upgrade --extra corpus pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --extra dev --extra eval -c requirements-dev.lock pyproject.toml -o requirements-eval.lock

clean:  ## remove the environment and caches, never results
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build
