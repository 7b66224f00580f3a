"""The draft model for llama-cpp-python, with a stand-in engine and with the real one.

`make test-llama-cpp` runs all of it in an environment that has the engine and the model.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf_model import gguf_path

from freedraft.drafters import CandidateTree, create_drafter
from freedraft.drafters.ngram import NgramDrafter
from freedraft.integrations import llama_cpp_adapter, llama_cpp_costs
from freedraft.integrations.budget import Calibration
from freedraft.integrations.chain_budget import RoundChainBudget
from freedraft.integrations.chain_forecast import ChainForecast
from freedraft.integrations.llama_cpp_adapter import LlamaDraft, LlamaDraftConfig, attach

NODES = (0, 1, 3, 7, 15, 31)
CHEAP = (1.0, 1.01, 1.02, 1.03, 1.04, 1.05)
DEAR = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # a step costs what its tokens cost one by one
VOCAB = 50
LOOP = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


def calibration(ratios: Sequence[float]) -> Calibration:
    seconds = np.array(ratios).reshape(1, 1, -1) * 0.01
    return Calibration("m", "llama-cpp", "cpu", "measured", (128,), (1,), NODES, seconds)


def make_draft(
    ratios: Sequence[float] = CHEAP, drafter: Any = None, max_context: int = 4096, **config: Any
) -> LlamaDraft:
    source = NgramDrafter() if drafter is None else drafter
    return LlamaDraft(source, VOCAB, max_context, calibration(ratios), LlamaDraftConfig(**config))


class StandIn:
    """The part of an engine's loop that a draft model sees: a live view, and silence."""

    def __init__(self, draft: LlamaDraft, size: int = 4096) -> None:
        self.draft = draft
        self.ids = np.zeros(size, np.intc)
        self.lengths: list[int] = []

    def generate(
        self, prompt: Sequence[int], num_new: int, target: Callable[[list[int]], int]
    ) -> list[int]:
        text = [*prompt, target(list(prompt))]
        while len(text) < len(prompt) + num_new:
            self.ids[: len(text)] = text
            chain = self.draft(self.ids[: len(text)])
            self.lengths.append(len(chain))
            # The rejected tail stands in the buffer, as it does in the engine.
            self.ids[len(text) : len(text) + len(chain)] = chain
            for token in [*chain.tolist(), None]:
                choice = target(text)
                text.append(choice)
                if choice != token:
                    break
        return text[len(prompt) : len(prompt) + num_new]


def looping(text: list[int]) -> int:
    return LOOP[(LOOP.index(text[-1]) + 1) % len(LOOP)] if text[-1] in LOOP else LOOP[0]


def chaotic(text: list[int]) -> int:
    return (7919 * len(text) + 31 * sum(text[-3:])) % VOCAB


@pytest.mark.parametrize("name", ["ngram", "suffix", "edit", "phrase", "recycling", "blend"])
@pytest.mark.parametrize("target", [looping, chaotic])
def test_the_text_is_the_targets_own(name: str, target: Callable[[list[int]], int]) -> None:
    draft = make_draft(drafter=create_drafter(name))
    engine = StandIn(draft)
    for prompt in ([1, 2, 3, *LOOP, *LOOP], LOOP, [4], [*LOOP, 1, *LOOP]):
        plain: list[int] = []
        for _ in range(60):
            plain.append(target([*prompt, *plain]))
        assert engine.generate(prompt, 60, target) == plain
    assert draft.statistics.switched_off == 0


def test_repeats_are_drafted_and_counted() -> None:
    draft = make_draft()
    StandIn(draft).generate([*LOOP, *LOOP, *LOOP], 100, looping)
    assert draft.statistics.tokens_per_step > 5
    assert draft.statistics.acceptance_rate > 0.8
    assert draft.statistics.emitted >= 95  # the last step's tokens are never told


def test_nothing_is_drafted_where_a_step_costs_what_its_tokens_cost() -> None:
    engine = StandIn(make_draft(DEAR))
    engine.draft._budget.record_step = lambda *_: None  # type: ignore[method-assign]
    engine.generate([*LOOP, *LOOP, *LOOP], 200, looping)
    assert max(engine.lengths) == 0


def test_lengths_are_round() -> None:
    engine = StandIn(make_draft())
    engine.generate([*LOOP, *LOOP, *LOOP], 200, looping)
    assert set(engine.lengths) <= set(NODES)
    assert 31 in engine.lengths


