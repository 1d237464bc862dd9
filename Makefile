# The way to run everything: `make run` shows the whole line, `make test` and `make check` are what CI runs.
# Needs Python 3.11, 3.12 or 3.13 and make, nothing else.

# The first that runs: the name alone may be a shim of a version that is not chosen.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
  $$name -c '' 2>/dev/null && { command -v $$name; break; }; done)
BIN    := .venv/bin
READY  := .venv/.ready
# DVC's own default is a folder of all users of the machine, /var/tmp/dvc. No committed file can name another: it has to
# be absolute.
PRIVATE_DVC := .dvc/config.local
DATA   := examples/digits/data/digits.parquet examples/stdlib_gpt/data/.complete
# Tests to run: `make test TESTS=tests/unit/infra`. By default all, the folders with the longest files first, so that none
# of those is left for the end.
LONG   := tests/integration tests/zoo
TESTS  ?= $(LONG) $(filter-out $(LONG),$(patsubst %/,%,$(sort $(wildcard tests/*/))))
# Processes that run them, a whole file each: three more than there are processors, because many tests wait for servers
# and processes, and five at most.
CORES   := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell echo $$(($(CORES) < 2 ? $(CORES) + 3 : 5)))

# uv, where it is there, installs the same files several times faster; where it cannot, pip does. Neither makes bytecode:
# a fifth of the modules are ever imported, and the first process that does keeps theirs. Without bytecode, each of the
# many processes of a run or of the tests would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
install = { command -v uv >/dev/null && uv pip install --quiet --python $(BIN)/python $(1); } || $(PIP) $(1)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test lint check docs reference lock lock-cpu lock-cuda clean

help:
	@echo "make setup   virtual environment, locked dependencies, the examples' data (idempotent)"
	@echo "make run     the digits example: rejected, promoted, unchanged, not promoted"
	@echo "make test    the tests (TESTS=path for some of them)"
	@echo "make check   style, types, import layers, architecture and docs"
	@echo "make lint    style and types alone, without tests"
	@echo "make docs    the pages as a site in .docs/site, with links checked and a search that works from a file"
	@echo "make reference  the pages and the picture that are made from the sources"
	@echo "make lock    requirements.lock anew from pyproject.toml, and the locks of what is deployed"
	@echo "make clean   removes the environment, caches and the examples' data"

setup: $(READY) $(PRIVATE_DVC) $(DATA)

$(PRIVATE_DVC):
	printf '[core]\n    site_cache_dir = %s\n' "$(CURDIR)/.dvc/tmp/site" > $@

$(READY): requirements.lock pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "Trainwright needs Python 3.11, 3.12 or 3.13; name one with: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	"$(PYTHON)" -m venv .venv
	$(call install,-r requirements.lock)
	$(call install,--no-deps --no-build-isolation -e .)
	@touch $@

examples/digits/data/digits.parquet: examples/digits/prepare.py $(READY)
	$(BIN)/python $<

examples/stdlib_gpt/data/.complete: examples/stdlib_gpt/prepare.py $(READY)
	$(BIN)/python $<

run: setup
	@$(BIN)/trainwright quickstart

test: setup
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint
	$(BIN)/python -m pytest --quiet tests/architecture

reference: $(READY)
	$(BIN)/python .ci/rooms.py > docs/rooms.svg
	$(BIN)/python .ci/reference.py spec > docs/reference/spec.md
	$(BIN)/python .ci/reference.py cli > docs/reference/cli.md

# MkDocs needs nothing of ours, so it has an environment of its own. `--quiet` would hide warnings from `strict`.
.docs/.ready: docs/requirements.lock
	"$(PYTHON)" -m venv .docs/venv
	.docs/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

docs: .docs/.ready
	NO_MKDOCS_2_WARNING=1 .docs/venv/bin/mkdocs build
	@echo "open .docs/site/index.html"

COMPILE := $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-annotate --no-header \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

# requirements.lock has torch without a local tag (such as +cpu) and without the packages of one build of it, so the same
# lock installs a CPU or a CUDA build. What is deployed has a lock for each build, with hashes and without what only
# tests need: of the same versions, with torch as `==VERSION+cpu` and as `===VERSION`, which is CUDA's on PyPI. pip must be
# configured with indexes that have both builds.
lock: $(READY)
	$(COMPILE) --upgrade --extra dev --extra export --output-file .venv/requirements.lock pyproject.toml
	{ echo "# Every version, made by \`make lock\`. Choose a CPU or a CUDA build of torch by pip's configuration."; \
	  sed -E -e '/^(nvidia-|cuda-|triton|pip==|--|#|$$)/d' -e 's/\+[a-z0-9.]+$$//' .venv/requirements.lock; } > .venv/lock.txt
	mv .venv/lock.txt requirements.lock
	$(MAKE) lock-cpu lock-cuda

lock-cpu: build = $(shell sed -n 's/^torch==.*/&+cpu/p' requirements.lock)
lock-cuda: build = $(shell sed -n 's/^torch==/torch===/p' requirements.lock)
lock-cuda: driver = --extra cuda
lock-cpu lock-cuda: lock-%: $(READY)
	echo "$(build)" > .venv/torch-$*.txt
	rm -f .venv/versions-$*.txt
	$(COMPILE) --extra postgres --extra redis --extra kubernetes --extra export $(driver) --constraint requirements.lock \
	  --constraint .venv/torch-$*.txt \
	  --output-file .venv/versions-$*.txt pyproject.toml
	{ echo "# What is deployed with torch for $*: every version with its hashes, made by \`make lock\`."; \
	  $(BIN)/python .ci/lock.py < .venv/versions-$*.txt; } > .venv/lock-$*.txt
	mv .venv/lock-$*.txt requirements-$*.lock

clean:
	rm -rf .venv .docs .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
	rm -rf examples/digits/data examples/stdlib_gpt/data
