"""The composition root: from a model's name and the words of an operator to a runtime and what is known of its model.

The one place that joins configuration, the registry, the machine and a runtime. Reads configuration, starts nothing.
Raises ConfigError, ModelNotFoundError and BrokenCheckpointError.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omnistage.config.resolution import DeployConfig, OmniConfigResolution
from omnistage.config.resolve import resolve_omni_config
from omnistage.config.stage import arena_edges, arena_nbytes
from omnistage.core.errors import ConfigError
from omnistage.engine.served import ServedModel, ServedStage
from omnistage.models.registry import REGISTRY
from omnistage.obs.figures import FlowObserver
from omnistage.orchestrator.machine import Orchestrator
from omnistage.orchestrator.plan import Limits, OrchestratorConfig
from omnistage.runtime.base import Runtime
from omnistage.runtime.driver import Driver
from omnistage.runtime.inline import InlineRuntime
from omnistage.runtime.plan import ProcessPlan, plan_processes
from omnistage.runtime.remote import RemoteDriver

_SMALLEST_NBYTES = 2**20
"""For a stage whose items all fit into messages: none is expected in the arena, and one that is larger still finds room."""

log = logging.getLogger("omnistage.engine")


def resolved(
    model: str, *, deploy_config: str | None = None, overrides: Mapping[str, Any] | None = None
) -> OmniConfigResolution:
    """The configuration of `model`. Among the overrides `pipeline` names a pipeline of the registry, `platform` a section
    of deploy files."""
    given = dict(overrides or {})
    named = {"pipeline": given.pop("pipeline", None), "platform": given.pop("platform", None)}
    resolution = resolve_omni_config(model, given, registry=REGISTRY, deploy_config=deploy_config, **named)
    for warning in resolution.warnings:
        log.warning("%s", warning)
    return resolution


def composed(
    model: str, *, deploy_config: str | None = None, overrides: Mapping[str, Any] | None = None
) -> tuple[ServedModel, Runtime]:
    """What is served, and the runtime that serves it, not yet started; whoever takes it closes it."""
    resolution = resolved(model, deploy_config=deploy_config, overrides=overrides)
    return served_model(resolution), runtime_of(resolution)


def require_processes(resolution: OmniConfigResolution) -> None:
    """A server needs stages that it can restart. Raises ConfigError for an inline deployment."""
    if resolution.deploy.inline:
        raise ConfigError.of("inline", True, "false for a server; inline stages are for Omni alone")


def served_model(resolution: OmniConfigResolution) -> ServedModel:
    """What admission needs to know of the model."""
    described = {stage.stage_id: stage for stage in resolution.pipeline.stages}
    stages = tuple(
        ServedStage(
            stage_id=stage.stage_id,
            name=stage.model_stage,
            defaults=stage.default_sampling_params,
            constraints=described[stage.stage_id].sampling_constraints,
            makes=stage.final_output_type if described[stage.stage_id].final_output else None,
        )
        for stage in resolution.stages
    )
    return ServedModel(
        name=resolution.model,
        stages=stages,
        reads=resolution.pipeline.reads,
        default_modalities=resolution.pipeline.default_modalities,
        voices=resolution.pipeline.voices,
        voice_aliases=resolution.deploy.voices,
        endpoints=resolution.pipeline.endpoint_restrictions,
        request_timeout_s=resolution.deploy.request_timeout_s,
        max_queued_requests=resolution.deploy.max_queued_requests,
        max_media_nbytes=min(stage.max_input_nbytes for stage in resolution.stages if not stage.input_sources),
    )


def runtime_of(
    resolution: OmniConfigResolution, *, record_events: Path | None = None, observer: FlowObserver | None = None
) -> Runtime:
    """The machine for this pipeline in the runtime that the deployment asks for; to be closed, even if never started.
    What the machine hears and says is recorded in the file `record_events`; `observer` hears of what flows."""
    config = OrchestratorConfig.of(resolution.stages, resolution.edges, limits_of(resolution.deploy))
    plans, zygote = _process_plans(resolution), resolution.deploy.zygote
    if resolution.deploy.engine_process:
        return RemoteDriver(config, plans, record_events_path=record_events, observer=observer, zygote=zygote)
    machine = Orchestrator(config)
    if resolution.deploy.inline:
        return InlineRuntime(machine, plans, record_events_path=record_events, observer=observer)
    return Driver(machine, plans, record_events_path=record_events, observer=observer, zygote=zygote)


def limits_of(deploy: DeployConfig) -> Limits:
    """The machine's bounds, as deployed."""
    return Limits(
        max_queued_requests=deploy.max_queued_requests,
        request_timeout_s=deploy.request_timeout_s,
        client_window_nbytes=deploy.client_window_nbytes,
        client_stall_s=deploy.client_stall_s,
    )


def _process_plans(resolution: OmniConfigResolution) -> tuple[ProcessPlan, ...]:
    """The runtime's own plans with the arenas that the resolution has worked out."""
    placed = {process.name: process for process in resolution.processes}
    oversize = resolution.deploy.arena_oversize_nbytes
    return tuple(
        replace(
            plan,
            arena_nbytes=max(
                placed[plan.name].arena_nbytes, arena_nbytes(_SMALLEST_NBYTES, len(arena_edges(plan.stages)))
            ),
            arena_oversize_nbytes=oversize,
            tcp_nbytes=None if plan.tcp_nbytes is None else placed[plan.name].tcp_nbytes + oversize,
        )
        for plan in plan_processes(resolution.stages)
    )
