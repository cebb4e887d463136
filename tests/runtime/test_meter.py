"""What the meter makes of a life: bytes and times of edges, ends of stages; events and commands as the machine has them."""

from dataclasses import dataclass, field

from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import PayloadRef
from omnistage.core.request import StageTimes, Usage
from omnistage.obs.figures import MAX_RUNS, EdgeTotals, StageFigures
from omnistage.orchestrator.machine import Orchestrator
from omnistage.orchestrator.plan import EdgePlan, OrchestratorConfig, StagePlan
from omnistage.runtime.meter import MeterState
from omnistage.wire.messages import (
    CLIENT,
    AbortRequested,
    Arrived,
    CancelDone,
    ClientTook,
    Consumed,
    Emitted,
    Event,
    ItemArrived,
    ReplicaDown,
    ReplicaUp,
    Reported,
    StageDone,
    StageFailed,
    Tick,
    WorkerEvent,
)
from tests.fakes import request_of

CONFIG = OrchestratorConfig(
    stages=(
        StagePlan(0, "thinker", "a", max_num_seqs=1, lookahead=0),
        StagePlan(1, "speaker", "b", max_num_seqs=1, lookahead=0, final_output_type="audio"),
    ),
    edges=(EdgePlan(0, 1),),
    processes={"a": 1, "b": 1},
)
USAGE = Usage(prompt_tokens=3, completion_tokens=5, images=2)
TIMES = StageTimes(queued_s=0.1, prepare_s=0.05, running_s=0.5, forward_s=0.4)


@dataclass
class Heard:
    """An observer that writes everything down."""

    stages: list[StageFigures] = field(default_factory=list)
    sent: list[tuple[str, str, int]] = field(default_factory=list)
    taken: list[tuple[str, str, float, float]] = field(default_factory=list)

    def stage_ended(self, figures: StageFigures) -> None:
        self.stages.append(figures)

    def item_sent(self, source: str, target: str, nbytes: int) -> None:
        self.sent.append((source, target, nbytes))

    def item_taken(self, source: str, target: str, transfer_s: float, queue_s: float) -> None:
        self.taken.append((source, target, round(transfer_s, 6), round(queue_s, 6)))


class World:
    """A real machine, with the meter at its side. Each event is handled at its own time."""

    def __init__(self, *, ready: tuple[str, ...] = ("a", "b")) -> None:
        self.machine, self.heard = Orchestrator(CONFIG), Heard()
        self.meter = MeterState(CONFIG, self.heard)
        self.meter.saw(0.0, None, self.machine.start(0.0))
        for process in ready:
            self.up(process)

    def up(self, process: str, now: float = 0.0) -> None:
        self.tell(ReplicaUp(now=now, process=process, replica=0, epoch=1, capacity={}))

    def tell(self, event: Event) -> None:
        self.meter.saw(event.now, event, self.machine.handle(event))

    def report(
        self, process: str, now: float, *items: WorkerEvent, at_s: float, arrivals: tuple[ItemArrived, ...] = ()
    ) -> None:
        self.tell(Reported(now=now, process=process, replica=0, epoch=1, items=items, at_s=at_s, arrivals=arrivals))

    def ask(self, name: str = "r", now: float = 1.0) -> None:
        self.tell(Arrived(now=now, request=request_of(request_id=name, wants=("audio",))))


def emitted(
    seq: int, *, source: int = 0, nbytes: int = 100, last: bool = False, attempt: int = 1, units: int | None = None
) -> Emitted:
    target = 1 if source == 0 else CLIENT
    ref = PayloadRef("shm", f"{source}/0", attempt, seq, nbytes=nbytes)
    return Emitted(
        request_id="r", attempt=attempt, source=source, target=target, seq=seq, ref=ref, last=last, units=units
    )


def arrived(seq: int, at_s: float) -> ItemArrived:
    return ItemArrived(request_id="r", attempt=1, source=0, target=1, seq=seq, at_s=at_s)


