"""The runtime of diffusion models: pictures that join and leave a batch at every denoising step."""
