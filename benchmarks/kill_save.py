"""Does a save that is killed at a random moment leave the old pool or the new one?

A child process saves two pools of different sizes in turn, over the same file; the parent kills it
with SIGKILL after a random time, opens the file and compares; any third outcome ends the run with
an error. At the end it loads the file into a drafter.

    python benchmarks/kill_save.py --kills 200 --out benchmarks/results/kill_save.json
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from freedraft.drafters.snapshot import read_snapshot
from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter

SIZES = (20_000, 1_500_000)
CHILD = """
import sys
from freedraft.drafters.snapshot import write_snapshot
import numpy as np
pools = [np.arange(size, dtype=np.int32) for size in map(int, sys.argv[2:])]
print("ready", flush=True)
while True:
    for pool in pools:
        write_snapshot(sys.argv[1], "suffix", {"tokens": pool}, {})
"""


def kill_once(path: Path, seconds: float) -> int:
    """Kill a saving child after ``seconds`` and return the number of tokens in the file."""
    command = [sys.executable, "-c", CHILD, str(path), *map(str, SIZES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
    tokens = read_snapshot(path, "suffix").arrays["tokens"]
    if tokens.size not in SIZES or not np.array_equal(tokens, np.arange(tokens.size)):
        raise SystemExit(f"neither the old pool nor the new one: {tokens.size} tokens")
    return int(tokens.size)


def main() -> None:
    """Run the kills and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    found = dict.fromkeys(SIZES, 0)
    interrupted = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tenant.pool")
        pool = SuffixDrafter(SuffixConfig())
        pool.save("", path)
        for _ in range(options.kills):
            before = set(Path(folder).glob(".*.tmp"))
            found_tokens = kill_once(path, draw.uniform(0.005, 0.2))
            interrupted += len(set(Path(folder).glob(".*.tmp")) - before)
            found[found_tokens] += 1
            for leftover in Path(folder).glob(".*.tmp"):
                leftover.unlink()
        loaded = pool.load(path, "loaded")
    result = {
        "question": "which pool does a save killed at a random moment leave",
        "kills": options.kills,
        "seed": options.seed,
        "killed_inside_a_save": interrupted,
        "pools_found_by_tokens": found,
        "neither": options.kills - sum(found.values()),
        "tokens_loaded_at_the_end": loaded,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
