#!/usr/bin/env bash
# Everything that needs a GPU, in one run: the kernels against their torch twins, the suite's kernel
# tests on the device, step times of a Llama-3-8B-shaped model (all that took under eight minutes on
# an H200), the decode loop around such a model, walked on the device and on the host, and
# look-ahead and recycling on a real model (these two not run on a GPU yet). Results go to $OUT
# (benchmarks/results without it).
#
#   benchmarks/gpu.sh               on a machine with a CUDA device, torch and Triton
#   benchmarks/gpu.sh --cpu-smoke   the same scripts at toy sizes: does all of it run?
#
# TOKENS names a file of recorded requests in tokens (see gpu_end_to_end.py prepare); without it the
# requests are synthetic. MODEL names a folder with the real model and its tokenizer; without it
# freedraft's default model is taken from the cache.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-benchmarks/results}
small=()
name=gpu
if [ "${1:-}" = "--cpu-smoke" ]; then
    small=(--small)
    name=cpu_smoke
    out=$(mktemp -d)
    export CUDA_VISIBLE_DEVICES="" TRITON_INTERPRET=1
    export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
fi
mkdir -p "$out"
# The package need not be installed: a folder of links makes it importable.
[ -e .types/freedraft/verifier ] || make -s types
export PYTHONPATH="$PWD/.types:$PWD/benchmarks:${PYTHONPATH:-}" PYTHONUNBUFFERED=1
status=0
run() { # a failed part does not keep the others from running
    echo "== $1 ($SECONDS s)"
    shift
    timeout 300 "$@" || { status=1; echo "FAILED: $*"; }
}
if $python -c "import triton" 2>/dev/null; then
    run "kernels against torch" $python benchmarks/gpu_kernels.py --json "$out/${name}_kernels.json" "${small[@]}"
    run "kernel tests" $python -m pytest -q -p no:cacheprovider tests/verifier/test_triton_kernels.py
else
    echo "== no Triton: the kernels are left out"
    [ ${#small[@]} -gt 0 ] || status=1
fi
run "step cost" $python benchmarks/gpu_step_cost.py --json "$out/${name}_step_cost.json" "${small[@]}"
run "end to end" $python benchmarks/gpu_end_to_end.py run --json "$out/${name}_end_to_end.json" \
    "${small[@]}" ${TOKENS:+--tokens "$TOKENS"}
run "decode loop" $python benchmarks/gpu_decode_loop.py --json "$out/${name}_decode_loop.json" \
    "${small[@]}" ${TOKENS:+--tokens "$TOKENS"}
run "cold start" $python benchmarks/gpu_cold_start.py --json "$out/${name}_cold_start.json" \
    "${small[@]}" ${MODEL:+--model "$MODEL"}
echo "== done ($SECONDS s), results in $out, status $status"
exit $status
