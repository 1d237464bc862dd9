# The way to run everything: `make run` shows the whole line, `make test` and `make check` are what CI runs.
# Needs Python 3.11 or 3.12 and make, nothing else.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN    := .venv/bin
READY  := .venv/.ready
DATA   := examples/digits/data/digits.parquet examples/stdlib_gpt/data/.complete
# Tests to run: `make test TESTS=tests/unit/infra`.
TESTS  ?= tests
# Processes that run them, a whole file each: most of a test is waiting for processes of its own.
WORKERS ?= 2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test check lock clean

help:
	@echo "make setup   virtual environment, locked dependencies, the examples' data (idempotent)"
	@echo "make run     the whole line on the digits: rejected, promoted, reused, not promoted"
	@echo "make test    the tests (TESTS=path for some of them)"
	@echo "make check   style, types, import layers, architecture and docs"
	@echo "make lock    requirements.lock anew from pyproject.toml"
	@echo "make clean   removes the environment, caches and the examples' data"

setup: $(READY) $(DATA)

$(READY): requirements.lock pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
	  || { echo "Trainwright needs Python 3.11 or 3.12; name one with: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

examples/digits/data/digits.parquet: examples/digits/prepare.py $(READY)
	$(BIN)/python $<

examples/stdlib_gpt/data/.complete: examples/stdlib_gpt/prepare.py $(READY)
	$(BIN)/python $<

run: setup
	@$(BIN)/trainwright quickstart

test: setup
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/architecture

# torch stands without a local tag (such as +cpu) and without the packages of one build of it, so the same lock
# installs a CPU or a CUDA build.
lock: $(READY)
	$(BIN)/pip-compile --quiet --upgrade --extra dev --strip-extras --allow-unsafe --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --output-file .venv/requirements.lock pyproject.toml
	{ echo "# Every version, made by \`make lock\`. Choose a CPU or a CUDA build of torch by pip's configuration."; \
	  sed -E -e '/^(nvidia-|cuda-|triton|pip==|--|#|$$)/d' -e 's/\+[a-z0-9.]+$$//' .venv/requirements.lock; } > .venv/lock.txt
	mv .venv/lock.txt requirements.lock

clean:
	rm -rf .venv .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
	rm -rf examples/digits/data examples/stdlib_gpt/data
