"""Tiny random checkpoints in Hugging Face layout, with a byte-level tokenizer trained on the spot.

Weights are drawn wider than usual, so that greedy decoding wanders instead of repeating one token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL_TOKENS = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and then it jumps back again.",
    "Schöne Grüße aus Köln: 12 € für drei Bücher! 日本語の文章もあります。 🙂🙃",
    "Numbers 0 1 2 3 4 5 6 7 8 9 and words, words, words; nothing else to see here.",
]
VOCAB_SIZE = 384

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {"tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3MoeConfig", MOE),
    "mistral": ("MistralConfig", {"sliding_window": 24}),
    "qwen2": ("Qwen2Config", {}),
}


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE over `TEXTS`: every text can be written, and characters are split over tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def write_tokenizer(folder: Path) -> None:
    train_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_checkpoint(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """A whole folder: configuration, weights, tokenizer, chat template."""
    import transformers

    name, changes = KINDS[kind]
    config = getattr(transformers, name)(**{**COMMON, **changes})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        spread = 0.3 if parameter.dim() > 1 else 0.1
        centre = 0.0 if parameter.dim() > 1 else 1.0
        torch.nn.init.normal_(parameter, centre, spread)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder
