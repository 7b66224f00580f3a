"""Which schedule of drafted tokens is best at which load, on which GPU, for which model?

The simulation of ``freedraft simulate`` over several devices and models computed from data sheets,
with the drafts that the default drafter would have had on recorded traffic (chains, 16 tokens).

    python benchmarks/schedules_by_load.py LOG... --requests-read 60 --json FILE
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

from freedraft import __version__
from freedraft.drafters import DEFAULT_DRAFTER, create_drafter
from freedraft.integrations.budget.data_sheets import DEVICES
from freedraft.integrations.default_model import ensure_default_model
from freedraft.workbench.replay.encoder import TokenizerEncoder
from freedraft.workbench.request_times import Objective
from freedraft.workbench.simulation.acceptance import AcceptanceTable
from freedraft.workbench.simulation.from_logs import read_requests, tabulate_requests
from freedraft.workbench.simulation.picture import draw_sweep
from freedraft.workbench.simulation.policy import parse_schedule
from freedraft.workbench.simulation.server import ServerConfig
from freedraft.workbench.simulation.shapes import MODEL_SHAPES
from freedraft.workbench.simulation.step_times import RooflineTimes
from freedraft.workbench.simulation.sweep import (
    SweepConfig,
    best_by_rate,
    plain_capacity,
    sweep,
)

HERE = Path(__file__).parent
SYSTEMS = (
    ("l4", "llama-3.1-8b", 1),
    ("a100", "llama-3.1-8b", 1),
    ("h100", "llama-3.1-8b", 1),
    ("h200", "llama-3.1-8b", 1),
    ("h100", "qwen3-30b-a3b", 1),
    ("h200", "llama-3.3-70b", 2),
)
SCHEDULES = ("off", "4", "16", "1:16,8:8,32:4,64:0", "auto")
LOADS = (0.1, 0.5, 1.0, 1.6)
DRAWN = ("h100", "llama-3.1-8b", 1)


def read_tables(arguments: argparse.Namespace) -> list[AcceptanceTable]:
    """Return the requests, the logs' first ones in turn."""
    from transformers import AutoTokenizer

    encoder = TokenizerEncoder(
        AutoTokenizer.from_pretrained(str(ensure_default_model())), "default model's"
    )
    per_log = [read_requests([log], encoder, arguments.requests_read) for log in arguments.logs]
    pairs = [pair for row in zip(*per_log, strict=False) for pair in row]
    short = [(prompt, response[: arguments.max_tokens]) for prompt, response in pairs]
    drafter = create_drafter(DEFAULT_DRAFTER)
    return tabulate_requests(short, drafter, max_nodes=16, chains=True)


def simulate(
    tables: list[AcceptanceTable], system: tuple[str, str, int], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Sweep one device with one model; print what is best."""
    device, shape, count = system
    times = RooflineTimes(DEVICES[device], MODEL_SHAPES[shape], count)
    server = ServerConfig(max_requests=128, kv_tokens=times.kv_tokens())
    config = SweepConfig(arguments.requests, 0, Objective(), server)
    capacity = plain_capacity(tables, times, config)
    rates = {float(f"{load * capacity:.3g}"): load for load in LOADS}
    policies = [parse_schedule(text) for text in SCHEDULES]
    results = sweep(tables, times, policies, list(rates), config)
    name = f"{count} x {device}, {shape}"
    for rate, best in best_by_rate(results).items():
        by_name = {result.policy: result for result in results if result.rate == rate}
        off, auto = by_name["off"].level, by_name["auto"].level
        print(
            f"{name:<26} load {rates[rate]:.1f} ({rate:g}/s, {by_name['off'].mean_decoding:.0f} "
            f"running when off): {best.policy:<20} latency {off.latency_mean:.2f} -> "
            f"{best.level.latency_mean:.2f} s (auto {auto.latency_mean:.2f}), tokens/s "
            f"{off.throughput:.0f} -> {best.level.throughput:.0f}",
            flush=True,
        )
    if system == DRAWN and arguments.plot is not None:
        title = f"{times.model.name} on {times.device.name} (computed from data sheets)"
        draw_sweep(results, config.objective, title, arguments.plot)
    return {
        "device": device,
        "devices": count,
        "shape": shape,
        "capacity": capacity,
        "results": [result.to_dict() | {"load": rates[result.rate]} for result in results],
        "best": {str(rates[rate]): row.policy for rate, row in best_by_rate(results).items()},
    }


def main() -> None:
    """Simulate all systems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--requests-read", type=int, default=20, help="of each log")
    parser.add_argument("--max-tokens", type=int, default=400, help="of a response")
    parser.add_argument("--requests", type=int, default=400, help="of each simulation")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "schedules_by_load.json")
    parser.add_argument("--plot", type=Path, default=HERE.parent / "docs/images/simulation.png")
    arguments = parser.parse_args()
    tables = read_tables(arguments)
    report = {
        "freedraft": __version__,
        "date": date.today().isoformat(),
        "logs": [log.name for log in arguments.logs],
        "requests": len(tables),
        "prompt_tokens": sum(table.prompt_length for table in tables) / len(tables),
        "response_tokens": sum(table.num_tokens for table in tables) / len(tables),
        "draft_us": 1e6 * sum(table.draft_seconds for table in tables) / len(tables),
        "settings": {"requests": arguments.requests, "max_tokens": arguments.max_tokens},
        "systems": [simulate(tables, system, arguments) for system in SYSTEMS],
    }
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
