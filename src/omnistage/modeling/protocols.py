"""What a model family gives to the stage runtimes. The runtimes know these protocols and no family.

A family's `loader(config)` returns one of these. Importing this module costs no torch: a generation model may be made
of anything, and the worker of such a stage never loads what it does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest, Prompt

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from omnistage.modeling.kernels.blocks import DecoderWeights
    from omnistage.modeling.kernels.fallback import TorchOps
    from omnistage.modeling.sampling import SampleRow
    from omnistage.modeling.step import ARStep, StepRows


@dataclass(frozen=True, slots=True)
class StageInput:
    """One unit of work for a stage, made by its bridge (or, in an entry stage, by its processor). `data` is the
    family's own: an AR stage reads one of `token_ids` (list of int), `embeds` ([rows, hidden]) and `prompt` (a mapping that a
    framed model makes rows of), which extend the prompt; `close` (True) ends the prompt before the sources end; `sides` (list of
    int) are what a framed model is fed beside its frames. With a `prompt`, or with every part of it, may come `positions` int32 [3,
    rows], the rotary positions of its rows, and `next_position`, that of the row behind. A generation model reads what its bridge
    wrote. `nbytes` counts against the request's input bound; 0 has the size measured.

    What a processor writes comes from another process: numpy arrays and core's tensors by name, and plain data (None,
    numbers, texts, bytes, lists, dicts) beside them."""

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
class MediaInput:
    """A picture, a sound or a video of a prompt, as an encoder reads it. `key` names its content and how it was prepared: equal
    keys make equal rows. Its `tokens` rows fill the prompt's positions `spans` ([start, end)), in order. `data` holds numpy arrays
    (`pixel_values` [patches, values] or `input_features` [mel bands, frames], float32) and plain data (`grid_thw` [t, h, w])."""

    kind: str
    key: str
    spans: tuple[tuple[int, int], ...]
    tokens: int
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProcessedPrompt:
    """What an entry AR stage prefills: `token_ids`, or `embeds` [rows, hidden] beside them, a numpy array or a payload's
    tensor. `content_key` distinguishes embeds behind equal tokens for the prefix cache."""

    token_ids: tuple[int, ...]
    embeds: Any | None = None
    content_key: str = ""
    media: tuple[MediaInput, ...] = ()
    """What is encoded before the prompt can be computed."""
    positions: npt.NDArray[np.int32] | None = None
    """Rotary positions [3, L]: temporal, height, width. None: 0 to L - 1 on all three."""
    next_position: int | None = None
    """The rotary position of the first generated token; None: L."""
    handoff: Mapping[str, Any] = field(default_factory=dict)
    """Numpy arrays and plain data that go to other stages with the first capture."""
    outputs_at: tuple[tuple[int, int], ...] | None = None
    """Spans [start, end) of the prompt whose captured rows leave the stage, in order; None: all, also of what is generated."""


class Processor(Protocol):
    """Turns a prompt into model inputs. Pure per request; raises InvalidRequestError for what it cannot read."""

    def __call__(self, request: OmniRequest) -> ProcessedPrompt: ...

    @property
    def tokenizer(self) -> Any:
        """A `tokenizers.Tokenizer`."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...


@runtime_checkable
class RepeatableProcessor(Protocol):
    """What a processor of any kind adds if what it makes may be kept and given to another request."""

    def depends_on_prompt_alone(self, prompt: Prompt) -> bool:
        """True if a request with an equal prompt would get the same, whatever else it says, at any time."""


class Attend(Protocol):
    """The attention of one step, over everything the cache holds for each row's sequence."""

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, window: int = 0
    ) -> torch.Tensor:
        """`q` [T, H, D], `k` and `v` [T, Hkv, D] after rotation -> [T, H, D]. Writes k and v, then attends causally.
        `window` > 0: a token sees itself and the `window` - 1 before it."""

    @property
    def ops(self) -> TorchOps:
        """The operations that this step is computed with."""

    def decoder(self, weights: DecoderWeights, rotations: torch.Tensor, capture_layers: Sequence[int]) -> ARStep:
        """The whole forward pass of a common decoder; see `TorchOps.decoder`."""


class ARModel(Protocol):
    """A causal decoder. Shapes are read by the runner to lay out its cache. Properties, or plain attributes."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T] -> [T, hidden], as `forward` would begin with."""

    def forward(self, step: StepRows, attend: Attend, capture_layers: Sequence[int] = ()) -> ARStep:
        """One flattened step over the rows of all sequences, which begins with `step.embeds` or, without, `step.token_ids`.

        Logits are made for the rows `step.logit_rows` only. A captured layer counts as in transformers: i is the input
        of layer i, `num_layers` the output of the last norm. Nothing is kept for gradients.
        """


@runtime_checkable
class CapturedModel(Protocol):
    """What a causal decoder adds if its family knows which hidden states other stages read."""

    @property
    def capture_layers(self) -> Sequence[int]:
        """As `ARModel.forward` takes them; the stage's configuration may say otherwise."""


@dataclass(frozen=True, slots=True)
class EncodedMedia:
    """`rows` [n, hidden] begin the positions of a picture, a sound or a video; `layered` [K, n, hidden] are added to what the first
    K layers make of them."""

    rows: torch.Tensor
    layered: torch.Tensor | None = None


@runtime_checkable
class EncodingModel(Protocol):
    """What a causal decoder adds if prompts may have media."""

    def encode(self, inputs: Sequence[MediaInput]) -> list[EncodedMedia]:
        """In order; of mixed kinds. What comes of one does not depend on the others, but for rounding."""


@runtime_checkable
class PositionedModel(Protocol):
    """What a causal decoder adds if the rotary positions of its rows can be others than their places in the sequence."""

    def rotations(self, positions: torch.Tensor) -> torch.Tensor:
        """`positions` [T], or [3, T] (temporal, height, width) -> [T, D] float32, what `StepRows.rotary` takes."""


@runtime_checkable
class FramedModel(Protocol):
    """What an `ARModel` adds whose tokens are the first codes of frames of G codes. It is fed frames, each with a number that comes
    from another stage (its side), in place of tokens. A row's results depend on that row alone."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end the sequence and begin no frame."""

    @property
    def pad_side(self) -> int:
        """The side of frames for which no more come."""

    def embed_prompt(self, data: Mapping[str, Any], ops: TorchOps) -> torch.Tensor:
        """Input rows [n, hidden] of what the stage's bridge wrote as `prompt`."""

    def embed_frames(self, frames: Sequence[Sequence[int]], sides: Sequence[int], ops: TorchOps) -> torch.Tensor:
        """Frames [R, G] with their sides [R] -> the input rows [R, hidden] of the next positions."""

    def complete(
        self, hidden: torch.Tensor, tokens: Sequence[int], draws: Sequence[SampleRow], ops: TorchOps
    ) -> list[tuple[int, ...] | None]:
        """The frames that `tokens` [R] begin, drawn from `hidden` [R, hidden], the output of the last norm. Code i of a frame is
        drawn with the seed and position of its row of `draws`, in stream (choice, i). None where logits were not finite."""


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
