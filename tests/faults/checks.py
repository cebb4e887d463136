"""The nine invariants, as questions to answers and to a server. Every function returns violations in words; none is all well.

    1 one terminal state in bounded time      answers       6 recovery after kills, no orphan     Watch, campaign
    2 nothing is held, nothing is left        held, left    7 bytes match what was asked for      answers
    3 the result does not depend on others    answers       8 what is printed is what runs        (tests/cli/test_config.py)
    4 every field has an effect               answers       9 figures equal what clients counted  Tally
    5 /health is fast and truthful            Watch

The eighth and the refusals of the fourth are facts of a configuration and of a protocol, not of a moment: their tests stand with
the sources. Here the fourth means that seed, modalities, stream and format show in the bytes.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.clients import Asked, Heard
from tests.faults.family import RATE, expected
from tests.faults.faults import DIED, FAULTS
from tests.faults.server import ServerProcess, driver_of, eventually, killed
from tests.states import MEMORY, differences

WAV_HEADER_NBYTES = 44
QUIET_S = 10.0
POOL = "asyncio_"
LONG_RUN = 12
HEALTH_P99_S = 0.2
TRUTH_S = 5.0
WHOLE_S = 10.0
MOST_RSS_GROWTH_NBYTES = 8 * 2**20
STAGE_FAILED = "stage_failed"


# ---- answers: 1, 3, 4, 7 ----


def answers(heard: Heard, *, deaths: bool) -> list[str]:
    """What is wrong with one answer. `deaths`: workers died in this wave, so any request may have been hit."""
    where = f"request {heard.asked.number} ({heard.asked.fault or 'no fault'})"
    if heard.left:
        return [f"{where}: {what}" for what in heard.strange]
    return [f"{where}: {what}" for what in (*heard.strange, *_ending(heard, deaths))]


def _ending(heard: Heard, deaths: bool) -> list[str]:
    if heard.stalled:
        return [f"no end in {heard.took_s:.0f} s (status {heard.status}, {heard.nbytes} bytes)"]
    if not heard.status:
        return ["no answer at all"]
    if not heard.complete:
        return [f"the answer broke off after {heard.nbytes} bytes (status {heard.status})"]
    if heard.error is not None:
        return _error(heard, heard.error, deaths) + _content(heard, whole=False)
    fault = FAULTS.get(heard.asked.fault)
    wrong = [] if fault is None or fault.may_succeed or _is_avoided(heard) else ["it succeeded"]
    return wrong + _content(heard, whole=True)


def _is_avoided(heard: Heard) -> bool:
    """A fault of a stage that a request needs not: it never came to it."""
    fault = FAULTS[heard.asked.fault]
    return fault.heard and not heard.asked.hears


def _error(heard: Heard, error: dict[str, Any], deaths: bool) -> list[str]:
    fault = FAULTS.get(heard.asked.fault)
    code, message = error.get("code"), str(error.get("message"))
    if deaths and (code, DIED in message) == (STAGE_FAILED, True):
        return []
    if deaths and code == "stage_unavailable" and "the driver process was killed" in message:
        return []
    if fault is not None and code in fault.codes and fault.told in message:
        return []
    return [f"an error that nobody ordered: {code}: {message}"]


def _content(heard: Heard, *, whole: bool) -> list[str]:
    """The bytes themselves; of an answer that broke off what came must be the beginning of what was due."""
    asked = heard.asked
    words = asked.words
    text, sound = expected(words, asked.seed)
    reads = asked.modalities is None or "text" in asked.modalities
    got, wrong = _samples(heard, whole)
    parts: list[tuple[str, str | bytes, str | bytes]] = [
        ("text", heard.text, text if reads else ""),
        ("transcript", heard.transcript, text if asked.hears else ""),
        ("sound", got, sound if asked.hears else b""),
    ]
    for name, came, due in parts:
        matches = came == due if whole else due[: len(came)] == came
        if not matches:
            wrong.append(f"{name}: {len(came)} of {len(due)} came, or they differ ({str(came[:60])!r})")
    if whole and asked.hears and heard.usage is None:
        wrong.append("no usage")
    return wrong


def _samples(heard: Heard, whole: bool) -> tuple[bytes, list[str]]:
    """The samples without a header, and what is wrong with the header."""
    asked, sound = heard.asked, heard.sound
    form = asked.audio_format or ("pcm16" if asked.stream else "wav")
    if form != "wav" or not sound:
        return sound, []
    if sound[:4] != b"RIFF" or sound[8:12] != b"WAVE" or sound.count(b"RIFF") != 1:
        return sound, [f"no single WAV header: {sound[:16]!r}"]
    channels, rate, _, _, bits = struct.unpack("<HIIHH", sound[22:36])
    declared = struct.unpack("<I", sound[40:44])[0]
    rest = sound[WAV_HEADER_NBYTES:]
    wrong = [] if (channels, rate, bits) == (1, RATE, 16) else [f"WAV of {channels} x {bits} bits at {rate} Hz"]
    if declared != (0xFFFFFFFF if asked.stream else len(rest)):
        wrong.append(f"WAV declares {declared} bytes and has {len(rest)}")
    return rest, wrong


# ---- what a server holds: 2 ----

MACHINE = ("open", "queued", "refs_held", "slots", "timers", "control_calls")
RUNTIME = ("sinks", "controls", "metered", "outbox", "payloads", "segments")
STAGE = ("requests", "blocked", "answers", "outgoing_requests", "gathered_parts", "running", "waiting", "held", "mail")
"""Figures of the tables that are empty when nobody asks for anything, in the driver and in every stage."""


def held(server: ServerProcess, stages: int) -> list[str]:
    """What is still held `QUIET_S` after the last request. `stages`: as many arenas live, those of the living."""
    deadline = time.monotonic() + QUIET_S
    while (found := held_now(server, stages)) and time.monotonic() < deadline:
        time.sleep(0.25)
    return found


def held_now(server: ServerProcess, stages: int) -> list[str]:
    """The same at this moment."""
    state = server.debug_state()
    driver = driver_of(state)
    if "machine" not in driver:  # or there is none at this moment
        return [f"no state: {state}"]
    tables = [*_some_of(driver["machine"], MACHINE), *_some_of(driver["runtime"], RUNTIME)]
    found = [f"{name}: {value}" for name, value in tables if value]
    if state["server"]["requests"]:
        found.append(f"requests of callers: {state['server']['requests']}")
    if driver["runtime"]["arenas"] != stages:
        found.append(f"{driver['runtime']['arenas']} arenas of {stages} stages")
    for name, worker in state["workers"].items():
        for stage, figures in worker["stages"].items():
            found += [f"{name}, {stage}: {what} is {value}" for what, value in _some_of(figures, STAGE) if value]
            if figures.get("preparing"):  # only a stage with helpers has it
                found.append(f"{name}, {stage}: {figures['preparing']} requests are being prepared")
        for connector, figures in worker["connectors"].items():
            if figures["used_nbytes"]:
                found.append(f"{name}: {figures['used_nbytes']:g} bytes of {connector} are used")
    return found


def _some_of(figures: dict[str, Any], names: Sequence[str]) -> list[tuple[str, Any]]:
    return [(name, figures[name]) for name in names]


@dataclass(slots=True)
class Rest:
    """What a server holds when nobody asks for anything: `state` is what /debug/state showed at first, `memory` (bytes, by pid)
    what each worker had when it was first seen at rest. One that was started anew is another, with memory of its own."""

    state: dict[str, Any]
    memory: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, server: ServerProcess) -> Rest:
        rest = cls(server.debug_state())
        assert {"server", "workers"} <= rest.state.keys(), rest.state
        rest._meet(rest.state)
        return rest

    def differs(self, server: ServerProcess) -> list[str]:
        """What is not at rest as it was, `QUIET_S` after the last request."""
        deadline = time.monotonic() + QUIET_S
        while (found := self._differences(server.debug_state())) and time.monotonic() < deadline:
            time.sleep(0.5)
        return found

    def _meet(self, state: dict[str, Any]) -> None:
        for worker in state.get("workers", {}).values():
            self.memory.setdefault(worker["process"]["pid"], worker["process"][MEMORY])

    def _differences(self, now: dict[str, Any]) -> list[str]:
        self._meet(now)
        workers = {}
        for name, worker in self.state["workers"].items():
            pid = now.get("workers", {}).get(name, worker)["process"]["pid"]
            workers[name] = {**worker, "process": {**worker["process"], MEMORY: self.memory[pid]}}
        return differences(_settled({**self.state, "workers": workers}), _settled(now))


def _settled(state: dict[str, Any]) -> dict[str, Any]:
    """Without the threads of the event loop's pool, which grows to its bound when as many of its calls come together."""
    process = state.get("server", {}).get("process")
    if process is None:
        return state
    names = [name for name in process["thread_names"] if not name.startswith(POOL)]
    process = {**process, "thread_names": names, "threads": len(names)}
    return {**state, "server": {**state["server"], "process": process}}


