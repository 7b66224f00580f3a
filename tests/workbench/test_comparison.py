from __future__ import annotations

import pytest
import torch
from tiny_files import byte_llama, byte_tokenizer

from freedraft.workbench.bench.run import Run
from freedraft.workbench.comparison import (
    ARMS,
    FREEDRAFT,
    GENERATE,
    PLAIN_LOOP,
    PROMPT_LOOKUP,
    Comparison,
    summarize,
)
from freedraft.workbench.demo_prompts import DEFAULT_PROMPTS, DEMO_PROMPTS

INPUT_IDS = byte_tokenizer()("again and again and again ", return_tensors="pt")["input_ids"]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    # What the cost gate lets through depends on the times measured.
    return Comparison(byte_llama(), "ngram", 40, cost_gate=False)


def test_all_arms_give_the_same_tokens_and_plausible_counts(comparison: Comparison) -> None:
    runs = {arm: comparison.run_once(arm, INPUT_IDS) for arm in ARMS}
    for arm, run in runs.items():
        assert run.token_ids == runs[GENERATE].token_ids, arm
        assert len(run.token_ids) == 40 and 0 < run.first_token_seconds < run.seconds
    for arm in (PLAIN_LOOP, GENERATE):
        assert (runs[arm].steps, runs[arm].drafted, runs[arm].accepted) == (40, 0, 0)
    for arm in (PROMPT_LOOKUP, FREEDRAFT):
        run = runs[arm]
        assert 0 < run.accepted <= run.drafted
        assert run.steps < 40
    assert runs[PROMPT_LOOKUP].steps + runs[PROMPT_LOOKUP].accepted == 40


def test_the_models_forward_is_left_alone(comparison: Comparison) -> None:
    model = byte_llama()
    Comparison(model, "ngram", 4).run_once(GENERATE, INPUT_IDS)
    assert not model._forward_pre_hooks


def test_steps_are_told_for_freedraft(comparison: Comparison) -> None:
    tokens: list[int] = []
    run = comparison.run_once(FREEDRAFT, INPUT_IDS, lambda report: tokens.extend(report.token_ids))
    assert tuple(tokens) == run.token_ids


def test_each_round_runs_all_arms_in_another_order(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def run_once(arm: str, _: torch.Tensor) -> Run:
        order.append(arm)
        return Run((1, 2), 1.0, 2, 0, 0, 0.5)

    monkeypatch.setattr(comparison, "run_once", run_once)
    num_done = 0

    def after_run() -> None:
        nonlocal num_done
        num_done += 1

    results = comparison.compare(INPUT_IDS, 3, after_run)
    assert [result.name for result in results] == list(ARMS)
    assert num_done == len(order) == 12
    rounds = [order[i : i + 4] for i in (0, 4, 8)]
    assert all(sorted(part) == sorted(ARMS) for part in rounds)
    assert len({part[0] for part in rounds}) == 3


def test_summary_takes_medians_and_compares_text() -> None:
    base = [Run((1, 2, 3, 4), seconds, 4, 0, 0, 0.5) for seconds in (4.0, 2.0, 9.0)]
    runs = [Run((1, 2, 3, 4), seconds, 2, 6, 2, 0.5) for seconds in (1.0, 2.0, 8.0)]
    result = summarize(FREEDRAFT, runs, base)
    assert (result.median_seconds, result.speedup, result.tokens_per_second) == (2.0, 2.0, 2.0)
    assert (result.tokens_per_step, result.same_text, result.num_equal) == (2.0, True, 4)
    other = [runs[0], Run((1, 2, 5, 4), 1.0, 2, 6, 2, 0.5)]
    result = summarize(FREEDRAFT, other, base)
    assert (result.same_text, result.num_equal) == (False, 2)
    shorter = summarize(FREEDRAFT, [Run((1, 2, 3), 1.0, 2, 6, 2, 0.5)], base)
    assert (shorter.same_text, shorter.num_equal) == (False, 3)


def test_prompts_are_of_three_kinds() -> None:
    names = [prompt.name for prompt in DEMO_PROMPTS]
    assert len(set(names)) == 6 and set(DEFAULT_PROMPTS) < set(names)
    workloads = [prompt.workload for prompt in DEMO_PROMPTS]
    assert workloads.count("edit") == 3 and workloads.count("rag") == 2
    defaults = {p.workload for p in DEMO_PROMPTS if p.name in DEFAULT_PROMPTS}
    assert defaults == {"edit", "rag", "chat"}
