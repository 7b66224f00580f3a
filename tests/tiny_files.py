"""A tiny model as a transformers folder, as a GGUF file and in a wheel: tests without network."""

from __future__ import annotations

import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
_SYMBOLS = sorted(pre_tokenizers.ByteLevel.alphabet())
_PAIR = (_SYMBOLS[0], _SYMBOLS[1])
VOCABULARY = [END, *_SYMBOLS, "".join(_PAIR)]


def byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a byte (and one for ``!"``), id 0 for the end."""
    model = models.BPE(vocab={symbol: i for i, symbol in enumerate(VOCABULARY)}, merges=[_PAIR])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = chat_template
    return fast


def byte_llama() -> LlamaForCausalLM:
    """Return a random model of two layers over the bytes, float32, that repeats itself a lot."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def write_model(folder: Path, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """Save model and tokenizer as a transformers folder."""
    byte_llama().save_pretrained(folder)
    byte_tokenizer(chat_template).save_pretrained(folder)
    return folder


def write_gguf(path: Path) -> None:
    """Save model and tokenizer as a GGUF file of float32 tensors."""
    model = byte_llama()
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads or 0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] + [1] * (len(VOCABULARY) - 1))
    writer.add_token_merges([" ".join(_PAIR)])
    writer.add_eos_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in _gguf_tensors(model).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    heads = {
        "q_proj": model.config.num_attention_heads,
        "k_proj": model.config.num_key_value_heads,
    }
    parts = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    for layer in range(model.config.num_hidden_layers):
        for short, long in parts.items():
            value = state[f"model.layers.{layer}.{long}.weight"]
            if (count := heads.get(long.split(".")[-1])) is not None:
                # GGUF stores the halves of a rotated head interleaved.
                pairs = value.reshape(count, 2, -1, value.shape[1])
                value = pairs.swapaxes(1, 2).reshape(value.shape)
            tensors[f"blk.{layer}.{short}.weight"] = np.ascontiguousarray(value)
    return tensors


def write_wheel(folder: Path, name: str, version: str, member: str, data: bytes) -> Path:
    """Write a wheel that pip accepts and that holds one file."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    info = f"{stem}.dist-info"
    files = {
        member: data,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in files).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path
