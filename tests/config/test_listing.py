"""The listing shows every key with the value that runs and its source."""

from typing import Any

from omnistage.config.listing import memory, rows
from omnistage.config.resolution import OmniConfigResolution
from omnistage.config.resolve import resolve_omni_config
from tests.config.samples import REGISTRY


def resolved(overrides: dict[str, Any]) -> OmniConfigResolution:
    return resolve_omni_config("sample", overrides, registry=REGISTRY)


def test_every_value_is_the_one_that_runs() -> None:
    """Fault: a printed configuration that is not the running one."""
    resolution = resolved(
        {
            "threads": 2,
            "stage_1_env": {"A.B": "c"},
            "voices": {"new.alloy": "anna"},
            "connectors": {"x.y": {"kind": "shm"}},
            "stage_1_input_connectors": {"from_stage_0": "x.y"},
            "edges": [{"source": 0, "target": 1, "window": 9, "chunk": {"later": 30}}],
            "stage_0_default_sampling_params": {"seed": 0},
            "data_parallel_size": 1,
        }
    )
    shown = {row.key: (row.value, row.source) for row in rows(resolution)}
    expected = {
        "pipeline": ("sample", "built-in name"),
        "async_chunk": (True, "default"),
        "stages.2.threads": (2, "cli"),
        "stages.1.env.A.B": ("c", "cli"),
        "stages.1.process": ("speaker", "default"),
        "voices.new.alloy": ("anna", "cli"),
        "connectors.x.y": ("shm", "cli"),
        "edges.0->1.window": (9, "cli edges[0]"),
        "edges.0->1.chunk.later": (30, "cli edges[0]"),
        "edges.0->1.connector": ("shm", "stages.1.input_connectors.from_stage_0"),
        "edges.0->2.connector": ("shm", "placement"),
        "stages.0.default_sampling_params.seed": (0, "cli"),
        "stages.0.default_sampling_params.temperature": (1.0, "default"),
        "stages.0.default_sampling_params.stop_token_ids": ((7,), "pipeline (fixed)"),
        "stages.0.data_parallel_size": (1, "cli"),
        "processes.writer.arena_nbytes": (8 * 9 * 1200 * 5 // 4, "derived"),
    }
    assert {key: shown.get(key) for key in expected} == expected


def test_memory_is_what_a_replica_may_take() -> None:
    """Fault: an operator who learns of the memory when it is gone."""
    writes, speaks, _ = memory(
        resolved({"stage_0_kv_cache_bytes": 1000, "max_input_nbytes": 10, "stage_1_num_replicas": 2})
    )
    assert (writes.name, writes.num_replicas, writes.kv_cache_nbytes, writes.inputs_nbytes) == ("writer", 1, 1000, 100)
    assert (speaks.num_replicas, speaks.kv_cache_nbytes) == (2, 0)
