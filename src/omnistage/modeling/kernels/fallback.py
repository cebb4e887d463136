"""The operations of a decoder step in plain torch: what runs where no kernels are, and what kernels are tested against.

All of them take flattened rows [T, ...] and compute each row alone. Knows nothing of models, requests or compilers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from omnistage.modeling.attention import PagedCache, paged_attention
from omnistage.modeling.drawing import draw_tokens
from omnistage.modeling.kernels.blocks import (
    AttentionWeights,
    ChainWeights,
    DecoderWeights,
    ExpertsWeights,
    GatedWeights,
    HeadNorms,
)
from omnistage.modeling.linear import PanelLinear, embedded
from omnistage.modeling.philox import uniforms
from omnistage.modeling.repetition import SeenRows, penalise
from omnistage.modeling.step import ARStep, StepRows


class TorchOps:
    """`name` stands in logs. The decoder is made of the two halves of its layers, and these of the other operations."""

    name = "torch"

    @torch.inference_mode()
    def decoder(
        self,
        weights: DecoderWeights,
        step: StepRows,
        rotations: torch.Tensor,
        cache: PagedCache,
        capture_layers: Sequence[int],
    ) -> ARStep:
        """The forward pass; `rotations` as in `attend_joined`, captured layers as in `ARModel`: what is layered on a layer's output
        is no part of them."""
        rows = embedded(step.token_ids, weights.embedding) if step.embeds is None else step.embeds.clone()
        added = None
        hidden: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(weights.layers):
            if index in capture_layers:
                hidden[index] = rows.clone() if added is None else rows + added
            if index - 1 in step.layered:
                _add(rows, added, step.layered[index - 1])
                added = None
            normed = self.attention_block(
                layer.attention, rows, added, rotations, cache.keys[index], cache.values[index], step
            )
            added = layer.mlp(self, normed)
        if len(weights.layers) - 1 in step.layered:
            _add(rows, added, step.layered[len(weights.layers) - 1])
            added = None
        rows = self.add_rms_norm(rows, added, weights.final_norm, weights.eps)
        if len(weights.layers) in capture_layers:
            hidden[len(weights.layers)] = rows
        return ARStep(weights.head(self, rows[step.asked]).float(), hidden)

    def chain(
        self,
        weights: ChainWeights,
        step: StepRows,
        rotations: torch.Tensor,
        cache: PagedCache,
        settings: npt.NDArray[np.void] | None,
    ) -> list[list[int]]:
        """`step` asks for one row of each of its N sequences, and the first link begins with it; every later link with one token
        of each. `settings` [links, N] as in `draw` -> what was drawn, a list of N for every link; -1 where logits are not finite,
        and whatever comes behind that means nothing."""
        drawn: list[list[int]] = []
        for index, link in enumerate(weights.links):
            logits = self.decoder(link, step, rotations, cache, ()).logits
            drawn.append(self.draw(logits, None if settings is None else settings[index]))
            step = step.following([max(0, token) for token in drawn[-1]])
        return drawn

    def attention_block(
        self,
        weights: AttentionWeights,
        rows: torch.Tensor,
        added: torch.Tensor | None,
        rotations: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: StepRows,
    ) -> torch.Tensor:
        """Adds `added`, and then what attention makes of it all, to `rows` [T, hidden] in place; gives their norm."""
        normed = self.add_rms_norm(rows, added, weights.input_norm, weights.eps)
        joined = weights.qkv(self, normed)
        found = self.attend_joined(
            joined, weights.head_norms, rotations, keys, values, step, heads=weights.heads, scale=weights.scale
        )
        return self.add_rms_norm(rows, weights.output(self, found), weights.mlp_norm, weights.eps)

    def gated_block(self, weights: GatedWeights, normed: torch.Tensor) -> torch.Tensor:
        """`normed` [T, hidden] through a gated MLP -> [T, hidden]."""
        return weights.down(self, self.silu_mul(weights.gate_up(self, normed)))

    def experts_block(self, weights: ExpertsWeights, normed: torch.Tensor) -> torch.Tensor:
        """`normed` [T, hidden], each row through the experts that its router likes best -> [T, hidden]. Of two that are liked as
        much it is the first; what they make is added up in the order of their numbers. Only experts that some row chose are
        computed, each over its rows at once."""
        chances = torch.softmax(weights.router(self, normed), dim=-1, dtype=torch.float32)
        taken, chosen = (found[:, : weights.per_row] for found in chances.sort(dim=-1, descending=True, stable=True))
        if weights.normalised:
            taken = taken / taken.sum(dim=-1, keepdim=True)
        taken = taken.to(normed.dtype)
        out = torch.zeros_like(normed)
        for expert in sorted(set(chosen.flatten().tolist())):
            at_rows, at_choices = (chosen == expert).nonzero(as_tuple=True)
            made = self.gated_block(weights.experts[expert], normed[at_rows])
            out.index_add_(0, at_rows, made * taken[at_rows, at_choices, None])
        if weights.shared is not None:
            gate = torch.sigmoid(weights.shared.gate(self, normed))
            out += gate * self.gated_block(weights.shared.weights, normed)
        return out

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: StepRows,
        *,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        """See `paged_attention`."""
        return paged_attention(q, k, v, keys, values, step, scale, window)

    def attend_joined(
        self,
        qkv: torch.Tensor,
        norms: HeadNorms | None,
        rotations: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: StepRows,
        *,
        heads: int,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        """`qkv` [T, (heads + 2 * kv_heads) * D], joined projections -> [T, heads * D]. Heads are normalised, then turned
        by `rotations` [positions, D] float32 (of each position the cosines, then the sines, of the planes (i, i + D/2); of each row
        where the step's rows have their own, `step.rotary`), written and attended to."""
        kv_heads, dim = keys.shape[1], keys.shape[3]
        q, k, v = qkv.view(len(qkv), -1, dim).tensor_split([heads, heads + kv_heads], dim=1)
        if norms is not None:
            q = F.rms_norm(q, (dim,), norms.query, norms.eps)
            k = F.rms_norm(k, (dim,), norms.key, norms.eps)
        rotation = rotations[step.positions] if step.rotary is None else rotations
        found = paged_attention(_turned(q, rotation), _turned(k, rotation), v, keys, values, step, scale, window)
        return found.reshape(len(qkv), -1)

    def add_rms_norm(
        self, rows: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Adds `residual` to `rows` [T, hidden] in place; gives their norm."""
        if residual is not None:
            rows += residual
        return F.rms_norm(rows, (rows.shape[-1],), weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * inner] -> silu of the first half times the second, [T, inner]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def linear(self, rows: torch.Tensor, layer: PanelLinear) -> torch.Tensor:
        """[T, in] -> [T, out]."""
        made = torch.matmul(rows, layer.panels)  # [panels, T, PANEL]
        made = made.transpose(0, 1).reshape(len(rows), -1)[:, : layer.outs]
        return made if layer.bias is None else made + layer.bias

    def draw(self, logits: torch.Tensor, settings: npt.NDArray[np.void] | None) -> list[int]:
        """See `draw_tokens`."""
        return draw_tokens(logits, settings)

    def penalise(self, logits: torch.Tensor, seen: SeenRows) -> None:
        """See `modeling.repetition.penalise`."""
        penalise(logits, seen)

    def uniforms(
        self, seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64], streams: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.float64]:
        """See `modeling.philox.uniforms`."""
        return uniforms(seeds, positions, streams)


def _add(rows: torch.Tensor, *more: torch.Tensor | None) -> None:
    """Adds `more` to `rows`, one after the other."""
    for one in more:
        assert one is not None
        rows += one


def _turned(rows: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """`rows` [T, heads, D], in the dtype they have."""
    cosine, sine = (part[:, None].to(rows.dtype) for part in rotation.chunk(2, dim=-1))
    first, second = rows.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
