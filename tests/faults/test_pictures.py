"""Callers that leave while their pictures are drawn, and a painter that is killed, through a server's port.

One server for all, of the painter that ships. What is drawn for nobody is seen by counts of the stage: `picture_steps_total`, steps
that pictures have taken, and of what was encoded and prepared. A step here is one of ten pictures with guidance, 0.1 s and more.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omnistage
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
from tests.faults.server import ServerProcess, eventually
from tests.states import differences

FOLDER = Path(omnistage.__file__).parent / "models" / "demo" / "painter"
SLOTS, LOOKAHEAD = 3, 2
LONG = {"prompt": "red heart", "n": 10, "steps": 50, "true_cfg_scale": 2.0, "negative_prompt": "blue", "seed": 1}
PICTURES = 10
BACK_S = 10.0
LEAVERS = 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ("--drain-timeout-s", "2", "--stage-0-max-num-seqs", str(SLOTS))
    made = ServerProcess(tmp_path_factory.mktemp("pictures"), *flags, model=str(FOLDER))
    try:
        made.wait_ready()
        assert made.wait_for_zygote()
        for _ in range(2):  # threads and allocators come to their size
            asked(made, {**LONG, "steps": 2})
        yield made
        assert made.stop() == 0
    finally:
        left = made.sweep()
        made.process.wait(10)
    assert left == []


@pytest.mark.parametrize("more", [{"stream": True, "partial_images": 3}, {}], ids=["streamed", "whole"])
def test_a_socket_that_closes_ends_the_drawing_within_a_step(server: ServerProcess, more: dict[str, Any]) -> None:
    """Fault: fifty steps for nobody; the one who comes next waits for them. The step that is running goes to its end, and one more
    may have begun between the count and the close."""
    before = steps(server)
    with sent(server, {**LONG, **more}):
        assert holds(server, lambda now: now["picture_steps_total"] >= before + 3 * PICTURES)
        seen = steps(server)
    assert seen < before + 40 * PICTURES
    assert eventually(lambda: open_requests(server) == 0, 2.0)
    assert holds(server, lambda now: now["running"] == 0)
    after = steps(server)
    assert after <= seen + 2 * PICTURES
    asked(server, {**LONG, "n": 1, "steps": 3})
    assert steps(server) == after + 3


def test_who_leaves_while_waiting_is_never_begun(server: ServerProcess) -> None:
    """Fault: a request whose caller has gone gets its slot, or its turn to be prepared, all the same. Three have the slots, two
    wait in the stage, four with the machine. Nobody has asked for their prompts before, so who is begun is encoded first."""
    before = stage(server)
    drawing = [sent(server, {**LONG, "seed": seed}) for seed in range(SLOTS)]
    assert holds(server, lambda now: now["running"] == SLOTS)
    waiting = [sent(server, {**LONG, "n": 1, "prompt": f"yellow banana {place}"}) for place in range(LOOKAHEAD + 4)]
    assert eventually(lambda: open_requests(server) == SLOTS + len(waiting), 10.0)
    assert holds(server, lambda now: now["waiting"] == LOOKAHEAD)
    for connection in waiting:
        connection.close()
    assert eventually(lambda: open_requests(server) == SLOTS, 2.0), "who draws was to be in the way until here"
    for connection in drawing:
        connection.close()
    assert eventually(lambda: open_requests(server) == 0, 2.0)
    assert holds(server, lambda now: now["running"] == now["waiting"] == 0)
    after = stage(server)
    assert after["condition_misses_total"] == before["condition_misses_total"]
    assert (after["picture_steps_total"] - before["picture_steps_total"]) % PICTURES == 0
    assert after["prepared_misses_total"] - before["prepared_misses_total"] <= LOOKAHEAD + SLOTS


@pytest.mark.parametrize(
    ("body", "field", "accepted"),
    [
        ({"size": "100000x100000"}, "size", "[1, 16384]"),
        ({"size": "16384x16384"}, "size", "at most 4194304 pixels"),
        ({"size": "700x481"}, "size", "nearest are 480 or 496"),
        ({"steps": 0}, "steps", "[1, 1000]"),
        ({"steps": -1}, "steps", "[1, 1000]"),
        ({"steps": 10**9}, "steps", "[1, 1000]"),
        ({"steps": 1000}, "steps", "at most 200"),
        ({"n": 0}, "n", "[1, 10]"),
        ({"n": 11}, "n", "[1, 10]"),
        ({"seed": 2**70}, "seed", "[0, 18446744073709551615]"),
        ({"prompt": "x" * 100_000}, "prompt", "of 100000 characters"),
        ({"negative_prompt": "x" * 100_000}, "negative_prompt", "of 100000 characters"),
        ({"stream": True, "steps": 1000}, "steps", "at most 200"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_wrong_is_refused_before_anything_is_begun(
    server: ServerProcess, body: dict[str, Any], field: str, accepted: str
) -> None:
    """Fault: gigapixels are allocated, a step or a prompt computed, and then it is refused; a 500, or a 200 and an event."""
    counts = ("picture_steps_total", "condition_hits_total", "condition_misses_total")
    before = stage(server)
    status, error = refused(server, {"prompt": "red heart", **body})
    assert (status, error["param"]) == (400, field) and accepted in error["message"], error
    assert [stage(server)[name] for name in counts] == [before[name] for name in counts]


def test_the_largest_seed_goes_on_with_the_first(server: ServerProcess) -> None:
    """Fault: a seed beyond 64 bits fails the second of two pictures, or both are of one seed."""
    last, first = (pictures(asked(server, {**LONG, "n": 1, "steps": 2, "seed": seed})) for seed in (2**64 - 1, 0))
    both = pictures(asked(server, {**LONG, "n": 2, "steps": 2, "seed": 2**64 - 1}))
    assert np.abs(both.astype(int) - np.concatenate([last, first])).max() <= 1


def body_of(place: int) -> dict[str, Any]:
    return {
        "prompt": "red heart",
        "n": 1 if place % 7 else 3,
        "seed": place,
        "steps": 1 + place % 3,
        "true_cfg_scale": 1.0 if place % 4 else 2.0,
        **({"stream": True, "partial_images": place % 4} if place % 3 else {}),
    }


def test_two_hundred_who_leave_leave_nothing(server: ServerProcess) -> None:
    """Fault: a slot, a connection, a picture for the decoder, or a reference of a caller who has gone stays in any process."""
    before = server.debug_state()
    outcomes = asyncio.run(leave_all(server.port, [body_of(place) for place in range(LEAVERS)], random.Random(5)))
    assert eventually(lambda: not differences(before, server.debug_state()), 10.0), differences(
        before, server.debug_state()
    )
    assert min(outcomes.count(outcome) for outcome in ("finished", "left", "half")) >= LEAVERS // 20, outcomes


def test_a_killed_painter_draws_the_same_again_or_tells_of_it_once(server: ServerProcess) -> None:
    """Fault: who waits for pictures, whole or streamed, and has had none gets an error, or others than without a death; who has had
    one on its way gets two ends; the server stays ill. Three have slots when it dies, and two wait."""
    asks = [{**LONG, "n": 4, "seed": 3}, {**LONG, "n": 1, "steps": 8, "seed": 30}]
    wanted = [pictures(asked(server, ask)) for ask in asks]
    had_one = threading.Event()
    with ThreadPoolExecutor(5) as threads:
        shown = threads.submit(events, server, {**LONG, "stream": True, "partial_images": 3}, had_one)
        assert holds(server, lambda now: now["running"] == 1)
        drawn = [threads.submit(asked, server, ask) for ask in asks]
        told = [threads.submit(events, server, {**ask, "stream": True}) for ask in asks]
        assert holds(server, lambda now: (now["running"], now["waiting"]) == (SLOTS, LOOKAHEAD))
        assert had_one.wait(20.0)
        assert server.kill_worker("painter") is not None
        assert eventually(lambda: server.health()[0] != 200, 2.0)
        assert eventually(lambda: server.health()[0] == 200, BACK_S)
        found = [pictures(one.result()) for one in drawn]
        found += [np.stack([picture_of(event) for event in one.result()]) for one in told]
    assert [np.abs(one.astype(int) - other).max() <= 1 for one, other in zip(found, 2 * wanted, strict=True)] == [
        True
    ] * 4
    *partial, last = shown.result()
    assert {event["type"] for event in partial} == {"image_generation.partial_image"} and "painter" in last["error"][
        "message"
    ]
    assert open_requests(server) == 0