def grows(sizes: Sequence[int]) -> list[str]:
    """Resident memory after every wave. It may come to its size in the first half (every thread of the C library keeps what its
    largest answer took) and is flat from then on. A short run is no more than that beginning, and bounded by `Rest`; the scene
    `flat` is long enough for every process."""
    if len(sizes) < LONG_RUN:
        return []
    half = len(sizes) // 2
    grown = max(sizes[half:]) - max(sizes[: half + 1])
    return [f"RSS grew by {grown >> 20} MiB in the second half"] if grown > MOST_RSS_GROWTH_NBYTES else []


# ---- /health: 5, 6 ----


@dataclass(frozen=True, slots=True)
class Look:
    at_s: float
    took_s: float
    status: int
    stages: dict[str, str]


@dataclass(slots=True)
class Watch:
    """Looks at /health all the time; `kills` are (time, stage) of workers that were killed from outside. What must be seen between
    a death and the restart, a tenth of a second later, is not left to the beat of the looks: whoever kills looks himself. How long
    /health takes is judged by the `beats` alone: hundreds of looks at one moment would hide slow ones at others."""

    server: ServerProcess
    looks: list[Look] = field(default_factory=list)
    beats: list[Look] = field(default_factory=list)
    kills: list[tuple[float, str]] = field(default_factory=list)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.beats.append(await asyncio.to_thread(self.look))
            await asyncio.sleep(0.05)

    def look(self) -> Look:
        """One look, in any thread."""
        began = time.monotonic()
        status, body = self.server.health()
        look = Look(began, time.monotonic() - began, status, body.get("stages", {}))
        self.looks.append(look)
        return look

    def kill(self, stage: str) -> bool:
        """kill -9 of the stage's worker, and looks without a pause until it is told, for TRUTH_S at most; False if there is none
        now. `stage` is the worker's process too."""
        pid = self.server.worker_pid(stage)
        at_s = time.monotonic()
        if killed(pid) is None:
            return False
        self.kills.append((at_s, stage))
        while self.look().stages.get(stage) == "ready" and time.monotonic() < at_s + TRUTH_S:
            pass
        return True

    def whole(self, timeout_s: float = WHOLE_S) -> bool:
        """Looks until all is well; False at the deadline."""
        return eventually(lambda: self.look().status == 200, timeout_s)

    @property
    def p99_s(self) -> float:
        return _p99([look.took_s for look in self.beats])

    def violations(self) -> list[str]:
        found = [f"/health gave no answer at {look.at_s:.1f}" for look in self.looks if not look.status]
        if self.p99_s > HEALTH_P99_S:
            found.append(f"/health p99 {self.p99_s * 1000:.0f} ms (load {os.getloadavg()[0]:.1f} of {os.cpu_count()})")
        for at_s, stage in self.kills:
            seen = [look.at_s for look in self.looks if look.at_s >= at_s and look.stages.get(stage) != "ready"]
            if not seen or min(seen) > at_s + TRUTH_S:
                found.append(f"/health did not tell of the death of {stage} within {TRUTH_S:g} s")
            if not any(
                look.status == 200 and look.at_s > at_s + look.took_s for look in self.looks if look.at_s > at_s
            ):
                found.append(f"the server was not whole again after the death of {stage}")
        return found


