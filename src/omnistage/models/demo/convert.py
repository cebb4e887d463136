"""SmolLM2's GGUF file as a Hugging Face folder: config, tokenizer, chat template, bfloat16 weights.

What it does: reads one GGUF file of the Llama architecture, undoes the quantisation and the
reordering of the query and key rows, and writes `config.json`, `generation_config.json`,
`tokenizer.json`, `tokenizer_config.json` and `model.safetensors` into a folder that exists.

What it does not know: where the file came from, caches, locks, torch. Everything here is numpy,
so that fetching weights costs no import of torch.

Weights are rounded to bfloat16 to nearest even, as a float32 -> bfloat16 cast of torch does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from omnistage.core.errors import BrokenCheckpointError

_CONTROL_TOKEN = 3  # GGUF token type of tokens that are never spelt out in text

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_llama(gguf_path: Path, folder: Path) -> None:
    """Write the Hugging Face form of `gguf_path` into `folder`.

    Raises BrokenCheckpointError if the file is no GGUF file of the Llama architecture.
    """
    reader = _open(gguf_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        found = fields.get("general.architecture")
        raise BrokenCheckpointError(f"{gguf_path}: architecture {found!r} is not accepted; accepted: 'llama'")
    _write_json(folder / "config.json", llama_config(fields))
    _write_json(folder / "generation_config.json", _generation_config(fields))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
    build_tokenizer(fields).save(str(folder / "tokenizer.json"))
    _write_weights(folder / "model.safetensors", _tensors(reader, fields))


def _open(gguf_path: Path) -> GGUFReader:
    try:
        return GGUFReader(gguf_path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise BrokenCheckpointError(f"{gguf_path}: not a readable GGUF file ({error})") from error


def llama_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` of a Llama model from GGUF metadata."""
    hidden_size = int(fields["llama.embedding_length"])
    num_heads = int(fields["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": hidden_size // num_heads,
        "vocab_size": int(fields["llama.vocab_size"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "rope_scaling": None,
        # GGUF holds 1e-5 as float32; written as such it would read 9.999999747378752e-06
        "rms_norm_eps": _shortest_float32(fields["llama.attention.layer_norm_rms_epsilon"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **_special_ids(fields),
    }


def _special_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
    }


def _shortest_float32(value: float) -> float:
    return float(str(np.float32(value)))


def _generation_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"_from_model_config": True, **_special_ids(fields)}


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    ids = _special_ids(fields)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": bool(fields["tokenizer.ggml.add_space_prefix"]),
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[int(fields["tokenizer.ggml.unknown_token_id"])],
        "model_max_length": int(fields["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer that the metadata describes.

    GGUF's pre-tokenizer name `smollm` stands for: every digit alone, then GPT-2's byte-level split.
    """
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    control = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    return tokenizer


def hugging_face_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if gguf_name in _TOP_NAMES:
        return _TOP_NAMES[gguf_name]
    _, layer, part, suffix = gguf_name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"


def undo_rope_permutation(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows of a query or key projection in Hugging Face's order. `weight`: [heads * dim, hidden].

    GGUF keeps the two rows that one rotary frequency turns beside each other; Hugging Face keeps
    the first of every pair in the first half of a head and the second in the second half.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def to_bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """bfloat16 bit patterns of finite float32 values, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


def _tensors(reader: GGUFReader, fields: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    heads = {
        "attn_q": int(fields["llama.attention.head_count"]),
        "attn_k": int(fields["llama.attention.head_count_kv"]),
    }
    for tensor in reader.tensors:
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = undo_rope_permutation(weight, heads[part])
        yield hugging_face_name(tensor.name), to_bfloat16_bits(weight)


def _write_weights(path: Path, tensors: Iterator[tuple[str, NDArray[np.uint16]]]) -> None:
    arrays = dict(tensors)  # keeps the memory alive that the specs point to
    specs = {
        name: TensorSpec(
            dtype="bfloat16",
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in arrays.items()
    }
    serialize_file(specs, path, metadata={"format": "pt"})


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
