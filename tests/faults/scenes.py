"""Particular scenes, each with a server of its own: deaths under eight requests, a poison, slow callers, a killed server.

Every scene takes a folder and the count of faults by kind, and returns violations in words. Scenes print their figures.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.faults import checks
from tests.faults.clients import Asked, Heard, all_of, ask
from tests.faults.server import START_S, ServerProcess, driver_of, eventually

PAUSE = "!pause@thinker"
WIDE = "!wide@prosody"
MOST_GROWTH_NBYTES = 32 * 2**20
MOST_RESTARTS = 2
STRIKES = 3
MEASURED_S = 8.0
SETTLED_S = 30.0
LEAST_SHARE = 0.9
ORPHANS_S = 5.0

Scene = Callable[[Path, Counter[str]], list[str]]


@contextmanager
def served(folder: Path, *flags: str, stages: dict[str, Any] | None = None, **keys: Any) -> Iterator[ServerProcess]:
    """A server, not waited for. `keys` and `stages` (for every stage) are deployed; options of ServerProcess pass through."""
    options = {name: keys.pop(name) for name in ("port", "environment", "prefix") if name in keys}
    folder.mkdir(parents=True, exist_ok=True)
    entries = [{"stage_id": stage, "max_num_seqs": 8, **(stages or {})} for stage in range(3)]
    deployed = {"request_timeout_s": 40.0, "drain_timeout_s": 2.0, **keys, "stages": entries}
    (folder / "deploy.yaml").write_text(yaml.safe_dump(deployed))
    server = ServerProcess(folder, "--deploy-config", str(folder / "deploy.yaml"), *flags, **options)
    try:
        yield server
    finally:
        server.sweep()
        server.process.wait(10)


def told(part: Awaitable[list[str]]) -> list[str]:
    async def run() -> list[str]:
        return await part

    return asyncio.run(run())


# ---- deaths ----


def death(folder: Path, faults: Counter[str]) -> list[str]:
    """kill -9 of the thinker under eight requests: who was silent is answered, who had spoken gets one error."""
    with served(folder) as server:
        server.wait_ready()
        faults["kill -9 of a worker"] += 1
        return told(_death(server)) + checks.held(server, 3)


async def _death(server: ServerProcess) -> list[str]:
    silent = [Asked(index, (*[PAUSE] * 10, "alpha", "bravo"), index, stream=index < 3) for index in range(4)]
    talking = [Asked(index, ("alpha", *[PAUSE, "kilo"] * 20), index, fault="") for index in range(4, 8)]
    heard = [Heard(asked) for asked in (*silent, *talking)]
    watch = checks.Watch(server)
    watching = asyncio.create_task(watch.run())
    asking = [asyncio.create_task(ask(server.port, one.asked, heard=one)) for one in heard]
    try:
        async with asyncio.timeout(10):
            while sum(one.first_output_s is not None for one in heard) < len(talking):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
        state = driver_of(await asyncio.to_thread(server.debug_state))["machine"]
        killed_s = time.monotonic()
        await asyncio.to_thread(watch.kill, "thinker")
        spoken = [one for one in heard if one.first_output_s is not None]
        await asyncio.to_thread(watch.whole)
        whole_s = time.monotonic() - killed_s
        await asyncio.gather(*asking)
    finally:
        watching.cancel()
    print(f"  {len(spoken)} had sent output, {len(heard) - len(spoken)} had not; whole again after {whole_s:.1f} s;"
          f" slowest {max(one.took_s for one in heard):.1f} s")  # fmt: skip
    found = watch.violations() + checks.seconds_at_most([whole_s], checks.WHOLE_S, "to be whole again")
    if state["open"] != len(heard) or not 3 <= len(spoken) <= len(heard) - 3:
        found.append(f"{state['open']} were open and {len(spoken)} had spoken when it was killed")
    for one in heard:
        found += checks.answers(one, deaths=True)
        if one.ok == (one in spoken):
            found.append(f"request {one.asked.number} had{'' if one in spoken else ' not'} spoken: {one.error}")
    return found


def poison(folder: Path, faults: Counter[str], stages: Sequence[str] = ("thinker", "speaker")) -> list[str]:
    """A request that kills its worker dies alone."""
    found = []
    for stage in stages:
        with served(folder / stage) as server:
            server.wait_ready()
            faults[f"exit@{stage}"] += 1
            found += told(_poison(server, stage)) + checks.held(server, 3)
    return found


async def _poison(server: ServerProcess, stage: str) -> list[str]:
    neighbours = [Asked(index, (*[PAUSE] * 5, "alpha", "bravo"), index, stream=index % 2 == 0) for index in range(8)]
    killer = Asked(3, (*[PAUSE] * 2, f"!exit@{stage}", "alpha"), 3, stream=False, fault=f"exit@{stage}")
    heard = await all_of(server.port, [*neighbours[:3], killer, *neighbours[4:]], together=8)
    whole = await asyncio.to_thread(eventually, lambda: server.health()[0] == 200, checks.WHOLE_S)
    restarts = server.counters()["omnistage_restarts"]
    print(f"  {stage}: {sum(one.ok for one in heard)} neighbours were answered, {restarts:g} restarts")
    found = [what for one in heard for what in checks.answers(one, deaths=False)]
    if restarts > MOST_RESTARTS or not whole:
        found.append(f"{restarts:g} restarts, whole again: {whole}")
    return found


def strikes(folder: Path, faults: Counter[str]) -> list[str]:
    """A stage that dies three times in a minute stays down: what needs it is refused with the reason, all else is served."""
    with served(folder) as server:
        server.wait_ready()
        for _ in range(STRIKES):
            whole = eventually(lambda: server.kill_worker("speaker") is not None, checks.WHOLE_S)
            if not whole:
                return [f"not whole again: {server.health()}"]
            faults["kill -9 of a worker"] += 1
            eventually(lambda: server.health()[0] == 503, checks.TRUTH_S)
        down = eventually(lambda: server.health()[1].get("stages", {}).get("speaker") == "down", checks.TRUTH_S)
        found = [] if down else [f"/health says {server.health()}"]
        asked = [Asked(0, ("alpha", "bravo"), 1), Asked(1, ("alpha", "bravo"), 2, modalities=("text",))]
        spoken, text = asyncio.run(all_of(server.port, asked, together=2))
        print(f"  after {STRIKES} deaths: {spoken.status} {spoken.error}")
        if spoken.status != 503 or spoken.error is None or "speaker" not in spoken.error["message"]:
            found.append(f"speech of a stage that is down: {spoken.status} {spoken.error}")
        return found + checks.answers(text, deaths=False) + checks.held(server, 2)


KILLED = {"while it starts": 0.0, "under work": 0.6, "while it ends": 0.3}
"""When a server is killed, and how long after that moment has begun."""


def server_killed(folder: Path, faults: Counter[str], moments: Iterable[str] = KILLED) -> list[str]:
    """kill -9 of the server: no process after 5 s, nothing is left, the next start on the same port serves."""
    found: list[str] = []
    port = 0
    for when in moments:
        with served(folder, port=port) as server:
            faults["kill -9 of the server"] += 1
            found += [f"{when}: {what}" for what in _server_killed(server, when)]
            port = server.port
    with served(folder, port=port) as server:
        server.wait_ready()
        (heard,) = asyncio.run(all_of(port, [Asked(0, ("alpha", "bravo"), 1)], together=1))
        found += checks.answers(heard, deaths=False) + checks.held(server, 3)
        code = server.stop()
        found += [] if code == 0 and not server.pids() else [f"exit code {code}, processes {server.pids()}"]
    return found


def stopped_outlive_nobody(folder: Path, faults: Counter[str], drivers: Iterable[bool] = (False, True)) -> list[str]:
    """kill -9 of the server while everything that it has started stands still: they come to an end all the same."""
    found: list[str] = []
    for apart in drivers:
        with served(folder / f"apart-{apart}", engine_process=apart) as server:
            server.wait_ready()
            server.wait_for_zygote()
            for pid in server.pids():
                if pid != server.process.pid:
                    os.kill(pid, signal.SIGSTOP)
            faults["kill -9 of the server"] += 1
            server.kill()
            where = "with a driver of its own" if apart else "with its driver inside"
            found += [f"{where}: {what}" for what in _nobody_is_left(server, where)]
    return found


def _server_killed(server: ServerProcess, when: str) -> list[str]:
    found: list[str] = []
    if when == "while it starts":
        eventually(lambda: len(server.pids()) > 2, START_S)  # its first workers are loading
        server.kill()
    else:
        server.wait_ready()
        found = told(_killed_under(server, when))
    return found + _nobody_is_left(server, when)


def _nobody_is_left(server: ServerProcess, when: str) -> list[str]:
    began = time.monotonic()
    gone = eventually(lambda: not server.pids(), ORPHANS_S)
    print(f"  {when}: no process after {time.monotonic() - began:.1f} s")
    found = [] if gone else [f"processes are left after {ORPHANS_S:g} s: {server.pids()}"]
    return found + [f"left behind: {name}" for name in server.files()]


async def _killed_under(server: ServerProcess, when: str) -> list[str]:
    asked = [Asked(index, ("alpha", *[PAUSE, "bravo"] * 20), index) for index in range(8)]
    heard = [Heard(one) for one in asked]
    asking = [asyncio.create_task(ask(server.port, one.asked, heard=one, timeout_s=5)) for one in heard]
    await asyncio.sleep(KILLED["under work"])
    if when == "while it ends":
        server.process.terminate()
        await asyncio.sleep(KILLED[when])
    await asyncio.to_thread(server.kill)
    await asyncio.gather(*asking)
    return [f"request {one.asked.number} hangs on" for one in heard if one.stalled]


def driver_killed(folder: Path, faults: Counter[str]) -> list[str]:
    """kill -9 of a driver in a process of its own: every open request ends with one error, driver and workers start anew."""
    with served(folder) as server:
        server.wait_ready()
        found: list[str] = []
        for _ in range(2):
            faults["kill -9 of a driver"] += 1
            found += told(_driver_killed(server)) + checks.held(server, 3)
        code = server.stop()
        found += [] if code == 0 and not server.pids() else [f"exit code {code}, processes {server.pids()}"]
        return found + [f"left behind: {name}" for name in server.files()]


async def _driver_killed(server: ServerProcess) -> list[str]:
    asked = [Asked(index, ("alpha", *[PAUSE, "kilo"] * 20), index, stream=index % 2 == 0) for index in range(8)]
    heard = [Heard(one) for one in asked]
    watch = checks.Watch(server)
    watching = asyncio.create_task(watch.run())
    before = set(server.pids())
    asking = [asyncio.create_task(ask(server.port, one.asked, heard=one)) for one in heard]
    try:
        await asyncio.sleep(1.0)
        killed_s = time.monotonic()
        await asyncio.to_thread(server.kill_some_other, "driver")
        watch.kills += [(killed_s, stage) for stage in ("thinker", "prosody", "speaker")]
        await asyncio.gather(*asking)
        ended_s = time.monotonic() - killed_s
        await asyncio.to_thread(watch.whole)
        whole_s = time.monotonic() - killed_s
    finally:
        watching.cancel()
    print(f"  all had an end after {ended_s:.1f} s: {heard[0].error}; whole again after {whole_s:.1f} s")
    found = watch.violations() + checks.seconds_at_most([whole_s], checks.WHOLE_S, "to be whole again")
    found += checks.seconds_at_most([ended_s], checks.TRUTH_S, "the ends of what was open")
    old = (before & set(server.pids())) - {server.process.pid}
    found += [f"still there from before: {old}"] if old else []
    for one in heard:
        found += checks.answers(one, deaths=True) + (["it went on"] if one.error is None else [])
    return found


# ---- slow callers ----


def slow_callers(folder: Path, faults: Counter[str]) -> list[str]:
    """Eight callers that read 1 KB/s cost eight normal ones at most a tenth of their throughput, and no memory. Everything that
    one stage hands to the next and to the caller is too large for a message and travels through the arenas."""
    with served(folder, client_stall_s=120.0, request_timeout_s=120.0) as server:
        server.wait_ready()
        faults["slow"] += 8
        return told(_slow_callers(server)) + checks.held(server, 3)


async def _slow_callers(server: ServerProcess) -> list[str]:
    await _throughput(server, 3.0)
    before = server.rss_nbytes()
    alone = await _throughput(server, MEASURED_S)
    mumbling = [Asked(100 + index, (WIDE,) * 400, index, slow_for_s=300.0) for index in range(8)]
    heard = [Heard(asked) for asked in mumbling]
    slow = [asyncio.create_task(ask(server.port, one.asked, timeout_s=300, heard=one)) for one in heard]
    # At first they read as fast as anybody, until all buffers on the way to them are full.
    paused = await asyncio.to_thread(eventually, lambda: _stay_blocked(server, "thinker", len(slow)), SETTLED_S)
    beside = await _throughput(server, MEASURED_S)
    after, still_open = server.rss_nbytes(), len(server.debug_state()["server"]["requests"])
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    await asyncio.to_thread(checks.held, server, 3)
    alone = (alone + await _throughput(server, MEASURED_S)) / 2  # what else the machine does counts for both
    growth = {pid: after[pid] - before[pid] for pid in before if pid in after}
    print(f"  alone {alone:.1f} words/s, beside slow callers {beside:.1f}; RSS grew by"
          f" {', '.join(f'{nbytes / 2**20:.1f}' for nbytes in growth.values())} MiB")  # fmt: skip
    found = [] if paused else [f"not all slow callers wait after {SETTLED_S:g} s"]
    found += [f"throughput fell from {alone:.0f} to {beside:.0f} words/s"] if beside < LEAST_SHARE * alone else []
    found += [f"process {pid} grew by {size >> 20} MiB" for pid, size in growth.items() if size > MOST_GROWTH_NBYTES]
    found += [] if still_open >= len(slow) else [f"only {still_open} of {len(slow)} slow callers were served"]
    return found + [what for one in heard for what in one.strange]


def _stay_blocked(server: ServerProcess, stage: str, count: int) -> bool:
    """So many requests of a stage may not hand over, for two seconds."""
    for _ in range(8):
        if _blocked(server, stage) < count:
            return False
        time.sleep(0.25)
    return True


def _blocked(server: ServerProcess, stage: str) -> int:
    stages = [worker["stages"].get(stage, {}) for worker in server.debug_state().get("workers", {}).values()]
    return sum(int(figures.get("blocked", 0)) for figures in stages)


async def _throughput(server: ServerProcess, seconds: float) -> float:
    """Words per second that eight normal callers get, the thinker's pace being what bounds them."""
    began = time.monotonic()
    done = 0

    async def caller(number: int) -> None:
        nonlocal done
        while time.monotonic() < began + seconds:
            heard = await ask(server.port, Asked(number, (PAUSE, WIDE) * 4, number))
            done += 4 if heard.ok else 0

    await asyncio.gather(*(caller(number) for number in range(8)))
    return done / (time.monotonic() - began)