def _p99(took: Sequence[float]) -> float:
    return sorted(took)[int(0.99 * (len(took) - 1))] if took else 0.0


# ---- what is counted: 9 ----


@dataclass(slots=True)
class Tally:
    """What clients counted, beside the server's counters from `before` on. Whoever left knows no outcome of its own."""

    before: dict[str, float]
    outcomes: Counter[str] = field(default_factory=Counter)
    left: int = 0
    audio_s: float = 0.0
    completion_tokens: int = 0

    def add(self, heard: Heard) -> None:
        if heard.left:
            self.left += 1
        elif heard.ok:
            self.outcomes["finished"] += 1
            self.completion_tokens += (heard.usage or {}).get("completion_tokens", 0)
            self.audio_s += _pcm_seconds(heard.asked, heard.sound)
        else:
            self.outcomes["failed"] += 1

    def violations(self, after: dict[str, float]) -> list[str]:
        if not after:
            return ["/metrics gave no answer"]

        def grown(name: str) -> float:
            return after.get(name, 0.0) - self.before.get(name, 0.0)

        found, unknown = [], 0.0
        for outcome in ("finished", "failed", "aborted", "timed_out"):
            server, clients = grown(f"omnistage_requests_total{{outcome={outcome}}}"), self.outcomes[outcome]
            unknown += server - clients
            if not clients <= server <= clients + self.left:
                found.append(f"{outcome}: the server counted {server:g}, clients {clients} and {self.left} left")
        if unknown > self.left:
            found.append(f"{unknown:g} ends that no client saw, and {self.left} left")
        if any(value < 0 for value in after.values()):
            found.append("a negative figure")
        for what, name, clients_s in (
            ("s of audio", "omnistage_audio_seconds_total", self.audio_s),
            ("tokens", "omnistage_tokens_total{kind=completion", self.completion_tokens),
        ):
            made = sum(grown(series) for series in after if series.startswith(name) and "outcome=finished" in series)
            exact = not self.left
            if made < clients_s - 0.01 or (exact and made > clients_s + 0.01):
                found.append(f"the server counted {made:.2f} {what}, clients {clients_s:.2f} and {self.left} left")
        return found


def _pcm_seconds(asked: Asked, sound: bytes) -> float:
    form = asked.audio_format or ("pcm16" if asked.stream else "wav")
    header = WAV_HEADER_NBYTES if form == "wav" and sound else 0
    return (len(sound) - header) / 2 / RATE


def seconds_at_most(took: Sequence[float], limit_s: float, what: str) -> list[str]:
    worst = max(took, default=0.0)
    return [f"{what} took {worst:.1f} s, at most {limit_s:g}"] if worst > limit_s else []
