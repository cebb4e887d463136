"""Streamed chat chunks as most servers of this field send them: FastAPI's StreamingResponse, a pydantic model per chunk."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator

import fastapi
import uvicorn
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

version = f"fastapi {fastapi.__version__}"


class Delta(BaseModel):
    role: str | None = None
    content: str | None = None


class Choice(BaseModel):
    index: int
    delta: Delta
    logprobs: dict[str, str] | None = None
    finish_reason: str | None = None


class Chunk(BaseModel):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[Choice]
    usage: dict[str, int] | None = None


class Body(BaseModel):
    model: str
    messages: list[dict[str, str]]
    max_tokens: int
    stream: bool


app = fastapi.FastAPI()


@app.post("/v1/chat/completions")
async def chat(body: Body) -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        created = int(time.time())
        for index in range(body.max_tokens):
            await asyncio.sleep(0)  # the other streams' turn
            choice = Choice(index=0, delta=Delta(content=f"word {index} "))
            chunk = Chunk(id="chatcmpl-1", created=created, model=body.model, choices=[choice])
            yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )
