"""What config.json says of the encoders."""

from typing import Any

import pytest

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import Section
from omnistage.models.qwen3_omni.settings import AudioSettings, VisionSettings, audio_settings, vision_settings


def vision(**own: Any) -> VisionSettings:
    return vision_settings(Section({"vision_config": own}, "config.json"))


def audio(**own: Any) -> AudioSettings:
    return audio_settings(Section({"audio_config": own}, "config.json"))


def test_what_is_not_said_is_as_transformers_has_it() -> None:
    """Fault: a default that differs from what the published encoders run with."""
    from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe as theirs

    assert vision() == vision(**theirs.Qwen3OmniMoeVisionEncoderConfig().to_dict())
    assert audio() == audio(**theirs.Qwen3OmniMoeAudioEncoderConfig().to_dict())
    assert (vision().side, vision().patch_shape) == (48, (3, 2, 16, 16))
    assert (audio().chunk_frames, audio().window_chunks) == (100, 8)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"hidden_act": "silu"}, "hidden_act is 'silu'; accepted: gelu or gelu_pytorch_tanh"),
        ({"num_position_embeddings": 50}, "num_position_embeddings is 50; accepted: the square of an integer"),
        ({"deepstack_visual_indexes": [0, 27]}, r"deepstack_visual_indexes is \[0, 27\]; accepted: .* below depth, 27"),
        ({"deepstack_visual_indexes": [1, 1]}, r"deepstack_visual_indexes is \[1, 1\]; accepted: different"),
        ({"deepstack_visual_indexes": 8}, "deepstack_visual_indexes is 8; accepted: a list of integers >= 0"),
        ({"hidden_size": 1160}, "num_heads is 16; accepted: a divisor of 1160 that leaves a multiple of 4"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_type is 'default'; accepted: axial"),
    ],
)
def test_what_cannot_be_seen_with_is_named(own: dict[str, Any], says: str) -> None:
    """Fault: an encoder that runs with something else than the folder says."""
    with pytest.raises(BrokenCheckpointError, match=says):
        vision(**own)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"activation_function": ["gelu"]}, r"activation_function is \['gelu'\]; accepted: gelu or gelu_pytorch_tanh"),
        ({"encoder_attention_heads": 3}, "encoder_attention_heads is 3; accepted: a divisor of 1280"),
        ({"n_window_infer": 99}, "n_window_infer is 99; accepted: an integer >= 100"),
    ],
)
def test_what_cannot_be_heard_with_is_named(own: dict[str, Any], says: str) -> None:
    """Fault: the same for sound."""
    with pytest.raises(BrokenCheckpointError, match=says):
        audio(**own)
