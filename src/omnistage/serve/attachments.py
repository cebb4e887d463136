"""The media of a request over HTTP: what stands in it, what it points to, all read before the engine is asked.

First the whole request is admitted without a byte of its media, so that what is wrong with it is told before anything is fetched;
then all media are read, several at once; then the engine reads the prompt again and finds them here. Bounds: MOST_NBYTES of a
request from elsewhere, AT_ONCE of its media at a time, READS of URLs over all requests, and what open requests may hold when
another one is let in (engine.media). Who leaves ends what is read for him.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from omnistage.core.errors import InvalidRequestError, QueueFullError
from omnistage.core.request import Media
from omnistage.engine.admission import Ask, admit
from omnistage.engine.encoded import require_size
from omnistage.engine.media import MOST_OPEN_NBYTES, MediaValue, encoded, read_given, scheme_of
from omnistage.engine.served import ServedModel
from omnistage.serve.allowed import Allowed

MOST_NBYTES = 64 * 2**20
AT_ONCE = 4
READS = 16
_RETRY_AFTER_S = 1.0
_LARGE_CHARS = 64 * 2**10
"""A longer text is decoded in a thread."""


class Fetches(Protocol):
    """What reads from other hosts (serve.fetching)."""

    async def fetch(self, found: MediaValue, take: Callable[[int], None]) -> bytes: ...


class Attachments:
    """See the module. Belongs to one event loop. `fetcher` None: `allowed` names no hosts."""

    def __init__(self, allowed: Allowed, fetcher: Fetches | None = None) -> None:
        self._allowed = allowed
        self._fetcher = fetcher
        self._reads = asyncio.Semaphore(READS)

    @property
    def fetches(self) -> bool:
        """True if other hosts can be asked."""
        return self._fetcher is not None

    async def attached(self, model: ServedModel, ask: Ask, open_nbytes: int = 0) -> Ask:
        """`ask` with its media at hand. `open_nbytes`: what the media of open requests have. Raises InvalidRequestError, and
        QueueFullError where these are too many already."""
        if model.reads == ("text",):
            return ask
        wanted: list[MediaValue] = []

        def note(found: MediaValue) -> Media:
            self._check(found)
            wanted.append(found)
            return Media(kind=found.kind, data=b"", where=found.where)

        admit(model, replace(ask, read_media=note))
        if wanted and open_nbytes > MOST_OPEN_NBYTES:
            message = f"the media of open requests have {open_nbytes} bytes already"
            raise QueueFullError(message, retry_after_s=_RETRY_AFTER_S)
        held = await self._read_all(wanted, _BudgetState(min(MOST_NBYTES, model.max_media_nbytes)))
        return replace(ask, read_media=lambda found: held[found.where])

    def _check(self, found: MediaValue) -> None:
        """What can be told without reading. Raises InvalidRequestError."""
        match found.value:
            case Media():
                return
            case str() if found.declared is not None:
                return
            case str() as url if scheme_of(url) in ("http", "https"):
                self._allowed.place(url, found)
            case str() as url if scheme_of(url) == "file":
                self._allowed.path(found)
            case str() as url if scheme_of(url) == "data":
                return
            case _:
                raise found.refusal(self._allowed.accepted)

    async def _read_all(self, wanted: list[MediaValue], budget: _BudgetState) -> Mapping[str, Media]:
        free = asyncio.Semaphore(AT_ONCE)

        async def read(found: MediaValue) -> Media:
            async with free:
                return await self._read(found, budget)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {found.where: group.create_task(read(found)) for found in wanted}
        except BaseExceptionGroup as failed:  # the others were cancelled
            raise failed.exceptions[0] from None
        return {where: task.result() for where, task in tasks.items()}

    async def _read(self, found: MediaValue, budget: _BudgetState) -> Media:
        if isinstance(found.value, Media):  # a file of a form
            return read_given(found)
        text = str(found.value)
        if found.declared is not None or scheme_of(text) == "data":
            return await asyncio.to_thread(read_given, found) if len(text) > _LARGE_CHARS else read_given(found)
        found = replace(found, most_nbytes=budget.left_nbytes)
        async with self._reads:
            if scheme_of(text) == "file":
                data = await asyncio.to_thread(_file, self._allowed, found)
                budget.take(found, len(data))
            else:
                assert self._fetcher is not None, "hosts are allowed, so there is who asks them"
                data = await self._fetcher.fetch(found, lambda nbytes: budget.take(found, nbytes))
        return encoded(found, data)


class _BudgetState:
    """How many bytes one request may still have read for it."""

    def __init__(self, most_nbytes: int) -> None:
        self.left_nbytes = most_nbytes
        self._most_nbytes = most_nbytes

    def take(self, found: MediaValue, nbytes: int) -> None:
        """Raises InvalidRequestError if they are too many."""
        if nbytes > self.left_nbytes:
            told = f"{found.where}: {found.told} is too large"
            accepted = f"at most {self._most_nbytes} bytes of media from elsewhere in a request"
            raise InvalidRequestError(f"{told}; accepted: {accepted}", field=found.where)
        self.left_nbytes -= nbytes


def _file(allowed: Allowed, found: MediaValue) -> bytes:
    """The bytes of an allowed file. What was opened is looked at once more: links may have changed since. Blocks."""
    path = allowed.path(found)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        raise found.refusal("a file that is there and can be read") from None
    try:
        told = os.fstat(descriptor)
        opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not stat.S_ISREG(told.st_mode) or allowed.folder is None or not opened.is_relative_to(allowed.folder):
            raise found.refusal("an ordinary file")
        require_size(told.st_size, found.where, found.most_nbytes)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(found.most_nbytes + 1)
    finally:
        os.close(descriptor)