def consumed(seq: int) -> Consumed:
    return Consumed(request_id="r", attempt=1, source=0, target=1, seq=seq)


def done(stage_id: int) -> StageDone:
    return StageDone(request_id="r", attempt=1, stage_id=stage_id, reason="stop", usage=USAGE, times=TIMES)


def test_the_times_of_an_item_are_those_between_its_stations() -> None:
    """Fault: waiting counts as transfer, or the way back as the way there."""
    world = World()
    world.ask()
    world.report("a", 2.02, emitted(0), at_s=2.0)  # emitted 2.00, heard and sent 2.02
    world.report("b", 3.0, consumed(0), at_s=2.55, arrivals=(arrived(0, 2.05),))  # arrived 2.05, taken 2.55
    assert world.heard.sent == [("thinker", "speaker", 100)]
    assert world.heard.taken == [("thinker", "speaker", 0.05, 0.5)]


def test_an_item_that_waits_for_its_stage_to_start_is_queued() -> None:
    """Fault: a target that is not up makes the way to it look slow."""
    world = World(ready=("a",))
    world.ask()
    world.report("a", 2.0, emitted(0), at_s=2.0)
    assert world.heard.sent == []
    world.up("b", now=7.0)
    world.report("b", 7.5, consumed(0), at_s=7.4, arrivals=(arrived(0, 7.1),))
    assert world.heard.taken == [("thinker", "speaker", 0.1, 5.3)]


def test_a_caller_takes_an_item_as_it_is_sent() -> None:
    """Fault: a slow caller makes its own edge look slow, for ever if it never takes the item."""
    world = World()
    world.ask()
    world.report("a", 2.0, emitted(0, last=True), at_s=2.0)
    world.report("b", 3.5, emitted(0, source=1), at_s=3.0)
    world.tell(ClientTook(now=9.0, request_id="r", attempt=1, source=1, seq=0))
    assert world.heard.taken == [("speaker", "client", 0.5, 0.0)]


def test_a_clock_that_is_ahead_gives_no_negative_time() -> None:
    """Fault: a histogram of times that sinks."""
    world = World()
    world.ask()
    world.report("a", 2.0, emitted(0), at_s=50.0)
    world.report("b", 3.0, consumed(0), at_s=1.0, arrivals=(arrived(0, 1.5),))
    assert world.heard.taken == [("thinker", "speaker", 0.0, 0.0)]


def test_a_whole_life_adds_up_and_leaves_nothing() -> None:
    """Fault: items without Consumed are lost from the sums, or an ended request is kept."""
    world = World()
    world.ask()
    world.report("a", 2.0, emitted(0), emitted(1, nbytes=50, last=True), done(0), at_s=2.0)
    world.report("b", 3.0, emitted(0, source=1, nbytes=7, last=True), done(1), at_s=2.9)
    flow = world.meter.close("r")
    assert flow.edges[0, 1] == EdgeTotals(2, 150, flow.edges[0, 1].transfer_s, flow.edges[0, 1].queue_s)
    assert flow.edges[1, CLIENT].nbytes == 7
    assert len(world.heard.taken) == len(world.heard.sent) == 3
    assert flow.waiting_s == {0: 0.0, 1: 0.0}
    ended = world.heard.stages
    assert [(one.stage, one.outcome, one.completion_tokens, one.images) for one in ended] == [
        ("thinker", "finished", 5, 2),
        ("speaker", "finished", 5, 2),
    ]
    assert (ended[0].queued_s, ended[0].running_s, ended[0].forward_s) == (0.1, 0.5, 0.4)
    assert ended[0].prepare_s == 0.05
    assert len(world.meter) == 0


def test_a_request_that_waits_for_a_place_says_how_long() -> None:
    """Fault: the time before a stage gets a request is nobody's."""
    world = World()
    world.ask()
    world.ask("second", now=1.5)
    world.report("a", 4.0, emitted(0, last=True), done(0), at_s=4.0)
    assert world.meter.close("second").waiting_s == {0: 2.5}


