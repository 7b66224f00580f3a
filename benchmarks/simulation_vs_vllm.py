"""Does the simulation of a server say what a real one then does?

vLLM on a CPU has served the prompts of ``bench_prompts.jsonl``, which arrived at random times,
without speculation and with its own n-gram method (``simulation_vs_vllm_serve.py``). The simulation
gets the step times, measured beforehand with drafts of fixed lengths, the arrivals and lengths, and
the acceptance of that method's rule on the recorded answers. It must tell the throughput of each
run within 15 %.

    python benchmarks/simulation_vs_vllm.py --served FOLDER
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from freedraft import CandidateTree, Feedback
from freedraft.workbench.request_times import Objective, RequestTimes, service_level
from freedraft.workbench.simulation.acceptance import AcceptanceTable, tabulate
from freedraft.workbench.simulation.policy import Schedule
from freedraft.workbench.simulation.result import summarize_simulation
from freedraft.workbench.simulation.server import Server, ServerConfig
from freedraft.workbench.simulation.step_times import MeasuredTimes
from freedraft.workbench.simulation.workload import SimulatedRequest

HERE = Path(__file__).parent
FloatArray64 = npt.NDArray[np.float64]
MIN_NGRAM, MAX_NGRAM = 2, 4
# The limits that the server was started with; its log names the tokens that its cache holds.
SERVER = ServerConfig(max_requests=8, max_step_tokens=1024, kv_tokens=23_296, block_size=128)


class PromptLookup:
    """The rule of vLLM's n-gram method, as a drafter: the longest match, the earliest place."""

    name = "prompt-lookup"

    def __init__(self) -> None:
        self._texts: dict[object, list[int]] = {}

    def start(self, request_id: object, prompt_ids: Any, namespace: str = "") -> None:
        self._texts[request_id] = [int(token) for token in prompt_ids]

    def extend(self, request_id: object, token_ids: Any) -> None:
        self._texts[request_id] += [int(token) for token in token_ids]

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        return [self._tree(self._texts[request], max_nodes) for request in request_ids]

    def _tree(self, text: list[int], max_nodes: int) -> CandidateTree:
        for size in range(MAX_NGRAM, MIN_NGRAM - 1, -1):
            tail = text[-size:]
            for place in range(len(text) - size):
                if text[place : place + size] == tail:
                    return CandidateTree.from_chain(text[place + size :][:max_nodes])
        return CandidateTree.empty()

    def observe(self, request_id: object, tree: CandidateTree, feedback: Feedback) -> None:
        pass

    def truncate(self, request_id: object, length: int) -> None:
        del self._texts[request_id][length:]

    def stop(self, request_id: object) -> None:
        del self._texts[request_id]


@dataclass(frozen=True)
class StepTable:
    """An engine's measured decoding steps, read between their entries in straight lines.

    Unlike a calibration they need not grow: one token alone can take longer than two on this CPU.

    Attributes:
        contexts: of the measurements.
        batches: of the measurements.
        nodes: of each request.
        seconds: ``(num_contexts, num_batches, num_nodes)``.
    """

    contexts: list[int]
    batches: list[int]
    nodes: list[int]
    seconds: FloatArray64

    def step_seconds(
        self, num_requests: float, nodes: npt.ArrayLike, context: float | None = None
    ) -> FloatArray64:
        """Return the seconds of a step; the ends of the table go on as they are."""
        assert context is not None
        by_batch = _between(self.contexts, self.seconds, context)
        row = _between(self.batches, by_batch, num_requests)
        return np.asarray(np.interp(np.asarray(nodes, np.float64), self.nodes, row))


def _between(axis: list[int], values: FloatArray64, at: float) -> FloatArray64:
    position = float(np.interp(at, axis, np.arange(len(axis))))
    low = min(int(position), len(axis) - 2)
    return np.asarray(values[low] + (position - low) * (values[low + 1] - values[low]))


def step_times(content: dict[str, Any]) -> MeasuredTimes:
    """Return an engine's measured steps, with the prompts' straight line."""
    measured = content["calibration"]
    axes = [measured[axis] for axis in ("contexts", "batches", "nodes")]
    seconds = np.array(measured["step_seconds"]).reshape([len(axis) for axis in axes])
    prompts = {int(length): value for length, value in measured["prompt_seconds"].items()}
    slope, base = np.polyfit(list(prompts), list(prompts.values()), 1)
    return MeasuredTimes(StepTable(*axes, seconds), float(slope), max(float(base), 0.0))


