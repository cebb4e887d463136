"""Any causal language model of transformers, unchanged, over the paged cache: through the library's attention interface.

The step's attention is handed to the layers by a thread-local, because not every model passes keyword arguments through.
What a model must do is checked when it is loaded: every layer attends once a step, with nothing this attention does not know (soft
caps, sinks, positional biases). Importing this module costs seconds; it is loaded by name, for models that need it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM

from omnistage.core.errors import BrokenCheckpointError, UnsupportedByModelError
from omnistage.modeling.protocols import Attend
from omnistage.modeling.step import ARStep, StepRows

ATTENTION = "omnistage_paged"
_UNKNOWN_ARGUMENTS = ("softcap", "s_aux", "position_bias", "alibi")


class _Step(threading.local):
    """The attention of the step that this thread runs."""

    attend: Attend | None = None


_STEP = _Step()


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: `query` [1, H, T, D], `key` and `value` [1, Hkv, T, D] after rotation -> [1, T, H, D]."""
    attend = _STEP.attend
    assert attend is not None, "the attention of this library was called outside a step"
    unknown = [name for name in _UNKNOWN_ARGUMENTS if arguments.get(name) is not None]
    if unknown:
        raise UnsupportedByModelError(f"{type(module).__name__} attends with {unknown[0]}, which is not supported here")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    rows = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return attend(module.layer_idx, *rows, scale=scale, window=sliding_window or 0)[None], None


def _no_mask(*_arguments: Any, **_named: Any) -> None:
    """Rows of several sequences are flattened into one: only the paged attention knows who sees whom."""


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)


class TransformersModel:
    """A `modeling.protocols.ARModel` around a loaded model of the library."""

    def __init__(self, model: Any) -> None:
        model.set_attn_implementation(ATTENTION)
        self._model = model.eval()
        self._config = model.config.get_text_config(decoder=True)
        self._embedding = model.get_input_embeddings()

    @property
    def num_layers(self) -> int:
        return int(self._config.num_hidden_layers)

    @property
    def num_kv_heads(self) -> int:
        return int(getattr(self._config, "num_key_value_heads", None) or self._config.num_attention_heads)

    @property
    def head_dim(self) -> int:
        stated = getattr(self._config, "head_dim", None)
        return int(stated or self._config.hidden_size // self._config.num_attention_heads)

    @property
    def hidden_size(self) -> int:
        return int(self._config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self._config.vocab_size)

    @property
    def max_positions(self) -> int:
        return int(self._config.max_position_embeddings)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._embedding.weight.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self._embedding.weight.device
        return device

    @torch.inference_mode()
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self._embedding(token_ids)
        return rows

    @torch.inference_mode()
    def forward(self, step: StepRows, attend: Attend, capture_layers: Sequence[int] = ()) -> ARStep:
        """See `ARModel`."""
        _STEP.attend = attend
        try:
            made = self._model(
                input_ids=step.token_ids[None] if step.embeds is None else None,
                inputs_embeds=None if step.embeds is None else step.embeds[None],
                position_ids=step.positions[None],
                use_cache=False,
                output_hidden_states=bool(capture_layers),
                logits_to_keep=step.asked,
            )
        finally:
            _STEP.attend = None
        hidden = {layer: made.hidden_states[layer][0] for layer in capture_layers}
        return ARStep(made.logits[0].float(), hidden)


def load_transformers_model(folder: Path, dtype: torch.dtype) -> TransformersModel:
    """Loads a local folder. Raises BrokenCheckpointError with the library's reason in one line."""
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
    except Exception as error:  # the library raises anything for a folder it cannot load
        reason = " ".join(str(error).split())[:300]
        raise BrokenCheckpointError(f"{folder} cannot be loaded as a causal language model: {reason}") from error
    return TransformersModel(model)
