"""`omnistage debug replay`: looks into what a server has recorded with --record-events. Starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnistage.orchestrator.machine import Orchestrator
from omnistage.runtime.event_log import replay as replay_log

app = typer.Typer(name="debug", help="Look into a recorded event log.", no_args_is_help=True)

EventLogFile = Annotated[Path, typer.Argument(help="What `serve --record-events FILE` has written.")]


@app.command()
def replay(file: EventLogFile) -> None:
    """Play the events through a fresh machine; exit code 1, with the first difference, if it decides otherwise."""
    played = replay_log(file, Orchestrator)
    if played.difference is not None:
        typer.echo(played.difference, err=True)
        raise typer.Exit(1)
    typer.echo(f"{played.entries} entries, the same commands")