def report(arguments: argparse.Namespace) -> None:
    """Simulate each run and compare."""
    served = {
        nodes: json.loads((arguments.served / f"{nodes}.json").read_text())
        for nodes in arguments.drafts
    }
    rows = []
    for nodes, content in served.items():
        times = step_times(content)
        for rate, real in content["rates"].items():
            plain = served[0]["rates"][rate]["requests"]
            same = sum(
                a["token_ids"] == b["token_ids"]
                for a, b in zip(real["requests"], plain, strict=True)
            )
            rows.append(compare(nodes, float(rate), real, times) | {"same_text": same})
            row = rows[-1]
            told, seen = row["simulated"], row["real"]
            print(
                f"{row['method']:>9} {row['rate']:5.2f}/s  tokens/s {seen['throughput']:6.1f} "
                f"simulated {told['throughput']:6.1f} ({row['throughput_error']:+.1%})  TPOT p50 "
                f"{seen['tpot_p50'] * 1e3:.0f} / {told['tpot_p50'] * 1e3:.0f} ms  TTFT p50 "
                f"{seen['ttft_p50']:.2f} / {told['ttft_p50']:.2f} s  steps {seen['steps']} / "
                f"{told['steps']}  same text {same} of {len(plain)}"
            )
    errors = [abs(row["throughput_error"]) for row in rows]
    summary = {"median_error": statistics.median(errors), "worst_error": max(errors)}
    print(summary)
    content = {
        "served_on": served[0]["machine"],
        "clock": served[0]["clock"],
        "calibrations": {nodes: content["calibration"] for nodes, content in served.items()},
        "server": asdict(SERVER),
        "summary": summary,
        "rows": rows,
    }
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    draw(rows, arguments.plot)


def compare(nodes: int, rate: float, real: dict[str, Any], times: MeasuredTimes) -> dict[str, Any]:
    """Simulate one run; return both sides' numbers."""
    requests = [SimulatedRequest(row["arrival"], table_of(row, nodes)) for row in real["requests"]]
    outcomes, totals = Server(times, Schedule({1: nodes}), SERVER).run(requests)
    simulated = summarize_simulation("", rate, outcomes, totals, Objective())
    seen = service_level(
        [
            RequestTimes(row["arrival"], row["first_token"], row["end"], len(row["token_ids"]))
            for row in real["requests"]
        ],
        Objective(),
    )
    return {
        "method": f"ngram K={nodes}" if nodes else "off",
        "rate": rate,
        "requests": len(requests),
        "throughput_error": simulated.level.throughput / seen.throughput - 1,
        "real": asdict(seen) | {"steps": real["steps"]},
        "simulated": simulated.to_dict() | {"steps": totals.steps},
    }


def table_of(row: dict[str, Any], nodes: int) -> AcceptanceTable:
    """Return what the n-gram method drafts along an answer.

    Its time is left out: what this drafter takes in Python says nothing of vLLM's kernel.
    """
    table = tabulate(PromptLookup(), row["prompt_ids"], row["token_ids"], max_nodes=nodes)
    return replace(table, draft_seconds=0.0)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw real and simulated throughput side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for method, colour in zip(
        methods, ("0.4", "tab:blue", "tab:orange", "tab:green"), strict=False
    ):
        points = [row for row in rows if row["method"] == method]
        rates = [row["rate"] for row in points]
        axes.plot(
            rates, [row["simulated"]["throughput"] for row in points], color=colour, label=method
        )
        axes.plot(rates, [row["real"]["throughput"] for row in points], "o", color=colour)
    axes.set(xscale="log", xlabel="requests a second that arrive", ylabel="tokens a second", ylim=0)
    axes.set_title("vLLM on a CPU: measured (dots) and simulated (lines)", fontsize=10)
    axes.set_xticks(
        list(dict.fromkeys(row["rate"] for row in rows)),
        [f"{rate:g}" for rate in dict.fromkeys(row["rate"] for row in rows)],
    )
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--served", type=Path, default=Path("simulation_vs_vllm"))
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 4, 8])
    parser.add_argument("--json", type=Path, default=HERE / "results" / "simulation_vs_vllm.json")
    images = HERE.parent / "docs" / "images"
    parser.add_argument("--plot", type=Path, default=images / "simulation-vs-vllm.png")
    report(parser.parse_args())


if __name__ == "__main__":
    main()
