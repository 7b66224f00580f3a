"""XGrammar and Outlines behind the verifier, where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import VOCAB_SIZE, RandomTreeDrafter, tiny_llama

import freedraft
from freedraft import CandidateTree, GenerationResult
from freedraft.verifier import GrammarState
from freedraft.verifier.grammar import prune

END = 1
PIECES = {10: "a", 11: "b", 12: "ab", 13: "c", 14: "ca"}
PATTERN = "(ab|ca){3,5}"


def xgrammar_states() -> Callable[[int], GrammarState]:
    xgrammar: Any = pytest.importorskip("xgrammar", reason="xgrammar is not installed")
    from freedraft.integrations.xgrammar_adapter import XGrammarState

    vocabulary = [PIECES.get(token, f"<{token}>") for token in range(VOCAB_SIZE)]
    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[END])
    compiled = xgrammar.GrammarCompiler(info).compile_regex(PATTERN)
    return lambda row: XGrammarState(compiled, VOCAB_SIZE)


def outlines_states() -> Callable[[int], GrammarState]:
    outlines: Any = pytest.importorskip("outlines_core", reason="outlines_core is not installed")
    from freedraft.integrations.outlines_adapter import OutlinesState

    vocabulary = outlines.Vocabulary(END, {piece: [token] for token, piece in PIECES.items()})
    index = outlines.Index(PATTERN, vocabulary)
    return lambda row: OutlinesState(index, VOCAB_SIZE, END)


ADAPTERS = {"xgrammar": xgrammar_states, "outlines": outlines_states}


@pytest.mark.parametrize("name", ADAPTERS)
def test_state_moves_and_is_taken_back(name: str) -> None:
    state = ADAPTERS[name]()(0)
    assert torch.nonzero(state.allowed()).flatten().tolist() == [10, 12, 13, 14]
    assert state.advance(10)
    assert torch.nonzero(state.allowed()).flatten().tolist() == [11]
    assert not state.advance(13)
    assert torch.nonzero(state.allowed()).flatten().tolist() == [11]
    assert state.advance(11) and state.advance(12) and state.advance(14)
    # Behind a whole match outlines-core 0.2 leaves the pieces of a next pair out.
    assert {END, 12, 14} <= set(torch.nonzero(state.allowed()).flatten().tolist())
    assert state.advance(END)
    assert not state.advance(10)
    state.rollback(2)
    assert not state.allowed()[END]
    state.rollback(2)
    assert torch.nonzero(state.allowed()).flatten().tolist() == [11]


@pytest.mark.parametrize("name", ADAPTERS)
def test_pruning(name: str) -> None:
    state = ADAPTERS[name]()(0)
    tree = CandidateTree.from_chains([[10, 11, 13], [10, 10], [14, 12], [20], [11]])
    kept = prune(tree, state)
    assert kept.token_ids.tolist() == [10, 11, 13, 14, 12]
    assert torch.nonzero(state.allowed()).flatten().tolist() == [10, 12, 13, 14]


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "top_k": 0, "seed": 2}])
def test_generation_keeps_to_the_pattern(name: str, options: dict[str, Any]) -> None:
    def decode(drafter: Any) -> GenerationResult:
        result = freedraft.generate(
            tiny_llama(),
            [5, 6, 7],
            drafter=drafter,
            grammar=ADAPTERS[name](),
            eos_token_id=END,
            max_new_tokens=30,
            cost_gate=False,
            return_dict=True,
            **{"do_sample": False, **options},
        )
        assert isinstance(result, GenerationResult)
        return result

    plain = decode(None)
    (new,) = plain.token_ids
    text = "".join(PIECES[token] for token in new[:-1])
    assert new[-1] == END
    assert 3 <= len(text) // 2 <= 5
    assert all(text[at : at + 2] in ("ab", "ca") for at in range(0, len(text), 2))
    drafted = decode(RandomTreeDrafter(1, [[5, 6, 7, *new]]))
    assert drafted.token_ids == plain.token_ids
    assert drafted.statistics.accepted > 0
