"""The table of all configuration keys: name, type, accepted range, default, meaning, where it may stand.

Validation, defaults and the reference page are made from it. The default of a key that a typed stage configuration holds
is the one written there (config.stage). A key with `only` is known, so that a file which sets it is understood, but this
version accepts those values alone, for the reason in `because`: no key is accepted and then ignored. The structured
sections (stages, platforms, edges, connectors) are read by config.deploy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from omnistage.config.pipeline import ExecutionType
from omnistage.config.stage import ARStageConfig, DiffusionStageConfig, GenerationStageConfig
from omnistage.config.values import Boolean, Integer, Number, Table, Text, ValueType, accepted, conforms
from omnistage.core.errors import ConfigError

PLATFORMS = ("cpu", "cuda", "rocm", "xpu", "npu")


class Scope(StrEnum):
    """Where a key may stand: for the whole pipeline, for one stage, or pipeline-wide for every stage that has it."""

    PIPELINE = "pipeline"
    STAGE = "stage"
    BOTH = "stage or pipeline"


AR = frozenset({ExecutionType.LLM_AR})
GENERATION = frozenset({ExecutionType.LLM_GENERATION})
DIFFUSION = frozenset({ExecutionType.DIFFUSION})
ANY = frozenset(ExecutionType)
NOWHERE: frozenset[ExecutionType] = frozenset()

STRUCT_OF: dict[ExecutionType, type[ARStageConfig | GenerationStageConfig | DiffusionStageConfig]] = {
    ExecutionType.LLM_AR: ARStageConfig,
    ExecutionType.LLM_GENERATION: GenerationStageConfig,
    ExecutionType.DIFFUSION: DiffusionStageConfig,
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `kinds`: the stage kinds that have it; on those of `ignored_on` it is named in the warning, elsewhere it
    is an error. `resolved` False: nothing is made of the key, it is known in order to be refused."""

    name: str
    type: ValueType
    default: Any
    meaning: str
    scope: Scope = Scope.BOTH
    kinds: frozenset[ExecutionType] = ANY
    ignored_on: frozenset[ExecutionType] = NOWHERE
    only: tuple[Any, ...] = ()
    because: str = ""
    resolved: bool = True

    @property
    def accepted(self) -> str:
        """What this version accepts, in words."""
        if not self.only:
            return accepted(self.type)
        return f"{' or '.join(_word(value) for value in self.only)} ({self.because})"

    @property
    def may_stand_pipeline_wide(self) -> bool:
        return self.scope is not Scope.STAGE

    @property
    def may_stand_at_a_stage(self) -> bool:
        return self.scope is not Scope.PIPELINE

    def check(self, where: str, value: object) -> None:
        """Raises ConfigError if `value` has the wrong type or range; `only` is asked when the value has won."""
        if not conforms(self.type, value):
            raise ConfigError.of(where, value, accepted(self.type))

    def check_winner(self, where: str, value: object) -> None:
        """Raises ConfigError if this version cannot do what the value asks for."""
        if self.only and value not in self.only:
            raise ConfigError.of(where, value, self.accepted)


def _word(value: Any) -> str:
    match value:
        case None:
            return "no value"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def _stage_default(name: str) -> Any:
    """The default in the typed stage configurations, which is the same in all that have it."""
    kinds: tuple[type[msgspec.Struct], ...] = (ARStageConfig, GenerationStageConfig, DiffusionStageConfig)
    fields = {field.name: field for kind in kinds for field in msgspec.structs.fields(kind)}
    default, factory = fields[name].default, fields[name].default_factory
    return default if factory is msgspec.NODEFAULT else factory()


def _pipeline(name: str, kind: ValueType, default: Any, meaning: str, only: tuple[Any, ...] = (), why: str = "") -> Key:
    return Key(name, kind, default, meaning, Scope.PIPELINE, only=only, because=why)


