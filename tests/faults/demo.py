"""The built-in model under faults: 60 short requests, a third for text alone, with neighbours, deaths and callers that go.

The same question with the same seed has one answer, whatever else goes on: texts are equal, and speech is as long as it was.
Needs the weights that `omnistage fetch demo` brings.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from tests.faults import checks
from tests.faults.clients import Asked, Heard, all_of
from tests.faults.faults import DIED
from tests.faults.server import ServerProcess

REQUESTS = 60
MAX_TOKENS = 12
TOGETHER = 6
TIMEOUT_S = 180.0  # six at once on two cores, beside whatever else they do
QUESTIONS = (
    "Say hello to me.",
    "Name a colour.",
    "What is the sea?",
    "Count to three.",
)
STAGES = ("thinker", "speaker", "painter")
DEATHS = ("thinker", "speaker")


class Report(Protocol):
    faults: Counter[str]

    def violated(self, where: str, found: list[str]) -> None: ...

    def saw(self, heard: list[Heard]) -> None: ...


@dataclass(slots=True)
class Answers:
    """What was heard for each question and seed so far: text, and bytes of sound."""

    known: dict[tuple[tuple[str, ...], int, bool], tuple[str, int]] = field(default_factory=dict)

    def differ(self, heard: Heard) -> list[str]:
        asked = heard.asked
        said = heard.transcript or heard.text
        header = checks.WAV_HEADER_NBYTES if not asked.stream and asked.hears else 0
        found = self.known.setdefault((asked.words, asked.seed, asked.hears), (said, len(heard.sound) - header))
        return [] if found == (said, len(heard.sound) - header) else [f"request {asked.number} was {found} before"]


def campaign(random: Random, folder: Path, report: Report) -> None:
    server = ServerProcess(folder, "--drain-timeout-s", "5", model="demo")
    try:
        server.wait_ready(120.0)
        asyncio.run(_warm_up(server))
        server.wait_for_zygote()
        rest, answers = checks.Rest.of(server), Answers()
        for wave in range(4):
            asked = [_asked(random, wave * 15 + index) for index in range(REQUESTS // 4)]
            stage = DEATHS[wave // 2] if wave % 2 else None
            asyncio.run(_wave(server, asked, stage, answers, report))
            report.violated(f"demo wave {wave}", rest.differs(server))
        code = server.stop()
        report.violated("demo", [] if code == 0 else [f"exit code {code}: {server.words[-500:]}"])
        report.violated("demo", [f"left behind: {name}" for name in server.files()])
    finally:
        left = server.sweep()
        server.process.wait(10)
    report.violated("demo", [f"processes left: {left}"] if left else [])


async def _warm_up(server: ServerProcess) -> None:
    """As many at once as in a wave: what a model keeps is what its largest batch took."""
    random = Random(1)
    asked = [_asked(random, number) for number in range(REQUESTS // 4)]
    await all_of(server.port, asked, together=TOGETHER, model="demo", timeout_s=TIMEOUT_S)


def _asked(random: Random, number: int) -> Asked:
    fault = random.choice(["", "", "", "leave", "slow"])
    return Asked(
        number=number,
        words=tuple(random.choice(QUESTIONS).split()),
        seed=random.choice([0, 7]),
        modalities=("text",) if number % 3 == 0 else ("text", "audio"),
        stream=random.random() < 0.6,
        fault=fault,
        leaves_after_s=random.choice([0.0, random.uniform(0, 0.005), random.uniform(0, 1.5)])
        if fault == "leave"
        else None,
        slow_for_s=2.0 if fault == "slow" else None,
        fields={"max_tokens": random.choice([6, MAX_TOKENS]) if number % 2 else MAX_TOKENS, "temperature": 0.7},
    )


async def _wave(server: ServerProcess, asked: list[Asked], dying: str | None, answers: Answers, report: Report) -> None:
    tally, watch = checks.Tally(server.counters()), checks.Watch(server)
    watching = asyncio.create_task(watch.run())
    asking = asyncio.create_task(all_of(server.port, asked, together=TOGETHER, model="demo", timeout_s=TIMEOUT_S))
    try:
        if dying is not None:
            await asyncio.sleep(2.0)
            if await asyncio.to_thread(watch.kill, dying):
                report.faults["kill -9 of a worker"] += 1
        heard = await asking
        whole = await asyncio.to_thread(watch.whole, 30.0)
    finally:
        watching.cancel()
    where = f"demo wave at {asked[0].number}"
    report.saw(heard)
    for one in heard:
        tally.add(one)
        report.violated(where, _wrong(one, dying is not None) + (answers.differ(one) if _is_long_and_ok(one) else []))
    report.violated(where, watch.violations() + ([] if whole else ["not whole again in 30 s"]))
    report.violated(where, await asyncio.to_thread(checks.held, server, len(STAGES)))
    report.violated(where, tally.violations(server.counters()))
    sizes = "+".join(str(nbytes >> 20) for nbytes in server.rss_nbytes().values())
    print(
        f"{where}: slowest {max(one.took_s for one in heard):.1f} s, /health p99 {watch.p99_s * 1000:.0f} ms,"
        f" RSS {sizes} MiB",
        flush=True,
    )


def _is_long_and_ok(heard: Heard) -> bool:
    return heard.ok and heard.asked.fields["max_tokens"] == MAX_TOKENS


def _wrong(heard: Heard, deaths: bool) -> list[str]:
    where = f"request {heard.asked.number}"
    if heard.left:
        return [f"{where}: {what}" for what in heard.strange]
    if heard.error is not None:
        expected = deaths and DIED in str(heard.error.get("message"))
        return [] if expected else [f"{where}: {heard.error}"]
    found = [f"{where}: {what}" for what in heard.strange]
    if not heard.ok or not heard.text:
        found.append(f"{where}: status {heard.status}, complete {heard.complete}, text {heard.text!r}")
    speakable = any(sign.isalnum() for sign in heard.text + heard.transcript)  # nobody can say an emoji
    header = checks.WAV_HEADER_NBYTES if heard.asked.hears and not heard.asked.stream else 0
    if (heard.asked.hears and speakable) != (len(heard.sound) > header) or len(heard.sound) % 2:
        found.append(f"{where}: {len(heard.sound)} bytes of sound for {heard.text!r} {heard.usage} {heard.asked}")
    if heard.usage is None or not 0 < heard.usage["completion_tokens"] <= heard.asked.fields["max_tokens"]:
        found.append(f"{where}: usage {heard.usage}")
    return found
