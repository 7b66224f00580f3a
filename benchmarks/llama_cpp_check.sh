#!/usr/bin/env bash
# Real llama-cpp-python 0.3.36 on the CPU, in an environment of its own (it compiles llama.cpp, about
# five minutes the first time): the adapter's tests on the real model, some checks of the
# conformance suite, a short speed comparison.
#
#   benchmarks/llama_cpp_check.sh [ENVIRONMENT_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
environment=${1:-.venv-llama-cpp}
python="$environment/bin/python"
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 OMP_NUM_THREADS=2
export NUMBA_CACHE_DIR=.numba-llama-cpp

if [ ! -e "$environment/.ready" ]; then
  "${PYTHON:-python3}" -m venv "$environment"
  "$python" -m pip install --quiet "llama-cpp-python==0.3.36"
  "$python" -m pip install --quiet numba pathspec pyahocorasick rich typer hypothesis pytest
  "$python" -m pip install --quiet --no-deps --editable .
  touch "$environment/.ready"
fi

# there is no torch, which the other tests' settings import
report=$(mktemp)
float32=$(mktemp -u --suffix .gguf)
trap 'rm -f "$report" "$float32"' EXIT
"$python" -m pytest -q --noconftest -p no:cacheprovider --no-header -W error \
  --junitxml "$report" tests/integrations/test_llama_cpp_adapter.py
if grep -q "<skipped" "$report"; then
  echo "expected every test to run on the real engine, some were skipped" >&2
  exit 1
fi
gguf=$("$python" -c 'import sys; sys.path.insert(0, "tests"); import gguf_model; print(gguf_model.gguf_path())')
# float32 weights: kernels for one and for several tokens agree on them
"$python" benchmarks/gguf_float32.py "$gguf" "$float32"
"$python" -m freedraft.workbench.conformance --engine llama-cpp --model "$float32" \
  --only cap --only context-end --only same-text --only faulty-drafter --only budget
rm -f "$float32"
numbers=$(mktemp -u)
"$python" benchmarks/llama_cpp_speed.py --gguf "$gguf" --quantization "Q4_1" \
  --max-new-tokens 24 --rounds 1 --seconds 20 --json "$numbers"
rm -f "$numbers"
