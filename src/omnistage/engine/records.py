"""What became of one request, in numbers: noted as its items come, told when its consumer has seen the end.

A request counts as its consumer saw it: one whose consumer has left was aborted, whatever the stages still did. Tokens and media
of a finished request are those of its stages' usage; of any other, what was handed to a consumer that streams. Times are seconds
since arrival, None for what never came. Knows nothing of runtimes' insides or of HTTP.

    TTFT first text    TTFP first sound with samples    E2EL the end    TPOT (last text token - first) / (tokens - 1)
    ITL  the time between two pieces of text, for each token of the later one    RTF E2EL / seconds of sound
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnistage.core.output import OmniRequestOutput
from omnistage.core.request import StageTimes, Usage
from omnistage.engine.outputs import answer_usage
from omnistage.engine.served import ServedModel
from omnistage.obs.figures import EdgeTotals
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted

_CLIENT = -1


@dataclass(slots=True)
class RequestRecord:
    """`token_gaps`: (seconds since the piece of text before, tokens of this one), for every piece with tokens but the first."""

    outcome: str = ""
    usage: Usage = field(default_factory=Usage)
    first_text_s: float | None = None
    first_audio_s: float | None = None
    end_s: float = 0.0
    tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    token_gaps: list[tuple[float, int]] = field(default_factory=list)

    @property
    def tpot_s(self) -> float | None:
        if self.first_token_s is None or self.last_token_s is None or self.tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.tokens - 1)

    @property
    def rtf(self) -> float | None:
        return self.end_s / self.usage.audio_seconds if self.usage.audio_seconds > 0 else None


class RecordState:
    """Fills the record of one request. `came` is called in the runtime's thread, the rest by the consumer."""

    def __init__(self, model: ServedModel, *, streamed: bool) -> None:
        self._model = model
        self._streamed = streamed
        self._arrived_s = time.monotonic()
        self.record = RequestRecord()

    def came(self, message: ClientItem | ClientRestarted) -> None:
        """Something has come from the runtime."""
        since_s = time.monotonic() - self._arrived_s
        match message:
            case ClientItem(final_output_type="text"):
                self._text(message, since_s)
            case ClientItem(final_output_type="audio") if self.record.first_audio_s is None:
                self.record.first_audio_s = since_s if message.payload.nbytes else None
            case ClientRestarted():
                self.record = RequestRecord()

    def _text(self, item: ClientItem, since_s: float) -> None:
        record, choices = self.record, item.payload.metadata.get("choices", ())
        if record.first_text_s is None and any(choice.get("text") for choice in choices):
            record.first_text_s = since_s
        tokens = sum(len(choice.get("token_ids", ())) for choice in choices)
        if tokens == 0:
            return
        if record.last_token_s is None:
            record.first_token_s = since_s
        else:
            record.token_gaps.append((since_s - record.last_token_s, tokens))
        record.last_token_s = since_s
        record.tokens += tokens

    def handed(self, part: OmniRequestOutput) -> None:
        """A part of the answer goes to the consumer."""
        if not self._streamed:
            return
        held = self.record.usage
        self.record.usage = Usage(
            completion_tokens=held.completion_tokens + sum(len(choice.token_ids) for choice in part.outputs),
            audio_seconds=held.audio_seconds + _audio_seconds(part),
            images=held.images + len(part.images),
        )

    def end(self, closed: ClientClosed | None) -> RequestRecord:
        """The consumer has seen how it ended, or None: it has left before. The first word is the last."""
        record = self.record
        if not record.outcome:
            record.outcome = "aborted" if closed is None else closed.outcome
            record.end_s = time.monotonic() - self._arrived_s
            if closed is not None and closed.outcome == "finished":
                record.usage = answer_usage(self._model, closed.usage)
        return record


def request_metrics(model: ServedModel, record: RequestRecord, closed: ClientClosed) -> dict[str, Any]:
    """What a caller gets of the numbers of its request, as plain data: `stages` and `edges` by name, what never came left out."""
    named = {
        "ttft_s": record.first_text_s,
        "ttfp_s": record.first_audio_s,
        "tpot_s": record.tpot_s,
        "e2el_s": record.end_s,
        "rtf": record.rtf,
    }
    names = {stage.stage_id: stage.name for stage in model.stages} | {_CLIENT: "client"}
    return {
        **{name: value for name, value in named.items() if value is not None},
        "attempts": closed.attempts,
        "stages": {
            names[stage]: stage_numbers(times, closed.waiting_s.get(stage)) for stage, times in closed.times.items()
        },
        "edges": {
            f"{names[source]}->{names[target]}": edge_numbers(totals)
            for (source, target), totals in closed.edges.items()
        },
    }


def stage_numbers(times: StageTimes, waiting_s: float | None) -> Mapping[str, float]:
    told = {name: getattr(times, name) for name in times.__struct_fields__}
    own = {name: value for name, value in told.items() if value is not None}
    return own if waiting_s is None else {"waiting_s": waiting_s, **own}


def edge_numbers(totals: EdgeTotals) -> Mapping[str, Any]:
    told: dict[str, Any] = {
        "items": totals.items,
        "nbytes": totals.nbytes,
        "transfer_s": totals.transfer_s,
        "queue_s": totals.queue_s,
    }
    if totals.schedule:
        told |= {"units": totals.units, "schedule": [list(run) for run in totals.schedule]}
    return told


def _audio_seconds(part: OmniRequestOutput) -> float:
    audio = part.multimodal_output.tensors.get("audio")
    rate = part.multimodal_output.metadata.get("sample_rate")
    return audio.spec.shape[-1] / rate if audio is not None and rate else 0.0
