"""Tokenizer and text encoder: a Qwen2.5-VL of two layers, whose tokenizer makes 34 tokens of the words before a prompt.

The published pipelines drop the first 34 rows of a prompt, which belong to the words around it. So those words occur often enough
in what the tokenizer learns from to be one token each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from tools.painter.data import listed

VOCABULARY = 1500
HIDDEN = 128
DROPPED = 34
LONGEST = 16
"""Tokens of a caption with what comes after it."""

BEFORE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships "
    "of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n"
_SPECIAL = ("im_end", "endoftext", "im_start", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_COMMON = listed(
    """
    a, an, the, of, on, in, with, and, two, three, one, small, big, large, little, red, green, blue, yellow, orange, purple, pink,
    black, white, brown, grey, golden, silver, picture, drawing, image, photo, icon, emoji
    """
)
_AROUND = ("system", "user", "assistant", "Describe", BEFORE.partition("Describe")[2].partition("<")[0])


def make_tokenizer(captions: Sequence[str]) -> Qwen2Tokenizer:
    """Byte-level BPE, learned from the captions, common words and the words around a prompt."""
    learner = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    learner.decoder = decoders.ByteLevel()
    read = [f" {caption}" for caption in captions] * 6 + list(captions) * 3
    read += [f" {word}" for word in _COMMON] * 40 + list(_COMMON) * 20 + list(_AROUND) * 400
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = VOCABULARY - len(_SPECIAL)
    learner.train_from_iterator(
        read, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    made = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=made["vocab"],
        merges=[tuple(merge) for merge in made["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        model_max_length=32768,
    )
    tokenizer.add_tokens([f"<|{name}|>" for name in _SPECIAL], special_tokens=True)
    tokenizer.chat_template = _TEMPLATE
    assert len(tokenizer(BEFORE).input_ids) == DROPPED, "a prompt would lose its beginning"
    return tokenizer


def make_encoder(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLForConditionalGeneration:
    """With a vision encoder that nothing runs, as the layout asks for one."""
    token = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in _SPECIAL}
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "rope_parameters": {"mrope_section": [4, 6, 6], "rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 2048,
        "pad_token_id": token["endoftext"],
        "bos_token_id": None,
        "eos_token_id": token["im_end"],
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": HIDDEN}
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision | {"fullatt_block_indexes": [0]},
        tie_word_embeddings=True,
        image_token_id=token["image_pad"],
        video_token_id=token["video_pad"],
        vision_start_token_id=token["vision_start"],
        vision_end_token_id=token["vision_end"],
    )
    encoder = Qwen2_5_VLForConditionalGeneration(config)
    with torch.no_grad():
        encoder.model.language_model.embed_tokens.weight.normal_(0, 0.3)
    return encoder


def caption_ids(tokenizer: Qwen2Tokenizer, caption: str) -> torch.Tensor:
    """[DROPPED + LONGEST], filled up at the end."""
    ids = tokenizer(f"{BEFORE}{caption}{AFTER}").input_ids
    assert len(ids) <= DROPPED + LONGEST, f"{caption!r} has {len(ids)} tokens"
    return torch.tensor(ids + [tokenizer.pad_token_id] * (DROPPED + LONGEST - len(ids)))


def encoded(encoder: Qwen2_5_VLForConditionalGeneration, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[n, DROPPED + LONGEST] -> [n, LONGEST, HIDDEN]: the rows that the pipeline keeps."""
    rows: torch.Tensor = encoder.model.language_model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    return rows[:, DROPPED:]
