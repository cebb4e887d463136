"""`omnistage generate MODEL --prompt ...`: one prompt, answered in this terminal and, where it is spoken, into a file."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from omnistage.cli.flags import DeployConfigFile, Model, PipelineName, Platform
from omnistage.cli.overrides import parse_overrides
from omnistage.config.env import log_level
from omnistage.core.errors import InvalidRequestError, StageUnavailableError
from omnistage.core.output import OmniRequestOutput
from omnistage.engine.admission import Ask, admit
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.compose import resolved, runtime_of, served_model
from omnistage.engine.media import read_local
from omnistage.engine.outputs import whole
from omnistage.obs.log import configure_logging
from omnistage.serve.media import DEFAULT_RATE, encoded

_FORMATS = {".wav": "wav", ".flac": "flac", ".mp3": "mp3", ".opus": "opus", ".ogg": "opus", ".pcm": "pcm16"}
_LOOK_S = 0.1
_START_TIMEOUT_S = 600.0


def run(
    context: typer.Context,
    model: Model,
    prompt: Annotated[str, typer.Option(help="What to say to the model.")],
    image: Annotated[
        list[Path] | None, typer.Option(help="Picture to show it, before what is said; several times.")
    ] = None,
    audio: Annotated[list[Path] | None, typer.Option(help="Sound for it to hear; several times.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="Video for it to see; several times.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the speech: .wav, .flac, .mp3, .opus, .ogg, .pcm.")] = None,
    modalities: Annotated[str | None, typer.Option(help="What to make, such as text,audio.")] = None,
    voice: Annotated[str | None, typer.Option(help="Who speaks.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="At most so many tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token every time.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    deploy_config: DeployConfigFile = None,
    pipeline: PipelineName = None,
    platform: Platform = None,
) -> None:
    """Answer one prompt, without a server. Configuration keys are flags too: --stage-0-threads 2."""
    configure_logging("error" if log_level() == "info" else log_level())  # what went wrong ends it with one line
    overrides = parse_overrides(context.args, pipeline=pipeline, platform=platform)
    given = {"voice": voice, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    fields = {name: value for name, value in given.items() if value is not None}
    wants = asked_modalities(modalities, out)
    # The template of a chat model makes a question of it.
    message = {"role": "user", "content": content_of(prompt, image=image, audio=audio, video=video)}
    ask = Ask({"messages": [message], "modalities": wants}, fields=fields, stream=True, read_media=read_local)
    file_format = None if out is None else format_of(out)
    resolution = resolved(model, deploy_config=deploy_config, overrides=overrides)
    served = served_model(resolution)
    wanted = admit(served, ask).wants  # what is wrong is told before anything is made
    if "audio" in wanted and out is None:
        raise InvalidRequestError.of("out", None, "a file for the audio, such as answer.wav")
    if out is not None and "audio" not in wanted:
        raise InvalidRequestError.of("out", str(out), "no file, as the answer has no sound")
    answer = asyncio.run(_answer(AsyncOmniEngine(served, runtime_of(resolution)), ask))
    if out is not None and file_format is not None:
        save_audio(answer, out, file_format)


def content_of(prompt: str, **files: list[Path] | None) -> str | list[dict[str, object]]:
    """What is said, after the `files` that are shown, by kind."""
    parts: list[dict[str, object]] = [
        {"type": kind, kind: path} for kind, paths in files.items() for path in paths or ()
    ]
    return [*parts, {"type": "text", "text": prompt}] if parts else prompt


def asked_modalities(modalities: str | None, out: Path | None) -> list[str] | None:
    """What was named, else speech too where there is a file for it. None asks for all that the model makes."""
    if modalities is not None:
        return [name.strip() for name in modalities.split(",") if name.strip()]
    return ["text"] if out is None else None


def format_of(out: Path) -> str:
    """The audio format that a file's name asks for. Raises InvalidRequestError for another name or a missing folder."""
    if out.suffix.lower() not in _FORMATS:
        raise InvalidRequestError.of("out", str(out), f"a file name that ends in {', '.join(_FORMATS)}")
    if not out.parent.is_dir():
        raise InvalidRequestError.of("out", str(out), "a file in a folder that exists")
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise _not_writable(out)
    return _FORMATS[out.suffix.lower()]


def save_audio(answer: OmniRequestOutput, out: Path, form: str) -> None:
    payload = answer.multimodal_output
    if "audio" not in payload.tensors:
        raise InvalidRequestError.of("out", str(out), "no file, as the answer has no sound")
    data = encoded(payload.numpy("audio"), payload.metadata.get("sample_rate", DEFAULT_RATE), form)
    try:
        out.write_bytes(data)
    except OSError as error:  # a full disk, or a folder in which nobody can write whatever its permissions say
        raise _not_writable(out, error.strerror) from None
    typer.echo(f"wrote {out}", err=True)


def _not_writable(out: Path, why: str | None = None) -> InvalidRequestError:
    return InvalidRequestError.of("out", str(out), "a file that can be written" + (f" ({why})" if why else ""))


async def _answer(engine: AsyncOmniEngine, ask: Ask) -> OmniRequestOutput:
    """The whole answer; its text is written to stdout as it comes."""
    engine.start()
    try:
        await _loaded(engine)
        parts: list[OmniRequestOutput] = []
        async for part in engine.generate(ask):
            parts.append(part)
            sys.stdout.write(part.text)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()  # so that what is said on stderr comes after it
        return whole(parts)
    finally:
        await engine.close()


async def _loaded(engine: AsyncOmniEngine) -> None:
    """Waits for the stages and shows how far they are."""
    bar = tqdm(total=100, desc="loading", bar_format="{desc}: {percentage:3.0f}% {bar}", leave=False, disable=None)
    with bar, suppress(TimeoutError):
        async with asyncio.timeout(_START_TIMEOUT_S):
            while engine.status().state == "starting":
                _show(bar, engine)
                await asyncio.sleep(_LOOK_S)
    status = engine.status()
    if status.state != "ready":
        raise StageUnavailableError(f"the stages did not start: {status.trouble}")


def _show(bar: Any, engine: AsyncOmniEngine) -> None:
    replicas = engine.status().replicas
    done = sum(1.0 if replica.state == "ready" else replica.progress for replica in replicas)
    bar.n = int(100 * done / max(1, len(replicas)))
    bar.refresh()
