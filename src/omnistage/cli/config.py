"""`omnistage config show|check|diff|reference`: what would run and why, what is wrong, what another file changes, which keys
there are. Starts nothing."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer

from omnistage.cli.flags import DeployConfigFile, Model, PipelineName, Platform
from omnistage.cli.overrides import options_of, parse_overrides
from omnistage.config.listing import differences, memory, rows
from omnistage.config.problems import problems_of
from omnistage.config.reference import reference_page
from omnistage.config.resolution import OmniConfigResolution
from omnistage.config.resolve import resolve_omni_config
from omnistage.core.errors import ConfigError, OmniError
from omnistage.models.registry import REGISTRY

app = typer.Typer(name="config", help="Show or check the configuration of a model.", no_args_is_help=True)

_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(context_settings=_OVERRIDES)
def show(
    context: typer.Context,
    model: Model,
    deploy_config: DeployConfigFile = None,
    pipeline: PipelineName = None,
    platform: Platform = None,
    as_json: AsJson = False,
) -> None:
    """Print every key, its value and where it came from."""
    resolution = _resolved(model, context, deploy_config, pipeline, platform)
    if as_json:
        print(json.dumps(_document(resolution), indent=2, ensure_ascii=False))
        return
    table = [(row.key, _text(row.value), row.source) for row in rows(resolution)]
    widths = [max(len(line[column]) for line in table) for column in (0, 1)]
    for key, value, source in table:
        print(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}".rstrip())
    _print_warnings(resolution)


@app.command(context_settings=_OVERRIDES)
def check(
    context: typer.Context,
    model: Model,
    deploy_config: DeployConfigFile = None,
    pipeline: PipelineName = None,
    platform: Platform = None,
) -> None:
    """Print all that is wrong (exit code 1), or what the plan takes."""
    resolution = _resolved(model, context, deploy_config, pipeline, platform)
    for stage in memory(resolution):
        cache = f"KV cache {_size(stage.kv_cache_nbytes)}, " if stage.kv_cache_nbytes else ""
        print(
            f"stage {stage.name}: {stage.num_replicas} replica(s), each {cache}inputs at most {_size(stage.inputs_nbytes)}"
        )
    for process in resolution.processes:
        ids = ", ".join(str(stage_id) for stage_id in process.stage_ids)
        print(
            f"process {process.name}: stages {ids}, {process.num_replicas} replica(s), each arena {_size(process.arena_nbytes)}"
        )
    _print_warnings(resolution)
    print("ok")


@app.command(context_settings=_OVERRIDES)
def diff(
    context: typer.Context,
    model: Model,
    old: Annotated[str, typer.Argument(help="YAML deploy file.")],
    new: Annotated[str, typer.Argument(help="The file to compare with it.")],
    pipeline: PipelineName = None,
    platform: Platform = None,
) -> None:
    """Print every key that two files make different, and both values."""
    before, after = (_resolved(model, context, file, pipeline, platform) for file in (old, new))
    for change in differences(before, after):
        print(f"{change.key}: {_text(change.before)} -> {_text(change.after)}")


@app.command()
def reference() -> None:
    """Print the reference page of all keys."""
    print(reference_page(), end="")


def _resolved(
    model: str, context: typer.Context, deploy_config: str | None, pipeline: str | None, platform: str | None
) -> OmniConfigResolution:
    try:
        if model.startswith("-"):
            raise ConfigError(f"{model}: the model stands before the overrides", field="model")
        overrides = parse_overrides(context.args, options=options_of(context))
        return resolve_omni_config(
            model, overrides, registry=REGISTRY, deploy_config=deploy_config, pipeline=pipeline, platform=platform
        )
    except OmniError as error:
        for line in problems_of(error) if isinstance(error, ConfigError) else (error.message,):
            typer.echo(f"error: {line}", err=True)
        raise typer.Exit(1) from None


def _document(resolution: OmniConfigResolution) -> dict[str, Any]:
    return {
        "model": resolution.model,
        "model_path": None if resolution.model_path is None else str(resolution.model_path),
        "keys": {row.key: {"value": msgspec.to_builtins(row.value), "source": row.source} for row in rows(resolution)},
        "processes": msgspec.to_builtins(resolution.processes),
        "warnings": list(resolution.warnings),
    }


def _print_warnings(resolution: OmniConfigResolution) -> None:
    for line in resolution.warnings:
        typer.echo(f"warning: {line}", err=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB"