def test_the_answer_is_an_array_of_the_engines_type() -> None:
    draft = make_draft()
    text = np.array([*LOOP, *LOOP, LOOP[0]], np.intc)
    answer = draft(text)
    assert answer.dtype == np.intc and answer.ndim == 1 and answer.size > 0
    assert make_draft()(text[:1]).tolist() == []


def test_the_live_view_is_not_kept() -> None:
    """What the engine writes over its buffer must not change what was taken in."""
    for name in ("ngram", "suffix", "edit", "blend"):
        buffer = np.array([*LOOP, *LOOP, *LOOP, *[0] * 40], np.intc)
        draft = make_draft(drafter=create_drafter(name))
        draft(buffer[: 2 * len(LOOP)])
        saved = buffer[: 2 * len(LOOP) + 1].copy()
        buffer[: 2 * len(LOOP)] = 1
        answer = draft(saved)
        assert draft._request == 1, "the same text going on is the same request"
        fresh = make_draft(drafter=create_drafter(name))
        fresh(saved[:-1].copy())
        assert answer.tolist() == fresh(saved.copy()).tolist()


def test_requests_are_told_apart_by_their_text() -> None:
    draft = make_draft()
    steps = [
        ([1, 2, 3], 1),
        ([1, 2, 3, 4], 1),  # one more token
        ([1, 2, 9, 4, 5], 2),  # another text
        ([1, 2, 9], 3),  # the same, shorter: the prompt is answered anew
        ([1, 2, 9], 4),
        ([1, 2, 9, 4, 4, 4, 4, 4, 4, 4], 5),  # more than a step can have brought: a further turn
    ]
    for text, request in steps:
        draft(np.array(text, np.intc))
        assert draft._request == request, text
        assert len(draft._book) <= 1, "earlier requests are released"


def test_drafts_end_with_the_context() -> None:
    text = [*LOOP, *LOOP, *LOOP, LOOP[0]]
    for room, longest in ((0, 0), (1, 1), (2, 1), (5, 3), (20, 15)):
        draft = make_draft(max_context=len(text) + room)
        assert len(draft(np.array(text, np.intc))) == longest
    assert len(make_draft(max_context=10)(np.array(text, np.intc))) == 0
    assert len(make_draft(max_length=6)(np.array(text, np.intc))) == 3


def test_step_times_are_read_off_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(llama_cpp_adapter, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    draft = make_draft()
    steps: list[tuple[int, int, float]] = []
    monkeypatch.setattr(draft._budget, "record_step", lambda *step: steps.append(step))
    text = [*LOOP, *LOOP, LOOP[0]]
    first = len(draft(np.array(text, np.intc)))
    now[0] += 0.5
    draft(np.array([*text, LOOP[1]], np.intc))
    now[0] += 100.0
    # Another text: the pause before it is nobody's step, be the drafter asked at once or not.
    draft(np.array([1, 2, 3], np.intc))
    draft.set_prediction([4, 5, 6])
    draft(np.array([1, 2, 3], np.intc))
    assert steps == [(1, first, 0.5)] and first > 0


def test_predictions_serve_the_next_text_only() -> None:
    draft = make_draft(drafter=create_drafter("phrase"))
    draft.set_prediction([20, 21, 22, 23, 24, 25, 26, 27, 28])
    with_prediction = draft(np.array([1, 2, 3, 20], np.intc)).tolist()
    assert with_prediction[:3] == [21, 22, 23]
    assert draft(np.array([9, 8, 7, 20], np.intc)).tolist() == []


def test_a_faulty_drafter_is_switched_off() -> None:
    class Faulty(NgramDrafter):
        def propose(self, *_: object) -> list[CandidateTree]:
            raise OSError("broken")

    engine = StandIn(make_draft(drafter=Faulty()))
    with pytest.warns(RuntimeWarning, match="OSError: broken"):
        text = engine.generate([*LOOP, *LOOP], 20, looping)
    assert text == [LOOP[index % len(LOOP)] for index in range(20)]
    assert engine.draft.statistics.switched_off == 1


def test_forecasts_learn_from_chains_that_nobody_verified() -> None:
    forecast = ChainForecast([1, 3, 7])
    chain = CandidateTree.from_chain([1, 2, 3, 4, 5, 6, 7])
    first = forecast.offer("a", chain)
    assert first[2] / 7 == pytest.approx(first[0]) and 0.5 < first[0] < 1, "promises are doubted"
    for _ in range(200):
        forecast.offer("a", chain)
        forecast.advance("a", [1, 2])
        forecast.advance("a", [9])
    learned = forecast.offer("a", chain)
    # Of each three chains offered one is right for two tokens.
    assert learned[0] > 0.9 and 1.8 < learned[1] < 2.3 and 1.8 < learned[2] < 2.5
    forecast.forget("a")
    assert forecast._pending == {}
    assert forecast.offer("b", CandidateTree.empty()).size == 0


def test_nothing_is_drafted_from_a_token_on_that_ends_the_text() -> None:
    from freedraft.integrations.budget import StepCosts

    chain = CandidateTree.from_chain(list(range(31)))
    for end, length in ((5, 3), (20, 15), (0, 0), (99, 31)):
        budget = RoundChainBudget(StepCosts(calibration(CHEAP)), end_ids={end, 77})
        assert budget.cut(["a"], [chain])[0].num_nodes == length


def test_the_shortest_repeat_that_can_pay_grows_with_what_steps_cost() -> None:
    from freedraft.integrations.budget import StepCosts

    def least(ratios: Sequence[float]) -> int:
        return RoundChainBudget(StepCosts(calibration(ratios)), longest=31).least_repeat()

    assert least(CHEAP) == 2
    assert least((1, 1.9, 2.5, 3.5, 4.5, 8.2)) == 4
    assert 12 <= least((1, 2.1, 3.5, 5.7, 9.6, 18.1)) <= 16
    assert least(DEAR) == 64, "never"


def test_the_budget_takes_the_best_of_the_round_lengths() -> None:
    from freedraft.integrations.budget import StepCosts

    budget = RoundChainBudget(StepCosts(calibration((1, 1.5, 1.8, 2.0, 2.2, 60))))
    sure = CandidateTree.from_chain(list(range(31)))
    assert budget.cut(["a"], [sure])[0].num_nodes == 15
    doubtful = CandidateTree.from_chain(list(range(31)), np.full(31, 0.02))
    assert budget.cut(["b"], [doubtful])[0].num_nodes == 0
    short = CandidateTree.from_chain([1, 2])
    assert budget.cut(["c"], [short])[0].num_nodes == 1
    branches = CandidateTree.from_chains([[1, 2, 3], [4]], [[0.9, 0.9, 0.9], [0.1]])
    assert budget.cut(["d"], [branches])[0].token_ids.tolist() == [1, 2, 3]
    budget.set_limit("e", 0)
    assert budget.cut(["e"], [sure])[0].num_nodes == 0


@pytest.mark.parametrize("setting", [{"max_length": 0}, {"max_length": -1}])
def test_bad_settings_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"expected max_length >= 1, got"):
        LlamaDraftConfig(**setting)


