"""What a request asks to be drawn, as ids; in the helper process of the stage. Knows no torch.

One StageInput: `positive_ids` and, where there is guidance, `negative_ids`, int32; `positive_key` and `negative_key` name their
contents.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.request import OmniRequest
from omnistage.modeling.protocols import StageInput
from omnistage.modeling.wishes import params_of, wish_of
from omnistage.models.qwen_image.asks import checked
from omnistage.models.qwen_image.prompts import DRAWING, Ids, WishReader, load_wish_reader
from omnistage.models.qwen_image.settings import PictureSizes, picture_sizes, text_shape, vae_shape
from omnistage.models.qwen_image.words import KnownWords, known_words

TOKENIZER = "tokenizer"


def load_processor(config: DiffusionStageConfig) -> DrawingProcessor:
    """Raises BrokenCheckpointError."""
    folder = Path(config.model_path)
    reader = load_wish_reader(folder / TOKENIZER, text_shape(folder).vocab_size, DRAWING)
    words = known_words(folder, config.extras)
    return DrawingProcessor(reader, picture_sizes(vae_shape(folder), config.extras), words, config)


class DrawingProcessor:
    """A GenerationProcessor of modeling.protocols."""

    def __init__(
        self, reader: WishReader, sizes: PictureSizes, words: KnownWords | None, config: DiffusionStageConfig
    ) -> None:
        self._reader = reader
        self._sizes = sizes
        self._words = words
        self._stage_id = config.stage_id
        self._defaults = config.default_sampling_params

    def __call__(self, request: OmniRequest) -> list[StageInput]:
        """Raises InvalidRequestError; of sizes too, before anything is read."""
        ask = checked(params_of(request, self._stage_id, self._defaults), self._sizes)
        wish = wish_of(request.prompt)
        if self._words is not None:
            self._words.check(wish.text, wish.field)
        data = branch("positive", self._reader.ids(wish.text, wish.field))
        if ask.negative is not None:
            data |= branch("negative", self._reader.ids(ask.negative, "negative_prompt"))
        return [StageInput(data)]


def branch(name: str, ids: Ids, pictures: str = "") -> dict[str, Any]:
    """`pictures` names those that belong to the ids."""
    content = hashlib.blake2b(ids.tobytes(), digest_size=16).hexdigest()
    return {f"{name}_ids": ids, f"{name}_key": f"{content}{pictures}"}
