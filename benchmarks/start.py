"""How fast the built-in model is there, and what it costs when nobody asks it anything."""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.rows import Benchmark, Row
from benchmarks.servers import Server, serving
from omnistage.config.env import cache_dir
from omnistage.modeling.kernels.build import build

MODEL = "demo"
HEALTH_REPEATS = 5
TOKEN_REPEATS = 3
RESTART_REPEATS = 3
KERNELS = "kernels"
"""Below the cache."""
COMPILED_S = 180.0
SETTLE_S = 15.0
"""For the zygote, which is made in the background once everything has been ready for a while."""
IDLE_S = 60.0
QUESTION = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "modalities": ["text", "audio"],
    "max_tokens": 8,
    "temperature": 0,
    "stream": True,
}


def first_health() -> list[Row]:
    times, cpu = [], 0.0
    for _ in range(HEALTH_REPEATS):
        with serving(MODEL) as server:
            times.append(server.wait((200, 503)))
            cpu += server.cpu_s()
    workload = f"omnistage serve {MODEL}: exec to the first HTTP answer, median of {HEALTH_REPEATS}"
    return [Row("start_health_s", statistics.median(times), "<= 0.8", "s", workload, cpu_s_ours=cpu / HEALTH_REPEATS)]


def first_token() -> list[Row]:
    times, cpu = [], 0.0
    for _ in range(TOKEN_REPEATS):
        with serving(MODEL) as server:
            server.wait((200, 503))
            times.append(_seconds_to_first_token(server))
            cpu += server.cpu_s()
    workload = f"omnistage serve {MODEL}, all stages: exec to the first streamed token, median of {TOKEN_REPEATS}"
    return [Row("start_first_token_s", statistics.median(times), "<= 7", "s", workload, cpu_s_ours=cpu / TOKEN_REPEATS)]


def first_start() -> list[Row]:
    """Beside a start that finds the kernels compiled: one that finds none, and compiles them meanwhile. Each has a cache of its
    own with everything else in it."""
    build()
    times: list[tuple[float, float]] = []
    for _ in range(TOKEN_REPEATS):
        with tempfile.TemporaryDirectory() as bare:
            for entry in cache_dir().iterdir():
                if entry.name != KERNELS:
                    (Path(bare) / entry.name).symlink_to(entry)
            pair = []
            for change in ({"OMNISTAGE_CACHE": bare}, {}):
                with serving(MODEL, environment={**os.environ, **change}) as server:
                    server.wait((200, 503))
                    pair.append(_seconds_to_first_token(server))
                    if change:
                        _wait_for_the_compiler(Path(bare) / KERNELS)
            times.append((pair[0], pair[1]))
    return [
        Row(
            "first_start_vs_later",
            statistics.median(first for first, _ in times),
            ">= 0.9",
            "s",
            f"omnistage serve {MODEL}, exec to the first streamed token, while the kernels are compiled; {TOKEN_REPEATS} pairs",
            peer=statistics.median(later for _, later in times),
            peer_version="the same with compiled kernels",
            ratio=statistics.median(later / first for first, later in times),
        )
    ]


def _wait_for_the_compiler(folder: Path) -> None:
    """So that it does not go on beside the next measurement."""
    deadline = time.monotonic() + COMPILED_S
    while not list(folder.glob("*.so")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no kernels in {folder} after {COMPILED_S:g} s")
        time.sleep(0.1)


def _seconds_to_first_token(server: Server) -> float:
    while (answer := server.ask("POST", "/v1/chat/completions", QUESTION)).status == 503:
        answer.read()
        time.sleep(0.02)
    for line in answer:
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:]).get("choices") or [{}]
            if choices[0].get("delta", {}).get("content"):
                return time.monotonic() - server.started
    raise RuntimeError(f"no token came: status {answer.status}")


def restart() -> list[Row]:
    """One death a server: after the second in a minute it waits longer before it starts a worker again."""
    times, cpu = [], 0.0
    for _ in range(RESTART_REPEATS):
        with serving(MODEL, "--debug") as server:
            server.wait((200,), pause_s=0.05)
            time.sleep(SETTLE_S)
            state = json.loads(server.ask("GET", "/debug/state").read())
            before = server.cpu_s()
            killed_at = time.monotonic()
            os.kill(state["workers"]["thinker/0"]["process"]["pid"], signal.SIGKILL)
            server.wait((503,))
            server.wait((200,))
            times.append(time.monotonic() - killed_at)
            cpu += server.cpu_s() - before
    workload = f"omnistage serve {MODEL}: kill -9 of the thinker's worker to /health 200, median of {RESTART_REPEATS}"
    return [Row("restart_s", statistics.median(times), "<= 2", "s", workload, cpu_s_ours=cpu / RESTART_REPEATS)]


def idle() -> list[Row]:
    with serving(MODEL) as server:
        server.wait((200,), pause_s=0.05)
        server.ask("POST", "/v1/chat/completions", QUESTION).read()
        time.sleep(SETTLE_S)
        before, begun = server.cpu_s(), time.monotonic()
        time.sleep(IDLE_S)
        spent, elapsed = server.cpu_s() - before, time.monotonic() - begun
        workload = f"omnistage serve {MODEL}: {len(server.processes())} processes without a request for {IDLE_S:.0f} s"
    return [Row("idle_cpu_percent", 100 * spent / elapsed, "<= 0.3", "% of a core", workload, cpu_s_ours=spent)]


BENCHMARKS = (
    Benchmark(("start_health_s",), first_health),
    Benchmark(("start_first_token_s",), first_token),
    Benchmark(("first_start_vs_later",), first_start, quick=False),
    Benchmark(("restart_s",), restart),
    Benchmark(("idle_cpu_percent",), idle),
)
