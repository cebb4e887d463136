"""The other codes of a frame: from what the talker drew a frame's first code from, and that code, to all codes behind it.

    [hidden, first code's embedding] -> head 0 -> code 1;   embedding 0 of code 1 -> head 1 -> code 2;   ... num_groups - 1 times

Every sub-step is a decoder of its own that shares its layers with the others. All of them run one behind another, over all rows of
a step of the talker at once, in a small cache with one block for each row, which nobody reads any more when the frames are made.
Codes are drawn as published: of the 50 best, within 0.8 of their weight, at temperature 1; the best where the talker is greedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from omnistage.modeling.attention import CacheShape, PagedCache
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.decoder import DecoderNames, DecoderShape, read_decoder, read_linear
from omnistage.modeling.drawing import DRAW_SETTINGS
from omnistage.modeling.kernels.blocks import ChainWeights
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.linear import Layout
from omnistage.modeling.philox import uniforms
from omnistage.modeling.rotary import RotationCache
from omnistage.modeling.sampling import Chances, SampleRow
from omnistage.modeling.step import BlockTable, StepRows

TOP_K, TOP_P, TEMPERATURE = 50, 0.8, 1.0
_BLOCK_MULTIPLE = 16  # what kernels take


class CodePredictor:
    """`chain` has a link for every code but the first. Its cache grows to the most rows that were asked for."""

    def __init__(self, shape: DecoderShape, chain: ChainWeights) -> None:
        self.codebook_size = shape.vocab_size
        self._chain = chain
        positions = len(chain.links) + 1
        norm = chain.links[0].final_norm
        self._rotations = RotationCache(shape.head_dim, shape.rope_theta, norm.device).reaching(positions)
        self._cache_shape = CacheShape(
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=-(-positions // _BLOCK_MULTIPLE) * _BLOCK_MULTIPLE,
            dtype=norm.dtype,
            device=norm.device,
        )
        self._cache = PagedCache(self._cache_shape, 1)
        self._steps: dict[int, StepRows] = {}

    def predict(
        self, hidden: torch.Tensor, firsts: torch.Tensor, draws: Sequence[SampleRow], ops: TorchOps
    ) -> list[list[int]]:
        """`hidden` and `firsts` [R, hidden] -> the codes behind the first, a list of R for each; -1 where logits are not finite."""
        count = len(hidden)
        if count > self._cache.num_blocks:
            self._cache = PagedCache(self._cache_shape, max(count, 2 * self._cache.num_blocks))
        step = self._step(count)
        step.embeds = torch.stack([hidden, firsts], dim=1).flatten(0, 1)
        settings = draw_settings(draws, len(self._chain.links), ops.uniforms)
        return ops.chain(self._chain, step, self._rotations, self._cache, settings)

    def _step(self, count: int) -> StepRows:
        """Of `count` rows. It is the same for every frame, but for what they begin with."""
        found = self._steps.get(count)
        if found is None:
            shape = self._cache_shape
            table = BlockTable.of([[block] for block in range(count)])
            found = StepRows(table, range(count), [0] * count, [2] * count, shape.block_size, shape.device)
            found.logit_rows = range(1, 2 * count, 2)
            self._steps[count] = found
        return found


def draw_settings(draws: Sequence[SampleRow], count: int, chances: Chances = uniforms) -> npt.NDArray[np.void] | None:
    """How the codes 1 to `count` of each row are drawn, [count, R]: with the row's seed and position, code i in stream (choice, i).
    None if all rows are greedy."""
    drawn = [place for place, draw in enumerate(draws) if not draw.params.greedy]
    if not drawn:
        return None
    rows = [draws[place] for place in drawn]
    settings = np.zeros((count, len(draws)), DRAW_SETTINGS)
    streams = np.empty((count, len(rows), 2), np.uint32)
    streams[..., 0] = [row.stream[0] for row in rows]
    streams[..., 1] = np.arange(1, count + 1)[:, None]
    found = chances(
        np.array([row.seed for row in rows] * count, np.uint64),
        np.array([row.position for row in rows] * count, np.uint64),
        streams.reshape(-1, 2),
    )
    settings["chance"][:, drawn] = found.reshape(count, len(rows))
    for name, value in (("temperature", TEMPERATURE), ("top_p", TOP_P), ("top_k", TOP_K)):
        settings[name][:, drawn] = value
    return settings


def read_code_predictor(
    reader: WeightsReader, shape: DecoderShape, tables: Sequence[torch.Tensor], layout: Layout
) -> CodePredictor:
    """`reader` names the tensors below `talker.`; `tables` [codes, hidden] are the embeddings of the codes behind the first. Raises
    BrokenCheckpointError."""
    body = "code_predictor.model."
    names = DecoderNames(body=body, embedding="codec_embedding.0", head="code_predictor.lm_head.0")
    first = read_decoder(reader, shape, layout=layout, names=names).weights
    links = [replace(first, embedding=tables[0])]
    for group, table in enumerate(tables[:-1], start=1):
        head = read_linear(reader, {f"code_predictor.lm_head.{group}": shape.vocab_size}, shape.hidden_size, layout)
        links.append(replace(first, embedding=table, head=head))
    return CodePredictor(shape, ChainWeights(links))
