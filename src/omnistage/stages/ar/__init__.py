"""The autoregressive stage: a scheduler without torch, a runner without policy, and the engine that joins them."""
