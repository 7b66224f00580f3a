"""The two doors of transformers: ``freedraft.generate`` and ``model.generate`` behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import dropwhile, groupby
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList, StopStringCriteria

from ...drafters import Drafter
from ...integrations.generation import custom_generate, generate
from ...integrations.generation.results import GenerationResult
from ...integrations.statistics import StepReport
from ...verifier import GrammarAfter
from .alphabet import MAX_CONTEXT
from .contract import Feature, Outcome, Request
from .pattern import Pattern, rest_after
from .recurrent import recurrent_models
from .tiny import character_tokenizer, random_model

_END_ID = 0


class GeneratePath:
    """``freedraft.generate`` on a tiny random model in float64."""

    name = "generate"
    how = "run"

    def __init__(self, model: PreTrainedModel | None = None) -> None:
        """Make the tiny model, or take another one over the same characters."""
        self._model = random_model() if model is None else model
        self._tokenizer = character_tokenizer()
        self.vocab_size = len(self._tokenizer)
        self.max_context = MAX_CONTEXT
        self.missing = {
            Feature.ARRIVALS: "a call's batch only shrinks",
            Feature.REQUEST_IDS: "a call names its own requests, and no two of them alike",
            Feature.FREQUENCY_PENALTY: "transformers has none",
            Feature.PREEMPTION: "a call holds the memory of its whole batch",
        }

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, without end tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def run(
        self, requests: Sequence[Request], drafter: Drafter | str | None, max_nodes: int = 8
    ) -> list[Outcome]:
        """Run the requests; those that ask for the same, one behind the other, in one batch."""
        outcomes: list[Outcome] = []
        for _, group in groupby(requests, _shared):
            outcomes += self._run_batch(list(group), drafter, max_nodes)
        return outcomes

    def run_recurrent(
        self, request: Request, drafter: Drafter | str | None
    ) -> dict[str, Outcome | str]:
        """Return what comes of each recurrent or hybrid model."""
        found: dict[str, Outcome | str] = {}
        for name, model in recurrent_models(self.vocab_size).items():
            try:
                (found[name],) = type(self)(model).run([request], drafter)
            except ValueError as refusal:
                found[name] = str(refusal)
        return found

    def in_half_precision(self) -> GeneratePath:
        """Return the same path with its model in bfloat16."""
        return type(self)(random_model(torch.bfloat16))

    def gap(self, token_ids: Sequence[int], first: int, second: int) -> float:
        """Return the distance of two tokens' logits, in spacings of bfloat16."""
        with torch.no_grad():
            logits = self._model(torch.tensor([token_ids])).logits[0, -1].double()
        larger = logits[[first, second]].abs().max()
        spacing = 2.0 ** (torch.floor(torch.log2(larger.clamp_min(1e-30))) - 7)
        return float((logits[first] - logits[second]).abs() / spacing)

    def _run_batch(
        self, requests: list[Request], drafter: Drafter | str | None, max_nodes: int
    ) -> list[Outcome]:
        ids, mask = _left_padded([request.prompt_ids for request in requests])
        first = requests[0]
        steps: list[list[StepReport]] = [[] for _ in requests]
        options: dict[str, Any] = {
            "attention_mask": mask,
            "drafter": drafter,
            "max_nodes": max_nodes,
            "cost_gate": False,  # what is proposed is verified, whatever it costs
            "namespace": first.namespace,
            "max_new_tokens": first.max_new_tokens,
            "do_sample": first.seed is not None,
            "eos_token_id": list(first.eos_token_ids) or None,
            "on_step": lambda step: steps[step.row].append(step),
            **dict(first.options),
        }
        if first.seed is not None:
            options |= {"seed": [request.seed for request in requests], "top_k": 0}
        if first.min_new_tokens:
            options["min_new_tokens"] = first.min_new_tokens
        if first.stop_strings:
            options |= self._stop_strings(list(first.stop_strings))
        if first.pattern is not None:
            options["eos_token_id"] = [_END_ID]
            if first.pattern_after is None:
                options["prefix_allowed_tokens_fn"] = self._follows(first.pattern, ids.shape[1])
            else:
                options["grammar"] = self._grammar_after(first.pattern, first.pattern_after)
        leaves = [request.abort_after for request in requests]
        if any(leaves):
            prompts = [request.prompt_ids for request in requests]
            options["stopping_criteria"] = StoppingCriteriaList([_Leaves(prompts, leaves)])
        stream = _Stream() if len(requests) == 1 else None
        result = self._call(ids, stream, options)
        return [self._outcome(result, row, steps[row], stream) for row in range(len(requests))]

    def _follows(self, pattern: Pattern, prompt_length: int) -> Callable[[int, Tensor], list[int]]:
        """Return what says which tokens keep a text within a pattern."""

        def allowed(row: int, token_ids: Tensor) -> list[int]:
            rest = rest_after(pattern, self.decode(token_ids[prompt_length:].tolist()))
            ends = [_END_ID] if rest.is_nullable else []
            return ends + [token for character in rest.first() for token in self.encode(character)]

        return allowed

    def _grammar_after(self, pattern: Pattern, switch: int) -> Callable[[int], GrammarAfter]:
        """Return what makes a state that holds a text to a pattern behind a token."""
        return lambda row: GrammarAfter(_PatternState(self, pattern), [switch])

    def _call(
        self, ids: Tensor, stream: _Stream | None, options: dict[str, Any]
    ) -> GenerationResult:
        return generate(
            self._model,
            ids,
            tokenizer=self._tokenizer,
            streamer=stream,
            return_dict=True,
            **options,
        )

    def _stop_strings(self, strings: list[str]) -> dict[str, Any]:
        return {"stop_strings": strings}

    def _outcome(
        self, result: GenerationResult, row: int, steps: list[StepReport], stream: _Stream | None
    ) -> Outcome:
        token_ids = result.token_ids[row]
        reason = result.finish_reasons[row]
        return Outcome(
            token_ids,
            self.decode(token_ids) if result.texts is None else result.texts[row],
            "abort" if reason == "criteria" else reason,
            result.logprobs[row],
            None if stream is None else stream.token_ids,
            sum(len(step.token_ids) for step in steps),
            [(step.num_drafted, step.num_accepted) for step in steps],
            result.statistics.switched_off > 0,
        )


