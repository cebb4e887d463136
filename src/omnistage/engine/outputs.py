"""From what a runtime delivers to what callers get: parts of an answer, and whole answers joined from parts.

Pure. The payload of a text item carries metadata `choices`, a list of what was added to a choice: `index`, and, each
optional, `text`, `token_ids`, `finish_reason`, `logprobs`. Media carry tensors named after their modality. Durations in
seconds.

A picture carries metadata `index` (which of the request's pictures it is; 0 where it says nothing) and `seed`. A streamed request
has, before it, items of metadata alone, `progress` = {step, steps, index}, and pictures on their way, whose metadata have `partial`
(0, 1, ...). Neither is a part of the whole answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from omnistage.core.errors import ErrorInfo
from omnistage.core.output import CompletionOutput, OmniRequestOutput
from omnistage.core.payload import MultimodalPayload, merge
from omnistage.core.request import OmniRequest, Usage
from omnistage.engine.served import ServedModel
from omnistage.runtime.base import ClientClosed, ClientItem


def part_of(item: ClientItem) -> OmniRequestOutput:
    """An item as a part of the answer: what is new in it, never a snapshot."""
    kind = item.final_output_type
    if kind == "text":
        choices = _joined_choices([_completion(choice) for choice in item.payload.metadata.get("choices", ())])
        return OmniRequestOutput(item.request_id, item.source, kind, finished=False, outputs=choices)
    is_whole = kind == "image" and "partial" not in item.payload.metadata
    images = tuple(item.payload.numpy(name) for name in item.payload.tensors) if is_whole else ()
    return OmniRequestOutput(
        item.request_id, item.source, kind, finished=False, multimodal_output=item.payload, images=images
    )


def last_part(
    model: ServedModel, request: OmniRequest, closed: ClientClosed, measured: Mapping[str, Any] | None = None
) -> OmniRequestOutput:
    """The part that ends an answer: nothing new to read or hear, but why it ended and what it took. `measured` goes into its
    metrics (engine.records)."""
    final = model.maker(request.wants[-1])
    reason = None
    if closed.outcome == "finished":
        reason = "length" if "length" in closed.reasons.values() else "stop"
    usage = {stage: usage_numbers(usage) for stage, usage in closed.usage.items()}
    return OmniRequestOutput(
        request.request_id,
        final.stage_id,
        request.wants[-1],
        finished=True,
        finish_reason=reason,
        metrics={"usage": usage, **(measured or {})},
        error=closed.error,
    )


def failed_output(request_id: str, error: ErrorInfo) -> OmniRequestOutput:
    """The output of a prompt that could not be answered."""
    return OmniRequestOutput(request_id, -1, "text", finished=True, error=error)


def usage_numbers(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in usage.__struct_fields__}


def answer_usage(model: ServedModel, usages: Mapping[int, Usage]) -> Usage:
    """What the whole answer counts: the tokens of the stage that writes (the first one where none does), and all media."""
    writer = model.maker("text") if "text" in model.modalities else model.stages[0]
    tokens = usages.get(writer.stage_id, Usage())
    return Usage(
        prompt_tokens=tokens.prompt_tokens,
        cached_tokens=tokens.cached_tokens,
        completion_tokens=tokens.completion_tokens,
        audio_seconds=sum(usage.audio_seconds for usage in usages.values()),
        images=sum(usage.images for usage in usages.values()),
    )


def usage_of(model: ServedModel, output: OmniRequestOutput) -> Usage:
    """`answer_usage` of a finished output."""
    numbers = output.metrics.get("usage", {})
    return answer_usage(model, {stage: Usage(**values) for stage, values in numbers.items()})


def whole(parts: Sequence[OmniRequestOutput]) -> OmniRequestOutput:
    """One output out of all parts of an answer, the last of which is the one that ended it."""
    last = parts[-1]
    media = [part.multimodal_output for part in parts if part.multimodal_output.tensors and not is_picture(part)]
    pictures = sorted((part for part in parts if part.images), key=_index)
    return replace(
        last,
        outputs=_joined_choices([completion for part in parts for completion in part.outputs]),
        multimodal_output=_with_seeds(_joined_media(media), pictures),
        images=tuple(image for part in pictures for image in part.images),
    )


def is_picture(part: OmniRequestOutput) -> bool:
    """True for a whole picture and for one on its way."""
    return "image" in part.multimodal_output.tensors


def _with_seeds(media: MultimodalPayload, pictures: Sequence[OmniRequestOutput]) -> MultimodalPayload:
    """With metadata `seeds`, of each picture, where there are pictures: with its own each of them can be drawn again alone."""
    seeds = [part.multimodal_output.metadata.get("seed") for part in pictures]
    return MultimodalPayload(media.tensors, {**media.metadata, "seeds": seeds}) if pictures else media


def _index(part: OmniRequestOutput) -> int:
    return int(part.multimodal_output.metadata.get("index", 0))


def _completion(choice: Mapping[str, Any]) -> CompletionOutput:
    logprobs = choice.get("logprobs")
    return CompletionOutput(
        index=choice.get("index", 0),
        text=choice.get("text", ""),
        token_ids=tuple(choice.get("token_ids", ())),
        finish_reason=choice.get("finish_reason"),
        logprobs=tuple(logprobs) if logprobs is not None else None,
    )


def _joined_choices(completions: Sequence[CompletionOutput]) -> tuple[CompletionOutput, ...]:
    if len(completions) == 1:
        return tuple(completions)
    pieces: dict[int, list[CompletionOutput]] = {}
    for completion in completions:
        pieces.setdefault(completion.index, []).append(completion)
    return tuple(_joined_choice(index, pieces[index]) for index in sorted(pieces))


def _joined_choice(index: int, pieces: Sequence[CompletionOutput]) -> CompletionOutput:
    logprobs = [entry for piece in pieces if piece.logprobs is not None for entry in piece.logprobs]
    return CompletionOutput(
        index=index,
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        finish_reason=next((piece.finish_reason for piece in reversed(pieces) if piece.finish_reason), None),
        logprobs=tuple(logprobs) if any(piece.logprobs is not None for piece in pieces) else None,
    )


def _joined_media(payloads: list[MultimodalPayload]) -> MultimodalPayload:
    """Tensors joined along their first axis. Metadata describes the medium, so the last payload's holds for all."""
    if not payloads:
        return MultimodalPayload()
    metadata = {key: value for payload in payloads for key, value in payload.metadata.items()}
    return MultimodalPayload(merge(payloads).tensors, metadata)
