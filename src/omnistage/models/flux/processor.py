"""What a request asks to be drawn, as ids; in the helper process of the stage. Knows no torch.

One StageInput: `positive_clip`, `positive_t5` (int32) and `positive_key`, which names their content; where there is classifier-free
guidance, `negative_clip`, `negative_t5` and `negative_key` too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.request import OmniRequest
from omnistage.modeling.protocols import StageInput
from omnistage.modeling.wishes import params_of, wish_of
from omnistage.models.flux.asks import checked
from omnistage.models.flux.prompts import Readers, key_of, load_readers
from omnistage.models.flux.settings import FluxSettings, flux_settings


def load_processor(config: DiffusionStageConfig) -> FluxProcessor:
    """Raises BrokenCheckpointError."""
    folder = Path(config.model_path)
    settings = flux_settings(folder)
    return FluxProcessor(load_readers(folder, settings), settings, config)


class FluxProcessor:
    """A GenerationProcessor of modeling.protocols."""

    def __init__(self, readers: Readers, settings: FluxSettings, config: DiffusionStageConfig) -> None:
        self._readers = readers
        self._settings = settings
        self._stage_id = config.stage_id
        self._defaults = config.default_sampling_params

    def __call__(self, request: OmniRequest) -> list[StageInput]:
        """Raises InvalidRequestError; of sizes too, before anything is read."""
        ask = checked(params_of(request, self._stage_id, self._defaults), self._settings)
        wish = wish_of(request.prompt)
        data = self._branch("positive", wish.text, wish.field)
        if ask.negative is not None:
            data |= self._branch("negative", ask.negative, "negative_prompt")
        return [StageInput(data)]

    def _branch(self, name: str, text: str, field: str) -> dict[str, Any]:
        ids = self._readers.read(text, field)
        return {**{f"{name}_{encoder}": own for encoder, own in ids.items()}, f"{name}_key": key_of(ids)}
