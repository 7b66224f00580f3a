"""The rivals behind freedraft's own drafter contract, so that one walk measures all.

Runs in the environment that ``rivals.sh`` makes. Nothing of a rival is copied here: each is called
as its own package or file ships it, and a rival that is not installed is left out by
:func:`available`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from freedraft.drafters.base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids
from freedraft.drafters.tree import CandidateTree

CAPACITY = 1 << 18
"""Longest context in tokens."""
VLLM_FILE = Path(sys.prefix) / "vllm" / "ngram_proposer.py"


class Context:
    """One running request's tokens in a buffer, as an engine keeps them."""

    def __init__(self, prompt: npt.NDArray[np.int32], dtype: type = np.int32) -> None:
        """Copy the prompt."""
        self.buffer = np.zeros(CAPACITY, dtype)
        self.size = 0
        self.append(prompt)

    def append(self, tokens: npt.NDArray[np.int32]) -> None:
        """Append tokens."""
        self.buffer[self.size : self.size + tokens.size] = tokens
        self.size += tokens.size


class Rival:
    """What the adapters share: the verbs that rivals have no counterpart for do nothing."""

    def __init__(self, name: str) -> None:
        """Take the name."""
        self.name = name
        self.contexts: dict[RequestId, Context] = {}

    def start(
        self, request_id: RequestId, prompt_ids: npt.ArrayLike, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Begin a request."""
        self.contexts[request_id] = Context(as_token_ids(prompt_ids))

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens."""
        self.contexts[request_id].append(as_token_ids(token_ids))

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Do nothing: the walks never truncate."""

    def stop(self, request_id: RequestId) -> None:
        """End the request."""
        self.contexts.pop(request_id, None)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request."""
        return [self.draft(request_id, max_nodes) for request_id in request_ids]

    def draft(self, request_id: RequestId, max_nodes: int) -> CandidateTree:
        """Return the tree of one request."""
        raise NotImplementedError


def chain(tokens: npt.ArrayLike) -> CandidateTree:
    """Return a chain without probabilities."""
    array = np.asarray(tokens, np.int32)
    parents = np.arange(-1, array.size - 1, dtype=np.int32)
    return CandidateTree(array, parents, np.ones(array.size, np.float32))


class Arctic(Rival):
    """Arctic Inference's suffix decoding cache, with its defaults for what is not named here."""

    def __init__(self, name: str, depth: int, factor: float, tree: bool) -> None:
        """Create an empty cache."""
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        super().__init__(name)
        self.cache = SuffixDecodingCache(depth)
        self.depth, self.factor, self.tree = depth, factor, tree

    def start(
        self, request_id: RequestId, prompt_ids: npt.ArrayLike, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Begin a request."""
        super().start(request_id, prompt_ids)
        self.cache.start_request(request_id, as_token_ids(prompt_ids))

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens."""
        super().extend(request_id, token_ids)
        self.cache.add_active_response(request_id, as_token_ids(token_ids))

    def stop(self, request_id: RequestId) -> None:
        """End the request; its response stays cached."""
        super().stop(request_id)
        self.cache.stop_request(request_id)

    def speculate(self, request_id: RequestId, max_nodes: int) -> Any:
        """Return what the cache proposes, as it proposes it."""
        context = self.contexts[request_id]
        tail = context.buffer[max(0, context.size - self.depth) : context.size]
        return self.cache.speculate(
            request_id,
            tail,
            max_spec_tokens=max_nodes,
            max_spec_factor=self.factor,
            use_tree_spec=self.tree,
        )

    def draft(self, request_id: RequestId, max_nodes: int) -> CandidateTree:
        """Return the tree of one request."""
        draft = self.speculate(request_id, max_nodes)
        return CandidateTree(
            np.array(draft.token_ids, np.int32),
            np.array(draft.parents, np.int32),
            np.array(draft.probs, np.float32),
        )


@cache
def vllm_module() -> ModuleType:
    """Load vLLM's n-gram drafter from its file; of vLLM it needs only a name, for annotations."""
    config = ModuleType("vllm.config")
    config.VllmConfig = object  # type: ignore[attr-defined]
    sys.modules.setdefault("vllm", ModuleType("vllm"))
    sys.modules.setdefault("vllm.config", config)
    spec = importlib.util.spec_from_file_location("ngram_proposer", VLLM_FILE)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected a module at {VLLM_FILE}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Vllm(Rival):
    """vLLM's n-gram drafter, through its own class."""

    def __init__(self, name: str, shortest: int, longest: int, max_nodes: int) -> None:
        """Create the drafter for drafts of ``max_nodes`` tokens."""
        super().__init__(name)
        self.proposer = vllm_module().NgramProposer(
            SimpleNamespace(
                speculative_config=SimpleNamespace(
                    prompt_lookup_min=shortest,
                    prompt_lookup_max=longest,
                    num_speculative_tokens=max_nodes,
                ),
                model_config=SimpleNamespace(max_model_len=CAPACITY),
                scheduler_config=SimpleNamespace(max_num_seqs=64),
                parallel_config=SimpleNamespace(tensor_parallel_size=1),
            )
        )

    def draft(self, request_id: RequestId, max_nodes: int) -> CandidateTree:
        """Return the chain of one request."""
        context = self.contexts[request_id]
        sizes = np.array([context.size], np.int32)
        (tokens,) = self.proposer.propose(max_nodes, [[0]], sizes, context.buffer[None])
        return chain(tokens)


class PromptLookup(Rival):
    """Prompt lookup as transformers ships it."""

    def __init__(self, name: str, max_nodes: int) -> None:
        """Create the generator of candidates, with the library's default match length."""
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        torch.set_num_threads(1)
        super().__init__(name)
        self.from_numpy = torch.from_numpy
        self.generator = PromptLookupCandidateGenerator(
            num_output_tokens=max_nodes, max_length=CAPACITY
        )

    def start(
        self, request_id: RequestId, prompt_ids: npt.ArrayLike, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Begin a request."""
        self.contexts[request_id] = Context(as_token_ids(prompt_ids), np.int64)

    def draft(self, request_id: RequestId, max_nodes: int) -> CandidateTree:
        """Return the chain of one request."""
        context = self.contexts[request_id]
        tokens = self.from_numpy(context.buffer[None, : context.size])
        candidates, _ = self.generator.get_candidates(tokens)
        return chain(candidates[0, context.size :].numpy())


class Flashspec(Rival):
    """flashspec's n-gram arm: the latest place of the last three, two or one tokens."""

    def __init__(self, name: str, max_nodes: int) -> None:
        """Create the arm with its default lengths."""
        import torch
        from flashspec.engine.ngram import NgramDrafter

        torch.set_num_threads(1)
        super().__init__(name)
        self.from_numpy = torch.from_numpy
        self.arm = NgramDrafter()

    def start(
        self, request_id: RequestId, prompt_ids: npt.ArrayLike, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Begin a request."""
        self.contexts[request_id] = Context(as_token_ids(prompt_ids), np.int64)

    def draft(self, request_id: RequestId, max_nodes: int) -> CandidateTree:
        """Return the chain of one request; the arm sees the text and no room behind it."""
        context = self.contexts[request_id]
        tokens = self.from_numpy(context.buffer[None, : context.size])
        drafted, valid = self.arm.propose(tokens, context.size, max_nodes)
        return chain(drafted[0, : int(valid)].numpy())


class Prototype(Rival):
    """The sketch that sized the design: hash chains, match-weighted tree, one ring for all."""

    def __init__(self, name: str, path: Path, max_nodes: int) -> None:
        """Load the file and create the sketch."""
        super().__init__(name)
        spec = importlib.util.spec_from_file_location("pools_prototype", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"expected a module at {path}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.sketch = module.HashChain(max_nodes, ks="8_4_2_1", mode=2, brk=16)
        self.sketch.warm(max_nodes)

    def start(
        self, request_id: RequestId, prompt_ids: npt.ArrayLike, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Begin a request; the one before must have ended."""
        self.sketch.start(request_id, as_token_ids(prompt_ids))

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens."""
        self.sketch.update(as_token_ids(token_ids))

    def draft(self, request_id: RequestId, max_nodes: int) -> CandidateTree:
        """Return the tree of the running request."""
        tokens, parents = self.sketch.propose(max_nodes)
        return CandidateTree(
            np.array(tokens, np.int32),
            np.array(parents, np.int32),
            np.ones(len(tokens), np.float32),
        )


RIVALS: dict[str, Callable[[int], Rival]] = {
    "arctic-64-tree": lambda nodes: Arctic("arctic-64-tree", 64, 4.0, True),
    "arctic-64": lambda nodes: Arctic("arctic-64", 64, 1.0, False),
    "arctic-24": lambda nodes: Arctic("arctic-24", 24, 1.0, False),
    "vllm-2-5": partial(Vllm, "vllm-2-5", 2, 5),
    "vllm-5-5": partial(Vllm, "vllm-5-5", 5, 5),
    "prompt-lookup": partial(PromptLookup, "prompt-lookup"),
    "flashspec": partial(Flashspec, "flashspec"),
}
"""Makers by name; each takes the most nodes of a draft."""

FORGETFUL = ("vllm-2-5", "vllm-5-5", "prompt-lookup", "flashspec")
"""They learn nothing from earlier requests, so warm and cold are the same."""


def available() -> dict[str, str]:
    """Return the rivals that are installed, with their versions."""
    found: dict[str, str] = {}
    if importlib.util.find_spec("arctic_inference"):
        for name in ("arctic-64-tree", "arctic-64", "arctic-24"):
            found[name] = f"arctic-inference {version('arctic-inference')}"
    if VLLM_FILE.exists():
        for name in ("vllm-2-5", "vllm-5-5"):
            found[name] = VLLM_FILE.with_name("version.txt").read_text().strip()
    if importlib.util.find_spec("transformers"):
        found["prompt-lookup"] = f"transformers {version('transformers')}"
    if importlib.util.find_spec("flashspec"):
        found["flashspec"] = f"flashspec {version('flashspec')}"
    return found
