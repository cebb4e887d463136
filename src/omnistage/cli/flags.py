"""Arguments and flags that several commands have. Imports nothing heavy: a server's port answers after this was read."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str, typer.Argument(help="A built-in name or a model's folder; flags such as --stage-0-threads 2 stand after it.")
]
DeployConfigFile = Annotated[str | None, typer.Option("--deploy-config", help="YAML deploy file.")]
PipelineName = Annotated[str | None, typer.Option("--pipeline", help="Name of the pipeline, in place of detection.")]
Platform = Annotated[
    str | None, typer.Option("--platform", help="Platform section of the deploy file to use; cpu where none is named.")
]
