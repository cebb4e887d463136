"""What a family of diffusion models gives to the runtime of diffusion stages, and what the runtime promises it.

    plan  ->  encode  ->  prepare  ->  (predict [-> guide] -> solver.step) for every timestep  ->  decode

A *picture* is one output of a request: n of them have the seeds seed, seed + 1, ... A *branch* is one condition that a picture is
denoised under: (positive,), or (positive, negative) which `guide` joins. A *row* is one branch of one picture at one of its steps,
and what a batched forward pass is made of. Pictures join and leave batches at every step, each with its own timesteps, solver,
random stream and guidance; rows of one batch agree in the shapes of their latents and extras and in nothing else.

What comes of a row, a condition or a picture does not depend on those beside it, but for rounding (<= 1e-5 in float32). All calls
come from one thread, but `decode` and `preview`, which come from another one at the same time: they read a picture and write
nothing. Everything runs in torch's inference mode. Any call may raise InvalidRequestError, with the field, its value and what is
accepted; whatever else it raises fails the request too, as the stage's fault.

A model whose steps cannot be had one by one gives a `plan` and one call for whole pictures instead (`WholeModel`), which stands
still between its steps.
Importing this module costs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


@dataclass(frozen=True, slots=True)
class Condition:
    """What a picture is to show, or not to show, as plain data and numpy arrays. `key` names the content of `data`: conditions of
    equal keys are encoded once and kept. `tokens` is what encoding it counts against a step's budget."""

    key: str
    data: Mapping[str, Any]
    tokens: int


@dataclass(frozen=True, slots=True)
class PicturePlan:
    """What a request asks for, with the model's defaults filled in and checked; nothing has been allocated for it.

    `height` and `width` in pixels. `steps`: evaluations of the model per picture and branch. `conditions`: (positive,) or
    (positive, negative). `guidance`: the scale that `guide` gets; of no meaning with one condition. `tokens`: what a row counts
    against a step's budget, the length of the sequence that its forward pass works on. `extras` are the family's own.
    """

    height: int
    width: int
    steps: int
    conditions: tuple[Condition, ...]
    tokens: int
    guidance: float = 1.0
    extras: Mapping[str, Any] = field(default_factory=dict)