def fake_llama(monkeypatch: pytest.MonkeyPatch, kind: str = "", **changes: Any) -> Any:
    module = SimpleNamespace(
        llama_model_is_recurrent=lambda model: kind == "recurrent",
        llama_model_is_hybrid=lambda model: kind == "hybrid",
        llama_model_get_vocab=lambda model: "vocabulary",
        llama_vocab_is_eog=lambda vocab, token: vocab == "vocabulary" and token in (2, 7),
    )
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    values = {
        "model": None,
        "scores": np.zeros((64, VOCAB), np.float32),
        "n_ctx": lambda: 64,
        "n_vocab": lambda: VOCAB,
        "draft_model": None,
        "_logits_all": True,
        "n_threads": 1,
        "n_tokens": 0,
        "reset": lambda: None,
        "eval": lambda tokens: None,
    }
    return SimpleNamespace(**values | changes)


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_models_without_a_cache_to_cut_are_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = fake_llama(monkeypatch, kind)
    with pytest.raises(ValueError, match=f"got a {kind} one"):
        attach(llama, "ngram")
    assert llama.draft_model is None


@pytest.mark.parametrize("changes", [{"scores": np.zeros((32, VOCAB))}, {"_logits_all": False}])
def test_missing_logits_are_refused(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = fake_llama(monkeypatch, **changes)
    with pytest.raises(ValueError, match="logits_all=True"):
        attach(llama, "ngram")
    assert llama.draft_model is None


def test_attach_measures_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    llama = fake_llama(monkeypatch, eval=lambda tokens: widths.append(len(tokens)))
    draft = attach(llama, "ngram")
    assert llama.draft_model is draft
    assert set(widths[1:]) == {1, 2, 4, 8, 16, 32}
    assert widths[0] + 32 <= 64, "the measurement stays within the context"
    tiny = fake_llama(monkeypatch, n_ctx=lambda: 2, scores=np.zeros((2, VOCAB)))
    with pytest.raises(ValueError, match="expected n_ctx of at least 3 tokens, got 2"):
        llama_cpp_costs.measure_costs(tiny)


@pytest.mark.parametrize("name", ["ngram", "suffix", "edit", "phrase", "recycling", "blend"])
def test_attach_lets_a_drafter_take_its_memory_and_leaves_no_text_behind(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[tuple[str, int]] = []
    drafter = create_drafter(name)
    start = drafter.start

    def record(request_id: Any, prompt_ids: Any, namespace: str = "") -> None:
        starts.append((namespace, len(prompt_ids)))
        start(request_id, prompt_ids, namespace)

    monkeypatch.setattr(drafter, "start", record)
    llama = fake_llama(monkeypatch)
    config = LlamaDraftConfig(calibration=calibration(CHEAP), namespace="mine")
    draft = attach(llama, drafter, config)
    assert starts[0][1] > 0 and starts[0][0] != "mine" and starts[1] == ("mine", 0)
    assert draft.statistics.steps == 0 and len(draft._book) == 0
    for end in range(4, 20):  # ids in a row, as in the text that took the memory
        assert draft(np.arange(end, dtype=np.intc)).size == 0


def test_attach_knows_where_the_engine_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = fake_llama(monkeypatch)
    draft = attach(llama, "ngram", LlamaDraftConfig(calibration=calibration(CHEAP)))
    assert draft(np.array([*LOOP, *LOOP, 5, 6], np.intc)).tolist() == []  # 7 ends a text
    assert draft(np.array([*LOOP, *LOOP, 8, 9, 10], np.intc)).tolist()[:2] == [11, 12]


def test_attach_takes_a_calibration_and_refuses_unknown_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llama = fake_llama(monkeypatch)
    attach(llama, NgramDrafter(), LlamaDraftConfig(calibration="h100"))
    with pytest.raises(ValueError, match="expected a calibration file"):
        attach(llama, "ngram", LlamaDraftConfig(calibration="nowhere.json"))
    with pytest.raises(ValueError, match="expected a drafter among"):
        attach(llama, "no such drafter")


def test_neither_torch_nor_transformers_is_imported() -> None:
    program = (
        "import sys, freedraft.integrations.llama_cpp_adapter as a\n"
        "from freedraft.drafters import create_drafter\n"
        "create_drafter('blend')\n"
        "print(sorted({'torch', 'transformers', 'llama_cpp'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"
)


@pytest.fixture(scope="module")
def llama() -> Any:
    import llama_cpp

    return llama_cpp.Llama(
        str(gguf_path()), n_ctx=1024, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False
    )


def chat_tokens(llama: Any, text: str) -> list[int]:
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return list(llama.tokenize(prompt.encode(), add_bos=False, special=True))


@needs_engine
@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    [
        "Repeat this word for word: one two three four five, one two three four five.",
        "Write about the sea.",
        "def area(width, height):\n    return width * height\n\nAdd types to this function.\n" * 3,
    ],
)
def test_each_token_is_the_argmax_of_its_own_row(llama: Any, text: str) -> None:
    """Also where the cost gate would have drafted less: every draft is taken up here."""
    attach(llama, "blend", LlamaDraftConfig(calibration=calibration(CHEAP)))
    llama.draft_model._budget.record_step = lambda *_: None
    prompt = chat_tokens(llama, text)
    llama.reset()
    tokens = []
    for token in llama.generate(prompt, temp=0.0, top_k=1):
        tokens.append(token)
        if len(tokens) == 80:
            break
    rows = llama.scores[len(prompt) - 1 : len(prompt) - 1 + len(tokens)]
    assert rows.argmax(axis=1).tolist() == tokens
    assert llama.draft_model.statistics.drafted > 0


@needs_engine
@pytest.mark.model
def test_the_engines_sampling_goes_on_as_before(llama: Any) -> None:
    draft = attach(llama, "blend", LlamaDraftConfig(calibration=calibration(CHEAP)))
    answer = llama.create_completion(
        "1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", max_tokens=40, temperature=0.7, seed=1
    )
    assert answer["usage"]["completion_tokens"] <= 40
    assert draft.statistics.accepted > 0


@needs_engine
@pytest.mark.model
def test_costs_are_those_of_the_model(llama: Any) -> None:
    measured = llama_cpp_costs.measure_costs(llama)
    assert measured.nodes == NODES
    assert measured.seconds[0, 0, -1] > measured.seconds[0, 0, 0] > 0


@needs_engine
@pytest.mark.model
def test_without_all_logits_the_real_engine_is_refused() -> None:
    import llama_cpp

    plain = llama_cpp.Llama(str(gguf_path()), n_ctx=1024, verbose=False)
    with pytest.raises(ValueError, match="logits_all=True"):
        attach(plain)
