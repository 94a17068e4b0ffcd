# avsim: `make demo` and `make test` need git, make and Python 3.11 with venv, nothing else.
SHELL := bash
.SHELLFLAGS := -o pipefail -ec
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-live goldens bench lint clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(VENV)/.installed ## the main job on a shipped real trace: table, verdicts, demo-run/report.html
	$(BIN)/avsim replay traces/smollm2-eagle1-greedy --cost deepseek-v4-flash-tp4-b300 --what-if \
	  --concurrency 1,8,32,64,128,256 --baseline none,fixed,oracle --policy adaptive --bootstrap 40 \
	  --out demo-run --overwrite

test: $(VENV)/.installed ## all fast tests: no torch
	$(BIN)/pytest -q

test-live: ## against vLLM's own code under Triton's interpreter, in a virtualenv of its own, cached outside the clone
	python=$$($(PYTHON) tests/live/setup.py | tail -n 1); \
	PYTHONPATH=. OMP_NUM_THREADS=1 "$$python" -m pytest tests/live -q \
	  -o addopts="--strict-markers --strict-config -p no:cacheprovider"

goldens: ## write tests/golden/vllm anew from vLLM's own code
	python=$$($(PYTHON) tests/live/setup.py | tail -n 1); PYTHONPATH=. "$$python" tests/live/make_goldens.py

bench: $(VENV)/.installed ## speeds, as ratios to a NumPy sort and exponential in the same run
	$(BIN)/python -m tests.perf.bench

lint: $(VENV)/.installed ## formatter, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo-run .mypy_cache .ruff_cache .hypothesis