def test_every_run_ends_once_and_as_it_did() -> None:
    """Fault: a cancelled run counts again when its stage answers, or a dead worker's runs are never counted."""
    world = World()
    world.ask()
    world.tell(AbortRequested(now=2.0, request_id="r"))
    world.report("a", 2.1, done(0), at_s=2.1)
    world.ask("dying", now=3.0)
    world.tell(ReplicaDown(now=4.0, process="a", replica=0, epoch=1, reason="killed"))
    assert [(figures.stage, figures.outcome) for figures in world.heard.stages] == [
        ("thinker", "cancelled"),
        ("thinker", "lost"),
    ]
    assert world.meter.close("r").edges == {}


def test_a_failed_run_carries_its_error_s_code() -> None:
    """Fault: errors cannot be told apart."""
    world = World()
    world.ask()
    failed = StageFailed(request_id="r", attempt=1, stage_id=0, error=ErrorInfo("payload_too_large", "too large"))
    world.report("a", 2.0, failed, at_s=2.0)
    [ended] = world.heard.stages
    assert (ended.outcome, ended.error, ended.queued_s) == ("failed", "payload_too_large", None)


def test_metadata_weighs_what_it_takes_in_a_message() -> None:
    """Fault: an edge that carries text alone has moved nothing."""
    world = World()
    world.ask()
    ref = PayloadRef("shm", "0/0", 1, 0, metadata={"text": "four"})
    world.report("a", 2.0, Emitted(request_id="r", attempt=1, source=0, target=1, seq=0, ref=ref, last=False), at_s=2.0)
    assert world.heard.sent == [("thinker", "speaker", 11)]


def test_the_schedule_is_that_of_the_items_as_they_went() -> None:
    """Fault: runs that are cut, joined or out of order; an edge of items that has a schedule."""
    world = World()
    world.ask()
    units = (4, 25, 25, 7, 25)
    world.report("a", 2.0, *(emitted(seq, units=count) for seq, count in enumerate(units)), at_s=2.0)
    world.report("b", 3.0, consumed(4), emitted(0, source=1), at_s=3.0)
    flow = world.meter.close("r")
    assert (flow.edges[0, 1].units, flow.edges[0, 1].schedule) == (86, ((4, 1), (25, 2), (7, 1), (25, 1)))
    assert (flow.edges[1, CLIENT].units, flow.edges[1, CLIENT].schedule) == (0, ())


def test_a_schedule_is_bounded_and_its_sum_is_not() -> None:
    """Fault: a reply that grows with the answer, or one that goes on after a gap as if there were none."""
    world = World()
    world.ask()
    for seq in range(MAX_RUNS + 8):
        units = seq % 2 + 1 if seq < MAX_RUNS + 2 else 2
        world.report("a", 2.0, emitted(seq, units=units), at_s=2.0)
        world.report("b", 2.0, consumed(seq), at_s=2.0)
    totals = world.meter.close("r").edges[0, 1]
    assert totals.schedule == ((1, 1), (2, 1)) * (MAX_RUNS // 2)
    assert (totals.items, totals.units) == (MAX_RUNS + 8, 3 * (MAX_RUNS // 2 + 1) + 2 * 6)


def test_a_request_that_begins_again_has_the_schedule_of_its_last_attempt() -> None:
    """Fault: frames of a talker that has died counted beside those that were heard."""
    world = World()
    world.ask()
    world.report("a", 2.0, emitted(0, units=4), at_s=2.0)
    world.tell(ReplicaDown(now=3.0, process="b", replica=0, epoch=1, reason="killed"))
    world.report("a", 3.1, CancelDone(request_id="r", attempt=1, stage_id=0), at_s=3.1)
    world.tell(Tick(now=5.0))
    world.tell(ReplicaUp(now=5.5, process="b", replica=0, epoch=2, capacity={}))
    world.report("a", 6.0, emitted(0, units=7, attempt=2), at_s=6.0)
    totals = world.meter.close("r").edges[0, 1]
    assert (totals.items, totals.units, totals.schedule) == (2, 7, ((7, 1),))