class CustomGeneratePath(GeneratePath):
    """``model.generate(..., custom_generate=freedraft.custom_generate)``."""

    name = "custom-generate"

    def __init__(self, model: PreTrainedModel | None = None) -> None:
        """Make the tiny model, or take another one over the same characters."""
        super().__init__(model)
        self.missing[Feature.NO_TOKENS] = "transformers refuses max_new_tokens=0 itself"

    def _call(
        self, ids: Tensor, stream: _Stream | None, options: dict[str, Any]
    ) -> GenerationResult:
        result: GenerationResult = self._model.generate(  # type: ignore[operator]
            ids,
            custom_generate=custom_generate,
            return_dict_in_generate=True,
            streamer=stream,
            **options,
        )
        return result

    def _stop_strings(self, strings: list[str]) -> dict[str, Any]:
        # transformers does not pass its tokenizer on to a callable: the criterion itself does.
        criterion = StopStringCriteria(self._tokenizer, strings)
        return {"stopping_criteria": StoppingCriteriaList([criterion])}


class _PatternState:
    """Where a text stands in a pattern; the end token may come where the pattern may end."""

    def __init__(self, path: GeneratePath, pattern: Pattern) -> None:
        self._path = path
        self._rests = [pattern]

    def advance(self, token_id: int) -> bool:
        if not self.allowed()[token_id]:
            return False
        self._rests.append(rest_after(self._rests[-1], self._path.decode([token_id])))
        return True

    def rollback(self, num_tokens: int) -> None:
        del self._rests[len(self._rests) - num_tokens :]

    def allowed(self) -> Tensor:
        rest = self._rests[-1]
        mask = torch.zeros(self._path.vocab_size, dtype=torch.bool)
        mask[_END_ID] = rest.is_nullable
        for character in rest.first():
            mask[self._path.encode(character)] = True
        return mask


class _Leaves(StoppingCriteria):
    """Ends rows, told apart by their prompts, after so many tokens."""

    def __init__(self, prompts: Sequence[tuple[int, ...]], after: Sequence[int | None]) -> None:
        self._stops = {
            prompt: len(prompt) + count
            for prompt, count in zip(prompts, after, strict=True)
            if count is not None
        }

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        text = tuple(dropwhile(lambda token: token == 0, input_ids[0].tolist()))  # padding
        done = any(
            len(text) >= stop and text[: len(prompt)] == prompt
            for prompt, stop in self._stops.items()
        )
        return torch.tensor([done])


class _Stream:
    """Keeps what is shown, without the prompt."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.ended = False
        self._saw_prompt = False

    def put(self, value: Tensor) -> None:
        if self._saw_prompt:
            self.token_ids += value.flatten().tolist()
        self._saw_prompt = True

    def end(self) -> None:
        self.ended = True


def _left_padded(prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


def _shared(request: Request) -> Request:
    """Return what all requests of one call must have in common."""
    seed = None if request.seed is None else 0
    return replace(request, prompt_ids=(), seed=seed, request_id=None, abort_after=None)
