"""Step times of vLLM, read off a run with planned drafts."""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .measure import CalibrationPlan, MeasurementError, Progress, Times, processor_name
from .vllm_proposer import CLASS_PATH, PLAN


def measure_vllm(
    model: str, dtype: str, plan: CalibrationPlan, progress: Progress
) -> tuple[dict[tuple[int, int, int], list[float]], dict[str, Any]]:
    """Start vLLM on a model and time its steps.

    vLLM runs in this process, eagerly; each context and batch is one call of its ``generate``, in
    which the numbers of drafted tokens take turns.

    Args:
        model: a folder or hub id.
        dtype: of the model.
        plan: what is measured.
        progress: told after each batch.

    Returns:
        Seconds by (context, batch, nodes), and what to note about the run.

    Raises:
        ImportError: vLLM is not installed.
        MeasurementError: vLLM made fewer steps of a kind than were planned.
    """
    vllm = import_module("vllm")
    longest = plan.contexts[-1] + (plan.rounds + 2) * len(plan.nodes) + 2 * plan.nodes[-1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps.txt"
        config = import_module("transformers").AutoConfig.from_pretrained(model)
        vocab_size = int(config.get_text_config().vocab_size)
        llm = vllm.LLM(
            model,
            dtype=dtype,
            enforce_eager=True,
            max_num_seqs=plan.batches[-1],
            max_model_len=longest,
            enable_prefix_caching=False,
            speculative_config={
                "model": CLASS_PATH,
                "num_speculative_tokens": max(plan.nodes[-1], 1),
            },
            additional_config={
                PLAN: {"nodes": list(plan.nodes), "vocab_size": vocab_size, "file": str(file)}
            },
        )
        times: dict[tuple[int, int, int], list[float]] = {}
        cells = [(context, batch) for context in plan.contexts for batch in plan.batches]
        for done, (context, batch) in enumerate(cells):
            file.write_text("")
            _generate(vllm, llm, plan, context, batch, vocab_size)
            _read(file, context, batch, plan, times)
            progress("measure", done + 1, len(cells))
    cuda = import_module("torch").cuda
    about = {
        "vllm": vllm.__version__,
        "enforce_eager": True,
        "vocab_size": vocab_size,
        "device": cuda.get_device_name() if cuda.is_available() else processor_name(),
    }
    return times, about


def _generate(
    vllm: Any, llm: Any, plan: CalibrationPlan, context: int, batch: int, vocab_size: int
) -> None:
    generator = np.random.default_rng(context + batch)
    prompts = [
        {"prompt_token_ids": generator.integers(0, vocab_size, context).tolist()}
        for _ in range(batch)
    ]
    # A draft of nonsense is hardly ever accepted, so a step emits one token.
    length = (plan.rounds + 2) * len(plan.nodes)
    options = vllm.SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
    llm.generate(prompts, options, use_tqdm=False)


def _read(
    file: Path,
    context: int,
    batch: int,
    plan: CalibrationPlan,
    times: dict[tuple[int, int, int], list[float]],
) -> Times:
    for line in file.read_text(encoding="utf-8").splitlines():
        running, drafted, seconds = line.split()
        if int(running) == batch:
            times.setdefault((context, batch, int(drafted)), []).append(float(seconds))
    for nodes in plan.nodes:
        found = len(times.get((context, batch, nodes), []))
        if found < 2:
            raise MeasurementError(
                f"expected at least 2 steps of {batch} requests with {nodes} drafted tokens each, "
                f"got {found}"
            )
        del times[context, batch, nodes][0]  # the first warms up
    return times