def four_at_once(folder: Path, faults: Counter[str]) -> list[str]:
    """Four servers that start together on one machine all serve, each the same questions, and end clean together."""
    with ExitStack() as stack:
        servers = [stack.enter_context(served(folder / str(index))) for index in range(4)]
        began = time.monotonic()
        for server in servers:
            server.wait_ready()
        print(f"  four servers are ready after {time.monotonic() - began:.1f} s")
        found = told(_ask_each(servers))
        with ThreadPoolExecutor() as pool:
            codes = list(pool.map(ServerProcess.stop, servers))
        for index, (server, code) in enumerate(zip(servers, codes, strict=True)):
            left = [*(f"process {pid}" for pid in server.pids()), *server.files()]
            found += [f"server {index}: exit code {code}"] if code else []
            found += [f"server {index} left behind: {name}" for name in left]
    return found


async def _ask_each(servers: Sequence[ServerProcess]) -> list[str]:
    asked = [Asked(index, ("alpha", "bravo"), index) for index in range(4)]
    heard = await asyncio.gather(*(all_of(server.port, asked, together=4) for server in servers))
    return [
        f"server {index}: {what}"
        for index, answers in enumerate(heard)
        for one in answers
        for what in checks.answers(one, deaths=False)
    ]


SCENES: dict[str, Scene] = {
    "death": death,
    "poison": poison,
    "strikes": strikes,
    "server_killed": server_killed,
    "stopped_outlive_nobody": stopped_outlive_nobody,
    "driver_killed": driver_killed,
    "slow_callers": slow_callers,
    "four_at_once": four_at_once,
}
