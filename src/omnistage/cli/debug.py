"""`omnistage debug replay|timeline`: look into what a server has recorded with --record-events. Start nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnistage.core.errors import InvalidRequestError
from omnistage.obs.timeline import svg
from omnistage.orchestrator.machine import Orchestrator
from omnistage.runtime.event_log import replay as replay_log
from omnistage.runtime.timeline import find_request
from omnistage.runtime.timeline import timeline as timeline_of

app = typer.Typer(name="debug", help="Look into a recorded event log.", no_args_is_help=True)

EventLogFile = Annotated[Path, typer.Argument(help="What `serve --record-events FILE` has written.")]


@app.command()
def replay(file: EventLogFile) -> None:
    """Play the events through a fresh machine; exit code 1, with the first difference, if it decides otherwise."""
    played = replay_log(file, Orchestrator)
    if played.difference is not None:
        typer.echo(played.difference, err=True)
        raise typer.Exit(1)
    cut = "" if played.cut_nbytes is None else f"; the record was full after {played.cut_nbytes} bytes and ends there"
    typer.echo(f"{played.entries} entries, the same commands{cut}")


@app.command()
def timeline(
    file: EventLogFile,
    out: Annotated[Path, typer.Option(help="Picture to write, .svg.")],
    request: Annotated[str | None, typer.Option(help="Id of the request, or how it begins; needless for one.")] = None,
) -> None:
    """Draw the life of one request: stages as lanes, items on their way as arrows, milliseconds to the right."""
    if out.suffix.lower() != ".svg" or not out.parent.is_dir():
        raise InvalidRequestError.of("out", str(out), "a file name that ends in .svg, in a folder that exists")
    request_id = find_request(file, request)
    out.write_text(svg(timeline_of(file, request_id)))
    typer.echo(f"wrote {out} (request {request_id})")
