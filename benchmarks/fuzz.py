"""Does anything break under calls, files and lines that nobody meant? Ten minutes of them.

    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.numba-bounds python benchmarks/fuzz.py [--minutes 10]

Three targets share the time, which is the processor's; each round has a seed of its own, which a
finding names. Runs with index checks in the kernels when the variables above are set.

- ``operations``: hypothesis drives every drafter through any sequence of starts, extensions,
  truncations, stops, proposals, saves and loads, against plain bookkeeping.
- ``pool-files``: files of every kind with flipped, missing and added bytes must be refused by name;
  files whose checksum fits a wrong content must be refused, or searched without a fault.
- ``log-lines``: good lines of every log format, cut, spliced and changed in single fields, must
  give requests or an error that names file and line.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

ROOT_FOLDER = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT_FOLDER / "tests" / "drafters"))

from test_operations import (  # noqa: E402
    BlendOperations,
    EditOperations,
    NgramOperations,
    SuffixOperations,
)

from freedraft.drafters.corpus import CorpusConfig, CorpusDrafter  # noqa: E402
from freedraft.drafters.corpus import pool_file as corpus_pool  # noqa: E402
from freedraft.drafters.corpus.index import build_index  # noqa: E402
from freedraft.drafters.recycling import RecyclingDrafter  # noqa: E402
from freedraft.drafters.snapshot import (  # noqa: E402
    SnapshotError,
    read_snapshot,
    write_snapshot,
)
from freedraft.drafters.suffix import SuffixDrafter  # noqa: E402
from freedraft.workbench.logs.reader import LogReader  # noqa: E402
from freedraft.workbench.logs.records import LogError  # noqa: E402

MACHINES = (NgramOperations, SuffixOperations, EditOperations, BlendOperations)
EXAMPLES_A_ROUND = 12
LINE = [7, 8, 9, 10, 11, 12]


def operations(rng: random.Random, folder: Path) -> int:
    """Run a round of each state machine; return the operations."""
    steps = 50
    for machine in MACHINES:
        run_state_machine_as_test(
            seed(rng.getrandbits(64))(machine),
            settings=settings(
                max_examples=EXAMPLES_A_ROUND,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
    return len(MACHINES) * EXAMPLES_A_ROUND * steps


def pool_files(rng: random.Random, folder: Path) -> int:
    """Break files of each kind in many ways; return how many were tried."""
    tried = 0
    for kind, make in POOLS.items():
        path = folder / f"{kind}.pool"
        make(path)
        good = path.read_bytes()
        for _ in range(40):
            path.write_bytes(spoiled(rng, good))
            if path.read_bytes() != good:
                refused(path, OPENERS[kind])
            tried += 1
        path.write_bytes(good)
        parts = read_snapshot(path, KINDS[kind])
        for _ in range(40):
            arrays, metadata = resealed(rng, parts.arrays, parts.metadata)
            write_snapshot(path, KINDS[kind], arrays, metadata)
            survived(path, OPENERS[kind])
            tried += 1
    return tried


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with a few of them changed, missing or added."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                del changed[place:]
            case 2:
                changed[place:place] = rng.randbytes(rng.randint(1, 80))
            case _:
                changed[place : place + rng.randint(1, 64)] = rng.randbytes(rng.randint(0, 64))
        if not changed:
            break
    return bytes(changed)


def resealed(
    rng: random.Random, arrays: dict[str, Any], metadata: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return wrong arrays and metadata, to be written with a checksum that fits them."""
    wrong = {name: np.array(array) for name, array in arrays.items()}
    meta = dict(metadata)
    name = rng.choice(list(wrong))
    array = wrong[name]
    extremes = (0, -1, 1, -(2**31), 2**31 - 1, 2**20)
    match rng.randrange(6):
        case 0 if array.size:
            for _ in range(rng.randint(1, 5)):
                array.reshape(-1)[rng.randrange(array.size)] = rng.choice(extremes)
        case 1:
            wrong[name] = array[: rng.randint(0, len(array))]
        case 2:
            wrong[name] = np.concatenate((array, array))
        case 3:
            wrong[name] = array.astype(rng.choice((np.int32, np.int64, np.float32, np.float64)))
        case 4:
            del wrong[name]
        case _:
            for key in list(meta):
                meta[key] = rng.choice((meta[key], "x", -1, 2**40, 0.5, True))
    return wrong, meta


def refused(path: Path, use: Callable[[Path], None]) -> None:
    """Demand an error that names the file."""
    try:
        use(path)
    except SnapshotError as error:
        assert str(path) in str(error), error
        return
    raise AssertionError(f"a spoiled file was taken: {path}")


def survived(path: Path, use: Callable[[Path], None]) -> None:
    """Demand an error that names the file, or use without a fault."""
    try:
        use(path)
    except SnapshotError as error:
        assert str(path) in str(error), error


def make_corpus(path: Path) -> None:
    """Write a small corpus pool."""
    documents = [np.array(LINE * 5, np.int32), np.array([3, 4, 5, 3, 4], np.int32)]
    description = corpus_pool.PoolDescription("tokens", "0" * 8, len(documents), 100)
    corpus_pool.write_pool(path, build_index(documents), description)


def use_corpus(path: Path) -> None:
    """Open a corpus pool and draft from it."""
    drafter = CorpusDrafter(CorpusConfig(path))
    for tail in (LINE, [3, 4], [99]):
        drafter.start("r", tail)
        drafter.propose(["r"], 16, 8)[0].validate()


