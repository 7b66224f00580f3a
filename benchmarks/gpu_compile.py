"""Do the kernels compile for a GPU that is not here? Compiles each and prints its size.

Needs Triton but no GPU: its interpreter, which the tests use on a CPU, is laxer about types than
its compiler is.

    python benchmarks/gpu_compile.py [--capability 90]
"""

from __future__ import annotations

import argparse
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from freedraft.verifier.device import triton_cache, triton_sampling, triton_walk

IDS = "*i64"


def kernels() -> list[tuple[Any, dict[str, str], int, int]]:
    """Return each kernel with its argument types, block size and number of warps."""
    compact = dict.fromkeys(
        ["num_slots", "num_columns", "row_stride", "head_stride", "slot_stride", "head_size"], "i32"
    )
    choose = {
        "positions": IDS,
        "temperatures": "*fp32",
        "top_ks": IDS,
        "top_ps": "*fp64",
        "min_ps": "*fp64",
        "seeds": IDS,
        "out": IDS,
        "width": "i32",
        "vocab_size": "i32",
    }
    walk = ["choices", "token_ids", "parents", "out_columns", "out_tokens", "out_lengths"]
    gather = {"columns": IDS, "out": "*bf16", "width": "i32", "num_kept": "i32", "size": "i32"}
    table = dict.fromkeys(["addresses", "columns", "num_kept", "context_lengths"], IDS)
    return [
        (triton_walk._walk_kernel, dict.fromkeys(walk, IDS) | {"width": "i32"}, 64, 1),
        (triton_walk._gather_kernel, {"values": "*bf16"} | gather, 1024, 4),
        (triton_cache._compact_kernel, {"like": "*bf16"} | table | compact, 128, 1),
        (triton_sampling._choose_kernel, {"logits": "*bf16"} | choose, 4096, 8),
    ]


def main() -> None:
    """Compile all; the first failure is the compiler's own error."""
    parser = argparse.ArgumentParser(description="compile the kernels without a GPU")
    parser.add_argument("--capability", type=int, default=90, help="90 is Hopper, 80 Ampere")
    capability = parser.parse_args().capability
    for kernel, types, block, num_warps in kernels():
        source = ASTSource(kernel, types | {"BLOCK": "constexpr"}, {"BLOCK": block})
        compiled = triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options={"num_warps": num_warps}
        )
        print(
            f"{kernel.__name__:16} sm_{capability} {len(compiled.asm['cubin']):7} bytes, "
            f"{compiled.metadata.shared} bytes shared"
        )


if __name__ == "__main__":
    main()
