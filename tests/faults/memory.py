"""Scenes of memory: that all stays as large as it was, and what is done where there is none: full arenas, arenas that nobody can
allocate, a /dev/shm that fills up.

They take and return what those of `scenes` do.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tests.faults import checks
from tests.faults.clients import Asked, all_of
from tests.faults.faults import GENTLE, asked_with
from tests.faults.scenes import WIDE, Scene, served
from tests.faults.server import ServerProcess, eventually

NO_ROOM = "cannot be allocated"
OWN_SHM_NBYTES = 64 * 2**20
NAMED = {"OMNISTAGE_NAMED_MEMORY": "1"}
FULL_ROUNDS = 3
FLAT_ROUNDS = 16
FLAT_REQUESTS = 25
QUICK = tuple(name for name in GENTLE if name not in ("slow", "linger"))


def full_arena(folder: Path, faults: Counter[str]) -> list[str]:
    """Arenas of a tenth of what the traffic asks for, slow callers among the fast: all are answered, in the end."""
    with served(folder, stages={"max_num_seqs": 2, "lookahead": 14}) as server:
        server.wait_ready()
        words = (WIDE, "!big@speaker", "bravo", WIDE, WIDE, "!big@speaker", "!huge@speaker", "charlie")
        asked = [Asked(index, words * 2, index, stream=index % 3 > 0) for index in range(24)]
        asked = [replace(one, slow_for_s=3.0) if one.number % 4 == 1 else one for one in asked]
        heard = asyncio.run(all_of(server.port, asked, together=16))
        found = [what for one in heard for what in checks.answers(one, deaths=False)] + checks.held(server, 3)
        refused = sum(_sum_of(worker, "refused_puts") for worker in server.debug_state()["workers"].values())
        faults["full arena"] += refused
        print(
            f"  24 answers of 9 MB each, slowest {max(one.took_s for one in heard):.1f} s; {refused} times without room"
        )
        return found + ([] if refused else ["no arena was ever full"])


def _sum_of(value: Any, name: str) -> int:
    """The sum of all figures of that name."""
    if not isinstance(value, dict):
        return 0
    return sum(int(held) if key == name else _sum_of(held, name) for key, held in value.items())


def flat(folder: Path, faults: Counter[str]) -> list[str]:
    """Every process is after many rounds as large as in their middle, whatever went wrong in them. Nobody dies here, so that each
    is one process from first to last."""
    random, sizes, found = Random(1), defaultdict[int, list[int]](list), list[str]()
    with served(folder) as server:
        server.wait_ready()
        server.wait_for_zygote()
        for number in range(FLAT_ROUNDS):
            asked = [asked_with(random, number, random.choice(("", *QUICK))) for _ in range(FLAT_REQUESTS)]
            faults.update(one.fault for one in asked if one.fault)
            heard = asyncio.run(all_of(server.port, asked, together=8))
            found += [what for one in heard for what in checks.answers(one, deaths=False)] + checks.held(server, 3)
            for pid, nbytes in server.rss_nbytes().items():
                sizes[pid].append(nbytes)
    told = ", ".join(f"{seen[0] >> 20} -> {seen[-1] >> 20}" for seen in sizes.values())
    print(f"  {FLAT_ROUNDS * FLAT_REQUESTS} requests, MiB of every process: {told}")
    found += [f"process {pid} was not there all the time" for pid, seen in sizes.items() if len(seen) < FLAT_ROUNDS]
    return found + [f"process {pid}: {what}" for pid, seen in sizes.items() for what in checks.grows(seen)]


# ---- arenas that cannot be allocated ----


def _with_own_shm(nbytes: int) -> tuple[str, ...]:
    """Runs what follows with a /dev/shm of so many bytes that nobody else sees."""
    return "unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size={nbytes} tmpfs /dev/shm && exec "$@"', "sh"


MORE_THAN_THERE_IS = "more than there is"
WAYS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    MORE_THAN_THERE_IS: (("--client-window-nbytes", str(2**39), "--stage-2-max-num-seqs", "65536"), {}),
    "beyond the limit on files": ((), {"prefix": ("prlimit", f"--fsize={2**20}")}),
    "beyond /dev/shm": ((), {"prefix": _with_own_shm(2**20), "environment": NAMED}),
}
"""How an arena cannot be had: flags and options of the server."""


def no_arena(folder: Path, faults: Counter[str], ways: Iterable[str] = WAYS) -> list[str]:
    """An arena that the machine cannot give: the server says so and ends, nothing is left."""
    found = []
    for way in ways:
        flags, options = WAYS[way]
        if options and not _can_be_limited():
            print(f"  {way}: left out, this machine does not let such limits be set")
            continue
        with served(folder / way.replace("/", ""), *flags, **options) as server:
            faults["arena that cannot be allocated"] += 1
            found += [f"{way}: {what}" for what in _ends_without_an_arena(server)]
    return found


def _ends_without_an_arena(server: ServerProcess) -> list[str]:
    ended = eventually(lambda: server.process.poll() is not None, 20.0)
    found = [] if ended and server.process.returncode == 1 else [f"exit code {server.process.returncode}"]
    last = server.words.strip().splitlines()[-1]
    if not last.startswith("error: ") or NO_ROOM not in last:
        found.append(f"its last words are {last!r}")
    found += [f"left behind: {name}" for name in server.files()]
    return found + ([f"processes left: {server.pids()}"] if server.pids() else [])


# ---- /dev/shm ----


def full_shm(folder: Path, faults: Counter[str]) -> list[str]:
    """Named memory in a /dev/shm of its own that fills up: what needs more fails alone, a restart waits for room and tells so; a
    stage that gets none stays down with the reason, and the rest is served."""
    if not _can_be_limited():
        print("  left out: this machine lets nobody have a /dev/shm of his own")
        return []
    with served(folder, prefix=_with_own_shm(OWN_SHM_NBYTES), environment=NAMED) as server:
        server.wait_ready()
        shared = Path(f"/proc/{server.process.pid}/root/dev/shm")
        found = [f"a name stays in /dev/shm: {path}" for path in shared.iterdir()]
        with _plugged(shared) as plug:
            found += _requests_without_room(server, faults)
            server.kill_worker("speaker")
            faults["full /dev/shm"] += 1
            waits = eventually(lambda: _filled(plug) and NO_ROOM in str(server.health()[1]), checks.TRUTH_S)
            found += [] if waits else [f"/health says {server.health()}"]
        whole = eventually(lambda: server.health()[0] == 200, checks.WHOLE_S)
        found += [] if whole else [f"not whole again: {server.health()}"]
        asked = [Asked(0, ("alpha", "!huge@speaker", "bravo"), 1), Asked(1, (WIDE, "bravo"), 2)]
        heard = asyncio.run(all_of(server.port, asked, together=2))
        found += [what for one in heard for what in checks.answers(one, deaths=False)] + checks.held(server, 3)
        with _plugged(shared) as plug:
            server.kill_worker("prosody")
            faults["full /dev/shm"] += 1
            return found + _stays_down(server, plug)


def _requests_without_room(server: ServerProcess, faults: Counter[str]) -> list[str]:
    """What needs memory of its own gets one clear error, what does not is answered; again and again."""
    found: list[str] = []
    for turn in range(FULL_ROUNDS):
        faults["full /dev/shm"] += 1
        asked = [Asked(0, ("alpha", "!huge@speaker", "bravo"), turn), Asked(1, (WIDE, "bravo"), turn)]
        huge, small = asyncio.run(all_of(server.port, asked, together=2))
        found += checks.answers(small, deaths=False)
        if huge.error is None or NO_ROOM not in huge.error["message"]:
            found.append(f"a payload without room got {huge.status}: {huge.error}")
    return found + checks.held(server, 3)


def _stays_down(server: ServerProcess, plug: Path) -> list[str]:
    down = eventually(lambda: _filled(plug) and _state_of(server, "prosody") == "down", checks.WHOLE_S)
    found = [] if down and NO_ROOM in str(server.health()[1]) else [f"/health says {server.health()}"]
    asked = [Asked(0, ("alpha", "bravo"), 1), Asked(1, ("alpha", "bravo"), 2, modalities=("text",))]
    spoken, text = asyncio.run(all_of(server.port, asked, together=2))
    print(f"  a stage without room: {spoken.status} {spoken.error}")
    if spoken.status != 503 or spoken.error is None or NO_ROOM not in spoken.error["message"]:
        found.append(f"speech of a stage without memory got {spoken.status}: {spoken.error}")
    return found + checks.answers(text, deaths=False) + checks.held(server, 2)


def _state_of(server: ServerProcess, stage: str) -> str:
    return str(server.health()[1].get("stages", {}).get(stage))


def _can_be_limited() -> bool:
    if shutil.which("unshare") is None or shutil.which("prlimit") is None:
        return False
    return subprocess.run(["unshare", "-rm", "true"], check=False).returncode == 0


@contextmanager
def _plugged(folder: Path) -> Iterator[Path]:
    """The folder is full, until the end."""
    plug = folder / "plug"
    _filled(plug)
    try:
        yield plug
    finally:
        plug.unlink(missing_ok=True)


def _filled(plug: Path) -> bool:
    """True, once the folder is full to its last page. Nothing is to be filled where the server has ended."""
    with suppress(OSError), plug.open("ab", buffering=0) as file:
        while file.write(bytes(2**16)):
            pass
    return True


SCENES: dict[str, Scene] = {"flat": flat, "full_arena": full_arena, "no_arena": no_arena, "full_shm": full_shm}
