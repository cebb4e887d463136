"""`omnistage serve MODEL`: reads the flags and hands over to the server."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from omnistage.cli.flags import DeployConfigFile, Model, PipelineName, Platform
from omnistage.config.env import log_level
from omnistage.obs.log import configure_logging
from omnistage.obs.stderr import never_wait_for_stderr
from omnistage.serve.boot import serve
from omnistage.serve.options import DEFAULT_PORT, ServeOptions


def run(
    context: typer.Context,
    model: Model,
    deploy_config: DeployConfigFile = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = DEFAULT_PORT,
    api_key: Annotated[str | None, typer.Option(help="Key that every route but /health asks for.")] = None,
    pipeline: PipelineName = None,
    platform: Platform = None,
    async_chunk: Annotated[
        bool | None, typer.Option(help="Stages hand on while they work, or only at the end.")
    ] = None,
    allowed_media_domains: Annotated[
        list[str] | None,
        typer.Option(
            help="Host that media may be fetched from: HOST or HOST:PORT. Once per host, or several with commas."
        ),
    ] = None,
    allowed_local_media_path: Annotated[
        Path | None, typer.Option(help="Folder below which file: URLs may name media.")
    ] = None,
    record_events: Annotated[
        Path | None,
        typer.Option(
            help="File for all that is decided, in place of an older one, for `omnistage debug`. It holds what is asked."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Open /debug/state.")] = False,
    omni: Annotated[bool, typer.Option("--omni", help="Accepted and without effect: this is what is served.")] = False,
) -> None:
    """Serve a model over HTTP. The keys that `omnistage config reference` lists are flags too: --stage-0-max-num-seqs 4."""
    never_wait_for_stderr()
    configure_logging(log_level())
    options = ServeOptions(
        model=model,
        host=host,
        port=port,
        deploy_config=deploy_config,
        overrides=partial(overrides_of, context, pipeline=pipeline, platform=platform, async_chunk=async_chunk),
        api_key=api_key,
        allowed_media_domains=tuple(allowed_media_domains or ()),
        allowed_local_media_path=allowed_local_media_path,
        record_events=record_events,
        debug=debug,
    )
    raise typer.Exit(serve(options))


def overrides_of(context: typer.Context, **named: Any) -> Mapping[str, Any]:
    """As `cli.overrides.parse_overrides`, whose module costs more than all that the port needs to answer."""
    flags: Any = importlib.import_module("omnistage.cli.overrides")
    parsed: Mapping[str, Any] = flags.parse_overrides(context.args, options=flags.options_of(context), **named)
    return parsed
