"""Angles by position."""

from __future__ import annotations

import math

import pytest
import torch

from omnistage.modeling.rotary import RotationCache


def test_angles_are_positions_by_frequencies_however_far() -> None:
    """Fault: a table that ends before the sequence does, or is made anew with other angles."""
    cache = RotationCache(4, 100.0, torch.device("cpu"))
    for positions in ([0, 3], [5000], [1, 5000]):
        rows = cache.reaching(max(positions) + 1)[positions]
        for row, position in zip(rows.tolist(), positions, strict=True):
            angles = (position, position / 10)
            wanted = [*map(math.cos, angles), *map(math.sin, angles)]
            assert all(math.isclose(one, other, abs_tol=2e-3) for one, other in zip(row, wanted, strict=True))


@pytest.mark.parametrize("sections", [(4, 2, 2), (3, 3, 2), (8, 0, 0)])
def test_three_positions_turn_as_in_transformers(sections: tuple[int, int, int]) -> None:
    """Fault: a plane is turned by the height where it should be by the width; a section's end is missed."""
    from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe, modeling_qwen3_omni_moe

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections), "mrope_interleaved": True}
    config = configuration_qwen3_omni_moe.Qwen3OmniMoeTextConfig(hidden_size=64, head_dim=16, rope_parameters=rope)
    positions = torch.randint(0, 3000, (3, 40), generator=torch.Generator().manual_seed(1))
    cosine, sine = modeling_qwen3_omni_moe.Qwen3OmniMoeThinkerTextRotaryEmbedding(config)(
        torch.zeros(1), positions[:, None]
    )
    cache = RotationCache(16, 1e4, torch.device("cpu"), sections)
    found = cache.at(positions)
    assert torch.equal(found, torch.cat([cosine[0, :, :8], sine[0, :, :8]], dim=-1))
    assert torch.equal(cache.at(positions[:1].expand(3, -1)), cache.at(positions[0]))
    assert cache.at(positions[:, :0]).shape == (0, 16)
