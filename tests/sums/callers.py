"""Callers that count what they get. Each leaves when it was told to: once its request has arrived, or at an event of its stream."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

WAV_HEADER_NBYTES = 44
LEAVES_S = 20.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `leaves`: never (""), when the server's record says that it has arrived ("arrived"), so long after that
    ("later"), or when `events` events of its stream have come ("events"). Its prompt begins with its own name."""

    number: int
    words: tuple[str, ...]
    max_tokens: int
    modalities: tuple[str, ...] = ("text",)
    stream: bool = False
    leaves: str = ""
    events: int = 0
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"caller-{self.number}."

    @property
    def prompt(self) -> tuple[str, ...]:
        return (*self.words, self.name)

    @property
    def hears(self) -> bool:
        return "audio" in self.modalities

    def body(self) -> dict[str, Any]:
        values = {
            "model": "sums",
            "messages": [{"role": "user", "content": " ".join(self.prompt)}],
            "modalities": list(self.modalities),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": self.stream,
            "include_metrics": True,
            **({"stream_options": {"include_usage": True}} if self.stream else {}),
        }
        return {**values, **self.fields}


@dataclass(slots=True)
class Got:
    """What came. `status` 0: nothing at all. `sound_nbytes` are of 16-bit samples."""

    asked: Asked
    status: int = 0
    left: bool = False
    events: int = 0
    text: str = ""
    transcript: str = ""
    sound_nbytes: int = 0
    usage: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        return self.status == 200 and self.error is None and not self.left

    @property
    def code(self) -> str:
        return self.error["code"] if self.error else ""

    @property
    def tokens(self) -> int:
        return (self.text or self.transcript).count(" ")

    def take(self, value: dict[str, Any]) -> None:
        """An event of a stream, or a whole answer."""
        self.events += 1
        self.error = value.get("error", self.error)
        self.usage = value.get("usage") or self.usage
        self.metrics = value.get("metrics") or self.metrics
        for choice in value.get("choices", ()):
            said = choice.get("delta") or choice.get("message") or {}
            audio = said.get("audio") or {}
            self.text += said.get("content") or ""
            self.transcript += audio.get("transcript") or ""
            nbytes = len(base64.b64decode(audio.get("data") or ""))
            self.sound_nbytes += max(0, nbytes - (0 if "delta" in choice else WAV_HEADER_NBYTES))


class ArrivalsState:
    """Who has arrived, as the record of the server's events says, which is written at once."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._read_nbytes = 0
        self._rest = b""
        self._names: set[bytes] = set()

    async def wait(self, name: str) -> None:
        async with asyncio.timeout(LEAVES_S):
            while name.encode() not in self._names:
                await asyncio.sleep(0.005)
                self._read_on()

    def _read_on(self) -> None:
        with self._record.open("rb") as file:
            file.seek(self._read_nbytes)
            fresh = file.read()
        self._read_nbytes += len(fresh)
        seen = self._rest + fresh
        self._names.update(re.findall(rb"caller-\d+\.", seen))
        self._rest = seen[-32:]


async def ask(client: httpx.AsyncClient, asked: Asked, arrivals: ArrivalsState) -> Got:
    got = Got(asked)
    conversation = asyncio.create_task(_converse(client, asked, got))
    if asked.leaves in ("arrived", "later"):
        await arrivals.wait(asked.name)
        await asyncio.sleep(0.1 if asked.leaves == "later" else 0.0)
        got.left = not conversation.done()
        conversation.cancel()
    await asyncio.gather(conversation, return_exceptions=got.left)
    return got


async def _converse(client: httpx.AsyncClient, asked: Asked, got: Got) -> None:
    async with client.stream("POST", "/v1/chat/completions", json=asked.body()) as answer:
        got.status = answer.status_code
        if not answer.headers["content-type"].startswith("text/event-stream"):
            got.take(json.loads(await answer.aread()))
            return
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                got.take(json.loads(line.removeprefix("data: ")))
            if asked.leaves == "events" and got.events >= asked.events:
                got.left = True
                return


async def ask_all(
    client: httpx.AsyncClient, asked: list[Asked], arrivals: ArrivalsState, *, together: int
) -> list[Got]:
    """Every request, at most `together` at once, begun in order."""
    places = asyncio.Semaphore(together)

    async def one(request: Asked) -> Got:
        async with places:
            return await ask(client, request, arrivals)

    return list(await asyncio.gather(*(one(request) for request in asked)))
