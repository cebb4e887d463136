"""Callers who leave, and a worker that is killed, while a pipeline of diffusers is called as a whole, through a server's port.

One server for all, of a tiny random Stable Diffusion 3; a call takes two pictures of the size that is asked for here. What is
drawn for nobody is seen by `picture_steps_total`: steps that pictures have taken for somebody.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.drawing import (
    asked,
    events,
    holds,
    leave_all,
    open_requests,
    picture_of,
    pictures,
    refused,
    sent,
    stage,
    steps,
)
from tests.faults.server import ServerProcess, eventually, killed
from tests.states import differences
from tests.tiny.diffusers_any import write_stable_diffusion_3

SIZE, TOKENS = "16x16", 4
OTHER = "24x8"  # is not drawn together with SIZE
LONG = {"prompt": "a cat", "size": SIZE, "steps": 200, "seed": 1}
STEPS = 60
LEAVERS = 40
BACK_S = 30.0  # whoever is forked imports the library anew: four seconds of a processor, which others may want too


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = write_stable_diffusion_3(tmp_path_factory.mktemp("model"))
    flags = ("--drain-timeout-s", "2", "--stage-0-max-num-batched-tokens", str(2 * TOKENS))
    made = ServerProcess(tmp_path_factory.mktemp("whole"), *flags, model=str(folder))
    try:
        made.wait_ready()
        assert made.wait_for_zygote()
        for size in (SIZE, OTHER):  # threads and allocators come to their size
            asked(made, {**LONG, "size": size, "n": 2, "steps": 2})
        yield made
        assert made.stop() == 0
    finally:
        left = made.sweep()
        made.process.wait(10)
    assert left == []


@pytest.mark.parametrize("more", [{"stream": True}, {}], ids=["streamed", "whole"])
def test_a_call_that_nobody_waits_for_ends_within_a_step(server: ServerProcess, more: dict[str, Any]) -> None:
    """Fault: two hundred steps for nobody, and the one who comes next waits for them; who waited behind them and left is drawn."""
    before = steps(server)
    with sent(server, {**LONG, **more}), sent(server, {**LONG, "size": OTHER}):
        assert eventually(lambda: open_requests(server) == 2, 10.0)
        assert holds(server, lambda now: now["picture_steps_total"] >= before + 2)
        seen = steps(server)
    assert seen < before + 190
    assert eventually(lambda: open_requests(server) == 0, 5.0)
    assert holds(server, lambda now: now["running"] == now["waiting"] == 0)
    after = steps(server)
    asked(server, {**LONG, "size": OTHER, "steps": 3})
    assert steps(server) == after + 3 < before + 200


def test_who_leaves_a_call_takes_nobody_along(server: ServerProcess) -> None:
    """Fault: the others of a call lose their pictures, or get others, when one of them leaves. Two come while another size is
    drawn, and share the next call."""
    stays = {**LONG, "prompt": "a dog", "steps": STEPS, "seed": 5}
    wanted = pictures(asked(server, stays))
    before = steps(server)
    with ThreadPoolExecutor(1) as threads, sent(server, {**LONG, "size": OTHER, "steps": 60}):
        assert holds(server, lambda now: now["picture_steps_total"] > before)
        with sent(server, {**LONG, "steps": STEPS}):
            found = threads.submit(asked, server, stays)
            assert holds(server, lambda now: now["picture_steps_total"] >= before + 60 + 2)
        assert np.abs(pictures(found.result()).astype(int) - wanted).max() <= 1
    assert before + 60 + STEPS < steps(server) <= before + 60 + 2 * STEPS


def least(threads: Path, for_s: float = 1.0) -> int:
    """Of the looks at them: one of a call that was given up may go only now."""
    counts = [len(list(threads.iterdir()))]
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        time.sleep(0.05)
        counts.append(len(list(threads.iterdir())))
    return min(counts)


def test_many_who_leave_leave_nothing(server: ServerProcess) -> None:
    """Fault: a thread of a call, a place, a connection or a reference of a caller who has gone stays in any process."""
    bodies = [
        {**LONG, "seed": place, "steps": 1 + place % 3, "n": 1 + place % 2, "stream": place % 3 > 0}
        | ({"size": OTHER} if place % 5 == 0 else {"guidance_scale": 0.0} if place % 4 == 0 else {})
        for place in range(LEAVERS)
    ]
    threads = Path(f"/proc/{server.worker_pid('painter')}/task")
    before, had = server.debug_state(), least(threads)
    outcomes = asyncio.run(leave_all(server.port, bodies, random.Random(5)))

    def other() -> list[str]:
        """But for threads of the painter, of which there may not be more than the least that were seen at rest."""
        found = differences(before, server.debug_state())
        return [one for one in found if "painter/0.process.threads" not in one]

    assert eventually(lambda: not other(), 10.0), other()
    assert eventually(lambda: len(list(threads.iterdir())) <= had, 10.0)
    assert min(outcomes.count(outcome) for outcome in ("finished", "half")) >= LEAVERS // 20, outcomes


@pytest.mark.parametrize(
    ("body", "field", "accepted"),
    [
        ({"size": "100000x100000"}, "size", "[1, 16384]"),
        ({"size": "60x52"}, "size", "nearest are 48 or 56"),
        ({"size": "128x32"}, "size", "at most 64"),
        ({"steps": 201}, "steps", "at most 200"),
        ({"prompt": "x" * 100_000}, "prompt", "of 100000 characters"),
        ({"true_cfg_scale": 0.0}, "true_cfg_scale", "StableDiffusion3Pipeline takes no true_cfg_scale"),
        ({"stream": True, "partial_images": 1}, "partial_images", "shows no unfinished pictures"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_wrong_is_refused_before_a_call(
    server: ServerProcess, body: dict[str, Any], field: str, accepted: str
) -> None:
    """Fault: a step for what cannot be; a 500, or a 200 and an event."""
    before = steps(server)
    status, error = refused(server, {**LONG, **body})
    assert (status, error["param"]) == (400, field) and accepted in error["message"], error
    assert steps(server) == before


def test_a_killed_worker_draws_the_same_again_or_tells_of_it_once(server: ServerProcess) -> None:
    """Fault: who has had no picture gets an error, or another picture than without a death; who has had one gets two ends; the
    server stays ill. When it dies a call draws the third picture of one who has had some, and one of somebody else; two wait."""
    asks = [{**LONG, "prompt": "a dog", "steps": STEPS, "seed": 2}, {**LONG, "size": OTHER, "steps": 4}]
    wanted = [pictures(asked(server, ask)) for ask in asks]
    before = steps(server)
    had_one = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        shown = threads.submit(events, server, {**LONG, "n": 3, "steps": STEPS, "stream": True}, had_one)
        assert holds(server, lambda now: now["picture_steps_total"] > before)
        drawn = [threads.submit(asked, server, ask) for ask in asks]
        told = threads.submit(events, server, {**asks[1], "stream": True})
        assert eventually(lambda: open_requests(server) == 4, 10.0)
        worker = server.worker_pid("painter")
        assert had_one.wait(30.0) and killed(worker) is not None
        assert eventually(lambda: server.health()[0] != 200, 2.0)
        assert eventually(lambda: server.health()[0] == 200, BACK_S)
        found = [pictures(one.result()) for one in drawn]
        found.append(np.stack([picture_of(event) for event in told.result()]))
    for one, other in zip(found, [*wanted, wanted[1]], strict=True):
        assert np.abs(one.astype(int) - other).max() <= 1
    *had, last = shown.result()
    assert {event["type"] for event in had} == {"image_generation.completed"}
    assert [event["index"] for event in had] in ([0], [0, 1]) and "painter" in last["error"]["message"]
    assert open_requests(server) == 0 and stage(server)["waiting"] == 0