def _stage(name: str, kind: ValueType, meaning: str, kinds: frozenset[ExecutionType] = ANY, **more: Any) -> Key:
    return Key(name, kind, _stage_default(name), meaning, kinds=kinds, **more)


def _refused(
    name: str, kind: ValueType, neutral: Any, meaning: str, why: str, kinds: frozenset[ExecutionType] = ANY
) -> Key:
    return Key(
        name, kind, neutral, meaning, kinds=kinds, only=(neutral,), because=f"{why} in this version", resolved=False
    )


_BYTES = Integer(0, 2**50)
_SECONDS = Number(0, 86_400, positive=True)
_COUNT = Integer(1, 65_536)
_DEGREE = Integer(1, 1024)
_ONE_RANK = "one rank per replica"

_PIPELINE_KEYS = (
    _pipeline(
        "async_chunk", Boolean(), True, "Stages hand over what they have while they still work; false: at their end."
    ),
    _pipeline("inline", Boolean(), False, "Run every stage in the caller's process (offline use only)."),
    _pipeline(
        "engine_process",
        Boolean(),
        True,
        "Run the driver in a process of its own, which can die and be replaced; false: in a thread (docs/server.md says when).",
    ),
    _pipeline(
        "processor_workers",
        Integer(0, 64),
        1,
        "Helper processes of an entry stage, per replica, that prepare inputs; 0: in the stage itself, between its steps.",
    ),
    _pipeline(
        "zygote",
        Boolean(),
        True,
        "Keep a process that has imported what stages need, so that a worker that died is back at once; it costs their "
        "libraries' memory once more (0.2 GB with torch).",
    ),
    _pipeline("client_stall_s", _SECONDS, 30.0, "A caller that takes nothing for so long is cut off."),
    _pipeline(
        "client_window_nbytes",
        Integer(1, 2**40),
        2 * 2**20,
        "Media bytes of one request that its caller has not taken.",
    ),
    _pipeline(
        "arena_oversize_nbytes",
        _BYTES,
        256 * 2**20,
        "Bytes for payloads of more than a quarter of their arena, per replica; larger ones fail their requests.",
    ),
    _pipeline("request_timeout_s", _SECONDS, 600.0, "A request that has not ended by then fails."),
    _pipeline(
        "max_queued_requests",
        Integer(1, 2**20),
        256,
        "Requests that may be open beyond what stages have places for; more are refused.",
    ),
    _pipeline("drain_timeout_s", Number(0, 86_400), 30.0, "How long open requests may go on at a shutdown."),
    _pipeline("voices", Table(), {}, "Other names for the model's voices (`alloy: af_heart`)."),
)

