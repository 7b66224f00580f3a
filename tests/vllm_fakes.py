"""Stand-ins for the parts of vLLM that a proposer meets: configuration, runner, scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from freedraft.integrations.vllm_rows import SALT_ATTRIBUTE


def make_config(**changes: Any) -> SimpleNamespace:
    """Return what a proposer reads of vLLM's configuration.

    Args:
        changes: vocab_size, max_model_len, num_speculative_tokens, settings, tensor_parallel_size,
            data_parallel_size, executor, hf_config, device_type.
    """
    hf_config = changes.get("hf_config")
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=changes.get("num_speculative_tokens", 6)
        ),
        model_config=SimpleNamespace(
            max_model_len=changes.get("max_model_len", 64),
            get_vocab_size=lambda: changes.get("vocab_size", 16),
            is_multimodal_model=hf_config is not None,
            hf_config=hf_config,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=changes.get("tensor_parallel_size", 1),
            data_parallel_size=changes.get("data_parallel_size", 1),
            data_parallel_rank=0,
            distributed_executor_backend=changes.get("executor", "uni"),
        ),
        device_config=SimpleNamespace(device_type=changes.get("device_type", "cuda")),
        additional_config={"freedraft": changes.get("settings", {"budget": "full"})},
    )


class FakeRunner:
    """A batch of rows whose tokens are written as vLLM's runner writes them.

    Attributes:
        fits: what the runner's own check of the draft model's context says.
    """

    def __init__(self, config: Any, proposer_class: Any, num_rows: int = 4) -> None:
        max_model_len = config.model_config.max_model_len
        self.input_batch = SimpleNamespace(
            req_ids=[],
            num_prompt_tokens=np.zeros(num_rows, np.int32),
            num_tokens_no_spec=np.zeros(num_rows, np.int32),
            token_ids_cpu=np.zeros((num_rows, max_model_len), np.int32),
            is_token_ids=np.ones((num_rows, max_model_len), np.bool_),
        )
        self.requests: dict[str, Any] = {}
        self.fits = False
        self.drafter = proposer_class(config)

    def propose_draft_token_ids(
        self, scheduler_output: Any, sampled_token_ids: list[list[int]]
    ) -> list[list[int]]:
        drafts: list[list[int]] = self.drafter.propose(
            sampled_token_ids,
            self.input_batch.num_tokens_no_spec,
            self.input_batch.token_ids_cpu,
            slot_mappings=None,
        )
        return drafts

    def _input_fits_in_drafter(self, common_attn_metadata: object) -> bool:
        return self.fits

    def add(self, request_id: str, prompt: Sequence[int], **changes: Any) -> None:
        """Put a request into the next row.

        Args:
            request_id: its id.
            prompt: its tokens.
            changes: max_tokens, extra_args, lora_id, prompt_embeds.
        """
        batch, row = self.input_batch, len(self.input_batch.req_ids)
        batch.req_ids.append(request_id)
        batch.num_prompt_tokens[row] = batch.num_tokens_no_spec[row] = len(prompt)
        batch.token_ids_cpu[row, : len(prompt)] = prompt
        lora_id = changes.get("lora_id")
        self.requests[request_id] = SimpleNamespace(
            sampling_params=SimpleNamespace(
                max_tokens=changes.get("max_tokens"), extra_args=changes.get("extra_args")
            ),
            lora_request=None if lora_id is None else SimpleNamespace(lora_int_id=lora_id),
            prompt_embeds=changes.get("prompt_embeds"),
        )

    def remove(self, request_id: str, ends: bool = True) -> None:
        """Take a request out of the batch, for good or because it is preempted."""
        batch, row = self.input_batch, self.input_batch.req_ids.index(request_id)
        last = len(batch.req_ids) - 1
        for array in (batch.num_prompt_tokens, batch.num_tokens_no_spec, batch.token_ids_cpu):
            array[row] = array[last]
        batch.req_ids[row] = batch.req_ids[last]
        batch.req_ids.pop()
        if ends:
            del self.requests[request_id]

    def step(
        self, sampled: dict[str, list[int]], scheduler_output: Any = None
    ) -> dict[str, list[int]]:
        """Write what each request has emitted and return the drafts for it.

        Args:
            sampled: new tokens by request; a request that is missing is in its prefill.
            scheduler_output: of the step; one that says nothing when absent.
        """
        batch = self.input_batch
        rows = [sampled.get(request_id, []) for request_id in batch.req_ids]
        for row, tokens in enumerate(rows):
            start = int(batch.num_tokens_no_spec[row])
            batch.token_ids_cpu[row, start : start + len(tokens)] = tokens
            batch.num_tokens_no_spec[row] = start + len(tokens)
        drafts = self.propose_draft_token_ids(scheduler_output or scheduler_step(), rows)
        return dict(zip(batch.req_ids, drafts, strict=True))


def scheduler_step(
    wanted: int | None = None,
    verified: dict[str, list[int]] | None = None,
    finished: Sequence[str] = (),
    salts: dict[str, str | None] | None = None,
) -> SimpleNamespace:
    """Return what a scheduler says of a step.

    Args:
        wanted: tokens to draft, where the number is dynamic.
        verified: scheduled draft tokens by request.
        finished: requests that have ended.
        salts: new requests with their cache salts; none is known without.
    """
    new = [
        SimpleNamespace(req_id=request_id, **{SALT_ATTRIBUTE: salt})
        for request_id, salt in (salts or {}).items()
    ]
    output = SimpleNamespace(
        scheduled_new_reqs=new,
        finished_req_ids=set(finished),
        scheduled_spec_decode_tokens=verified or {},
    )
    if wanted is not None:
        output.num_spec_tokens_to_schedule = wanted
    return output
