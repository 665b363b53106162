# What people run here. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check \
               --constraint requirements.lock

# The compiled module is rebuilt when one of these changes; Python files are used in place.
NATIVE := CMakeLists.txt $(shell find native -type f -not -path 'native/tests/*')
CXX_FILES := $(shell find native -name '*.cc' -o -name '*.h')

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-amx exactness lint format stubs bench compare clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.serve ## Create .venv with what serving needs, and build the native module

demo: $(VENV)/.serve ## Generate with and without speculation on this machine, and compare
	@$(BIN)/forerun demo

test: $(VENV)/.dev lint ## Run lint and the whole test suite
	@$(BIN)/python -m pytest

exactness: $(VENV)/.dev ## Compare 60 questions x 128 tokens in every setting (half an hour)
	@FORERUN_EXACTNESS=full $(BIN)/python -m pytest tests/e2e/test_exactness.py

test-amx: $(VENV)/.serve ## Run the kernels and a model on AMX, emulated if need be
	@$(BIN)/cmake -S . -B build/native-tests -G Ninja -DFORERUN_NATIVE_TESTS=ON \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja >/dev/null
	@$(BIN)/cmake --build build/native-tests --target kernel_test model_test -- --quiet
	@tests/native/amx/test.sh build/native-tests/native/tests $(BIN)/python

lint: $(VENV)/.dev ## Check style, types, C++ format and the .proto files
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	@$(BIN)/python scripts/lint_protos.py

format: $(VENV)/.dev ## Format Python and C++, and mend what ruff can mend
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format
	@$(BIN)/clang-format -i $(CXX_FILES)

stubs: $(VENV)/.dev ## Generate forerun/v1 and docs/protocol-reference.md from proto/
	@$(BIN)/python scripts/generate_stubs.py
	@$(BIN)/python scripts/generate_protocol_reference.py

bench: $(VENV)/.serve ## Measure the engine on this machine
	@$(BIN)/forerun bench engine

compare: $(VENV)/.serve ## Measure forerun next to other engines; the first time installs them
	@$(BIN)/python -m benchmarks.compare

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The build's own requirements are installed first, pinned by the same file, since pip applies
# constraints to an isolated build in some of its versions alone.
$(VENV)/.build: requirements.lock
	@$(PYTHON) scripts/check_prerequisites.py
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) scikit-build-core pybind11 cmake ninja
	@touch $@

$(VENV)/.serve: $(VENV)/.build pyproject.toml $(NATIVE)
	@echo "installing forerun and building its native module"
	@$(PIP_INSTALL) --no-build-isolation --editable '.[serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.build pyproject.toml $(NATIVE)
	@echo "installing forerun with its development tools, and building its native module"
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $(VENV)/.serve $@
