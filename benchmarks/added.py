"""What the server adds to the time that the stages take by themselves, with 64 answers in the making at every moment.

The pipeline `simulated` (benchmarks.family) sleeps for the published times of its stages. One answer of `TOKENS` tokens and
`FRAMES` frames takes, from the question to the last sound, at least

    a step of the thinker + FRAMES steps of the talker + one chunk of the codec

for the talker begins with the first token, is the slowest stage, and all that the codec does but for the last chunk happens
meanwhile. `added_latency_percent` is the mean of what answers took beyond that, in percent of it: HTTP, admission, waits for the
next step of each stage, hand-offs, the driver, encoding and sending of all sound, and the client's own reading. A step that
begins late because the process has not done its work between two steps in time counts too.

Every stream asks `ROUNDS` times, again as soon as its answer has ended; the streams begin evenly over the time of one answer, and
their first answers are not counted. What 64 questions in the same moment cost, which nobody can answer in the same moment, stands
in the row's text.
"""

from __future__ import annotations

import asyncio
import statistics

from benchmarks import family
from benchmarks.clients import Question, StreamState, at_once, stream
from benchmarks.rows import Benchmark, Row
from benchmarks.servers import OWN_COMMAND, serving

STREAMS = 64
TOKENS, FRAMES = 64, 200
ROUNDS = 3
ALONE_S = family.THINKER_S + FRAMES * family.TALKER_S + family.CODEC_S


def added_latency() -> list[Row]:
    flags = ("--max-num-seqs", str(STREAMS), "--max-num-batched-tokens", str(STREAMS))
    with serving("simulated", *flags, command=OWN_COMMAND) as server:
        server.wait((200,), pause_s=0.05)
        question = Question(server.port, "simulated", {"tokens": TOKENS, "frames": FRAMES}, ("text", "audio"))
        asyncio.run(at_once(question, 4))  # warm
        before = server.cpu_s()
        added = _percent(asyncio.run(_always(question)))
        cpu_s = server.cpu_s() - before
        burst = _percent(asyncio.run(at_once(question, STREAMS)))
    workload = (
        f"{STREAMS} streams at every moment, {TOKENS} tokens and {FRAMES} frames, {ALONE_S:.3f} s of simulated stages"
    )
    others = f"slowest answer {max(added):.1f} %; {STREAMS} at once {statistics.mean(burst):.1f} %"
    return [
        Row("added_latency_percent", statistics.mean(added), "<= 2", "%", f"{workload}; {others}", cpu_s_ours=cpu_s)
    ]


def _percent(answers: list[StreamState]) -> list[float]:
    assert all(len(answer.text.split()) == 2 * TOKENS and answer.audio_nbytes for answer in answers)
    return [100 * (answer.took_s / ALONE_S - 1) for answer in answers]


async def _always(question: Question) -> list[StreamState]:
    """What the streams got after their first answers."""
    found = await asyncio.gather(*(_one_after_the_other(question, number) for number in range(STREAMS)))
    return [answer for answers in found for answer in answers]


async def _one_after_the_other(question: Question, number: int) -> list[StreamState]:
    await asyncio.sleep(number * ALONE_S / STREAMS)
    answers = [await stream(question, StreamState()) for _ in range(ROUNDS)]
    return answers[1:]


BENCHMARKS = (Benchmark(("added_latency_percent",), added_latency),)