_STAGE_KEYS = (
    _stage(
        "devices", Text(), "Where the stage runs.", only=("cpu",), because="other platforms are not in this version"
    ),
    Key(
        "process", Text(), None, "Stages that name the same process share a worker; default: model_stage.", Scope.STAGE
    ),
    _stage("num_replicas", Integer(1, 64), "Running copies of the stage."),
    _stage("lookahead", Integer(0, 1024), "Requests beyond max_num_seqs that a replica holds ready."),
    _stage("max_num_seqs", _COUNT, "Requests that run at once in a replica."),
    _stage("max_input_nbytes", Integer(1, 2**40), "Bytes of inputs that one request may hold in a stage."),
    _stage(
        "processor_memory_nbytes",
        Integer(2**20, 2**50),
        "Bytes of memory that a helper process may take to prepare one request, which fails where they do not suffice.",
    ),
    _stage("start_timeout_s", _SECONDS, "A replica that is not ready by then is started anew."),
    _stage("first_step_timeout_s", _SECONDS, "As step_timeout_s, for the first step."),
    _stage("step_timeout_s", _SECONDS, "A replica whose step takes longer is killed."),
    _stage("threads", Integer(1, 1024), "Threads that compute."),
    _stage("host", Text(), "Address at which others reach its payloads that go by tcp."),
    _stage("dtype", Text(("float32", "bfloat16")), "Number format of weights and activations."),
    _stage("env", Table(), "Environment variables of the worker.", scope=Scope.STAGE),
    Key(
        "default_sampling_params",
        Table(texts=False),
        {},
        "Parameters of requests that do not give their own; those the pipeline fixes win over both.",
        Scope.STAGE,
    ),
    Key("input_connectors", Table(), {}, "Connector by source (`from_stage_0: name`).", Scope.STAGE),
    Key("output_connectors", Table(), {}, "Connector by target (`to_stage_1: name`).", Scope.STAGE),
    _stage(
        "max_num_batched_tokens",
        Integer(1, 2**24),
        "Tokens (AR, diffusion: of all pictures and guidance branches) or input units that a step takes.",
    ),
    _stage("max_model_len", Integer(1, 2**24), "Tokens of prompt and answer together.", AR, ignored_on=GENERATION),
    _stage("kv_cache_bytes", Integer(1, 2**50), "Bytes of keys and values, all layers together.", AR),
    _stage("block_size", Integer(1, 1024), "Tokens per block of the KV cache.", AR, ignored_on=GENERATION),
    _stage(
        "model_impl",
        Text(("auto", "decoder", "transformers")),
        "What runs the model: the decoder of this package, transformers' own modules, or the first that can.",
        AR,
        ignored_on=GENERATION,
    ),
    _stage("enable_prefix_caching", Boolean(), "Share the KV blocks of equal beginnings.", AR, ignored_on=GENERATION),
    _stage("enable_chunked_prefill", Boolean(), "Cut long prompts into several steps.", AR, ignored_on=GENERATION),
    _stage("max_pixels", Integer(1, 2**30), "Height times width of a picture; larger ones are refused.", DIFFUSION),
    _stage("max_steps", Integer(1, 1000), "Denoising steps of a picture; more are refused.", DIFFUSION),
    _stage("condition_cache_bytes", _BYTES, "Bytes of encoded prompts that are kept for equal ones.", DIFFUSION),
    _stage(
        "cache_backend",
        Text(("none", "first_block", "tea_cache")),
        "What is reused between the denoising steps of a picture (docs/diffusion.md).",
        DIFFUSION,
    ),
    _stage("cache_config", Table(texts=False), "Settings of cache_backend.", DIFFUSION, scope=Scope.STAGE),
)

_REFUSED_KEYS = (
    _refused("distributed_executor_backend", Text(), None, "How ranks are run.", _ONE_RANK),
    _refused("quantization", Text(), None, "Quantised weights.", "weights are not quantised"),
    _refused("data_parallel_size", _DEGREE, 1, "Copies inside a replica.", "num_replicas makes copies"),
    _refused("pipeline_parallel_size", _DEGREE, 1, "Layers over ranks.", _ONE_RANK),
    _refused("tensor_parallel_size", _DEGREE, 1, "Tensors over ranks.", _ONE_RANK),
    _refused("enable_expert_parallel", Boolean(), False, "Experts over ranks.", _ONE_RANK),
    _refused("gpu_memory_utilization", Number(0, 1), 0, "Share of a GPU's memory.", "kv_cache_bytes bounds the cache"),
    _refused("lora_path", Text(), None, "Adapter to load.", "there are no adapters"),
    _refused("enable_lora", Boolean(), False, "Adapters per request.", "there are no adapters"),
    _refused("ulysses_degree", _DEGREE, 1, "Heads over ranks.", _ONE_RANK, DIFFUSION),
    _refused("ring_degree", _DEGREE, 1, "Sequence over ranks, as a ring.", _ONE_RANK, DIFFUSION),
    _refused("sequence_parallel_size", _DEGREE, 1, "Sequence over ranks.", _ONE_RANK, DIFFUSION),
    _refused("cfg_parallel_size", _DEGREE, 1, "Guidance branches over ranks.", _ONE_RANK, DIFFUSION),
    _refused("vae_patch_parallel_size", _DEGREE, 1, "Decoder tiles over ranks.", _ONE_RANK, DIFFUSION),
    _refused("text_encoder_tp_size", _DEGREE, 1, "Text encoder over ranks.", _ONE_RANK, DIFFUSION),
    _refused("use_hsdp", Boolean(), False, "Sharded weights.", _ONE_RANK, DIFFUSION),
    _refused("hsdp_shard_size", _DEGREE, 1, "Ranks per shard group.", _ONE_RANK, DIFFUSION),
    _refused("hsdp_replicate_size", _DEGREE, 1, "Copies of shard groups.", _ONE_RANK, DIFFUSION),
    _refused("attention_backend", Text(), None, "Attention kernel.", "there is one", DIFFUSION),
    _refused("step_execution", Boolean(), True, "Requests join at every step.", "they always do", DIFFUSION),
    _refused("vae_use_tiling", Boolean(), False, "Decode in tiles.", "pictures are decoded whole", DIFFUSION),
    _refused("vae_use_slicing", Boolean(), False, "Decode one by one.", "pictures are decoded whole", DIFFUSION),
    _refused("enable_cpu_offload", Boolean(), False, "Weights leave the device.", "weights stay", DIFFUSION),
    _refused("enable_layerwise_offload", Boolean(), False, "Layers leave the device.", "weights stay", DIFFUSION),
    _refused(
        "enable_distributed_layerwise_offload", Boolean(), False, "The same, over ranks.", "weights stay", DIFFUSION
    ),
    _refused("dlo_resident_layers", Integer(0, 4096), None, "Layers that stay.", "weights stay", DIFFUSION),
    _refused("host_weight_runtime_mode", Text(), None, "How weights come back.", "weights stay", DIFFUSION),
)

