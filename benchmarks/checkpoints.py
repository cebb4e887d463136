"""Checkpoints to measure with: random weights of real shapes, and the fetched thinker of the demo.

tiny    2.6 M parameters    4 layers of 256, vocabulary 512
55m    54.5 M parameters   12 layers of 512, vocabulary 16384
smollm2  135 M parameters  as published, from `omnistage fetch demo`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Qwen3Config, Qwen3ForCausalLM

from omnistage.config.env import cache_dir
from omnistage.models.demo.weights import find_demo

_SHARED: dict[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    },
    "55m": {
        "vocab_size": 16384,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
}
NAMES = (*SHAPES, "smollm2")


def checkpoint(name: str, folder: Path, dtype: torch.dtype) -> Path:
    """The folder of a checkpoint; random ones are written below `folder`, weights in `dtype`."""
    return find_demo(cache_dir()).thinker_dir if name == "smollm2" else _written(SHAPES[name], folder / name, dtype)


def _written(shape: dict[str, Any], folder: Path, dtype: torch.dtype) -> Path:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**{**_SHARED, **shape}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.05)
            else:
                parameter.normal_(1, 0.1)
    model.to(dtype).save_pretrained(folder)
    _write_tokenizer(folder, shape["vocab_size"])
    return folder


def text_of(token_ids: Sequence[int]) -> str:
    """What a random checkpoint's tokenizer makes `token_ids` of, and of them."""
    return " ".join(f"w{index}" for index in token_ids)


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Every id is a word, so that text comes of every token, as it does of a real one's. A chat is what is said in it."""
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(vocab_size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
