"""Which request is prepared next, and what becomes of it when its helper dies. Policy without processes and clocks.

The oldest in the one total order goes first. A helper has one request at a time, so it is known who was in it when it died: that
request is prepared again, once; at its second death it fails, and nobody else does. What is cancelled leaves at once: in a helper
only its place is kept, until the helper has done with it. Bounded by dispatch, as a stage's mailbox is.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import msgspec

from omnistage.core.request import without_media
from omnistage.wire.messages import Submit

MOST_DEATHS = 2
"""A request that was in so many helpers when they died is prepared no more."""


@dataclass(slots=True, eq=False)
class JobState:
    """A request to be prepared. `key` is its prompt's content; it came at `since_s` and is in a helper since `begun_s`. `dropped`:
    nobody wants it any more."""

    submit: Submit
    key: bytes
    since_s: float
    begun_s: float = 0.0
    deaths: int = 0
    dropped: bool = False

    @property
    def request_id(self) -> str:
        return self.submit.request.request_id

    @property
    def submit_of_stage(self) -> Submit:
        """What the stage itself is told: media have done their part when they are prepared."""
        return msgspec.structs.replace(self.submit, request=without_media(self.submit.request))


def _order(job: JobState) -> tuple[int, int]:
    return job.submit.order


class PrepareScheduler:
    """See the module. Helpers are told by number."""

    def __init__(self) -> None:
        self._waiting: list[JobState] = []
        self._inside: dict[int, JobState] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def inside(self) -> int:
        """Requests that are being prepared."""
        return sum(not job.dropped for job in self._inside.values())

    def add(self, job: JobState) -> None:
        """A later attempt takes the place of an earlier one."""
        self.drop(job.request_id)
        bisect.insort(self._waiting, job, key=_order)

    def drop(self, request_id: str, attempt: int | None = None) -> None:
        """Forgets a request (all its attempts, if none is named). Unknown ones are fine."""

        def is_meant(job: JobState) -> bool:
            return job.request_id == request_id and attempt in (None, job.submit.attempt)

        self._waiting = [job for job in self._waiting if not is_meant(job)]
        for job in filter(is_meant, self._inside.values()):
            job.dropped = True

    def first(self) -> JobState | None:
        """The next to be prepared."""
        return self._waiting[0] if self._waiting else None

    def take_first(self) -> JobState:
        return self._waiting.pop(0)

    def begin(self, helper: int, job: JobState, now_s: float) -> None:
        """`job` is in `helper` from now on, which has no other."""
        assert helper not in self._inside
        job.begun_s = now_s
        self._inside[helper] = job

    def inside_of(self, helper: int) -> JobState | None:
        """The request in a helper, dropped or not."""
        return self._inside.get(helper)

    def done(self, helper: int) -> JobState | None:
        """The helper has done with its request: who that was, if anybody still wants it."""
        job = self._inside.pop(helper, None)
        return None if job is None or job.dropped else job

    def died(self, helper: int) -> JobState | None:
        """The helper has died: the request that has to fail of it, if one has."""
        job = self.done(helper)
        if job is None:
            return None
        job.deaths += 1
        if job.deaths >= MOST_DEATHS:
            return job
        bisect.insort(self._waiting, job, key=_order)
        return None
