"""`omnistage generate MODEL --prompt ...`: one prompt, answered in this terminal and, where it is spoken or drawn, into a file."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer

from omnistage.cli.bars import DrawingBar, LoadingBar
from omnistage.cli.flags import DeployConfigFile, Model, PipelineName, Platform
from omnistage.cli.outfile import OutFile, nothing_for
from omnistage.cli.overrides import options_of, parse_overrides
from omnistage.config.env import log_level
from omnistage.core.errors import InvalidRequestError, StageUnavailableError
from omnistage.core.output import OmniRequestOutput
from omnistage.engine.admission import Ask, admit
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.compose import resolved, runtime_of, served_model
from omnistage.engine.media import read_local
from omnistage.engine.outputs import whole
from omnistage.engine.served import ServedModel
from omnistage.obs.log import configure_logging
from omnistage.serve.protocol.images import sides_of

STDIN = "-"
_LOOK_S = 0.1
_START_TIMEOUT_S = 600.0
_EXAMPLES = {"audio": "answer.wav", "image": "answer.png"}


def run(
    context: typer.Context,
    model: Model,
    prompt: Annotated[str, typer.Option(help="What to say to the model; - reads it from standard input.")],
    image: Annotated[
        list[Path] | None, typer.Option(help="Picture to show it, before what is said; several times.")
    ] = None,
    mask: Annotated[
        Path | None, typer.Option(help="Picture that can be seen through where the first one is to change.")
    ] = None,
    audio: Annotated[list[Path] | None, typer.Option(help="Sound for it to hear; several times.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="Video for it to see; several times.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for speech (.wav, .flac, .mp3, .opus, .ogg, .pcm) or pictures (.png, .jpg, .webp)."),
    ] = None,
    modalities: Annotated[str | None, typer.Option(help="What to make, such as text,audio.")] = None,
    voice: Annotated[str | None, typer.Option(help="Who speaks.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="At most so many tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token every time.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="So many pictures.")] = None,
    size: Annotated[str | None, typer.Option(help="Of the picture: WIDTHxHEIGHT.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of denoising.")] = None,
    guidance_scale: Annotated[float | None, typer.Option(help="How strictly the picture follows the prompt.")] = None,
    true_cfg_scale: Annotated[float | None, typer.Option(help="The same, against the negative prompt.")] = None,
    negative_prompt: Annotated[str | None, typer.Option(help="What the picture is not to show.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    deploy_config: DeployConfigFile = None,
    pipeline: PipelineName = None,
    platform: Platform = None,
) -> None:
    """Answer one prompt, without a server. The keys that `omnistage config reference` lists are flags too: --stage-0-threads 2."""
    configure_logging("error" if log_level() == "info" else log_level())  # what went wrong ends it with one line
    overrides = parse_overrides(context.args, options=options_of(context), pipeline=pipeline, platform=platform)
    given = {"voice": voice, "max_tokens": max_tokens, "temperature": temperature, "seed": seed, **sides_of(size)}
    drawn = {"n": n, "num_inference_steps": steps, "guidance_scale": guidance_scale, "true_cfg_scale": true_cfg_scale}
    given |= {**drawn, "negative_prompt": negative_prompt}
    file = None if out is None else OutFile.of(out)
    resolution = resolved(model, deploy_config=deploy_config, overrides=overrides)
    served = served_model(resolution)
    # The template of a chat model makes a question of it.
    masks = None if mask is None else [mask]
    message = {"role": "user", "content": content_of(said(prompt), image=image, mask=masks, audio=audio, video=video)}
    ask = Ask(
        {"messages": [message], "modalities": asked_modalities(served, modalities, file)},
        fields={name: value for name, value in given.items() if value is not None},
        fields_of="image" if file is not None and file.modality == "image" else None,
        stream=True,
        read_media=read_local,
    )
    wanted = admit(served, ask).wants  # what is wrong is told before anything is made
    _require_file(wanted, file)
    if n is not None and "image" not in wanted:
        raise InvalidRequestError.of("n", n, "nothing where no pictures are made")
    answer = asyncio.run(_answer(AsyncOmniEngine(served, runtime_of(resolution)), ask, DrawingBar(n or 1)))
    if file is not None:
        file.save(answer)


def said(prompt: str) -> str:
    """The prompt, or what stands on standard input, without the end of its last line."""
    if prompt != STDIN:
        return prompt
    read = sys.stdin.buffer.read()
    try:
        return read.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequestError.of("prompt", f"{len(read)} bytes", f"a text in UTF-8 ({error.reason})") from None


def content_of(prompt: str, **files: list[Path] | None) -> str | list[dict[str, object]]:
    """What is said, after the `files` that are shown, by kind."""
    parts: list[dict[str, object]] = [
        {"type": kind, kind: path} for kind, paths in files.items() for path in paths or ()
    ]
    return [*parts, {"type": "text", "text": prompt}] if parts else prompt


def asked_modalities(model: ServedModel, modalities: str | None, file: OutFile | None) -> list[str] | None:
    """What was named. Else what the file is for, and the text of speech; without a file text, if the model writes any. None asks
    for what the model makes unasked."""
    if modalities is not None:
        return [name.strip() for name in modalities.split(",") if name.strip()]
    if file is None:
        return ["text"] if "text" in model.modalities else None
    if file.modality not in model.modalities:
        raise nothing_for(file.path, file.modality)
    return [name for name in model.modalities if name == file.modality or (name, file.modality) == ("text", "audio")]


def _require_file(wanted: tuple[str, ...], file: OutFile | None) -> None:
    """Raises InvalidRequestError where something is made that has no file, or nothing for the file."""
    for modality, example in _EXAMPLES.items():
        if modality in wanted and (file is None or file.modality != modality):
            given = None if file is None else str(file.path)
            raise InvalidRequestError.of("out", given, f"a file for the {modality}, such as {example}")
    if file is not None and file.modality not in wanted:
        raise nothing_for(file.path, file.modality)


async def _answer(engine: AsyncOmniEngine, ask: Ask, drawing: DrawingBar) -> OmniRequestOutput:
    """The whole answer; its text is written to stdout as it comes."""
    engine.start()
    parts: list[OmniRequestOutput] = []
    try:
        await _loaded(engine)
        with closing(drawing):
            async for part in engine.generate(ask):
                parts.append(part)
                sys.stdout.write(part.text)
                sys.stdout.flush()
                if "progress" in part.multimodal_output.metadata:
                    drawing.show(part.multimodal_output.metadata["progress"])
        return whole(parts)
    finally:
        if any(part.outputs for part in parts):  # whole, broken off or interrupted: what is said next begins a line
            sys.stdout.write("\n")
            sys.stdout.flush()
        await engine.close()


async def _loaded(engine: AsyncOmniEngine) -> None:
    """Waits for the stages and shows how far they are."""
    with closing(LoadingBar()) as bar, suppress(TimeoutError):
        async with asyncio.timeout(_START_TIMEOUT_S):
            while engine.status().state == "starting":
                bar.show(engine.status().replicas)
                await asyncio.sleep(_LOOK_S)
    status = engine.status()
    if status.state != "ready":
        raise StageUnavailableError(f"the stages did not start: {status.trouble}")
