"""What a denoising step does: which pictures, which of their branches in which forward pass. Values without tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class PictureKey:
    """One of the n pictures of a request."""

    request_id: str
    index: int


@dataclass(frozen=True, slots=True)
class BranchKey:
    """One branch of a picture: 0 is what it is to show, 1 what it is not to show."""

    picture: PictureKey
    branch: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`passes`: forward passes of branches, in order; every branch of every picture is in one of them."""

    pictures: tuple[PictureKey, ...] = ()
    passes: tuple[tuple[BranchKey, ...], ...] = ()

    def alone(self, key: PictureKey) -> StepPlan:
        """The same step of one of its pictures."""
        own = [tuple(branch for branch in branches if branch.picture == key) for branches in self.passes]
        return StepPlan((key,), tuple(branches for branches in own if branches))
