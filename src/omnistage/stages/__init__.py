"""The execution loops (autoregressive, generation, diffusion) and the worker that hosts them."""
