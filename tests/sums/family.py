"""A thinker that goes from token to token by a rule, and a speaker that says each token with a known number of samples.

A prompt is a list of words; `prompt_tokens`, `answer_tokens`, `text_of`, `samples_of` and the `..._nbytes` tell what comes of it
before it is asked. Words that are orders:

    !refuse    the thinker refuses it (the caller's fault)       !fail     the thinker's forward pass raises
    !break     the speaker raises at its third token             !hush     what the speaker makes has no samples
    !heavy     what the thinker tells the speaker goes through shared memory

While the file that the environment names in SLOW is there, the speaker takes its time: what stands before it stays there.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omnistage.config.pipeline import ChunkPolicy, Edge, ExecutionType, PipelineConfig, StagePipelineConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import ProcessedPrompt, StageInput

RATE = 24_000
SHORT, LONG = 480, 20_000  # samples; the longer ones travel through the arena
FIRST, COUNT = 20, 200  # tokens that stand for words
FAIL = 1
PACE_S, SLOW_S = 0.002, 0.1
SLOW = "OMNISTAGE_SUMS_SLOW"
MODULE = "tests.sums.family"


# ---- what is known beforehand ----


def prompt_tokens(words: Sequence[str]) -> tuple[int, ...]:
    return tuple(
        FAIL if word == "!fail" else FIRST + hashlib.sha256(word.encode()).digest()[0] % COUNT for word in words
    )


def following(token: int) -> int:
    return FIRST + (token * 7 + 11) % COUNT


def answer_tokens(words: Sequence[str], count: int) -> list[int]:
    """The first `count` tokens of the answer."""
    tokens = [prompt_tokens(words)[-1]]
    for _ in range(count):
        tokens.append(following(tokens[-1]))
    return tokens[1:]


def text_of(tokens: Sequence[int]) -> str:
    return "".join(f"w{token} " for token in tokens)


def samples_of(token: int) -> int:
    return SHORT if token % 2 else LONG  # one after the other, as `following` has it


def told_nbytes(tokens: Sequence[int]) -> int:
    """Of the items from the thinker to the speaker."""
    return sum(len(msgspec.msgpack.encode({"token": token})) for token in tokens)


def text_nbytes(tokens: Sequence[int], items: int) -> int:
    """Of that many items from the thinker to the caller, for an answer that is cut at its last token: text of quick steps may leave
    together."""
    framed = len(msgspec.msgpack.encode({"choices": []}))
    last = len(tokens) - 1
    choices = [_choice(token, last=place == last) for place, token in enumerate(tokens)]
    return framed * items + sum(map(len, map(msgspec.msgpack.encode, choices)))


def sound_nbytes(tokens: Sequence[int]) -> int:
    """Of the items from the speaker to the caller."""
    described = len(msgspec.msgpack.encode({"sample_rate": RATE}))
    return sum(4 * samples_of(token) + described for token in tokens)


def _choice(token: int, *, last: bool) -> dict[str, Any]:
    reason = "length" if last else None
    return {"index": 0, "text": text_of([token]), "token_ids": [token], "finish_reason": reason}


# ---- the thinker's prompt, and what it hands on ----


class Words:
    """The thinker's Processor and its own tokenizer."""

    eos_token_ids: frozenset[int] = frozenset()

    def __call__(self, request: OmniRequest) -> ProcessedPrompt:
        words = words_of(request)
        if "!refuse" in words:
            raise InvalidRequestError.of("messages", "!refuse", "any other word")
        return ProcessedPrompt(prompt_tokens(words))

    def depends_on_prompt_alone(self, prompt: Prompt) -> bool:
        return True

    @property
    def tokenizer(self) -> Words:
        return self

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return text_of(ids)


def load_words(config: Any) -> Words:
    return Words()


def words_of(request: OmniRequest) -> list[str]:
    messages = request.prompt.messages or ({"content": request.prompt.text or ""},)
    return str(messages[-1]["content"]).split()


def said(capture: MultimodalPayload, request: OmniRequest) -> MultimodalPayload:
    tensors = {"weight": Tensor.of(np.zeros(LONG, np.float32))} if "!heavy" in words_of(request) else {}
    return MultimodalPayload(tensors, {"token": capture.metadata["choices"][0]["token_ids"][0]})


# ---- the speaker ----


class Speaker:
    """A GenerationModel whose state is (tokens said so far, what it was ordered)."""

    def begin(self, request: OmniRequest, params: Any) -> tuple[int, str]:
        orders = {"!break", "!hush"}.intersection(words_of(request))
        return 0, min(orders, default="")

    def batch_key(self, chunk: Mapping[str, Any], state: tuple[int, str]) -> object:
        return "tokens"

    def cost(self, chunk: Mapping[str, Any]) -> int:
        return 1

    def interrupt(self) -> None: ...

    def run(self, batch: Sequence[tuple[Mapping[str, Any], tuple[int, str]]]) -> list[tuple[MultimodalPayload, Any]]:
        time.sleep(SLOW_S if Path(os.environ[SLOW]).exists() else PACE_S)
        return [(self._say(chunk["token"], *state), (state[0] + 1, state[1])) for chunk, state in batch]

    def _say(self, token: int, place: int, order: str) -> MultimodalPayload:
        if order == "!break" and place == 2:
            raise RuntimeError("told to break")
        count = 0 if order == "!hush" else samples_of(token)
        return MultimodalPayload({"audio": Tensor.of(np.full(count, 0.25, np.float32))}, {"sample_rate": RATE})


def load_speaker(config: Any) -> Speaker:
    return Speaker()


def bridge(
    state: None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[None, list[StageInput]]:
    return None, [] if payload is None else [StageInput({"token": payload.metadata["token"]})]


_BY_TOKEN = ChunkPolicy("items", first=1, later=1, adaptive=False)

PIPELINE = PipelineConfig(
    model_type="sums",
    model_arch="no weights",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="thinker",
            execution_type=ExecutionType.LLM_AR,
            loader="tests.sums.thinker:load",
            processor=f"{MODULE}:load_words",
            final_output=True,
            final_output_type="text",
        ),
        StagePipelineConfig(
            stage_id=1,
            model_stage="speaker",
            execution_type=ExecutionType.LLM_GENERATION,
            loader=f"{MODULE}:load_speaker",
            bridge=f"{MODULE}:bridge",
            edges=(Edge(0, 1, select=f"{MODULE}:said", chunk=_BY_TOKEN, window=8),),
            final_output=True,
            final_output_type="audio",
            item_nbytes=LONG * 4,
        ),
    ),
)
