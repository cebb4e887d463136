"""The transformer, and its training together with the text encoder: from noise and a caption to latents, by flow matching."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from diffusers import QwenImageTransformer2DModel
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from tools.painter.data import OTHER_NAMES
from tools.painter.text import DROPPED, HIDDEN, caption_ids, encoded
from tools.painter.training import Schedule, train
from tools.painter.vae import CHANNELS

HEAD = 32
_WORDLESS = ("", " ")
_DROPOUT = 0.1


def make_transformer(width: int, layers: int) -> QwenImageTransformer2DModel:
    """Whose blocks begin as identities and whose head begins at 0 (AdaLN-zero; Peebles and Xie, 2023), which the library
    leaves out."""
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * CHANNELS,
        out_channels=CHANNELS,
        num_layers=layers,
        attention_head_dim=HEAD,
        num_attention_heads=width // HEAD,
        joint_attention_dim=HIDDEN,
        axes_dims_rope=(8, 12, 12),
    )
    modulations = [part for block in transformer.transformer_blocks for part in (block.img_mod[1], block.txt_mod[1])]
    with torch.no_grad():
        for linear in (*modulations, transformer.proj_out, transformer.norm_out.linear):
            linear.weight.zero_()
            linear.bias.zero_()
    return transformer


def packed(latents: torch.Tensor) -> torch.Tensor:
    """[n, channels, height, width] -> tokens [n, height / 2 * width / 2, 4 channels], as the pipeline packs them."""
    count, channels, tall, wide = latents.shape
    cut = latents.reshape(count, channels, tall // 2, 2, wide // 2, 2)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(count, tall * wide // 4, 4 * channels)


def train_painter(
    transformer: QwenImageTransformer2DModel,
    encoder: Qwen2_5_VLForConditionalGeneration,
    tokenizer: Qwen2Tokenizer,
    captions: Sequence[str],
    latents: torch.Tensor,
    schedule: Schedule,
    batch: int,
) -> float:
    """Noise levels are drawn from a logit-normal distribution; a tenth of the pictures comes without words, for guidance. The last
    loss."""
    clean = packed(latents)
    side = latents.shape[-1] // 2

    def loss() -> torch.Tensor:
        chosen = torch.randint(len(captions), (batch,))
        ids = torch.stack([caption_ids(tokenizer, _worded(captions[at])) for at in chosen.tolist()])
        mask = ids != tokenizer.pad_token_id
        noise, level = torch.randn_like(clean[chosen]), torch.sigmoid(torch.randn(batch) * 1.1 + 0.2)
        share = level[:, None, None]
        predicted = transformer(
            hidden_states=(1 - share) * clean[chosen] + share * noise,
            timestep=level,
            encoder_hidden_states=encoded(encoder, ids, mask),
            encoder_hidden_states_mask=mask[:, DROPPED:],
            img_shapes=[[(1, side, side)]] * batch,
            return_dict=False,
        )[0]
        error: torch.Tensor = (predicted - (noise - clean[chosen])).square().mean()
        return error

    weights = [*transformer.parameters(), *encoder.model.language_model.parameters()]
    return train(weights, loss, schedule)


def _worded(caption: str) -> str:
    """The caption in one of the ways in which it may be asked for, or no words."""
    if random.random() < _DROPOUT:
        return random.choice(_WORDLESS)
    return random.choice((*[caption] * 4, f"a {caption}", OTHER_NAMES.get(caption, caption)))
