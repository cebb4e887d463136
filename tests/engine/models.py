"""Served models for tests: a thinker that writes and a speaker that speaks, and a thinker alone."""

from omnistage.core.params import GenerationParams, SamplingParams
from omnistage.engine.served import ServedModel, ServedStage

THINKER = ServedStage(0, "thinker", SamplingParams(max_tokens=64, temperature=0.5), {"stop_token_ids": [2]}, "text")
SPEAKER = ServedStage(1, "speaker", GenerationParams(voice="af_heart"), makes="audio")
SPOKEN = ServedModel(
    "talker",
    (THINKER, SPEAKER),
    voices=("af_heart", "am_michael"),
    voice_aliases={"alloy": "af_heart", "echo": "am_michael"},
)
WRITTEN = ServedModel("writer", (THINKER,))
