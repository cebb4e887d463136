"""Pictures and latents are those of diffusers' autoencoder, although the slices of its kernels in time are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.models.qwen_image.settings import vae_shape
from omnistage.models.qwen_image.vae import Vae
from omnistage.models.qwen_image.weights import read_vae


@pytest.fixture(scope="module")
def vae(folder: Path) -> Vae:
    return read_vae(folder, vae_shape(folder), torch.float32, reads_pictures=True)


@torch.inference_mode()
def test_latents_become_pictures(vae: Vae, pipeline: Any) -> None:
    """Fault: a kernel's slice that meets nothing is the one that is kept; a channel's mean or deviation is its neighbour's."""
    latents = torch.randn(2, 4, 6, 10, generator=torch.Generator().manual_seed(0))
    plain = latents * torch.tensor(pipeline.vae.config.latents_std)[:, None, None]
    plain += torch.tensor(pipeline.vae.config.latents_mean)[:, None, None]
    expected = pipeline.vae.decode(plain[:, :, None]).sample[:, :, 0]
    assert torch.allclose(vae.decode(latents), expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_pictures_become_latents(vae: Vae, pipeline: Any) -> None:
    """Fault: the padding of a picture that is halved stands at its other edges; half of what was found is its spread."""
    pictures = torch.rand(2, 3, 24, 40, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = pipeline.vae.encode(pictures[:, :, None]).latent_dist.mode()[:, :, 0]
    found -= torch.tensor(pipeline.vae.config.latents_mean)[:, None, None]
    found /= torch.tensor(pipeline.vae.config.latents_std)[:, None, None]
    assert torch.allclose(vae.encode(pictures), found, rtol=0, atol=1e-5)


def test_channels_that_are_all_zero(vae: Vae) -> None:
    """Fault: a norm of nothing is not a number."""
    assert bool(torch.isfinite(vae.decode(torch.zeros(1, 4, 2, 2) - vae.mean / vae.std)).all())
