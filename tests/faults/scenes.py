"""Particular scenes, each with a server of its own: deaths under eight requests, a poison, slow callers, a killed server, memory.

Every scene takes a folder and the count of faults by kind, and returns violations in words. Scenes print their figures.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.faults import checks
from tests.faults.clients import Asked, Heard, all_of, ask
from tests.faults.server import ServerProcess, eventually

PAUSE = "!pause@thinker"
MOST_GROWTH_NBYTES = 32 * 2**20
MOST_RESTARTS = 2
MEASURED_S = 8.0
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
        spoken = [one for one in heard if one.first_output_s is not None]
        state = await asyncio.to_thread(server.state)
        killed_s = time.monotonic()
        await asyncio.to_thread(server.kill_worker, "thinker")
        watch.kills.append((killed_s, "thinker"))
        await asyncio.to_thread(eventually, lambda: server.health()[0] == 503, checks.TRUTH_S)
        await asyncio.to_thread(eventually, lambda: server.health()[0] == 200, checks.WHOLE_S)
        whole_s = time.monotonic() - killed_s
        await asyncio.gather(*asking)
        await asyncio.sleep(0.2)
    finally:
        watching.cancel()
    print(f"  {len(spoken)} had sent output, {len(heard) - len(spoken)} had not; whole again after {whole_s:.1f} s;"
          f" slowest {max(one.took_s for one in heard):.1f} s")  # fmt: skip
    found = watch.violations() + checks.seconds_at_most([whole_s], checks.WHOLE_S, "to be whole again")
    if state["tables"]["open"] != len(heard) or not 3 <= len(spoken) <= len(heard) - 3:
        found.append(f"{state['tables']['open']} were open and {len(spoken)} had spoken when it was killed")
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


def server_killed(folder: Path, faults: Counter[str]) -> list[str]:
    """kill -9 of the server under work: no process after 5 s, nothing is left, the next start on the same port serves."""
    asked = [Asked(index, ("alpha", *[PAUSE, "bravo"] * 20), index) for index in range(8)]
    with served(folder) as server:
        server.wait_ready()
        faults["kill -9 of the server"] += 1
        found = told(_killed_under(server, asked))
        gone = eventually(lambda: not server.pids(), ORPHANS_S)
        found += [] if gone else [f"processes are left after {ORPHANS_S:g} s: {server.pids()}"]
        found += [f"left behind: {name}" for name in server.files()]
        port = server.port
    with served(folder, port=port) as server:
        server.wait_ready()
        (heard,) = asyncio.run(all_of(port, [Asked(0, ("alpha", "bravo"), 1)], together=1))
        found += checks.answers(heard, deaths=False) + checks.held(server, 3)
        code = server.stop()
        found += [] if code == 0 and not server.pids() else [f"exit code {code}, processes {server.pids()}"]
    return found


async def _killed_under(server: ServerProcess, asked: Sequence[Asked]) -> list[str]:
    heard = [Heard(one) for one in asked]
    asking = [asyncio.create_task(ask(server.port, one.asked, heard=one, timeout_s=5)) for one in heard]
    await asyncio.sleep(0.6)
    await asyncio.to_thread(server.kill)
    await asyncio.gather(*asking)
    return [f"request {one.asked.number} hangs on" for one in heard if one.stalled]


# ---- slow callers ----


def slow_callers(folder: Path, faults: Counter[str]) -> list[str]:
    """Eight callers that read 1 KB/s cost eight normal ones at most a tenth of their throughput, and no memory."""
    with served(folder, client_stall_s=120.0, request_timeout_s=120.0) as server:
        server.wait_ready()
        faults["slow"] += 8
        return told(_slow_callers(server)) + checks.held(server, 3)


async def _slow_callers(server: ServerProcess) -> list[str]:
    await _throughput(server, 3.0)
    before = server.rss_nbytes()
    alone = await _throughput(server, MEASURED_S)
    mumbling = [Asked(100 + index, ("alpha",) * 400, index, slow_for_s=300.0) for index in range(8)]
    heard = [Heard(asked) for asked in mumbling]
    slow = [asyncio.create_task(ask(server.port, one.asked, timeout_s=300, heard=one)) for one in heard]
    await asyncio.sleep(3.0)
    beside = await _throughput(server, MEASURED_S)
    after, tables = server.rss_nbytes(), server.state()["tables"]
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    growth = {pid: after[pid] - before[pid] for pid in before if pid in after}
    print(f"  alone {alone:.0f} words/s, beside slow callers {beside:.0f}; RSS grew by"
          f" {', '.join(f'{nbytes / 2**20:.1f}' for nbytes in growth.values())} MiB")  # fmt: skip
    found = [f"throughput fell from {alone:.0f} to {beside:.0f} words/s"] if beside < LEAST_SHARE * alone else []
    found += [f"process {pid} grew by {size >> 20} MiB" for pid, size in growth.items() if size > MOST_GROWTH_NBYTES]
    found += [] if tables["open"] >= len(slow) else [f"only {tables['open']} of {len(slow)} slow callers were served"]
    return found + [what for one in heard for what in one.strange]


async def _throughput(server: ServerProcess, seconds: float) -> float:
    """Words per second that eight normal callers get, the thinker's pace being what bounds them."""
    began = time.monotonic()
    done = 0

    async def caller(number: int) -> None:
        nonlocal done
        while time.monotonic() < began + seconds:
            heard = await ask(server.port, Asked(number, (PAUSE, "alpha") * 4, number))
            done += 4 if heard.ok else 0

    await asyncio.gather(*(caller(number) for number in range(8)))
    return done / (time.monotonic() - began)


