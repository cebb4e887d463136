"""Callers that leave at any moment, two hundred of them: nothing of theirs stays in the stage or around it."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import Any

import pytest

from omnistage import AsyncOmni, DiffusionParams
from omnistage.engine.admission import Ask
from omnistage.models.registry import REGISTRY
from tests.states import differences

PROMPTS = ("a cat", "a red dog")
LEAVERS = 200


async def leave(model: AsyncOmni, place: int, chance: random.Random) -> str:
    """Asks, and goes after some parts or after some time; sometimes not at all."""
    ask = DiffusionParams(
        n=1 + place % 2,
        seed=place,
        num_inference_steps=1 + place % 9,
        height=16 + 8 * (place % 3),
        true_cfg_scale=2.0 if place % 4 else 1.0,
        negative_prompt=PROMPTS[0],
        partial_images=place % 3,
    )
    stream, parts, patience_s = bool(place % 5), chance.randrange(20), chance.random() * 0.3
    try:
        outputs = model._engine.generate(Ask(PROMPTS[place % 2], ask, stream=stream))
        async with asyncio.timeout(patience_s), aclosing(outputs):
            async for output in outputs:
                parts -= 1
                if output.finished:
                    return "finished"
                if parts < 0:
                    return "left"
    except TimeoutError:
        return "tired"
    raise AssertionError("an answer without an end")


async def test_two_hundred_who_leave_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a slot, a picture for the decoder or a reference of a caller who has gone stays."""
    monkeypatch.setitem(REGISTRY, "drawing", "tests.drawing.family:PIPELINE")
    model = AsyncOmni("drawing", inline=True)
    chance = random.Random(5)
    try:
        for place in (0, 1):
            async for _ in model.generate(PROMPTS[place], DiffusionParams(), stream=False):
                pass
        before = await settled(model, None)
        outcomes: list[str] = []
        for start in range(0, LEAVERS, 20):
            outcomes += await asyncio.gather(*(leave(model, place, chance) for place in range(start, start + 20)))
        after = await settled(model, before)
        assert differences(before, after) == []
        assert min(outcomes.count(outcome) for outcome in ("finished", "left", "tired")) > 10
    finally:
        await model.shutdown()


async def settled(model: AsyncOmni, wanted: dict[str, Any] | None) -> dict[str, Any]:
    """What is held, as soon as it is `wanted`, or the same twice; at the latest after five seconds."""
    state = await model._engine.debug_state()
    for _ in range(50):
        await asyncio.sleep(0.1)
        again = await model._engine.debug_state()
        if not differences(wanted or state, again):
            return again
        state = again
    return state
