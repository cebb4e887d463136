"""What the engine knows of the model it serves: the stages' parameters, what they make, which voices there are.

A plain value, so that admission can be tested without configuration, processes or weights. `compose` builds it from a
resolved configuration. Knows nothing of replicas and of HTTP. Stages stand in the pipeline's own order; times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnistage.core.params import StageParams

MEDIA_KEYS = ("multi_modal_data", "mm_processor_kwargs")
"""The keys of a prompt that only a model has a use for that reads more than text."""
DRAWING_KEYS = ("negative_prompt", "height", "width")
"""Those of a model that draws: parameters of the stage that makes its pictures."""


@dataclass(frozen=True, slots=True)
class ServedStage:
    """One stage. `constraints` are the pipeline's sampling constraints, which win over every caller.
    `makes` is the modality of a final output stage, else None."""

    stage_id: int
    name: str
    defaults: StageParams
    constraints: Mapping[str, Any] = field(default_factory=dict)
    makes: str | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`voice_aliases` maps other services' voice names to names in `voices`. `reads` lists the input modalities; the media of one
    prompt may have `max_media_nbytes` together. Whoever names no modalities gets `default_modalities`; without any, all of
    them. `endpoints` are the paths that can serve it; without any, all can."""

    name: str
    stages: tuple[ServedStage, ...]
    reads: tuple[str, ...] = ("text",)
    default_modalities: tuple[str, ...] = ()
    voices: tuple[str, ...] = ()
    voice_aliases: Mapping[str, str] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ()
    request_timeout_s: float = 600.0
    max_queued_requests: int = 256
    max_media_nbytes: int = 256 * 2**20

    @property
    def modalities(self) -> tuple[str, ...]:
        """What the model makes, in the pipeline's order, each once."""
        return tuple(dict.fromkeys(stage.makes for stage in self.stages if stage.makes is not None))

    @property
    def unasked(self) -> tuple[str, ...]:
        """What is made for whoever names no modalities, in the pipeline's order."""
        named = self.default_modalities or self.modalities
        return tuple(modality for modality in self.modalities if modality in named)

    @property
    def prompt_keys(self) -> tuple[str, ...]:
        """The keys of a prompt, beyond those that all models know, that mean something to this one."""
        drawing = DRAWING_KEYS if "image" in self.modalities else ()
        return drawing if self.reads == ("text",) else (*MEDIA_KEYS, *drawing)

    def maker(self, modality: str) -> ServedStage:
        """The first stage that makes `modality`, which must be one of `modalities`."""
        return next(stage for stage in self.stages if stage.makes == modality)