KEYS: dict[str, Key] = {key.name: key for key in (*_PIPELINE_KEYS, *_STAGE_KEYS, *_REFUSED_KEYS)}
PIPELINE_KEYS = tuple(key for key in KEYS.values() if key.may_stand_pipeline_wide)
STAGE_KEYS = tuple(key for key in KEYS.values() if key.may_stand_at_a_stage)
CONNECTOR_KEYS = ("input_connectors", "output_connectors")

WITHOUT_MEANING = frozenset(
    {
        "async_scheduling",
        "attention_config",
        "compilation_config",
        "cudagraph_capture_sizes",
        "cudagraph_mode",
        "custom_ops",
        "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager",
        "disable_log_stats",
        "enable_flashinfer_autotune",
        "enable_return_routed_experts",
        "enable_sleep_mode",
        "enforce_eager",
        "engine_output_type",
        "limit_mm_per_prompt",
        "load_format",
        "log_stats",
        "max_cudagraph_capture_size",
        "mm_encoder_tp_mode",
        "mm_processor_cache_gb",
        "moe_backend",
        "profiler_config",
        "scheduler_cls",
        "shm_threshold_bytes",
        "skip_mm_profiling",
        "swap_space",
        "trust_remote_code",
        "worker_cls",
        "worker_type",
    }
)
"""Keys of other engines' deploy files that change no result and have nothing to act on here: named in one warning."""

_STAGE_OVERRIDE = re.compile(r"stage_(?P<stage>[^_].*?)_(?P<key>[a-z].*)")


def split_stage_override(name: str) -> tuple[str, str] | None:
    """`stage_0_max_num_seqs` -> ("0", "max_num_seqs"); the stage may be an alias. None if it is no such name.

    The longest known key wins (`stage_0_first_step_timeout_s` is no stage "0_first"); an unknown key is cut after the
    first word.
    """
    if not name.startswith("stage_"):
        return None
    rest = name.removeprefix("stage_")
    for key in _longest_first(key.name for key in STAGE_KEYS):
        if rest.endswith(f"_{key}") and len(rest) > len(key) + 1:
            return rest.removesuffix(f"_{key}"), key
    found = _STAGE_OVERRIDE.fullmatch(name)
    return (found["stage"], found["key"]) if found else None


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=len, reverse=True)
