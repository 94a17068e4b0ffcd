# avsim: `make demo` and `make test` need git, make and Python 3.11 with venv, nothing else.
SHELL := bash
.SHELLFLAGS := -o pipefail -ec
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-live goldens bench bench-gpu lint clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(VENV)/.installed ## the main job on a shipped real trace: table, verdicts, demo-run/report.html
	$(BIN)/avsim replay traces/smollm2-eagle1-greedy --cost deepseek-v4-flash-tp4-b300 --what-if \
	  --concurrency 1,8,32,64,128,256 --baseline none,fixed,oracle --policy adaptive --bootstrap 40 \
	  --out demo-run --overwrite

test: $(VENV)/.installed ## all fast tests: no torch
	$(BIN)/pytest -q -n auto --maxprocesses 8 --dist loadfile

# Each set of live tests has a virtualenv of its own, cached outside the clone: their requirements conflict.
LIVE := -o addopts="--strict-markers --strict-config -p no:cacheprovider"
test-live: ## against vLLM's kernels under Triton's interpreter, then with a real vLLM engine on the CPU
	python=$$($(PYTHON) -m tests.live.setup | tail -n 1); \
	PYTHONPATH=. OMP_NUM_THREADS=1 "$$python" -m pytest tests/live -q $(LIVE)
	python=$$($(PYTHON) -m tests.live_engine.setup | tail -n 1); \
	PYTHONPATH=. OMP_NUM_THREADS=1 "$$python" -m pytest tests/live_engine -q -s --ignore-glob='*test_v2*' $(LIVE)
	python=$$($(PYTHON) -m tests.live_engine.setup_v2 | tail -n 1); \
	PYTHONPATH=. OMP_NUM_THREADS=1 "$$python" -m pytest tests/live_engine/test_v2*.py -q $(LIVE)

goldens: ## write tests/golden/vllm anew from vLLM's own code
	python=$$($(PYTHON) -m tests.live.setup | tail -n 1); PYTHONPATH=. "$$python" tests/live/make_goldens.py

bench: $(VENV)/.installed ## speeds, as ratios to a NumPy sort and exponential in the same run
	$(BIN)/python -m tests.perf.bench

bench-gpu: ## kernels on a CUDA GPU; PYTHON has torch and triton, AVSIM_VLLM_SOURCE is the folder of vLLM's wheel, unpacked
	PYTHONPATH=. $(PYTHON) -m tests.perf.bench_gpu --out gpu.csv

lint: $(VENV)/.installed ## formatter, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo-run .mypy_cache .ruff_cache .hypothesis
