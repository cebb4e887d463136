"""`make faults`: 1,000 requests on fast fakes, the particular scenes, 60 requests on the built-in model; SEED= repeats a run.

    python -m tests.faults.campaign [--seed N] [--requests N] [--only waves,thread,scenes,demo]

Ends with 1 if anything was violated, 2 if the built-in model's weights are absent. Prints one line per wave and scene.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import yaml

from tests.faults import checks, demo, memory, scenes
from tests.faults.clients import Heard, all_of
from tests.faults.faults import FAULTS, GENTLE, OFTEN, VIOLENT, asked_with
from tests.faults.server import OTHERS, ServerProcess

STAGES = ("thinker", "prosody", "speaker")
STEP_TIMEOUT_S = 2.5
REQUESTS = 1000
IN_THREAD = 150
"""Requests to a server whose driver is a thread of it."""
FAULTY_SHARE = 0.4
# Timeouts are short because hung steps and stalled callers are among the faults, and each would take as long; all else is the
# product's own. Whoever reads slowly does so for four seconds at most, and nobody waits for more than a restart.
DEPLOYED = {
    "client_stall_s": 20.0,
    "request_timeout_s": 30.0,
    "drain_timeout_s": 5.0,
    "stages": [
        {"stage_id": stage, "max_num_seqs": 8, "step_timeout_s": STEP_TIMEOUT_S, "first_step_timeout_s": STEP_TIMEOUT_S}
        for stage in range(3)
    ],
}


@dataclass(slots=True)
class Report:
    """What a campaign has seen so far."""

    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def violated(self, where: str, found: list[str]) -> None:
        for what in found:
            self.violations.append(f"{where}: {what}")
            print(f"VIOLATION {where}: {what}", flush=True)

    def saw(self, heard: list[Heard]) -> None:
        self.requests += len(heard)
        for one in heard:
            if one.asked.fault:
                self.faults[one.asked.fault] += 1
            self.outcomes["left" if one.left else "ok" if one.ok else "error"] += 1


def deploy_file(folder: Path, **changes: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "deploy.yaml"
    path.write_text(yaml.safe_dump({**DEPLOYED, **changes}))
    return str(path)


# ---- waves ----


async def wave(server: ServerProcess, random: Random, first: int, size: int, *, violent: bool, report: Report) -> None:
    """`size` requests at random concurrency; in a violent wave workers die, by order and by kill -9, and other processes too."""
    kinds = [random.choice((*GENTLE, *OFTEN)) if random.random() < FAULTY_SHARE else "" for _ in range(size)]
    if violent:
        for place in random.sample(range(size), 2):
            kinds[place] = random.choice(VIOLENT)
    asked = [asked_with(random, first + index, kind) for index, kind in enumerate(kinds)]
    together = random.choice([2, 4, 8, 16, 24])
    tally = checks.Tally(server.counters())
    watch = checks.Watch(server)
    tasks = [asyncio.create_task(watch.run())]
    if violent:
        tasks.append(asyncio.create_task(_kill_some(server, watch, random, report)))
    try:
        heard = await all_of(server.port, asked, together=together)
        if violent:
            await tasks.pop()
    finally:
        whole = await asyncio.to_thread(watch.whole)
        for task in tasks:
            task.cancel()
    where = f"wave at {first}"
    report.saw(heard)
    for one in heard:
        tally.add(one)
        report.violated(where, checks.answers(one, deaths=violent))
    report.violated(where, watch.violations() + ([] if whole else ["not whole again in time"]))
    report.violated(where, await asyncio.to_thread(checks.held, server, len(STAGES)))
    report.violated(where, tally.violations(server.counters()))
    report.violated(where, [f"left behind: {name}" for name in server.files()])
    print(
        f"{where}: {size} requests, {together} together, {'violent' if violent else 'gentle'}, slowest"
        f" {max(one.took_s for one in heard):.1f} s, /health p99 {watch.p99_s * 1000:.0f} ms, RSS {rss(server)}",
        flush=True,
    )


async def _kill_some(server: ServerProcess, watch: checks.Watch, random: Random, report: Report) -> None:
    """One or two workers and, where there are any, one of the other processes, in the middle of the work."""
    for _ in range(random.randint(1, 2)):
        await asyncio.sleep(random.uniform(0.1, 1.0))
        for kind in OTHERS:
            if random.random() < 0.5 and await asyncio.to_thread(server.kill_some_other, kind) is not None:
                report.faults[f"kill -9 of a {kind}"] += 1
        stage = random.choice(STAGES)
        if await asyncio.to_thread(watch.kill, stage):
            report.faults["kill -9 of a worker"] += 1
        await asyncio.sleep(2.0)


def rss(server: ServerProcess) -> str:
    sizes = [nbytes >> 20 for _, nbytes in sorted(server.rss_nbytes().items())]
    return "+".join(map(str, sizes)) + " MiB"


def waves(random: Random, folder: Path, requests: int, report: Report, *, first: int = 0, **deployed: object) -> None:
    """Waves until `requests` were asked, on one server; memory, descriptors and threads stay what they were."""
    deploy = deploy_file(folder, **deployed)
    server = ServerProcess(folder, "--deploy-config", deploy, environment={"OMNISTAGE_FAULTS_MORTAL": "1"})
    try:
        server.wait_ready()
        asyncio.run(_warm_up(server))
        server.wait_for_zygote()
        before = server.descriptors(), server.threads()
        rest = checks.Rest.of(server)
        sizes = [server.rss_nbytes()[server.process.pid]]
        asked, count = 0, 0
        while asked < requests:
            size = min(random.randint(25, 60), requests - asked)
            violent = size > 8 and count % 5 in (1, 3)
            asyncio.run(wave(server, random, first + asked, size, violent=violent, report=report))
            report.violated(f"wave at {first + asked}", rest.differs(server))
            sizes.append(server.rss_nbytes()[server.process.pid])
            asked, count = asked + size, count + 1
        after = server.descriptors(), server.threads()
        print(f"server: RSS {sizes[0] >> 20} -> {sizes[-1] >> 20} MiB, descriptors {before[0]} -> {after[0]},"
              f" threads {before[1]} -> {after[1]}")  # fmt: skip
        report.violated("waves", checks.grows(sizes))
        if after[0] > before[0] + 4:
            report.violated("waves", [f"descriptors grew from {before[0]} to {after[0]}"])
        if server.stop() != 0:
            report.violated("waves", [f"exit code {server.process.returncode}: {server.words[-500:]}"])
        report.violated("waves", [f"left behind: {name}" for name in server.files()])
    finally:
        left = server.sweep()
        server.process.wait(10)
    report.violated("waves", [f"processes left: {left}"] if left else [])


async def _warm_up(server: ServerProcess) -> None:
    """Threads, pools and caches come to their size before anything is measured."""
    random = Random(1)
    await all_of(server.port, [asked_with(random, number, "") for number in range(60)], together=16)


# ---- the whole ----


def run(name: str, part: Callable[[], None], report: Report) -> None:
    """A part that breaks off is a violation, and the others are run all the same."""
    began = time.monotonic()
    print(f"== {name}", flush=True)
    try:
        part()
    except Exception as error:  # noqa: BLE001 - whatever ends a part is told at the end
        traceback.print_exc()
        report.violated(name, [f"broke off: {type(error).__name__}: {error}"])
    print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)


def _scene(name: str, scene: scenes.Scene, folder: Path, report: Report) -> None:
    report.violated(name, scene(folder, report.faults))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--only", default="waves,thread,scenes,demo")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # not without its servers
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"SEED={seed}", flush=True)
    parts, random, report, began = options.only.split(","), Random(seed), Report(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="omnistage-faults-") as named:
        folder = Path(named)
        if "waves" in parts:
            run("waves", lambda: waves(random, folder / "waves", options.requests, report), report)
        for name, scene in {**scenes.SCENES, **memory.SCENES}.items():
            if "scenes" in parts or name in parts:
                run(name, partial(_scene, name, scene, folder / name, report), report)
        if "thread" in parts:
            first = options.requests if "waves" in parts else 0
            run(
                "thread",
                lambda: waves(random, folder / "thread", IN_THREAD, report, first=first, engine_process=False),
                report,
            )
        if "demo" in parts:
            run("demo", lambda: demo.campaign(random, folder / "demo", report), report)
    print(f"SEED={seed}: {report.requests} requests ({dict(report.outcomes)}) in {time.monotonic() - began:.0f} s")
    kinds = [*(name for name in FAULTS), *(name for name in report.faults if name not in FAULTS)]
    print("faults: " + ", ".join(f"{name} {report.faults[name]}" for name in kinds))
    print(f"violations: {len(report.violations)}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
