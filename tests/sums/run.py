"""Two hundred requests of every kind at one server, and what both sides counted.

    calm       60 that succeed, for sums that are equal to the last digit
    mixed     108 of which 40 leave, and others are refused or fail in either stage
    endless     2 beside these and the following, which run out of time
    burst      28 at once, more than may wait, before a speaker that takes its time
    death       2 whose helper and speaker are killed: one begins again, one has been heard already

The seed is fixed; what callers count is what came to them, so the sums hold however the machine's load orders things. What has to
be seen while it lasts is made to last until it was seen.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import yaml

from tests.faults import checks
from tests.faults.server import ServerProcess, eventually
from tests.runtime.harness import halt
from tests.sums.callers import ArrivalsState, Asked, Got, ask_all
from tests.sums.family import SLOW

REQUESTS, LEAVERS = 200, 40
SECRET = "sesame"
"""A word of every prompt, which nothing that the server says of itself may hold."""
TIMEOUT_S = 12.0
ENDLESS = 3000  # tokens: longer than the timeout
PREFIX = (SECRET, *(f"prefix{index}" for index in range(70)))
DEPLOYED = {
    "request_timeout_s": TIMEOUT_S,
    "max_queued_requests": 8,
    "drain_timeout_s": 2.0,
    "stages": [
        # Room for one of the longest and a few short ones, so that the older ones have to take it from the younger.
        {"stage_id": 0, "max_num_seqs": 8, "max_model_len": 4096, "kv_cache_bytes": 140 * 2 * 8 * 4 * 32},
        {"stage_id": 1, "max_num_seqs": 3, "lookahead": 3},
    ],
}
STAGES = 2
STANDING = (
    "stage{figure=arena_used_nbytes,",
    "stage{figure=input_nbytes,",
    "stage{figure=waiting,",
    "errors_total{code=queue_full",
)
"""What moves while more is asked for than the speaker says."""
SPOKEN = "omnistage_edge_items_total{source=speaker,target=client}"
Figures = dict[str, float]


@dataclass(slots=True)
class Seen:
    """`fresh`, `calm`, `end`: all figures before the first request, after the calm ones, after all; `moved` are the names of those
    that were seen to change, or to come with another value than 0. `words` is all that the server has said."""

    got: list[Got]
    calm_got: list[Got]
    fresh: Figures
    calm: Figures
    end: Figures
    moved: set[str]
    record: Path
    words: str
    exit_code: int

    def outcomes(self) -> Counter[str]:
        """Of those that were admitted, as callers saw them end."""
        return Counter(outcome for got in self.got if (outcome := outcome_of(got)) is not None)


def outcome_of(got: Got) -> str | None:
    """None for a request that was refused before it was one."""
    if got.left:
        return "aborted"
    if got.finished:
        return "finished"
    if got.code == "timed_out":
        return "timed_out"
    refused = got.code == "model_not_found" or bool(got.asked.fields.keys() & {"temperature", "tempreature"})
    return None if refused else "failed"


# ---- what is asked ----


@dataclass(slots=True)
class _Deal:
    """Makes requests; counts them."""

    random: Random
    count: int = field(default=0)

    def one(self, *words: str, **changes: Any) -> Asked:
        modalities = self.random.choice([("text",), ("audio",), ("text", "audio")])
        said = (
            SECRET,
            *self.random.choices(["alpha", "bravo", "charlie", "delta", "echo"], k=self.random.randint(1, 6)),
        )
        prompt = PREFIX if self.random.random() < 0.3 else said
        values: dict[str, Any] = {
            "max_tokens": self.random.randint(1, 14),
            "modalities": modalities,
            "stream": self.random.random() < 0.5,
            **changes,
        }
        self.count += 1
        return Asked(self.count - 1, (*prompt, *words), **values)

    def leaver(self, index: int) -> Asked:
        """Whole and streamed ones; before the first byte, soon after, in the middle."""
        leaves = ("arrived", "arrived", "later", "events", "events")[index % 5]
        stream = leaves == "events" or index % 2 == 0
        return self.one(max_tokens=ENDLESS, leaves=leaves, stream=stream, events=self.random.randint(1, 25))


def calm(deal: _Deal) -> list[Asked]:
    silent = [deal.one("!hush", modalities=("audio",), stream=stream) for stream in (True, False)]
    return [*silent, *(deal.one() for _ in range(58))]


def mixed(deal: _Deal) -> list[Asked]:
    heard = ("text", "audio")
    asked = [
        *(deal.leaver(index) for index in range(LEAVERS)),
        *(deal.one(fields={"temperature": -1}) for _ in range(2)),
        *(deal.one(fields={"tempreature": 1}) for _ in range(2)),
        *(deal.one(fields={"model": "other"}) for _ in range(3)),
        *(deal.one("!refuse") for _ in range(3)),
        *(deal.one("!fail") for _ in range(4)),
        *(deal.one("!break", modalities=heard, max_tokens=8, stream=index % 2 == 0) for index in range(4)),
        *(deal.one(fields={"priority": deal.random.randint(-2, 2)}) for _ in range(50)),
    ]
    deal.random.shuffle(asked)
    return asked


def endless(deal: _Deal) -> list[Asked]:
    return [deal.one(modalities=("text",), max_tokens=ENDLESS, stream=stream) for stream in (True, False)]


def burst(deal: _Deal) -> list[Asked]:
    return [deal.one("!heavy", modalities=("audio",), max_tokens=30) for _ in range(28)]


def death(deal: _Deal) -> list[Asked]:
    return [deal.one(modalities=("audio",), max_tokens=100, stream=stream) for stream in (False, True)]


# ---- the run ----


def run(folder: Path) -> Seen:
    """The whole, at a server of its own in `folder`."""
    (folder / "deploy.yaml").write_text(yaml.safe_dump(DEPLOYED))
    record, slow = folder / "events.jsonl", folder / "slow"
    server = ServerProcess(
        folder,
        *("--deploy-config", str(folder / "deploy.yaml"), "--record-events", str(record)),
        model="sums",
        environment={"OMNISTAGE_LOG_LEVEL": "debug", SLOW: str(slow)},
        prefix=(sys.executable, "-m", "tests.sums.served"),
    )
    try:
        server.wait_ready()
        seen = asyncio.run(_asked(server, record, slow))
        seen.exit_code = server.stop()
        seen.words = server.words
        return seen
    finally:
        server.sweep()
        server.process.wait(10)


async def _asked(server: ServerProcess, record: Path, slow: Path) -> Seen:
    deal, arrivals = _Deal(Random(5)), ArrivalsState(record)
    fresh = server.counters()
    moved: set[str] = set()
    looking = asyncio.create_task(_look(server, fresh, moved))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60, limits=limits) as client:
        calm_got = await ask_all(client, calm(deal), arrivals, together=6)
        calm_figures = await _quiet(server)
        late = asyncio.create_task(ask_all(client, endless(deal), arrivals, together=2))
        got = [*calm_got, *await ask_all(client, mixed(deal), arrivals, together=10)]
        with _slow_speaker(slow):
            bursting = asyncio.create_task(ask_all(client, burst(deal), arrivals, together=28))
            await _until_moved(moved, *STANDING)
        got += await bursting
        with _slow_speaker(slow):
            asking = await _killed(server, client, death(deal), arrivals, moved)
        got += [*await asking, *await late]
        end = await _quiet(server)
    looking.cancel()
    moved.update(_changed(fresh, end))
    return Seen(got, calm_got, fresh, calm_figures, end, moved, record, "", -1)


@contextmanager
def _slow_speaker(slow: Path) -> Iterator[None]:
    slow.touch()
    yield
    slow.unlink()


async def _killed(
    server: ServerProcess, client: httpx.AsyncClient, asked: list[Asked], arrivals: ArrivalsState, moved: set[str]
) -> asyncio.Task[list[Got]]:
    """The thinker's helper dies, and its next one stands still until a heartbeat has told what it holds up. The speaker, which
    takes its time, dies once it has said something of every request; they go on."""
    killed = await asyncio.to_thread(server.kill_some_other, "helper")
    helper = await asyncio.to_thread(_another_helper, server, killed)
    halt(helper)
    before = server.counters()[SPOKEN]
    asking = asyncio.create_task(ask_all(client, asked, arrivals, together=len(asked)))
    try:
        await _until_moved(moved, "stage{figure=preparing,")
    finally:
        os.kill(helper, signal.SIGCONT)
    assert await asyncio.to_thread(eventually, lambda: server.counters()[SPOKEN] >= before + 6, TIMEOUT_S)
    assert await asyncio.to_thread(server.kill_worker, "speaker"), "there is no speaker to be killed"
    return asking


async def _until_moved(moved: set[str], *names: str) -> None:
    """Until a look has seen series that begin with each of `names` change."""
    missing = set(names)
    until = time.monotonic() + TIMEOUT_S
    while missing := {name for name in missing if not any(one.startswith(f"omnistage_{name}") for one in moved)}:
        assert time.monotonic() < until, f"nothing tells of {sorted(missing)}"
        await asyncio.sleep(0.05)


def _another_helper(server: ServerProcess, killed: int | None) -> int:
    found: list[int] = []

    def is_there() -> bool:
        pid = server.other_pid("helper")
        found[:] = [] if pid in (None, killed) else [pid]
        return bool(found)

    assert eventually(is_there, TIMEOUT_S), "no helper came for the one that was killed"
    return found[0]


async def _quiet(server: ServerProcess) -> Figures:
    """All figures once no request is open, and what stages told of the ended ones has come."""
    await asyncio.to_thread(eventually, lambda: server.counters()["omnistage_open_requests"] == 0, 10.0)
    await asyncio.to_thread(eventually, lambda: not checks.held_now(server, STAGES), 10.0)
    return await asyncio.to_thread(server.counters)


async def _look(server: ServerProcess, fresh: Figures, moved: set[str]) -> None:
    while True:
        moved.update(_changed(fresh, await asyncio.to_thread(server.counters)))
        await asyncio.sleep(0.2)


def _changed(fresh: Figures, figures: Figures) -> set[str]:
    return {name for name, value in figures.items() if value != fresh.get(name, 0.0)}
