# Each target does all of its set-up: a virtual environment in .venv, made with uv where that is
# installed, else with venv and pip. PYTHON chooses the interpreter: `make test PYTHON=python3.13`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)

ifdef UV
make_venv = $(UV) venv --quiet --python $(PYTHON) $(VENV)
install = $(UV) pip install --quiet --python $(BIN)/python
else
make_venv = $(PYTHON) -m venv $(VENV)
install = $(BIN)/python -m pip install --quiet --upgrade "pip>=25.1" && $(BIN)/python -m pip install --quiet
endif

.PHONY: demo test lint bench bench-overload bench-distributed clean

demo: $(VENV)/.demo
	@$(BIN)/aiolimit demo $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks

bench-overload: $(VENV)/.test
	$(BIN)/python -m benchmarks.overload $(ARGS)

bench-distributed: $(VENV)/.test
	$(BIN)/python -m benchmarks.distributed

clean:
	rm -rf $(VENV)

$(VENV)/.made:
	@test -x $(BIN)/python || echo "Making $(VENV) with $(PYTHON) ..."
	@test -x $(BIN)/python || $(make_venv)
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	@echo "Installing aiolimit-core and what the demo needs ..."
	@$(install) --editable ".[cli]"
	@touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml
	@echo "Installing aiolimit-core and what the tests need ..."
	@$(install) --editable ".[cli]" --group test --group lint --group bench
	@touch $@
