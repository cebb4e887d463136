"""The autoencoder: that of Qwen-Image, narrow, with 16 numbers for every 8x8 pixels.

It was made for videos: every convolution looks at three frames. Of a single frame only the last third of a kernel matters, so
the rest is zero and stays so.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLQwenImage

from tools.painter.data import Pictures
from tools.painter.training import Schedule, train

CHANNELS = 16
_FARTHEST = 8
_KL = 2e-4


def make_vae(width: int) -> AutoencoderKLQwenImage:
    """`width` channels at the size of the picture; twice and three times as many below."""
    vae = AutoencoderKLQwenImage(
        base_dim=width,
        z_dim=CHANNELS,
        dim_mult=[1, 2, 3, 3],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
    )
    with torch.no_grad():
        for module in vae.modules():
            if isinstance(module, torch.nn.Conv3d) and module.weight.shape[2] > 1:
                module.weight[:, :, :-1] = 0
    return vae


def train_vae(vae: AutoencoderKLQwenImage, pictures: Pictures, schedule: Schedule, batch: int) -> float:
    """Absolute and squared errors, and a little of the distance of latents from a normal distribution. The last loss."""
    shown = frames(pictures)

    def loss() -> torch.Tensor:
        asked = _varied(shown[torch.randint(len(shown), (batch,))])
        posterior = vae.encode(asked).latent_dist
        error = vae.decode(posterior.sample()).sample - asked
        mean, spread = posterior.mean, posterior.logvar
        divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).mean()
        total: torch.Tensor = error.abs().mean() + error.square().mean() + _KL * divergence
        return total

    return train(vae.parameters(), loss, schedule)


@torch.no_grad()
def settle_latents(vae: AutoencoderKLQwenImage, pictures: Pictures) -> None:
    """Writes mean and spread of the latents of `pictures` into the configuration, where the pipeline looks for them."""
    means, variances = _latents(vae, pictures)
    spread = (means.var((0, 2, 3)) + variances.mean((0, 2, 3))).sqrt()
    vae.register_to_config(
        latents_mean=[round(one, 5) for one in means.mean((0, 2, 3)).tolist()],
        latents_std=[round(one, 5) for one in spread.tolist()],
    )


@torch.no_grad()
def normal_latents(vae: AutoencoderKLQwenImage, pictures: Pictures) -> torch.Tensor:
    """[n, CHANNELS, 8, 8], less the mean, by the spread."""
    mean, spread = (torch.tensor(vae.config[name])[:, None, None] for name in ("latents_mean", "latents_std"))
    return (_latents(vae, pictures)[0] - mean) / spread


def _latents(vae: AutoencoderKLQwenImage, pictures: Pictures) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances of what pictures are encoded to."""
    found = [vae.encode(part).latent_dist for part in torch.split(frames(pictures), 64)]
    return torch.cat([one.mean[:, :, 0] for one in found]), torch.cat([one.logvar[:, :, 0].exp() for one in found])


def frames(pictures: Pictures) -> torch.Tensor:
    """[n, height, width, 3] uint8 -> [n, 3, 1, height, width] in [-1, 1]."""
    return (torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1)[:, :, None]


def _varied(asked: torch.Tensor) -> torch.Tensor:
    """Mirrored, shifted, and with colours exchanged, some of them."""
    made = []
    for one in asked:
        if torch.rand(()) < 0.5:
            one = one.flip(-1)
        if torch.rand(()) < 0.7:
            one = torch.roll(one, torch.randint(-_FARTHEST, _FARTHEST + 1, (2,)).tolist(), (-2, -1))
        if torch.rand(()) < 0.25:
            one = one[torch.randperm(3)]
        made.append(one)
    return torch.stack(made)
