#!/usr/bin/env bash
# The real SGLang 0.5.23 without a GPU, in an environment of its own: registration, argument
# resolution, the relay, the worker, and the Triton kernels in the interpreter. Its compiled kernels
# and torchvision are stood in for (tests/sglang_stand_in.py), so only what these imports need is
# installed.
#
#   benchmarks/sglang_check.sh [ENVIRONMENT_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
environment=${1:-.venv-sglang}
python="$environment/bin/python"
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 OMP_NUM_THREADS=2
export NUMBA_CACHE_DIR=.numba-sglang

if [ ! -e "$environment/.ready" ]; then
  "${PYTHON:-python3}" -m venv "$environment"
  # the plain CPU build of torch: the release that the engine asks for comes with gigabytes of CUDA
  "$python" -m pip install --quiet torch==2.13.0 triton==3.8.0 transformers==5.24.0
  "$python" -m pip install --quiet numba pathspec pyahocorasick rich typer hypothesis pytest
  "$python" -m pip install --quiet aiohttp apache-tvm-ffi dill einops fastapi gguf ipython loguru \
    msgspec opentelemetry-api orjson partial-json-parser pillow psutil pybase64 pyzmq requests \
    sentencepiece setproctitle sniffio starlette uvicorn
  "$python" -m pip install --quiet --no-deps compressed-tensors openai
  "$python" -m pip install --quiet --no-deps "sglang==0.5.23"
  "$python" -m pip install --quiet --no-deps --editable .
  touch "$environment/.ready"
fi

report=$(mktemp)
trap 'rm -f "$report"' EXIT
TRITON_INTERPRET=1 "$python" -m pytest -q -p no:cacheprovider --no-header \
  --junitxml "$report" tests/integrations/test_sglang_adapter.py
if grep -q "<skipped" "$report"; then
  echo "expected every test to run on the real package, some were skipped" >&2
  exit 1
fi
