"""What does drafting cost where nothing can be copied, and how soon is it back?

    OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 python benchmarks/drafting_sleep.py MODEL \
        --out drafting_sleep.json

The model is made to write random tokens, in which nothing repeats but by chance, and then a passage
of them over again. All that the drafter does (start aside) is timed inside the running generation,
where the model's weights have driven everything else out of the caches. Reported: the drafter's
share of the step time over the last 500 of the random tokens, and the tokens of the repeated
passage that are emitted before the first drafted one is accepted.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

import freedraft
from freedraft import StepReport, create_drafter
from freedraft.workbench.calibration.measure import processor_name

PROMPT = 64
PASSAGE = 120
WINDOW = 500


class TimedDrafter:
    """Passes calls on and adds up how long they take."""

    def __init__(self, name: str) -> None:
        """Make the drafter."""
        self._drafter: Any = create_drafter(name)
        self.name = name
        self.seconds = 0.0
        self.proposed = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._drafter, name)
        if not callable(call):
            return call

        def timed(*arguments: Any) -> Any:
            begin = time.perf_counter()
            answer = call(*arguments)
            self.seconds += time.perf_counter() - begin
            self.proposed += name == "propose"
            return answer

        return timed


class Dictation(LogitsProcessor):
    """Leaves one possible token at each position."""

    def __init__(self, text: Tensor) -> None:
        """Take the whole text, prompt included."""
        self._text = text

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores that allow the text's next token only."""
        dictated = torch.full_like(scores, -torch.inf)
        dictated[:, self._text[input_ids.shape[1]]] = 0.0
        return dictated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a transformers causal language model")
    parser.add_argument("--drafter", default="blend")
    parser.add_argument("--tokens", type=int, default=2000, help="random tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    random_part = torch.randint(
        10, model.config.vocab_size, (PROMPT + arguments.tokens,), generator=generator
    )
    start = PROMPT + arguments.tokens // 2
    text = torch.cat([random_part, random_part[start : start + PASSAGE], random_part[:1]])
    drafter = TimedDrafter(arguments.drafter)
    steps: list[tuple[StepReport, float, float, int]] = []

    def note(step: StepReport) -> None:
        steps.append((step, time.perf_counter(), drafter.seconds, drafter.proposed))

    freedraft.generate(
        model,
        text[None, :PROMPT],
        drafter=drafter,
        logits_processor=LogitsProcessorList([Dictation(text)]),
        max_new_tokens=arguments.tokens + PASSAGE,
        eos_token_id=None,
        do_sample=False,
        on_step=note,
    )
    emitted = np.cumsum([len(step.token_ids) for step, *_ in steps])
    last = int(np.searchsorted(emitted, arguments.tokens))
    first = int(np.searchsorted(emitted, arguments.tokens - WINDOW))
    step_seconds = [b[1] - a[1] for a, b in pairwise(steps[first : last + 1])]
    drafting = steps[last][2] - steps[first][2]
    back = next(n for n, (step, *_) in enumerate(steps) if n > last and step.num_accepted)
    content = {
        "machine": {"processor": processor_name(), "threads": arguments.threads},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "date": time.strftime("%Y-%m-%d"),
        "model": Path(arguments.model).name,
        "drafter": arguments.drafter,
        "random_tokens": arguments.tokens,
        "step_ms_median": round(1e3 * statistics.median(step_seconds), 2),
        "draft_us_a_step": round(1e6 * drafting / (last - first), 1),
        "draft_share": round(drafting / sum(step_seconds), 5),
        "propose_calls_a_step": round((steps[last][3] - steps[first][3]) / (last - first), 3),
        "tokens_until_back": int(emitted[back - 1] - arguments.tokens),
        "steps_of_the_passage": len(steps) - 1 - last,
        "passage_tokens": PASSAGE,
    }
    text_out = json.dumps(content, indent=1) + "\n"
    print(text_out)
    if arguments.out:
        arguments.out.write_text(text_out)


if __name__ == "__main__":
    main()
