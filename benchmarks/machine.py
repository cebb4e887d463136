"""How many messages the machine takes a second, without sockets: a recorded flow, decoded, handled, its commands encoded."""

from __future__ import annotations

import statistics
import time
from collections import deque

import msgspec

from benchmarks.rows import Benchmark, Row
from omnistage.core.params import SamplingParams
from omnistage.core.payload import PayloadRef
from omnistage.core.request import OmniRequest, Prompt, StageTimes, Usage
from omnistage.orchestrator.machine import Orchestrator
from omnistage.orchestrator.plan import EdgePlan, Limits, OrchestratorConfig, StagePlan
from omnistage.wire.messages import (
    CLIENT,
    AbortRequested,
    Arrived,
    Cancel,
    CancelDone,
    ClientTook,
    Command,
    Consumed,
    Emitted,
    Event,
    Feed,
    ReplicaUp,
    Reply,
    Reported,
    StageDone,
    Submit,
    WorkerEvent,
)

REQUESTS = 1000
ITEMS = 25
BATCH = 32
CANCEL_EVERY = 10
REPEATS = 5
NAMES = ("thinker", "talker", "vocoder")
CONFIG = OrchestratorConfig(
    stages=(
        StagePlan(stage_id=0, name="thinker", process="thinker", max_num_seqs=REQUESTS, final_output_type="text"),
        StagePlan(stage_id=1, name="talker", process="talker", max_num_seqs=REQUESTS, final_output_type=None),
        StagePlan(stage_id=2, name="vocoder", process="vocoder", max_num_seqs=REQUESTS, final_output_type="audio"),
    ),
    edges=(EdgePlan(0, 1, window=4), EdgePlan(1, 2, window=4)),
    processes=dict.fromkeys(NAMES, 1),
    limits=Limits(max_queued_requests=2 * REQUESTS),
)


class Flow:
    """Stages that answer at once, to write down a lifelike order of events: windows kept, reports of a batch's step."""

    def __init__(self) -> None:
        self.machine = Orchestrator(CONFIG)
        self.events: list[Event] = []
        self.waiting: list[deque[WorkerEvent]] = [deque() for _ in NAMES]
        self.seqs: dict[tuple[str, int], int] = {}
        self.credit: dict[tuple[str, int, int], int] = {}
        self.took: deque[ClientTook] = deque()
        self.cancelled: set[str] = set()
        self.machine.start(0.0)
        for stage_id, name in enumerate(NAMES):
            self.handle(ReplicaUp(now=0.0, process=name, replica=0, epoch=1, capacity={stage_id: REQUESTS}))

    def handle(self, event: Event) -> None:
        self.events.append(event)
        for command in self.machine.handle(event):
            self.answer(command)

    def answer(self, command: Command) -> None:
        match command:
            case Submit(stage_id=0, request=request):
                for _ in range(ITEMS):
                    self.make(request.request_id, 0)
            case Feed():
                self.waiting[command.target].append(
                    Consumed(
                        request_id=command.request_id,
                        attempt=1,
                        source=command.source,
                        target=command.target,
                        seq=command.seq,
                    )
                )
                if command.ref is not None:
                    self.make(command.request_id, command.target)
            case Reply(ref=PayloadRef()):
                self.took.append(
                    ClientTook(
                        now=0.0,
                        request_id=command.request_id,
                        source=command.source,
                        seq=command.seq,
                        attempt=command.attempt,
                    )
                )
            case Cancel():
                self.cancelled.add(command.request_id)
                self.waiting[command.stage_id].append(
                    CancelDone(request_id=command.request_id, attempt=1, stage_id=command.stage_id)
                )
            case _:
                pass

    def make(self, request_id: str, stage_id: int) -> None:
        """One more item for everybody behind the stage; with the last one the stage is done."""
        seq = self.seqs.get((request_id, stage_id), 0)
        self.seqs[request_id, stage_id] = seq + 1
        last = seq == ITEMS - 1
        for target in {0: (1, CLIENT), 1: (2,), 2: (CLIENT,)}[stage_id]:
            ref = PayloadRef("shm", f"{NAMES[stage_id]}/0", 1, seq, nbytes=100, inline=b"x" * 32)
            self.waiting[stage_id].append(
                Emitted(request_id=request_id, attempt=1, source=stage_id, target=target, seq=seq, ref=ref, last=last)
            )
        if last:
            self.waiting[stage_id].append(
                StageDone(
                    request_id=request_id,
                    attempt=1,
                    stage_id=stage_id,
                    reason="stop",
                    usage=Usage(),
                    times=StageTimes(),
                )
            )

    def record(self) -> list[Event]:
        for index in range(REQUESTS):
            request = OmniRequest(
                request_id=f"request-{index}",
                prompt=Prompt(text="Why is the sky blue?"),
                wants=("text", "audio"),
                stage_params={0: SamplingParams()},
                stream=True,
            )
            self.handle(Arrived(now=0.0, request=request))
        turn = 0
        while any(self.waiting) or self.took:
            for stage_id, name in enumerate(NAMES):
                queue = self.waiting[stage_id]
                items = tuple(queue.popleft() for _ in range(min(BATCH, len(queue))))
                if items:
                    self.handle(Reported(now=0.0, process=name, replica=0, epoch=1, items=items))
            for _ in range(min(BATCH, len(self.took))):
                self.handle(self.took.popleft())
            turn += 1
            if turn % CANCEL_EVERY == 0 and turn // CANCEL_EVERY < REQUESTS // CANCEL_EVERY:
                self.handle(AbortRequested(now=0.0, request_id=f"request-{REQUESTS - turn // CANCEL_EVERY}"))
        assert self.machine.snapshot()["open"] == 0, "the recorded flow did not end"
        return self.events


def messages_per_s() -> list[Row]:
    events = Flow().record()
    encoded = [msgspec.msgpack.encode(event) for event in events]
    heard = sum(len(event.items) if isinstance(event, Reported) else 1 for event in events)
    rates, cpu_s, told = [], [], 0
    for _ in range(REPEATS):
        machine, decoder, encoder = Orchestrator(CONFIG), msgspec.msgpack.Decoder(Event), msgspec.msgpack.Encoder()
        machine.start(0.0)
        told, begun, cpu = 0, time.perf_counter(), time.process_time()
        for data in encoded:
            for command in machine.handle(decoder.decode(data)):
                encoder.encode(command)
                told += 1
        rates.append((heard + told) / (time.perf_counter() - begun))
        cpu_s.append(time.process_time() - cpu)
    workload = f"{REQUESTS} live requests, 3 stages, {ITEMS} items each, cancels: {heard} messages in, {told} out"
    return [
        Row(
            "machine_messages_per_s",
            statistics.median(rates),
            ">= 50000",
            "messages/s",
            workload,
            cpu_s_ours=statistics.median(cpu_s),
        )
    ]


BENCHMARKS = (Benchmark(("machine_messages_per_s",), messages_per_s),)