def make_suffix(path: Path) -> None:
    """Write a small namespace of the suffix pool."""
    drafter = SuffixDrafter()
    drafter.start("r", LINE)
    drafter.extend("r", LINE * 6)
    drafter.stop("r")
    drafter.save("", path)


def use_suffix(path: Path) -> None:
    """Load a namespace and draft from it."""
    drafter = SuffixDrafter()
    drafter.load(path)
    drafter.start("r", LINE * 2)
    drafter.propose(["r"], 16, 8)[0].validate()


def make_recycling(path: Path) -> None:
    """Write a small table of successors."""
    drafter = RecyclingDrafter()
    drafter.start("r", LINE)
    drafter.save("", path)


def use_recycling(path: Path) -> None:
    """Load a table and draft from it."""
    drafter = RecyclingDrafter()
    drafter.load(path)
    drafter.start("r", LINE * 2)
    drafter.propose(["r"], 16, 8)[0].validate()


POOLS = {"corpus": make_corpus, "suffix": make_suffix, "recycling": make_recycling}
OPENERS = {"corpus": use_corpus, "suffix": use_suffix, "recycling": use_recycling}
KINDS = {"corpus": "corpus", "suffix": "suffix", "recycling": "successors"}


LINES: tuple[dict[str, Any], ...] = (
    {"prompt": "a b", "response": "c d", "session": "s", "namespace": "n", "timestamp": 1.5},
    {"prompt_ids": [1, 2], "response_ids": [3, 4], "logprobs": [[[3, -0.1], [4, -2.5]]] * 2},
    {
        "model": "m",
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": [{"type": "text", "text": "hi"}]},
        ],
    },
    {
        "request": {"messages": [{"role": "user", "content": "q"}], "model": "m"},
        "response": {"choices": [{"message": {"role": "assistant", "content": "a"}}]},
        "created": 1700000000,
    },
    {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "name": "chat",
                                "startTimeUnixNano": "1700000000000000000",
                                "attributes": [
                                    {
                                        "key": "gen_ai.input.messages",
                                        "value": {"stringValue": '[{"role":"user"}]'},
                                    },
                                    {
                                        "key": "gen_ai.output.messages",
                                        "value": {"stringValue": "[]"},
                                    },
                                ],
                            }
                        ]
                    }
                ]
            }
        ]
    },
)
JUNK: tuple[Any, ...] = (None, "", "x", -1, 1e309, 2**80, [], {}, [[]], True, "\ud800", [1, "a"])


def log_lines(rng: random.Random, folder: Path) -> int:
    """Read spoiled lines; return how many."""
    count = 400
    path = folder / "log.jsonl"
    lines = [spoiled_line(rng) for _ in range(count)]
    path.write_bytes(b"\n".join(lines))
    position = None
    reader = LogReader(path, rng.choice(("auto", "pairs", "chat", "server", "spans")))
    while True:  # from behind each broken line, until the file's end
        try:
            for request in reader:
                assert request is not None
            return count
        except LogError as error:
            assert str(path) in str(error), error
        position = reader.position
        remaining = path.read_bytes()[position.offset :].split(b"\n", 1)
        if len(remaining) < 2:
            return count
        path.write_bytes(remaining[1])
        reader = LogReader(path, "auto", skip_broken=rng.random() < 0.5)


def spoiled_line(rng: random.Random) -> bytes:
    """Return a line that is good, or wrong in a field, or in its bytes."""
    record: Any = copy.deepcopy(rng.choice(LINES))
    for _ in range(rng.randrange(3)):
        here = record
        while isinstance(here, dict | list) and here:
            key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
            if rng.random() < 0.3 or not isinstance(here[key], dict | list):
                here[key] = copy.deepcopy(rng.choice(JUNK))
                break
            here = here[key]
    data = json.dumps(record).encode()
    if rng.random() < 0.3:
        data = spoiled(rng, data).replace(b"\n", b" ")
    if rng.random() < 0.1:
        data = b"INFO 01-01 Received request x: prompt: " + data
    return data


TARGETS: dict[str, Callable[[random.Random, Path], int]] = {
    "operations": operations,
    "pool-files": pool_files,
    "log-lines": log_lines,
}


def main() -> None:
    """Fuzz until the time is up; exit with 1 at a finding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of processor time")
    parser.add_argument("--targets", type=lambda text: text.split(","), default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spent: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    findings: list[dict[str, str | int]] = []
    rounds = 0
    while sum(spent.values()) < 60 * options.minutes:
        rounds += 1
        name = min(options.targets, key=lambda target: spent[target])
        begin = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            try:
                rng = random.Random(f"{options.seed} {name} {rounds}")
                tried[name] += TARGETS[name](rng, Path(folder))
            except Exception:
                what = traceback.format_exc()[-3000:]
                findings.append({"target": name, "round": rounds, "what": what})
                print(what, file=sys.stderr)
        spent[name] += time.process_time() - begin
        if rounds % 100 == 0:
            print({target: tried[target] for target in options.targets}, flush=True)
    result = {
        "question": "does anything break under calls, files and lines that nobody meant?",
        "date": date.today().isoformat(),
        "seed": options.seed,
        "rounds": rounds,
        "bounds_checked": os.environ.get("NUMBA_BOUNDSCHECK") == "1",
        "tried": dict(tried),
        "minutes": {name: round(seconds / 60, 2) for name, seconds in spent.items()},
        "findings": findings,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps(result, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
