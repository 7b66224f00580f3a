"""Write a GGUF file's weights as float32: kernels for one and for several tokens then agree.

    FOLDER/bin/python benchmarks/gguf_float32.py IN.gguf OUT.gguf

Needs llama-cpp-python.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import llama_cpp

_ALL_FLOAT32 = 0  # LLAMA_FTYPE_ALL_F32


def main() -> None:
    """Convert one file."""
    if len(sys.argv) != 3:
        sys.exit(f"expected IN.gguf OUT.gguf, got {' '.join(sys.argv[1:])}")
    source, target = map(Path, sys.argv[1:])
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = _ALL_FLOAT32
    parameters.allow_requantize = True
    failed = llama_cpp.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(parameters)
    )
    if failed:
        sys.exit(f"expected {source} to be converted, got error {failed}")


if __name__ == "__main__":
    main()
