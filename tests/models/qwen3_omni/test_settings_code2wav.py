"""What config.json says of the codec decoder."""

from typing import Any

import pytest

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import Section
from omnistage.models.qwen3_omni.settings import Code2WavSettings, code2wav_settings


def read(**own: Any) -> Code2WavSettings:
    return code2wav_settings(Section({"code2wav_config": own}, "config.json"))


def test_what_is_not_said_is_as_transformers_has_it() -> None:
    """Fault: a default that differs from what the published decoder runs with."""
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

    said = Qwen3OmniMoeCode2WavConfig().to_dict()
    assert read() == read(**said)
    assert read().samples_per_frame == 1920
    assert [read().samples_of(frames) for frames in (0, 1, 200)] == [0, 1365, 200 * 1920 - 555]


def test_the_rotation_may_be_said_in_either_place() -> None:
    """Fault: folders that were written before `rope_parameters` turn by a default."""
    assert read(rope_theta=500.0).rope_theta == 500.0
    assert read(rope_parameters={"rope_type": "default", "rope_theta": 700}).rope_theta == 700.0


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; accepted: silu"),
        ({"upsample_rates": [8, 0]}, r"upsample_rates is \[8, 0\]"),
        ({"upsampling_ratios": 2}, "upsampling_ratios is 2"),
        ({"decoder_dim": 24}, "decoder_dim is 24; accepted: a multiple of 16"),
        ({"sliding_window": None}, "sliding_window is missing"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"code2wav_config\.rope_parameters: rope_type is 'yarn'"),
    ],
)
def test_what_cannot_be_run_is_named(own: dict[str, Any], says: str) -> None:
    """Fault: a decoder that runs with something else than the folder says."""
    with pytest.raises(BrokenCheckpointError, match=says):
        read(**own)
