# Two commands do all the set-up: `make demo` and `make test`. The others are for development.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# For the GPU kernels' tests in the interpreter; a CUDA build of torch brings the Triton it fits.
TRITON := "triton>=3.9,<4"

# Waiting threads sleep instead of spinning: on shared cores that is worth up to a factor of eight.
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 0

.PHONY: demo test setup lint types test-interpreted test-bounds test-wheel test-vllm test-sglang \
	test-llama-cpp clean

demo: setup
	$(BIN)/freedraft demo

test: setup
	$(BIN)/python -m pytest

setup: $(READY)

# The locked versions, then the project itself, editable. The plain CPU build of torch is enough.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[transformers,plot,dev]"
	$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/python -m pip install --quiet $(TRITON)
	touch $(READY)

# Links through which type checkers see the mapped folders as one package.
types:
	rm -rf .types && mkdir -p .types/freedraft
	for file in api/*.py api/py.typed; do ln -s ../../$$file .types/freedraft/; done
	for folder in drafters integrations verifier workbench; do ln -s ../../$$folder .types/freedraft/; done

lint: setup types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

# Plain Python in the place of compiled kernels: coverage sees their lines.
test-interpreted: setup
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m coverage run -m pytest -m "not model" -q
	$(BIN)/python -m coverage report --skip-covered --sort=cover

# Kernels compiled with index checks, into a cache of their own.
test-bounds: setup
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.numba-bounds $(BIN)/python -m pytest -m "not model" -q tests/drafters

# The suite against the built wheel in an environment that does not see the checkout's package.
test-wheel: setup
	rm -rf build dist .venv-wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-wheel/bin/python -m pip install --quiet --constraint constraints.txt "$$(ls dist/*.whl)[transformers,plot,dev]"
	.venv-wheel/bin/python -c "import triton" 2>/dev/null || .venv-wheel/bin/python -m pip install --quiet $(TRITON)
	.venv-wheel/bin/python -m pytest -m "not model" -q

# Real vLLM on the CPU, in an environment of its own.
test-vllm: setup
	PYTHON=$(PYTHON) benchmarks/vllm_check.sh "$$($(BIN)/python -c 'from freedraft.integrations.default_model import ensure_default_model; print(ensure_default_model())')"

# The real SGLang without a GPU, its compiled kernels stood in for.
test-sglang:
	PYTHON=$(PYTHON) benchmarks/sglang_check.sh

# Real llama-cpp-python on the CPU; compiles llama.cpp the first time.
test-llama-cpp:
	PYTHON=$(PYTHON) benchmarks/llama_cpp_check.sh

clean:
	rm -rf $(VENV) .venv-wheel .venv-vllm .numba-vllm .venv-sglang .numba-sglang .venv-llama-cpp \
		.numba-llama-cpp .types .numba-bounds build dist *.egg-info
