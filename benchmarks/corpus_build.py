"""What does a corpus pool cost to build, to open and to ask, by its size and the sort?

Text files of a folder are encoded once. Pools of growing parts of them are then built: seconds and
processor seconds of each sort (pydivsufsort where it is installed, and prefix doubling in numpy),
of writing, opening and verifying, and bytes a token. Every tenth document stays out of the pools:
half of the tails that are asked come from those, half from the documents that are in.

    python benchmarks/corpus_build.py FOLDER --tokenizer ID --json FILE

The machine's load is kept with the results: wall times on shared cores count the others' turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from freedraft.drafters.corpus import CorpusConfig, CorpusDrafter
from freedraft.drafters.corpus._search_kernels import compile_kernels
from freedraft.drafters.corpus.index import build_index, sort_by_doubling, suffix_array
from freedraft.drafters.corpus.pool_file import PoolDescription, open_pool, verify_pool, write_pool
from freedraft.workbench.text_files import UnreadableTextError, list_files, read_text

MAX_DOUBLING_TOKENS = 5_000_000
TAIL = 64
NUM_STEPS = 2000


def timed(call: Callable[[], Any]) -> dict[str, float]:
    """Return the seconds and the processor seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return {
        "seconds": round(time.perf_counter() - wall, 4),
        "cpu_seconds": round(time.process_time() - cpu, 4),
    }


def read_documents(folder: Path, tokenizer_id: str) -> tuple[list[np.ndarray], dict[str, float]]:
    """Return the documents in tokens, shuffled, and what encoding took."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_id)
    documents: list[np.ndarray] = []
    num_bytes = 0
    wall, cpu = time.perf_counter(), time.process_time()
    for path in list_files([folder]):
        try:
            text = read_text(path, 1 << 20)
        except UnreadableTextError:
            continue
        num_bytes += len(text.encode())
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        documents.append(np.array(ids, np.int32))
    took = {
        "seconds": round(time.perf_counter() - wall, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "text_bytes": num_bytes,
        "documents": len(documents),
    }
    order = np.random.default_rng(0).permutation(len(documents))
    return [documents[i] for i in order], took


def draw_tails(documents: list[np.ndarray], num: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return ends of random beginnings of random documents."""
    long = [document for document in documents if document.size > TAIL]
    tails = []
    for _ in range(num):
        document = long[int(rng.integers(len(long)))]
        stop = int(rng.integers(TAIL, document.size))
        tails.append(document[stop - TAIL : stop])
    return tails


def ask(path: Path, tails: list[np.ndarray], batch: int) -> dict[str, float]:
    """Return microseconds of a ``propose`` call for each request of a batch, 16 nodes each."""
    drafter = CorpusDrafter(CorpusConfig(path))
    times = []
    drafted = 0
    for first in range(0, len(tails) - batch + 1, batch):
        for request in range(batch):
            drafter.start(request, tails[first + request])
        started = time.perf_counter_ns()
        trees = drafter.propose(range(batch), 16, 16)
        times.append((time.perf_counter_ns() - started) / 1000 / batch)
        drafted += sum(tree.num_nodes for tree in trees)
    return {
        "us_p50": round(float(np.percentile(times, 50)), 2),
        "us_p90": round(float(np.percentile(times, 90)), 2),
        "drafted": round(drafted / len(tails), 2),
    }


def measure(documents: list[np.ndarray], held_out: list[np.ndarray], path: Path) -> dict[str, Any]:
    """Return the costs of a pool of these documents."""
    index = build_index(documents)
    row: dict[str, Any] = {"tokens": int(index.tokens.size), "places": int(index.order.size)}
    backwards = np.ascontiguousarray(index.tokens[::-1])
    row["sort"] = timed(lambda: suffix_array(backwards))
    if index.tokens.size <= MAX_DOUBLING_TOKENS:
        row["sort_by_doubling"] = timed(lambda: sort_by_doubling(backwards))
    row["build_index"] = timed(lambda: build_index(documents))
    description = PoolDescription("benchmark", "0:0", len(documents), 0)
    compile_kernels()  # verifying is timed, not the compiler
    row["write"] = timed(lambda: write_pool(path, index, description))
    row["open"] = timed(lambda: open_pool(path))
    row["verify"] = timed(lambda: verify_pool(path))
    row["file_bytes_per_token"] = round(path.stat().st_size / index.tokens.size, 2)
    row["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    rng = np.random.default_rng(1)
    half = NUM_STEPS // 2
    tails = draw_tails(documents, half, rng) + draw_tails(held_out, half, rng)
    tails = [tails[i] for i in rng.permutation(len(tails))]
    row["propose"] = {f"batch_{batch}": ask(path, tails, batch) for batch in (1, 64)}
    return row


def machine() -> dict[str, Any]:
    """Return what the numbers were measured on."""
    versions = {"python": platform.python_version()}
    for package in ("numpy", "numba", "pydivsufsort", "transformers", "freedraft"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        **versions,
    }


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--sizes", default="100000,1000000,10000000", help="tokens, increasing")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    documents, encoding = read_documents(args.folder, args.tokenizer)
    held_out, kept = documents[::10], [d for i, d in enumerate(documents) if i % 10]
    stops = np.cumsum([document.size for document in kept])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in map(int, args.sizes.split(",")):
            num = min(int(np.searchsorted(stops, size)) + 1, len(kept))
            rows.append(measure(kept[:num], held_out, Path(folder) / "measured.pool"))
            print(json.dumps(rows[-1]), flush=True)
            if num == len(kept):
                break
    report = {"machine": machine(), "encoding": encoding, "pools": rows}
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
