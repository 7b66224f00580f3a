"""Do memory and latency stay flat? Ten million tokens through the blend, as a server sends them.

    python benchmarks/soak.py --out benchmarks/results/soak.json --picture docs/images/soak.png

Sixteen tenants, eight requests at a time. A tenant's texts are made of its own phrases, so that
drafts are accepted and pools are searched for real; some requests are aborted, some truncated.
Every drafted tree is checked for tokens of other tenants. The pools are small enough to be full
after a part of the run: what grows behind that point would be a leak. Times are the thread's
processor time: on a shared machine wall time holds the turns of others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.edit import EditDrafter
from freedraft.drafters.ngram import NgramConfig, NgramDrafter
from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter
from freedraft.drafters.tree import accepted_path

IntArray = npt.NDArray[np.int32]

TENANTS = 16
AT_ONCE = 8
SYMBOLS = 3_000  # of each tenant
PHRASES = 400
MAX_NODES = 16


@dataclass
class Running:
    """A request in flight."""

    name: str
    tenant: int
    response: IntArray
    place: int = 0


@dataclass
class Window:
    """What is measured between two samples."""

    propose_us: list[float] = field(default_factory=list)
    extend_us: list[float] = field(default_factory=list)
    emitted: int = 0
    steps: int = 0


class Traffic:
    """Makes requests of tenants whose texts repeat their own phrases."""

    def __init__(self, seed: int) -> None:
        """Draw each tenant's phrases."""
        self.rng = np.random.default_rng(seed)
        self._phrases = [
            [
                (tenant * SYMBOLS + self.rng.integers(0, SYMBOLS, self.rng.integers(4, 40))).astype(
                    np.int32
                )
                for _ in range(PHRASES)
            ]
            for tenant in range(TENANTS)
        ]

    def text(self, tenant: int, num_tokens: int) -> IntArray:
        """Return phrases of a tenant with single tokens of its own in between."""
        parts: list[IntArray] = []
        length = 0
        while length < num_tokens:
            parts.append(self._phrases[tenant][self.rng.integers(PHRASES)])
            single = tenant * SYMBOLS + self.rng.integers(0, SYMBOLS, 1)
            parts.append(single.astype(np.int32))
            length += parts[-2].size + 1
        return np.concatenate(parts)[:num_tokens]


def resident_mib() -> float:
    """Return the process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def make_blend(pool_bytes: int) -> BlendDrafter:
    """Return the default blend with pools of about that size."""
    return BlendDrafter(
        [
            NgramDrafter(NgramConfig(capacity=1 << 21)),
            SuffixDrafter(
                SuffixConfig(max_bytes=2 * pool_bytes, max_namespace_bytes=pool_bytes // TENANTS)
            ),
            EditDrafter(),
        ]
    )


def soak(num_tokens: int, sample_tokens: int, pool_bytes: int) -> list[dict[str, Any]]:
    """Send the traffic; return a row a sample."""
    drafter = make_blend(pool_bytes)
    traffic = Traffic(3)
    running: list[Running] = []
    rows: list[dict[str, Any]] = []
    window = Window()
    seen = number = 0
    while seen < num_tokens:
        while len(running) < AT_ONCE:
            tenant = int(traffic.rng.integers(TENANTS))
            prompt = traffic.text(tenant, int(traffic.rng.integers(50, 1_500)))
            response = traffic.text(tenant, int(traffic.rng.integers(20, 800)))
            number += 1
            running.append(Running(f"r{number % 97}-{tenant}-{number}", tenant, response))
            drafter.start(running[-1].name, prompt, f"tenant {tenant}")
            seen += prompt.size
        seen += step(drafter, running, window, traffic)
        if seen // sample_tokens > len(rows):
            rows.append(
                {
                    "tokens": seen,
                    "resident_mib": round(resident_mib(), 1),
                    "propose_us_p50": round(float(np.percentile(window.propose_us, 50)), 1),
                    "propose_us_p99": round(float(np.percentile(window.propose_us, 99)), 1),
                    "extend_us_p50": round(float(np.percentile(window.extend_us, 50)), 1),
                    "extend_us_p99": round(float(np.percentile(window.extend_us, 99)), 1),
                    "tokens_per_step": round(window.emitted / window.steps, 3),
                }
            )
            print(rows[-1], flush=True)
            window = Window()
    return rows


def step(drafter: BlendDrafter, running: list[Running], window: Window, traffic: Traffic) -> int:
    """Draft for all, commit what their responses say, end some; return the tokens committed."""
    begin = time.thread_time()
    trees = drafter.propose([request.name for request in running], MAX_NODES, MAX_NODES)
    window.propose_us.append((time.thread_time() - begin) * 1e6 / len(running))
    committed = 0
    for request, tree in zip(list(running), trees, strict=True):
        foreign = tree.token_ids // SYMBOLS != request.tenant
        if foreign.any():
            raise SystemExit(f"tokens of another tenant: {tree.token_ids[foreign]}")
        left = request.response[request.place :]
        emitted = left[: accepted_path(tree, left).size + 1]
        begin = time.thread_time()
        drafter.extend(request.name, emitted)
        window.extend_us.append((time.thread_time() - begin) * 1e6)
        request.place += emitted.size
        committed += emitted.size
        chance = traffic.rng.random()
        if chance < 0.001:
            drafter.truncate(request.name, int(traffic.rng.integers(0, 1_000)))
        if request.place >= request.response.size or chance > 0.999:
            drafter.stop(request.name)
            running.remove(request)
    window.emitted += committed
    window.steps += len(trees)
    return committed


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw memory and latency over the tokens."""
    from matplotlib import pyplot as plt

    millions = [row["tokens"] / 1e6 for row in rows]
    figure, (memory, latency) = plt.subplots(2, 1, figsize=(7, 6), sharex=True)
    memory.plot(millions, [row["resident_mib"] for row in rows])
    memory.set_ylabel("resident memory, MiB")
    memory.set_ylim(bottom=0)
    for key, label in (
        ("propose_us_p50", "propose, median"),
        ("propose_us_p99", "propose, 99th percentile"),
        ("extend_us_p50", "extend, median"),
        ("extend_us_p99", "extend, 99th percentile"),
    ):
        latency.plot(millions, [row[key] for row in rows], label=label)
    latency.set_yscale("log")
    latency.set_ylabel("processor microseconds a request and step")
    latency.set_xlabel("million tokens")
    latency.legend()
    for axes in (memory, latency):
        axes.grid(alpha=0.3)
    figure.suptitle("Blend under server traffic: 16 tenants, 8 requests at a time")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run, write the rows and the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--sample", type=int, default=200_000)
    parser.add_argument("--pool-mib", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    rows = soak(options.tokens, options.sample, options.pool_mib << 20)
    middle, last = rows[len(rows) // 2], rows[-1]
    result = {
        "question": "do memory and latency stay flat over ten million tokens?",
        "date": date.today().isoformat(),
        "tenants": TENANTS,
        "requests_at_once": AT_ONCE,
        "pool_mib": options.pool_mib,
        "second_half": {
            "resident_mib_growth": round(last["resident_mib"] - middle["resident_mib"], 1),
            "propose_us_p50_ratio": round(last["propose_us_p50"] / middle["propose_us_p50"], 2),
        },
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared: other programs ran",
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.picture is not None:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