# ---- memory ----


def full_arena(folder: Path, faults: Counter[str]) -> list[str]:
    """Arenas of a tenth of what the traffic asks for, slow callers among the fast: all are answered, in the end."""
    with served(folder, stages={"max_num_seqs": 2, "lookahead": 14}) as server:
        server.wait_ready()
        faults["full arena"] += 24
        words = ("alpha", "!big@speaker", "bravo", "!big@speaker", "!huge@speaker", "charlie")
        asked = [Asked(index, words * 2, index, stream=index % 3 > 0) for index in range(24)]
        asked = [replace(one, slow_for_s=3.0) if one.number % 4 == 1 else one for one in asked]
        heard = asyncio.run(all_of(server.port, asked, together=16))
        print(f"  24 answers of 9 MB each, slowest {max(one.took_s for one in heard):.1f} s")
        return [what for one in heard for what in checks.answers(one, deaths=False)] + checks.held(server, 3)


def no_arena(folder: Path, faults: Counter[str]) -> list[str]:
    """An arena that the machine has no memory for: the server says so and ends, nothing is left."""
    flags = ("--client-window-nbytes", str(2**39), "--stage-2-max-num-seqs", "65536")
    with served(folder, *flags, environment={"OMNISTAGE_FAULTS_STRIKES": "2"}) as server:
        faults["arena that cannot be allocated"] += 1
        ended = eventually(lambda: server.process.poll() is not None, 20.0)
        found = [] if ended and server.process.returncode == 1 else [f"exit code {server.process.returncode}"]
        last = server.words.strip().splitlines()[-1]
        if not last.startswith("error: ") or "speaker" not in last or "cannot be allocated" not in last:
            found.append(f"its last words are {last!r}")
        found += [f"left behind: {name}" for name in server.files()]
        return found + ([f"processes left: {server.pids()}"] if server.pids() else [])


def full_shm(folder: Path, faults: Counter[str]) -> list[str]:
    """Named memory in a /dev/shm of its own that fills up: what needs more fails alone, a restart waits for room and tells so."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        print("  left out: this machine lets nobody have a /dev/shm of his own")
        return []
    mounting = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    options: dict[str, Any] = {
        "prefix": ("unshare", "-rm", "sh", "-c", mounting, "sh"),
        "environment": {"OMNISTAGE_NAMED_MEMORY": "1"},
    }
    with served(folder, **options) as server:
        server.wait_ready()
        faults["full /dev/shm"] += 1
        shared = Path(f"/proc/{server.process.pid}/root/dev/shm")
        found = [f"a name stays in /dev/shm: {path}" for path in shared.iterdir()]
        plug = shared / "plug"
        _filled(plug)
        asked = [Asked(0, ("alpha", "!huge@speaker", "bravo"), 1), Asked(1, ("alpha", "bravo"), 2)]
        huge, small = asyncio.run(all_of(server.port, asked, together=2))
        found += checks.answers(small, deaths=False)
        if huge.error is None or "cannot be allocated" not in huge.error["message"]:
            found.append(f"a payload without room got {huge.status}: {huge.error}")
        found += checks.held(server, 3)
        server.kill_worker("speaker")
        told_so = eventually(lambda: _filled(plug) and _says_no_room(server), checks.TRUTH_S)
        found += [] if told_so else [f"/health says {server.health()}"]
        plug.unlink()
        whole = eventually(lambda: server.health()[0] == 200, checks.WHOLE_S)
        found += [] if whole else [f"not whole again: {server.health()}"]
        heard = asyncio.run(all_of(server.port, asked, together=2))
        return found + [what for one in heard for what in checks.answers(one, deaths=False)] + checks.held(server, 3)


def _says_no_room(server: ServerProcess) -> bool:
    return "cannot be allocated" in str(server.health()[1])


def _filled(plug: Path) -> bool:
    """True, once the folder is full to its last page."""
    with plug.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(2**16)):
            pass
    return True


SCENES: dict[str, Scene] = {
    "death": death,
    "poison": poison,
    "server_killed": server_killed,
    "slow_callers": slow_callers,
    "full_arena": full_arena,
    "no_arena": no_arena,
    "full_shm": full_shm,
}
