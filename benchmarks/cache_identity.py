"""Do drafts change a token on any cache of any architecture? 100 prompts each, float64.

Fifteen architectures with random weights, each kind of cache, alone and in ragged batches of five,
greedily and with a seed; plain decoding runs on a cache of the same kind: greedily that is the
model's own ``generate`` of each prompt alone, with a seed our loop without drafts. Combinations
that are refused by name are listed with the reason. Quanto and HQQ run where they are installed.
What the output already holds for as many prompts and tokens is not run again.

    OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 python benchmarks/cache_identity.py --output FILE
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, QuantizedCache

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from cache_kinds import KINDS, Options, count_differences  # noqa: E402
from recurrent_models import build_recurrent  # noqa: E402
from tiny_architectures import NAMES, build  # noqa: E402

REFERENCE = "transformers, each prompt alone"
"""What greedy text is compared with; sampled text is compared with our loop without drafts."""
RECURRENT = ("qwen3_next", "lfm2", "mamba2", "falcon_h1")


def kinds() -> dict[str, Options]:
    """Return the kinds of caches that can be made here."""
    found = dict(KINDS)
    groups = {"q_group_size": 8, "residual_length": 8}
    if importlib.util.find_spec("optimum") is not None:
        found["quanto"] = lambda model, length: {
            "cache": QuantizedCache("quanto", config=model.config, **groups)
        }
    if importlib.util.find_spec("hqq") is not None:
        found["hqq"] = lambda model, length: {
            "cache": QuantizedCache("hqq", config=model.config, axis_key=1, axis_value=1, **groups)
        }
    return found


def measure(
    model: PreTrainedModel, kind: Options, num_prompts: int, batch_size: int, new_tokens: int
) -> dict[str, Any]:
    """Return how many prompts differ and how many drafts were accepted, or the refusal."""
    try:
        different, accepted = count_differences(model, kind, num_prompts, batch_size, new_tokens)
    except ValueError as error:
        return {"refused": str(error)}
    return {"different": different, "accepted": accepted, "greedy_reference": REFERENCE}


def earlier_rows(path: Path | None, prompts: int, new_tokens: int) -> list[dict[str, Any]]:
    """Return what an earlier run with the same numbers has left in ``path``."""
    if path is None or not path.exists():
        return []
    earlier = json.loads(path.read_text())
    is_alike = (earlier["prompts"], earlier["new_tokens"]) == (prompts, new_tokens)
    rows: list[dict[str, Any]] = earlier["rows"] if is_alike else []
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=12)
    parser.add_argument("--models", nargs="+", default=[*NAMES, *RECURRENT])
    parser.add_argument("--kinds", nargs="+", default=list(kinds()))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": {"cores": os.cpu_count(), "system": platform.system()},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "prompts": arguments.prompts,
        "new_tokens": arguments.new_tokens,
        "rows": earlier_rows(arguments.output, arguments.prompts, arguments.new_tokens),
    }
    done = {(row["model"], row["cache"], row["batch_size"]) for row in results["rows"]}
    for kind, name, batch_size in product(arguments.kinds, arguments.models, arguments.batch_sizes):
        if (name, kind, batch_size) in done:
            continue
        model = build_recurrent(name) if name in RECURRENT else build(name)
        found = measure(model, kinds()[kind], arguments.prompts, batch_size, arguments.new_tokens)
        row = {"model": name, "cache": kind, "batch_size": batch_size} | found
        results["rows"].append(row)
        print(json.dumps(row), flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
