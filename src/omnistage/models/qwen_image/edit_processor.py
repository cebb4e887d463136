"""What a request asks to be changed, as ids and arrays; in the helper process of the stage. Knows no torch.

One StageInput: `positive_ids`, `positive_positions` and, where there is guidance, `negative_...`; of picture k `whole_k` and
`seen_k` [height, width, 3] uint8; with a mask `mask` [height, width] in latents. `positive_key` and `negative_key` name contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media, OmniRequest
from omnistage.modeling.patches import Pixels
from omnistage.modeling.protocols import StageInput
from omnistage.modeling.wishes import Wish, params_of, wish_of
from omnistage.models.qwen_image.asks import checked
from omnistage.models.qwen_image.edit_prompts import EDIT, EDIT_PLUS, Editing, expanded
from omnistage.models.qwen_image.processor import TOKENIZER, branch
from omnistage.models.qwen_image.prompts import WishReader, load_wish_reader
from omnistage.models.qwen_image.references import Reference, digest, read_mask, read_references
from omnistage.models.qwen_image.settings import (
    PictureSizes,
    picture_pixels,
    picture_sizes,
    picture_token,
    text_shape,
    vae_shape,
    vision_shape,
)


def load_edit_processor(config: DiffusionStageConfig) -> EditProcessor:
    """Of QwenImageEditPipeline. Raises BrokenCheckpointError."""
    return _load(config, EDIT)


def load_edit_plus_processor(config: DiffusionStageConfig) -> EditProcessor:
    """Of QwenImageEditPlusPipeline. Raises BrokenCheckpointError."""
    return _load(config, EDIT_PLUS)


def _load(config: DiffusionStageConfig, editing: Editing) -> EditProcessor:
    folder = Path(config.model_path)
    reader = load_wish_reader(folder / TOKENIZER, text_shape(folder).vocab_size, editing.template)
    vae = vae_shape(folder)
    return EditProcessor(
        reader=reader,
        editing=editing,
        sizes=picture_sizes(vae, config.extras),
        scale=vae.scale,
        pixels=picture_pixels(folder, vision_shape(folder)),
        picture_token=picture_token(folder),
        config=config,
    )


class EditProcessor:
    """A GenerationProcessor of modeling.protocols."""

    def __init__(
        self,
        *,
        reader: WishReader,
        editing: Editing,
        sizes: PictureSizes,
        scale: int,
        pixels: Pixels,
        picture_token: int,
        config: DiffusionStageConfig,
    ) -> None:
        self._reader = reader
        self._editing = editing
        self._sizes = sizes
        self._scale = scale
        self._pixels = pixels
        self._picture_token = picture_token
        self._stage_id = config.stage_id
        self._defaults = config.default_sampling_params

    def __call__(self, request: OmniRequest) -> list[StageInput]:
        """Raises InvalidRequestError; of sizes too, before anything is read."""
        ask = checked(params_of(request, self._stage_id, self._defaults), self._sizes)
        wish = wish_of(request.prompt)
        pictures, mask = self._sorted(wish)
        references = read_references(pictures, self._pixels, self._editing.seen_area)
        data: dict[str, Any] = {}
        for at, reference in enumerate(references):
            data |= {f"whole_{at}": reference.whole, f"seen_{at}": reference.seen}
        if mask is not None:
            data["mask"] = read_mask(mask, pictures[0], references[0].whole.shape[:2], self._scale)
        data |= self._branch("positive", wish.text, wish.field, references)
        if ask.negative is not None:
            data |= self._branch("negative", ask.negative, "negative_prompt", references)
        return [StageInput(data)]

    def _sorted(self, wish: Wish) -> tuple[list[Media], Media | None]:
        """The pictures, and the mask."""
        pictures = [media for media in wish.media if media.kind == "image"]
        masks = [media for media in wish.media if media.kind == "mask"]
        if not 1 <= len(pictures) <= self._editing.most:
            accepted = "one" if self._editing.most == 1 else f"1 to {self._editing.most}"
            raise InvalidRequestError.of("image", f"{len(pictures)} pictures", f"{accepted}, which is to be changed")
        if len(masks) > 1:
            raise InvalidRequestError.of("mask", f"{len(masks)} masks", "at most one")
        return pictures, masks[0] if masks else None

    def _branch(self, name: str, text: str, field: str, references: Sequence[Reference]) -> dict[str, Any]:
        patch = self._pixels.patch_size * self._pixels.merge_size
        grids = [(one.seen.shape[0] // patch, one.seen.shape[1] // patch) for one in references]
        ids = self._reader.ids(text, field, len(references))
        ids, positions = expanded(ids, grids, self._picture_token, field)
        return {**branch(name, ids, digest(references)), f"{name}_positions": positions}
