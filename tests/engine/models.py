"""Served models for tests: a thinker that writes and a speaker that speaks, a thinker alone, and those that draw."""

from omnistage.core.params import DiffusionParams, GenerationParams, SamplingParams
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
PAINTER = ServedStage(0, "painter", DiffusionParams(num_inference_steps=4), makes="image")
DRAWN = ServedModel("painter", (PAINTER,))
EDITED = ServedModel("editor", (PAINTER,), reads=("text", "image", "mask"))
ILLUSTRATED = ServedModel("illustrator", (THINKER, ServedStage(1, "painter", DiffusionParams(), makes="image")))
