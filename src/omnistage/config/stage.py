"""The resolved configuration of one stage, typed by its kind: what a worker receives and a stage engine is built from.

Frozen and complete: every default has been filled in by the resolver. Travels to the worker as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from omnistage.core.params import DiffusionParams, GenerationParams, SamplingParams

CLIENT = -1
"""The target of an output that leads to the caller."""

LARGEST_SHARE = 4
"""A payload may take at most this part (one fourth) of what all requests share of an arena."""

EdgeId = tuple[int, int]
"""(source stage, target stage or CLIENT)"""


class OutputEdge(msgspec.Struct, frozen=True, kw_only=True):
    """One outgoing edge as the sender needs it (see config.pipeline.Edge); `target` may be CLIENT. `connector` carries its
    payloads: "shm" to another process, "tcp" to another host, "inproc" inside one. `item_nbytes` estimates one; 0 fits into
    messages."""

    target: int
    connector: str = "shm"
    select: str | None = None
    streaming: bool = True
    unit: str = "items"
    first: int = 1
    later: int = 1
    adaptive: bool = True
    item_nbytes: int = 0


class _Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that every kind has. Sizes in bytes, times in seconds.

    `model_path` is the folder of the stage's own files, `tokenizer_path` that of its tokenizer; `input_window` is how
    many prepared inputs of one request may wait unused, `processor_workers` how many helper processes prepare them, each of which
    may take `processor_memory_nbytes` of memory for one request.
    """

    stage_id: int
    model_stage: str
    model_path: str
    loader: str
    processor: str | None = None
    bridge: str | None = None
    input_sources: tuple[int, ...] = ()
    outputs: tuple[OutputEdge, ...] = ()
    final_output_type: str | None = None
    tokenizer_path: str | None = None
    extras: dict[str, Any] = {}
    process: str
    num_replicas: int = 1
    lookahead: int = 2
    devices: str = "cpu"
    dtype: str = "float32"
    host: str = "127.0.0.1"
    env: dict[str, str] = {}
    max_num_seqs: int = 8
    max_input_nbytes: int = 256 * 2**20
    input_window: int = 4
    processor_workers: int = 0
    processor_memory_nbytes: int = 4 * 2**30
    start_timeout_s: float = 300.0
    first_step_timeout_s: float = 300.0
    step_timeout_s: float = 60.0
    threads: int = 1


class ARStageConfig(_Stage, frozen=True, kw_only=True, tag="llm_ar"):
    """`kv_cache_bytes` bounds keys and values of all layers together; `block_size` in tokens."""

    max_num_batched_tokens: int = 512
    max_model_len: int = 2048
    kv_cache_bytes: int = 512 * 2**20
    block_size: int = 32
    model_impl: str = "auto"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    default_sampling_params: SamplingParams = SamplingParams()


class GenerationStageConfig(_Stage, frozen=True, kw_only=True, tag="llm_generation"):
    """`max_num_seqs` requests hold state; a step takes `max_num_batched_tokens` units of input or fewer over all."""

    max_num_batched_tokens: int = 512
    default_sampling_params: GenerationParams = GenerationParams()


class DiffusionStageConfig(_Stage, frozen=True, kw_only=True, tag="diffusion"):
    """`max_num_batched_tokens`: rows (one branch of one picture) times their tokens that a step takes; one row may have more.
    `max_pixels` and `max_steps` bound a picture. `cache_config` are settings of `cache_backend`."""

    max_num_batched_tokens: int = 512
    max_pixels: int = 2048 * 2048
    max_steps: int = 200
    condition_cache_bytes: int = 256 * 2**20
    cache_backend: str = "none"
    cache_config: dict[str, Any] = {}
    default_sampling_params: DiffusionParams = DiffusionParams()


StageConfig = ARStageConfig | GenerationStageConfig | DiffusionStageConfig


def arena_edges(stages: Iterable[StageConfig]) -> tuple[EdgeId, ...]:
    """The edges of `stages` whose payloads are expected in an arena."""
    return tuple(
        (stage.stage_id, edge.target)
        for stage in stages
        for edge in stage.outputs
        if edge.connector == "shm" and edge.item_nbytes > 0
    )


def arena_nbytes(shared_nbytes: int, num_edges: int) -> int:
    """A whole arena: what all requests share, and for every edge as much as the largest payload, for its oldest request."""
    return shared_nbytes + num_edges * (shared_nbytes // LARGEST_SHARE)
