from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recurrent_models import build_recurrent
from tiny_models import RandomTreeDrafter, random_prompt, tiny_llama
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.generation.configuration_utils import CompileConfig

import freedraft
from freedraft import CandidateTree, GenerationResult
from freedraft.verifier import TreeForward
from freedraft.verifier.compiled_steps import columns_that_fit
from freedraft.verifier.layout import pack_trees


class CountingBackend:
    """Runs what it is given as it is, and counts how often it is given something.

    A configuration copies what it holds, hence the method in the place of the object.
    """

    def __init__(self) -> None:
        self.num_graphs = 0

    def compile(self, graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
        self.num_graphs += 1
        call: Callable[..., Any] = graph.forward
        return call


def compiling(backend: CountingBackend) -> CompileConfig:
    return CompileConfig(
        fullgraph=True, backend=lambda graph, inputs: backend.compile(graph, inputs), mode=None
    )


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def random_tree(rng: random.Random, num_nodes: int) -> CandidateTree:
    parents = [rng.randint(max(-1, node - 6), node - 1) for node in range(num_nodes)]
    return CandidateTree.from_arrays(rng.sample(range(1, 48), num_nodes), parents)


def test_ragged_steps_are_compiled_once() -> None:
    model = tiny_llama()
    backend = CountingBackend()
    cache = StaticCache(config=model.config, max_cache_len=240)
    target = TreeForward(model, cache, num_tokens=60, compile_config=compiling(backend))
    stock = TreeForward(model)
    prompts = [[1, 2, 3, 4], [5, 6]]
    rng = random.Random(4)
    with torch.no_grad():
        for forward in (target, stock):
            forward.prefill(prompts)
        assert backend.num_graphs == 0  # prompts run as they are
        seen = []
        for _ in range(60):
            trees = [random_tree(rng, rng.randint(0, 30)) for _ in prompts]
            trees = target.fit(trees)
            logits = target.forward(trees, [7, 8])
            wanted = stock.forward(trees, [7, 8])
            for row, tree in enumerate(trees):
                stop = 1 + tree.num_nodes
                torch.testing.assert_close(logits[row, :stop], wanted[row, :stop])
            accepted = [
                list(tree.path(0))[: rng.randint(0, 1)] if tree.num_nodes else [] for tree in trees
            ]
            for forward in (target, stock):
                forward.commit(accepted)
            seen.append(backend.num_graphs)
    assert seen[0] == 1
    assert seen[9] == seen[59] <= 2  # one width, then any width


def test_same_tokens_as_without_and_compiled_for_good() -> None:
    model = tiny_llama()
    backend = CountingBackend()
    compiled = {"cache_implementation": "static", "compile_config": compiling(backend)}
    prompts = [random_prompt(random.Random(1), 9), random_prompt(random.Random(2), 4)]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    plain: list[list[int]] = []
    counts = []
    for _ in range(3):
        answers = [p + new for p, new in zip(prompts, plain, strict=True)] if plain else []
        result = freedraft.generate(
            model,
            ids,
            attention_mask=(ids > 0).long(),
            drafter=RandomTreeDrafter(1, answers) if plain else None,
            cost_gate=False,
            do_sample=False,
            max_new_tokens=16,
            return_dict=True,
            **(compiled if plain else {}),
        )
        assert isinstance(result, GenerationResult)
        plain = plain or result.token_ids
        assert result.token_ids == plain
        counts.append(backend.num_graphs)
    assert result.statistics.accepted > 5
    assert counts[0] == 0 < counts[1] == counts[2]


def test_padding_sees_itself_only() -> None:
    batch = pack_trees([CandidateTree.from_chain([3, 4])], [1]).widened(5)
    assert batch.width == 5
    assert batch.input_ids.tolist() == [[1, 3, 4, 0, 0]]
    assert batch.depths.tolist() == [[0, 1, 2, 0, 0]]
    assert batch.visible[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_steps_are_cut_to_a_width_that_fits() -> None:
    assert [columns_that_fit(free) for free in (0, 1, 3, 8, 100, 10_000)] == [1, 1, 2, 8, 64, 257]


def test_what_changes_its_shape_is_refused() -> None:
    model = tiny_llama()
    for cache in (None, DynamicCache()):
        with pytest.raises(ValueError, match=r"cache_implementation='static' .*got .*Cache"):
            TreeForward(model, cache, compile_config=CompileConfig())
    with pytest.raises(ValueError, match="attention alone with compile_config, got Lfm2"):
        freedraft.generate(
            build_recurrent("lfm2"),
            [1, 2, 3],
            max_new_tokens=3,
            compile_config=CompileConfig(),
        )
