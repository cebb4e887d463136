"""Pipeline, deploy files and the overrides of a call become one frozen plan (config.resolution).

Precedence: call (per stage beats global) > platform section > stage entry > pipeline-wide > base_config (and its own
sections in the same order) > defaults. None means "not given"; 0, "" and false are values. A value is checked for type
and range wherever it stands, and for what this version can do when it has won. All problems come in one ConfigError.
Starts nothing and imports no model code beyond pipelines and their `locate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omnistage.config.deploy import BUILTIN_FOLDER, DeployFiles, read_deploy
from omnistage.config.detect import Detected, detect
from omnistage.config.keys import KEYS, PIPELINE_KEYS, PLATFORMS, Scope
from omnistage.config.layers import Given, Layers
from omnistage.config.overrides import override_layer
from omnistage.config.pipeline import PipelineConfig
from omnistage.config.placement import check_connectors, name_connectors, place_stages, send_by_tcp
from omnistage.config.problems import ProblemsState
from omnistage.config.resolution import DeployConfig, OmniConfigResolution
from omnistage.config.stages import resolve_edges, resolve_stage
from omnistage.config.state import ResolutionState
from omnistage.core.errors import ConfigError, OmniError

_INLINE = {
    "processor_workers": "0 (inline: the caller's process prepares inputs itself)",
    "engine_process": "false beside `inline: true`, which runs the driver and every stage in the caller's process",
}
"""What another process would do, and why there is none where everything runs in the caller's."""


def resolve_omni_config(
    model: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    registry: Mapping[str, str],
    deploy_config: str | Path | None = None,
    pipeline: str | None = None,
    platform: str | None = None,
) -> OmniConfigResolution:
    """The plan for `model`: a built-in name or a folder.

    `overrides`: names of keys, `stage_<id>_<key>` (an alias of the pipeline may stand for the id), `edges`, `connectors`.
    `deploy_config` None takes the pipeline's own file, if it names one. `pipeline` is a name of `registry`, `platform`
    the section of deploy files that holds (PLATFORMS[0], which may be absent, if None).
    Raises ConfigError with everything that is wrong, ModelNotFoundError, and what the pipeline's `locate` raises.
    """
    platform = PLATFORMS[0] if platform is None else platform
    if platform not in PLATFORMS:
        raise ConfigError.of("platform", platform, ", ".join(PLATFORMS))
    problems = ProblemsState()
    files = DeployFiles() if deploy_config is None else read_deploy(Path(deploy_config), platform, problems)
    named = files.pipeline if pipeline is None else Given(pipeline, "cli", "pipeline")
    try:
        found = detect(model, registry, named)
    except OmniError:
        problems.raise_if_any()  # a misspelt `pipeline` is the nearer cause
        raise
    name = found.pipeline.default_deploy_config_name
    if deploy_config is None and name is not None:
        files = read_deploy(BUILTIN_FOLDER / name, platform, problems)
    known = [name for name in PLATFORMS if name == PLATFORMS[0] or name in files.platforms]
    if platform not in known:
        accepted = f"{', '.join(known)}, as the deploy file has no section for another"
        problems.add(ConfigError.of("platform", platform, accepted))
    overridden, ignored = override_layer(overrides or {}, found.pipeline, problems)
    layers = Layers((overridden, *files.layers))
    state = ResolutionState(found.pipeline, layers, problems, [*ignored, *files.ignored])
    return _resolution(state, model, found, platform)


def _resolution(state: ResolutionState, model: str, found: Detected, platform: str) -> OmniConfigResolution:
    state.provenance["pipeline"] = found.reason
    state.check_places()
    deploy = _inline(state, _deploy(state, platform))
    edges = resolve_edges(state, deploy.async_chunk)
    stages = tuple(resolve_stage(state, stage, found.model_path, edges, deploy) for stage in found.pipeline.stages)
    stages = name_connectors(stages, inline=deploy.inline)
    stages = send_by_tcp(stages, check_connectors(state, stages, edges, deploy))
    processes = place_stages(state, stages, edges, inline=deploy.inline)
    state.problems.raise_if_any()
    return OmniConfigResolution(
        model=model,
        model_path=found.model_path,
        pipeline=found.pipeline,
        deploy=deploy,
        stages=stages,
        edges=edges,
        processes=processes,
        provenance=state.provenance,
        warnings=state.warnings(),
    )


def _deploy(state: ResolutionState, platform: str) -> DeployConfig:
    """The values of the whole pipeline. A value that was refused stands in until the problems are raised."""
    plain = {
        key.name: state.value(key, key.name)
        for key in PIPELINE_KEYS
        if key.scope is Scope.PIPELINE and key.name != "voices"
    }
    voices = state.table(KEYS["voices"], "voices")
    entries = state.layers.entries("connectors")
    connectors = {name: given.value for name, given in entries.items()}
    state.provenance.update({f"connectors.{name}": given.source for name, given in entries.items()})
    _check_voices(state.pipeline, voices, state.problems)
    return DeployConfig(platform=platform, voices=voices, connectors=connectors, **plain)


def _inline(state: ResolutionState, deploy: DeployConfig) -> DeployConfig:
    """In the caller's process there is no other: what was not asked for is none, what was asked for is refused."""
    if not deploy.inline:
        return deploy
    for name, accepted in _INLINE.items():
        given = state.layers.first(name)
        if given is None:
            state.provenance[name] = "inline"
        elif getattr(deploy, name):
            state.problems.add(ConfigError.of(given.where, given.value, accepted))
    return replace(deploy, processor_workers=0, engine_process=False)


def _check_voices(pipeline: PipelineConfig, voices: Mapping[str, str], problems: ProblemsState) -> None:
    for name, voice in voices.items():
        if voice not in pipeline.voices:
            accepted = ", ".join(pipeline.voices) or "nothing, the model has no voices"
            problems.add(ConfigError.of(f"voices.{name}", voice, accepted))
