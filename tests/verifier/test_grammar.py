"""Grammars: pruned before the forward, masked at each choice, checked when a token is emitted."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from grammars import END, CountingGrammar, decode
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import VOCAB_SIZE, RandomTreeDrafter, random_prompt, tiny_llama
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from freedraft import CandidateTree
from freedraft.verifier import IllegalTokenError
from freedraft.verifier.grammar import mask_scores, prune


@st.composite
def trees(draw: st.DrawFn) -> CandidateTree:
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 9)))]
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        taken = {t for t, p in zip(tokens, parents[:node], strict=True) if p == parent}
        tokens.append(draw(st.integers(2, 20).filter(lambda token, t=taken: token not in t)))
    return CandidateTree.from_arrays(tokens, parents)


def legal_by_hand(tree: CandidateTree, before: list[int]) -> list[int]:
    legal = []
    for node in range(tree.num_nodes):
        grammar = CountingGrammar()
        grammar.text = list(before)
        if all(grammar.advance(int(tree.token_ids[step])) for step in tree.path(node)):
            legal.append(node)
    return legal


@given(trees(), st.lists(st.integers(2, 9), max_size=3))
def test_pruning_keeps_exactly_the_legal_paths(tree: CandidateTree, before: list[int]) -> None:
    grammar = CountingGrammar()
    grammar.text = list(before)
    kept = prune(tree, grammar)
    assert grammar.text == before
    assert kept.token_ids.tolist() == tree.token_ids[legal_by_hand(tree, before)].tolist()
    kept.validate()


def test_a_drawn_tree_is_not_pruned() -> None:
    q = np.full((2, VOCAB_SIZE), 1 / VOCAB_SIZE, np.float32)
    drawn = CandidateTree.from_arrays([3, 4], [-1, -1], None, q)  # 3 is forbidden
    assert prune(drawn, CountingGrammar()) is drawn


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "top_k": 9, "seed": 4}])
def test_same_tokens_with_drafts_as_without(options: dict[str, Any]) -> None:
    plain = decode(None, grammar=lambda row: CountingGrammar(), **options)
    answers = [
        [*prompt[:5].tolist(), *new]
        for prompt, new in zip(plain.sequences, plain.token_ids, strict=True)
    ]
    states: list[CountingGrammar] = []

    def grammar(row: int) -> CountingGrammar:
        states.append(CountingGrammar())
        return states[row]

    result = decode(RandomTreeDrafter(3, answers), grammar=grammar, **options)
    assert result.token_ids == plain.token_ids
    assert result.statistics.accepted > 0
    for state, new in zip(states, result.token_ids, strict=True):
        assert state.text == new
        assert state.num_masks == len(new)  # asked for once a token
        check = CountingGrammar()
        assert all(check.advance(token) for token in new)
    assert decode(None, **options).token_ids != plain.token_ids  # the grammar did something


def test_greedy_text_is_that_of_transformers_own_constraint() -> None:
    def allowed(row: int, ids: Tensor) -> list[int]:
        grammar = CountingGrammar()
        grammar.text = ids[5:].tolist()
        return torch.nonzero(grammar.allowed()).flatten().tolist()

    rng = random.Random(6)
    ids = torch.tensor([random_prompt(rng, 5), random_prompt(rng, 5)])
    wanted = tiny_llama().generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=20,
        do_sample=False,
        prefix_allowed_tokens_fn=allowed,
    )
    result = decode("ngram", grammar=lambda row: CountingGrammar())
    assert torch.equal(result.sequences, wanted)


def test_the_text_ends_where_the_grammar_ends() -> None:
    plain = decode(None, grammar=lambda row: CountingGrammar(7), eos_token_id=END)
    assert [len(new) for new in plain.token_ids] == [8, 8]
    assert [new[-1] for new in plain.token_ids] == [END, END]
    assert plain.finish_reasons == ["eos", "eos"]
    answers = [row.tolist() for row in plain.sequences]
    drafter = RandomTreeDrafter(1, answers)
    drafted = decode(drafter, grammar=lambda row: CountingGrammar(7), eos_token_id=END)
    assert drafted.token_ids == plain.token_ids
    assert drafted.statistics.accepted > 0


def test_illegal_candidates_never_reach_the_model() -> None:
    class Stubborn(RandomTreeDrafter):
        """Proposes a forbidden child beside a legal one."""

        def propose(self, request_ids: Any, max_nodes: int, max_depth: int) -> list[CandidateTree]:
            trees = []
            for request in request_ids:
                total = sum(self._texts[request][5:])
                tokens = [t for t in (2, 3, 4) if t]
                assert any((t + total) % 3 == 0 for t in tokens)
                trees.append(CandidateTree.from_arrays(tokens, [-1] * 3).cut(max_nodes, max_depth))
            return trees

    result = decode(Stubborn(0), grammar=lambda row: CountingGrammar())
    assert {step.num_drafted for step in result.steps if step.num_drafted} == {2}


class Force(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[:, 3] = 0
        return forced


def test_a_processor_that_forces_an_illegal_token_is_told() -> None:
    with pytest.raises(IllegalTokenError, match="got 3: does another logits processor force it"):
        decode(
            None,
            grammar=lambda row: CountingGrammar(),
            logits_processor=LogitsProcessorList([Force()]),
        )


def test_a_grammar_over_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match=r"grammar over 50 tokens, got \(48,\)"):
        mask_scores(torch.zeros(1, 50), CountingGrammar())
