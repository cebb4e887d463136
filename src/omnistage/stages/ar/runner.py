"""Runs plans on a model: block table, paged cache, forward pass, sampling. No policy: it computes what it is told.

    launch(plan, samples)   ->   collect() -> one RowResult per row of the plan

Running a plan again writes the same keys and values to the same places. Rows are flattened: [T] over all sequences of a
step. What a sequence's rows are made of beside its tokens is held here under its key until `forget`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from omnistage.core.errors import UnsupportedByModelError
from omnistage.modeling.attention import CacheShape, PagedCache
from omnistage.modeling.kernels.chosen import chosen_ops, renewed
from omnistage.modeling.paged_attend import PagedAttend
from omnistage.modeling.protocols import (
    ARModel,
    EncodedMedia,
    EncodingModel,
    FramedModel,
    MediaInput,
    PositionedModel,
)
from omnistage.modeling.sampling import Sampled, SampleRow, sample
from omnistage.modeling.step import ARStep, BlockTable, StepRows
from omnistage.stages.ar.frame_runner import FrameRunner
from omnistage.stages.ar.own_rows import OwnRows, Piece, fill, turn
from omnistage.stages.ar.plan import PlanRow, SequenceKey, StepPlan


class RowResult(msgspec.Struct, frozen=True):
    """What came of one row: what its SampleRow drew, and `hidden` states [rows, hidden] by layer. Of a framed model also the
    `frame` that the token begins; None for a token that ends, and where none was found."""

    sampled: Sampled | None = None
    hidden: Mapping[int, torch.Tensor] = {}
    frame: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Launched:
    plan: StepPlan
    step: StepRows
    made: ARStep
    samples: Sequence[SampleRow]


class ARRunner:
    """See the module. `max_num_seqs` slots of at most `max_model_len` tokens; `num_blocks` counts the null block."""

    def __init__(
        self,
        model: ARModel,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        capture_layers: Sequence[int] = (),
    ) -> None:
        self.ops = chosen_ops(model.device)
        self._model = model
        self._frames = FrameRunner(model) if isinstance(model, FramedModel) else None
        self._cache = PagedCache(cache_shape(model, block_size), num_blocks)
        self._table = BlockTable(max_num_seqs, -(-max_model_len // block_size))
        self._block_size = block_size
        self._capture_layers = tuple(capture_layers)
        self._own: dict[SequenceKey, OwnRows] = {}
        self._launched: _Launched | None = None

    def hold_embeds(self, key: SequenceKey, rows: torch.Tensor) -> None:
        """Input embeddings [n, hidden] of the sequence's next n positions, from 0 on."""
        own = self._own.setdefault(key, OwnRows())
        own.add(Piece(own.end, rows.to(self._model.device, self._model.dtype)))

    def hold_pieces(self, key: SequenceKey, pieces: Sequence[Piece]) -> None:
        """Rows of some of the sequence's positions, as `encode` made them."""
        self._own.setdefault(key, OwnRows()).add(*pieces)

    def hold_positions(self, key: SequenceKey, positions: npt.NDArray[np.int32], next_position: int) -> None:
        """Rotary positions [3, n] of the sequence's next n positions, from 0 on, and of the token behind them. Raises
        UnsupportedByModelError for a model that knows no others than places."""
        if not isinstance(self._model, PositionedModel):
            raise UnsupportedByModelError("the processor gave positions to a model that takes none")
        rotary = self._model.rotations(torch.from_numpy(positions.astype(np.int64)).to(self._model.device))
        self._own.setdefault(key, OwnRows()).turn(rotary, next_position)

    @property
    def encodes(self) -> bool:
        """Whether the model reads media."""
        return isinstance(self._model, EncodingModel)

    @torch.inference_mode()
    def encode(self, inputs: Sequence[MediaInput]) -> list[EncodedMedia]:
        """See `EncodingModel`; on the model's device and in its dtype."""
        assert isinstance(self._model, EncodingModel)
        device, dtype = self._model.device, self._model.dtype
        return [
            EncodedMedia(made.rows.to(device, dtype), None if made.layered is None else made.layered.to(device, dtype))
            for made in self._model.encode(inputs)
        ]

    def prompt_rows(self, data: Mapping[str, Any]) -> torch.Tensor | None:
        """Input rows [n, hidden] that a framed model makes of a bridge's prompt; None of another model."""
        return None if self._frames is None else self._frames.prompt_rows(data, self.ops)

    def renew(self) -> None:
        """Takes the kernels if they have been compiled since; to be called when nothing is running."""
        self.ops = renewed(self.ops, self._model.device)

    def forget(self, key: SequenceKey) -> None:
        self._own.pop(key, None)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """One pass over the null block. Raises UnsupportedByModelError for a model that does not attend once per layer."""
        key = SequenceKey("", 0)
        plan = StepPlan((PlanRow(key, 0, 0, (0, 0), 0, (), samples=True),))
        if self._frames is not None:
            self.hold_embeds(key, torch.zeros(2, self._model.hidden_size))
        attend = self._forward(plan, self._rows(plan))[1]
        self.forget(key)
        if attend.calls != [1] * self._model.num_layers:
            raise UnsupportedByModelError(
                f"the model attends {sum(attend.calls)} times in {self._model.num_layers} layers; accepted: once per layer"
            )

    @torch.inference_mode()  # here and in `collect`, for all that they call: to enter it takes as long as a small layer
    def launch(self, plan: StepPlan, samples: Sequence[SampleRow]) -> None:
        """Starts a step; `samples` belong to the rows that sample, in order."""
        assert self._launched is None
        step = self._rows(plan)
        self._launched = _Launched(plan, step, self._forward(plan, step)[0], samples)

    @torch.inference_mode()
    def collect(self) -> list[RowResult]:
        """The results of what was launched, in the order of its rows."""
        launched, self._launched = self._launched, None
        assert launched is not None
        sampled: list[Sampled] = []
        if launched.samples:
            ops = self.ops
            sampled = sample(launched.made.logits, launched.samples, ops.draw, ops.uniforms, ops.penalise)
        drawn = iter(self._completed(launched, sampled))
        results: list[RowResult] = []
        for index, row in enumerate(launched.plan.rows):
            made, frame = next(drawn) if row.samples else (None, None)
            results.append(RowResult(made, self._captured(launched, index, row), frame))
        return results

    def _completed(
        self, launched: _Launched, sampled: Sequence[Sampled]
    ) -> Sequence[tuple[Sampled, tuple[int, ...] | None]]:
        """What was drawn, with the frames that it begins."""
        if self._frames is None or not sampled:
            return [(made, None) for made in sampled]
        asked, hidden = launched.step.logit_rows, launched.made.hidden[self._model.num_layers]
        if len(asked) < len(hidden):
            hidden = hidden[asked]
        return self._frames.complete(hidden, sampled, launched.samples, self.ops)

    def _rows(self, plan: StepPlan) -> StepRows:
        """What the plan computes, with the block table brought up to it."""
        for row in plan.rows:
            if row.blocks:
                self._table.blocks[row.slot, row.first_block : row.first_block + len(row.blocks)] = row.blocks
        counts = [len(row.tokens) for row in plan.rows]
        step = StepRows(
            self._table,
            [row.slot for row in plan.rows],
            [row.start for row in plan.rows],
            counts,
            self._block_size,
            self._model.device,
            [token for row in plan.rows for token in row.tokens],
            [end - 1 for row, end in zip(plan.rows, accumulate(counts), strict=True) if row.samples],
        )
        own = self._own if self._own and any(row.key in self._own for row in plan.rows) else {}
        if self._frames is not None:
            step.embeds = self._frames.input_rows(plan, self._held_rows, self.ops)
        elif own:
            fill(step, plan.rows, own, self._model)
        if own:
            turn(step, plan.rows, own, self._model)
        return step

    def _forward(self, plan: StepPlan, step: StepRows) -> tuple[ARStep, PagedAttend]:
        attend = PagedAttend(self._cache, step, self.ops)
        layers = self._capture_layers if any(row.captures for row in plan.rows) else ()
        if self._frames is not None and step.logit_rows:
            layers = tuple({*layers, self._model.num_layers})  # what frames are drawn from
        return self._model.forward(step, attend, layers), attend

    def _held_rows(self, row: PlanRow) -> torch.Tensor:
        """The embeddings of a row's positions, as far as they were given: [at most len(row.tokens), hidden]."""
        own = self._own.get(row.key)
        found = () if own is None else own.touched(row.start, row.end)
        none = torch.empty(0, self._model.hidden_size, dtype=self._model.dtype, device=self._model.device)
        return torch.cat([none, *(piece.part(row.start, row.end) for piece in found)])

    def _captured(self, launched: _Launched, index: int, row: PlanRow) -> dict[int, torch.Tensor]:
        """Fresh tensors: the step's own are views of larger ones."""
        if not row.captures:
            return {}
        shift = launched.step.q_start[index] - row.start
        parts = [slice(shift + start, shift + end) for start, end in row.captures]
        made = launched.made.hidden
        return {layer: torch.cat([made[layer][part] for part in parts]) for layer in self._capture_layers}


def cache_shape(model: ARModel, block_size: int) -> CacheShape:
    return CacheShape(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=block_size,
        dtype=model.dtype,
        device=model.device,
    )
