# The verbs of this project. Each sets up what it needs, once; pyproject.toml says what that is.

VENV := .venv
BIN  := $(VENV)/bin
# A worker for each core, up to four: each loads the models that its tests share.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal
# Tests start hundreds of interpreters: without bytecode in files, each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# Each worker has a core: matrices of references on several threads would wait for the other workers.
test test-all: export OPENBLAS_NUM_THREADS := 1
# A quarter of the random examples, see tests/brief.py; test-all tries every one.
test: export STOKER_TEST_BRIEF := 1
# One worker more than cores, up to five: tests often wait for processes that they start.
CORES := $(shell nproc 2>/dev/null || sysctl -n hw.logicalcpu)
test: PYTEST := $(BIN)/python -m pytest -n $(shell [ $(CORES) -lt 4 ] && expr $(CORES) + 1 || echo 5) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-browser test-cluster check-simulator test-gpu test-vllm fuzz-media lint fix docs man bench screenshots wheel install clean

help:          ## show this list
	@grep -hE '^[a-z-]+: .*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS="$$(printf '\t')" read -r verb what; do printf 'make %-12s %s\n' "$$verb" "$$what"; done

demo: $(VENV)/.ready-to-run   ## answer a prompt with a small real model (SmolLM2 135M), on this machine
	@$(BIN)/stoker run smollm2 "Explain in two sentences what a language model does." --temperature 0 --max-tokens 120

test: $(VENV)/.ready-to-develop   ## run the tests, all but the slow ones: minutes
	@$(PYTEST) -m "not slow"

test-all: $(VENV)/.ready-to-develop   ## run every test, the slow ones too
	@$(PYTEST)

test-browser: $(VENV)/.ready-to-develop   ## run every test of the page in Chromium, also what test-all leaves out: minutes
	@STOKER_TEST_BROWSER=1 $(PYTEST) tests/e2e/page

test-cluster: $(VENV)/.ready-to-develop   ## run the tests of clusters alone, with a real Ray: minutes
	@STOKER_TEST_NODES=1 $(BIN)/python -m pytest tests/unit/cluster tests/e2e/test_cluster*.py

check-simulator: $(VENV)/.ready-to-develop   ## compare the simulator of clusters with one, two and four real replicas: 15 minutes
	@$(BIN)/python benchmarks/cluster_check.py

test-gpu: $(VENV)/.ready-to-develop   ## run the tests on a GPU, or on Vulkan's software driver where there is none: minutes
	@tools/lavapipe.sh $(BIN)/python -m pytest tests/gpu

test-vllm: $(VENV)/.ready-to-develop   ## run the tests with a real vLLM, which VLLM=PATH names: minutes
	@$(BIN)/python -m pytest tests/unit/runtime/vllm tests/e2e/test_vllm_runtime.py

fuzz-media: $(VENV)/.ready-to-develop   ## send damaged images and documents beside a stream: 10 minutes
	@$(BIN)/python -m tests.e2e.media_soak --seconds 600

lint: $(VENV)/.ready-to-develop   ## style, types, borders between rooms, sizes, wording
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports
	@$(BIN)/python tools/size.py
	@$(BIN)/python tools/prose.py

fix: $(VENV)/.ready-to-develop   ## let ruff repair what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.ready-to-develop   ## write docs/reference/ again from the code
	@$(BIN)/python tools/reference.py

man:           ## write manual pages into build/man from the reference
	@python3 tools/man.py build/man

bench: $(VENV)/.ready-to-develop   ## measure Stoker beside its peers on this machine (an hour), and write benchmarks/RESULTS.md
	@$(BIN)/python benchmarks/compare.py

screenshots: $(VENV)/.ready-to-develop   ## take screenshots of the page in Chromium, into build/screenshots and docs/
	@$(BIN)/python tools/screenshots.py --docs

wheel:         ## build a wheel for this machine's kind into dist/, and try it where there is no compiler
	@tools/wheels.sh $$(uname -m)

install: $(VENV)/.ready-to-develop   ## set up everything for development, and nothing else

clean:         ## remove caches and build outputs; the virtual environment stays
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are younger than these once what they ask for is installed, and compiled.
NEEDED := pyproject.toml tools/install.sh CMakeLists.txt $(wildcard native/*)

$(VENV)/.ready-to-run: $(NEEDED)
	@tools/install.sh run

$(VENV)/.ready-to-develop: $(NEEDED)
	@tools/install.sh develop