class Solver(Protocol):
    """Integrates one picture: an instance belongs to it and may remember what it was given."""

    def step(self, prediction: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """The latents behind step `index` (0, 1, ...) in a tensor of their own: what it was given stays as it was. A solver with
        noise of its own draws it from the generator that `prepare` got."""


@dataclass(slots=True)
class Denoising:
    """A picture on its way; the request owns it, and it may rest between any two steps for any time.

    `latents`: replaced by every step, never written to. `timesteps`: one per step, as `predict` reads them. `branches`: what
    `encode` made of each condition; read only. `extras` are the family's own; pictures share a batch where the shapes and dtypes
    of their latents and of the tensors in `extras` (also inside lists and tuples) are equal; what else rows must agree in, a
    family lets a shape say, as latents of [height, width, channels] do. Texts of different lengths may meet: the family pads and
    masks them.
    """

    latents: torch.Tensor
    timesteps: Sequence[float]
    solver: Solver
    branches: tuple[Any, ...]
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One branch of one picture at step `step` (0, 1, ...) of its timesteps."""

    picture: Denoising
    branch: int
    step: int

    @property
    def timestep(self) -> float:
        return self.picture.timesteps[self.step]

    @property
    def condition(self) -> Any:
        """What `encode` made of the branch's condition."""
        return self.picture.branches[self.branch]


class DiffusionModel(Protocol):
    """See the module. A plain attribute, or a property, and six functions, of which `guide` needs no thought without branches."""

    @property
    def one_timestep(self) -> bool:
        """True if all rows of a batch must be at one timestep, because the forward pass takes a single one."""

    def plan(self, request: OmniRequest, params: DiffusionParams, inputs: Mapping[str, Any]) -> PicturePlan:
        """`inputs`: the data of the first StageInput that the family's processor or bridge made. Raises InvalidRequestError for
        what the model cannot draw; of sizes it names the nearest legal one. Allocates nothing, loads nothing."""

    def encode(self, conditions: Sequence[Condition]) -> list[Any]:
        """In order. Each result holds tensors and plain data of its own (what is kept of it is copied for every request)."""

    def prepare(self, plan: PicturePlan, branches: tuple[Any, ...], generator: torch.Generator) -> Denoising:
        """A picture before its first step. `branches` as `encode` made them. What is random is drawn from `generator`, which is
        on the CPU and belongs to this picture, in the order of the published pipeline: conditions, latents, the solver's noise."""

    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """One prediction per row, shaped as the latents, in one forward pass. Changes nothing."""

    def guide(self, conditional: torch.Tensor, unconditional: torch.Tensor, scale: float) -> torch.Tensor:
        """The prediction that the solver gets, of those of branches 0 and 1 of one picture."""

    def decode(self, pictures: Sequence[Denoising]) -> list[npt.NDArray[np.uint8]]:
        """[height, width, channels] each, 3 channels or 4 with opacity, for pictures that could share a batch."""


@runtime_checkable
class PreviewingModel(Protocol):
    """What a model adds if it can show a picture before it is finished."""

    def preview(self, picture: Denoising, prediction: torch.Tensor, step: int) -> npt.NDArray[np.uint8]:
        """[height, width, 3], of any size: what the picture will look like, going by the (guided) prediction of `step` and the
        latents that it was made from."""


class Flow(Protocol):
    """What runs through the blocks of a model: the rows of a batch, each of the same shape. Nothing in it is written to."""

    @property
    def hidden(self) -> torch.Tensor:
        """[rows, tokens, channels]: all that `close` reads of what the blocks have made."""

    def with_hidden(self, hidden: torch.Tensor) -> Flow:
        """The same with another `hidden`."""

    def select(self, rows: Sequence[int]) -> Flow:
        """Some of the rows, in the given order."""


@runtime_checkable
class BlockedModel(Protocol):
    """What a model adds so that steps of it may be cached: its forward pass in parts. `predict` computes `close` of all blocks, in
    order, of `open`."""

    @property
    def num_blocks(self) -> int: ...

    def open(self, rows: Sequence[Row]) -> Flow:
        """What the first block reads: embeddings of latents, conditions and timesteps."""

    def signal(self, flow: Flow) -> torch.Tensor:
        """[rows, ...], of an opened flow: the input of the first block after its modulation by the timestep (TeaCache,
        arXiv:2411.19108), whose change between two steps tells how much the output will change."""

    def block(self, index: int, flow: Flow) -> Flow:
        """Block `index` of `num_blocks`."""

    def close(self, flow: Flow) -> list[torch.Tensor]:
        """The predictions, one per row; of the flow it reads `hidden` and what `open` has written."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One picture that a call is to draw; all its chance comes from `seed`."""

    plan: PicturePlan
    seed: int


AfterStep = Callable[[int, int], None]
"""Called with (step, steps) when so many denoising steps of a call have been taken. It returns when the call may go on, and raises
where nobody wants its pictures any more: that has to come out of the call."""


@runtime_checkable
class WholeModel(Protocol):
    """A model that draws pictures in one call, from text to pixels. Calls come one at a time, each from a thread of its own; of a
    plan `tokens` are what a picture counts against the budget of a call, all its branches together."""

    def plan(self, request: OmniRequest, params: DiffusionParams, inputs: Mapping[str, Any]) -> PicturePlan:
        """See `DiffusionModel`. Pictures whose plans differ in nothing but what their conditions say are drawn together."""

    def draw(self, wanted: Sequence[Wanted], after_step: AfterStep) -> list[npt.NDArray[np.uint8]]:
        """[height, width, channels] each, in order."""
