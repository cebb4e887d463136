"""A runtime without stages: text deltas, audio tensors and pictures out of a thread, in the order that a test asks for.

`words` are the text deltas; for each the fake also makes `samples` samples of audio if audio is wanted, and a step of denoising if
pictures are. Picture i is 3 x 2, of colour i, and comes after those of higher index; pictures on their way have colour 100 + j.
`gate` holds the answer back after the first word until it is set. What was said to the runtime is kept in `aborted` and `taken`.
"""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from omnistage.core.errors import ErrorInfo
from omnistage.core.params import DiffusionParams
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest, Usage
from omnistage.runtime.base import ClientClosed, ClientItem, RuntimeStatus, Sink, Taken


def _picture(colour: int, **metadata: int) -> MultimodalPayload:
    return MultimodalPayload({"image": Tensor.of(np.full((2, 3, 3), colour, np.uint8))}, metadata)


class FakeRuntime:
    def __init__(self, words: tuple[str, ...] = ("Hello", " world."), samples: int = 240) -> None:
        self.words, self.samples, self.state, self.reason = words, samples, "ready", ""
        self.error: ErrorInfo | None = None
        self.gate, self.submitted, self.taken = threading.Event(), list[OmniRequest](), list[tuple[int, int, int]]()
        self.gate.set()
        self.stopped = threading.Event()
        self._seqs = itertools.count()
        self.aborted: dict[str, str] = {}
        self.closed_with: float | None = None

    def start(self) -> None: ...

    def submit(self, request: OmniRequest, sink: Sink) -> None:
        self.submitted.append(request)
        threading.Thread(target=self._answer, args=(request, sink), daemon=True).start()

    def _answer(self, request: OmniRequest, sink: Sink) -> None:
        for seq, word in enumerate(self.words):
            if "text" in request.wants:
                payload = MultimodalPayload(metadata={"choices": [{"index": 0, "text": word, "token_ids": [seq]}]})
                sink(ClientItem(request.request_id, 0, seq, "text", payload, False))
            if "audio" in request.wants:
                sound = Tensor.of(np.full(self.samples, 0.5, np.float32))
                payload = MultimodalPayload({"audio": sound}, {"sample_rate": 24000})
                sink(ClientItem(request.request_id, 1, seq, "audio", payload, False))
            if "image" in request.wants:
                self._draw(request, sink, seq)
            self.gate.wait(10)
            if request.request_id in self.aborted or self.error:
                break
        usage = {0: Usage(prompt_tokens=3, completion_tokens=len(self.words)), 1: Usage(audio_seconds=0.02)}
        outcome = "aborted" if request.request_id in self.aborted else "failed" if self.error else "finished"
        sink(ClientClosed(request.request_id, outcome, self.error, usage, reasons={0: "stop"}))  # type: ignore[arg-type]

    def _draw(self, request: OmniRequest, sink: Sink, step: int) -> None:
        """One of len(words) steps; with the last one come the pictures."""
        [(stage_id, params)] = [
            (stage_id, params)
            for stage_id, params in request.stage_params.items()
            if isinstance(params, DiffusionParams)
        ]
        is_last, items = step + 1 == len(self.words), list[MultimodalPayload]()
        for index in reversed(range(params.n)):
            if request.stream:
                items.append(
                    MultimodalPayload(
                        metadata={"progress": {"step": step + 1, "steps": len(self.words), "index": index}}
                    )
                )
                if step < params.partial_images:
                    items.append(_picture(100 + step, partial=step, index=index))
            if is_last:
                items.append(_picture(index, index=index, seed=(params.seed or 0) + index))
        for item in items:
            sink(ClientItem(request.request_id, stage_id, next(self._seqs), "image", item, False))

    def abort(self, request_id: str, reason: str) -> None:
        self.aborted[request_id] = reason
        self.gate.set()

    def took(self, taken: Sequence[Taken]) -> None:
        self.taken += ((one.source, one.seq, one.attempt) for one in taken)

    def control(self, name: str, arguments: Mapping[str, Any], done: Callable[..., None]) -> None:
        done({"0/0": True}, None) if name == "reset_prefix_cache" else done({}, ErrorInfo("unsupported", f"no {name}"))

    def inspect(self, done: Callable[[dict[str, Any]], None]) -> None:
        done({"machine": {"open": 0, "requests": {}}, "runtime": {"sinks": 0}})

    def status(self) -> RuntimeStatus:
        return RuntimeStatus(
            self.state,
            {"thinker": self.state, "speaker": "ready"},
            replica_gauges={("thinker", 0): {"running": 1}},
            reason=self.reason,
        )

    def wait_ready(self, timeout_s: float) -> RuntimeStatus:
        return self.status()

    def wait_stopped(self, timeout_s: float) -> RuntimeStatus:
        self.stopped.wait(timeout_s)
        return self.status()

    def close(self, drain_timeout_s: float) -> None:
        self.closed_with = drain_timeout_s
        self.stopped.set()
