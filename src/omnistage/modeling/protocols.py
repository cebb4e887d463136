"""What a model family gives to the stage runtimes. The runtimes know these protocols and no family.

A family's `loader(config)` returns one of these. Importing this module costs no torch: a generation model may be made
of anything, and the worker of such a stage never loads what it does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class StageInput:
    """One unit of work for a stage, made by its bridge (or, in an entry stage, by its processor). `data` is the
    family's own: an AR stage reads `token_ids` (list of int) or `embeds` ([rows, hidden]), a generation model reads
    what its bridge wrote. `nbytes` counts against the request's input bound; 0 has the size measured."""

    data: Mapping[str, Any]
    nbytes: int = 0


Bridge = Callable[[Any, int, int, MultimodalPayload | None, bool], tuple[Any, list[StageInput]]]
"""`bridge(state, source, seq, payload | None, last) -> (state, inputs)`. Pure; the first state is None. It is called
once for every item of every source, in order per source, and must copy what it keeps of the payload. When every source
has sent its last item no more inputs follow."""


GenerationProcessor = Callable[[OmniRequest], list[StageInput]]
"""What the `processor` hook of an entry generation stage loads to: the request's inputs, in order. Without that hook
the stage gets a single input whose data is {"request": OmniRequest}."""


@dataclass(frozen=True, slots=True)
class ProcessedPrompt:
    """What an entry AR stage prefills: `token_ids`, or `embeds` [rows, hidden] beside them. `content_key` distinguishes
    media with equal placeholder tokens for the prefix cache."""

    token_ids: tuple[int, ...]
    embeds: Any | None = None
    content_key: str = ""


class Processor(Protocol):
    """Turns a prompt into model inputs. Pure per request; raises InvalidRequestError for what it cannot read."""

    def __call__(self, request: OmniRequest) -> ProcessedPrompt: ...

    @property
    def tokenizer(self) -> Any:
        """A `tokenizers.Tokenizer`."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...


class ARModel(Protocol):
    """A causal decoder. Shapes are read by the runner to lay out its cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    dtype: torch.dtype

    def forward(
        self,
        *,
        token_ids: torch.Tensor | None,
        embeds: torch.Tensor | None,
        positions: torch.Tensor,
        attend: Any,
        capture_layers: Sequence[int] = (),
    ) -> tuple[torch.Tensor, Mapping[int, torch.Tensor]]:
        """One flattened step: `token_ids` [T] or `embeds` [T, hidden], `positions` [T] -> final hidden [T, hidden]
        (after the last norm) and the hidden states of `capture_layers`, each [T, hidden]. `attend` is the paged
        attention context."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> [R, vocab] in float32."""


class GenerationModel(Protocol):
    """A one-shot or streaming module: codec decoder, vocoder, synthesiser. State is a value the request owns."""

    def begin(self, request: OmniRequest, params: Any) -> Any:
        """The state of a new request; raises InvalidRequestError for parameters the model cannot serve."""

    def batch_key(self, chunk: Mapping[str, Any], state: Any) -> object:
        """Chunks with equal keys may run in one batch; a unique object (or None) means alone."""

    def cost(self, chunk: Mapping[str, Any]) -> int:
        """Units of work (frames, phonemes) that a chunk counts against the step budget."""

    def run(self, batch: Sequence[tuple[Mapping[str, Any], Any]]) -> list[tuple[MultimodalPayload | None, Any]]:
        """(chunk, state) pairs -> (what was made, new state), in order. Does not change the given states.
        Raises `Interrupted` if `interrupt` ended it."""

    def interrupt(self) -> None:
        """From another thread: end the current `run` early, if it can be ended."""


class Interrupted(Exception):  # noqa: N818 - news, not an error
    """A `run` was ended early on request; nothing of it counts."""
