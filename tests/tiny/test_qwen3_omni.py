"""The tiny checkpoints are whole: transformers loads them with nothing missing, and they speak."""

import pytest
import torch

from tests.tiny.qwen3_omni import SHAPES, OmniShape, train_tokenizer, write_qwen3_omni


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"seed{shape.seed}")
def test_transformers_finds_every_tensor(shape, tmp_path):
    from transformers import Qwen3OmniMoeForConditionalGeneration

    write_qwen3_omni(tmp_path, shape)
    model, report = Qwen3OmniMoeForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    codes = torch.randint(0, shape.codebook, (1, shape.groups, 12), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        sound = model.code2wav(codes)
    assert sound.shape[-1] == 12 * 1920 - 555
    assert 0.05 < float(sound.std()) < 0.6


def test_roles_are_one_token_and_the_specials_are_known():
    tokenizer = train_tokenizer()
    for role in ("system", "user", "assistant"):
        assert len(tokenizer.encode(role).ids) == 1
    assert tokenizer.encode("<|im_start|>user\n<|audio_pad|>").tokens[0] == "<|im_start|>"


def test_shapes_differ_in_what_parity_depends_on():
    for field in ("groups", "layers", "accept", "seed"):
        assert len({getattr(shape, field) for shape in SHAPES}) >= 3
    assert OmniShape().accept > len(OmniShape().deepstack)
