"""A random model of two layers over single characters: text without a download, in float64."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .alphabet import CHARACTERS, MAX_CONTEXT

END = "<end>"


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a character, and id 0 for the end."""
    vocabulary = {END: 0} | {character: 1 + i for i, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def random_model(dtype: torch.dtype = torch.float64) -> LlamaForCausalLM:
    """Return the model; it has no end token, so that a check chooses one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        config = LlamaConfig(
            vocab_size=len(CHARACTERS) + 1,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=MAX_CONTEXT,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
            initializer_range=0.3,  # large, so that the text varies instead of looping
        )
        model = LlamaForCausalLM(config)
    model.to(dtype)  # type: ignore[arg-type]  # its stubs take the model for the argument
    model.eval()  # type: ignore[no-untyped-call]
    return model
