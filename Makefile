# One word per verb; each works from a fresh clone and makes the virtual environment when it is not there.
# VENV=folder chooses another environment, PYTHON=program the interpreter that makes it.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready
REFERENCES := .venv-ref
ONLY ?=

# What decides without a device: its branches are all to be walked by tests.
comma := ,
space := $(subst ,, )
COVERED := $(subst $(space),$(comma),$(addprefix */omnistage/,core/* config/* orchestrator/* wire/* stages/*/scheduler.py serve/render/*))

export OMP_NUM_THREADS ?= 1

.PHONY: install fetch weights references demo test faults check format cover bench bench-all mutants wheel clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-input -c constraints.txt setuptools wheel  # or an older pip warns of packages without a wheel
	$(BIN)/python -m pip install --quiet --no-input -c constraints.txt -e ".[test,dev]"
	$(BIN)/python -m compileall -q src  # pip compiles what it installs, but not what it only points to
	touch $@

fetch: $(READY)
	$(BIN)/omnistage fetch demo

# Everything that tests marked `weights` need: the demo's, and a recogniser that listens to it.
weights: fetch
	$(BIN)/python -m tests.tools.whisper

# What transformers makes of the inputs of tests, written once and kept in tests/references. It needs torchvision for videos, which
# neither the package nor its tests have; so it has an environment of its own.
references: $(REFERENCES)/.ready
	PYTHONPATH=src:. $(REFERENCES)/bin/python -m tests.references.write_qwen3_omni

$(REFERENCES)/.ready: constraints.txt
	test -x $(REFERENCES)/bin/python || $(PYTHON) -m venv $(REFERENCES)
	$(REFERENCES)/bin/python -m pip install --quiet --no-input -c constraints.txt \
	    msgspec numpy pillow safetensors tokenizers torch transformers
	$(REFERENCES)/bin/python -m pip install --quiet --no-input --no-deps -c constraints.txt torchvision
	touch $@

demo: fetch
	$(BIN)/python examples/demo.py

# Two files of tests at a time; a file's tests run one after another.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Thousands of faults on real servers, in under 15 minutes; a run prints its SEED, and SEED=number repeats it.
faults: fetch
	$(BIN)/python -m tests.faults.campaign $(if $(SEED),--seed $(SEED))

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_shape.py

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

cover: $(READY)
	$(BIN)/python -m pytest -q --cov --cov-report= -m "not weights"
	$(BIN)/coverage report --fail-under=95 --include="$(COVERED)"

bench: $(READY)
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

bench-all: $(READY)
	$(BIN)/python -m benchmarks --all

mutants: $(READY)
	$(BIN)/python tools/mutants.py $(if $(ONLY),--only $(ONLY))

wheel: $(READY)
	$(BIN)/python -m build

clean:
	rm -rf build dist out .coverage htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
