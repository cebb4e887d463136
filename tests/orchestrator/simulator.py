"""A world around the machine: replicas with fake stages, links with latency, callers, deaths; and the invariants it checks.

Time is virtual and every choice comes from one seed. `World(scenario).run()` drives the machine until nothing happens any more;
the checks run with every event and command, `expect_all_ended` afterwards. It knows the pipeline from the scenario alone.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from omnistage.orchestrator.machine import Orchestrator
from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.wire.messages import (
    AbortRequested,
    Arrived,
    Cancel,
    ClientTook,
    Close,
    Command,
    Control,
    ControlCalled,
    ControlDone,
    ControlReply,
    Event,
    Feed,
    Grant,
    Release,
    ReplicaDown,
    ReplicaState,
    ReplicaUp,
    Reply,
    Reported,
    Restarted,
    ShutdownRequested,
    StartReplica,
    StopReplica,
    Submit,
    Tick,
    WakeAt,
    WorkerEvent,
)
from tests.orchestrator.checks import Checks
from tests.orchestrator.fake_stage import Arena, FakeStage, Faults, StageModel
from tests.orchestrator.traces import request

MOST_EVENTS = 60_000


@dataclass(frozen=True)
class Caller:
    """One request and how its caller behaves. `takes_s` None: it never takes anything."""

    request_id: str
    wants: tuple[str, ...]
    arrives: float = 0.0
    priority: int = 0
    stream: bool = False
    timeout_s: float = 100_000.0
    takes_s: float | None = 0.1
    aborts: float | None = None
    group_id: str | None = None


@dataclass(frozen=True)
class Scenario:
    """Everything that happens in one world. `deaths`: (time, process, index); `faults` by stage id."""

    config: OrchestratorConfig
    models: dict[int, StageModel]
    callers: tuple[Caller, ...]
    seed: int = 0
    arena_blocks: int = 2
    faults: dict[int, Faults] = field(default_factory=dict)
    deaths: tuple[tuple[float, str, int], ...] = ()
    stuck: tuple[tuple[str, int], ...] = ()
    pauses: tuple[tuple[float, str, int], ...] = ()
    calls: tuple[float, ...] = ()
    shutdown: float | None = None


class FakeReplica:
    """One incarnation of a replica: its arena and its stages."""

    def __init__(self, world: World, process: str, index: int, epoch: int) -> None:
        scenario = world.scenario
        self.process, self.index, self.epoch = process, index, epoch
        self.arena = Arena(f"{process}/{index}", epoch, scenario.arena_blocks, world.book, lambda: next(world.keys))
        stuck = (process, index) in scenario.stuck and epoch == 1
        self.stages = {
            plan.stage_id: FakeStage(
                scenario.models[plan.stage_id], self.arena, scenario.faults.get(plan.stage_id, Faults()), stuck
            )
            for plan in scenario.config.stages_of(process)
        }
        self.stepping: set[int] = set()
        self.alive = True


class World:
    """See the module."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.chance = random.Random(scenario.seed)
        self.machine = Orchestrator(scenario.config)
        self.checks = Checks(
            scenario.config,
            {caller.request_id: caller.wants for caller in scenario.callers},
            {stage_id: model.items for stage_id, model in scenario.models.items()},
        )
        self.book: dict[int, str] = self.checks.book
        self.keys = itertools.count(1)
        self.now = 0.0
        self.events: list[Event] = []
        self.told: list[list[Command]] = []
        self.replicas: dict[tuple[str, int], FakeReplica] = {}
        self.callers = {caller.request_id: caller for caller in scenario.callers}
        self.replies: dict[str, ControlReply] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._links: dict[object, float] = {}
        self._alarm = 0

    # ---- time

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(time, self.now), next(self._count), action))

    def along(self, link: object, action: Callable[[], None]) -> None:
        """After some latency, now and then a long one, in order per link."""
        latency = 3.0 if self.chance.random() < 0.03 else self.chance.random() * 0.2
        time = max(self._links.get(link, 0.0), self.now + latency)
        self._links[link] = time
        self.at(time, action)

    def run(self) -> World:
        self._plan()
        self._carry_out(self.machine.start(0.0))
        for _ in range(MOST_EVENTS):
            if not self._queue:
                return self
            self.now, _, action = heapq.heappop(self._queue)
            action()
        raise AssertionError("the world never comes to rest")

    def _plan(self) -> None:
        """What the scenario foresees. The time of an event is set when it happens."""
        scenario = self.scenario
        for caller in scenario.callers:
            self.at(caller.arrives, partial(self._arrive, caller))
            if caller.aborts is not None:
                self.at(caller.aborts, partial(self._abort, caller.request_id))
        for time, process, index in scenario.deaths:
            self.at(time, partial(self._die, process, index))
        for time, process, index in scenario.pauses:
            self.at(time, partial(self._set_state, process, index, "draining"))
            self.at(time + 20, partial(self._set_state, process, index, "active"))
        for number, time in enumerate(scenario.calls):
            self.at(time, partial(self._call, f"c{number}"))
        if scenario.shutdown is not None:
            self.at(scenario.shutdown, self._shut_down)

    def _arrive(self, caller: Caller) -> None:
        made = request(
            caller.request_id,
            caller.wants,
            priority=caller.priority,
            stream=caller.stream,
            timeout_s=caller.timeout_s,
            group_id=caller.group_id,
        )
        self.handle(Arrived(now=self.now, request=made))

    def _abort(self, request_id: str) -> None:
        self.handle(AbortRequested(now=self.now, request_id=request_id))

    def _call(self, call_id: str) -> None:
        self.handle(ControlCalled(now=self.now, call_id=call_id, name="profile"))

    def _shut_down(self) -> None:
        self.handle(ShutdownRequested(now=self.now, drain_timeout_s=50.0))

    # ---- the machine

    def handle(self, event: Event) -> None:
        self.events.append(event)
        self.checks.before(event)
        commands = self.machine.handle(event)
        self._carry_out(commands)
        self.checks.after(event, commands)

    def _carry_out(self, commands: list[Command]) -> None:
        self.told.append(commands)
        for command in commands:
            self.checks.see(command)
            match command:
                case Submit() | Feed() | Grant() | Cancel() | Control():
                    self._post(command)
                case Release():
                    self._release(command)
                case Reply():
                    self._reply(command)
                case StartReplica() | StopReplica():
                    self._supervise(command)
                case WakeAt():
                    self._arm(command.time)
                case ControlReply():
                    self.replies[command.call_id] = command
                case Close() | Restarted():
                    pass

    def _arm(self, time: float) -> None:
        self._alarm += 1
        number = self._alarm

        def ring() -> None:
            if number == self._alarm:
                self.handle(Tick(now=self.now))

        self.at(time, ring)

    def _reply(self, command: Reply) -> None:
        takes_s = self.callers[command.request_id].takes_s
        if takes_s is None or command.ref is None:
            return

        def take() -> None:
            self.checks.took(command)
            self.handle(
                ClientTook(
                    now=self.now,
                    request_id=command.request_id,
                    attempt=command.attempt,
                    source=command.source,
                    seq=command.seq,
                )
            )

        time = max(self._links.get(command.request_id, 0.0), self.now) + takes_s
        self._links[command.request_id] = time
        self.at(time, take)

    def _release(self, command: Release) -> None:
        process, _, index = command.ref.owner.partition("/")
        replica = self.replicas.get((process, int(index)))
        if replica is not None and replica.epoch == command.ref.epoch:
            replica.arena.live.pop(command.ref.key, None)
            for stage_id in replica.stages:
                self._wake(replica, stage_id)

    # ---- replicas

    def _supervise(self, command: StartReplica | StopReplica) -> None:
        name = (command.process, command.replica)
        match command:
            case StartReplica():
                self.along(("start", name), lambda: self._born(command))
            case StopReplica():
                assert not command.kill or name in self.scenario.stuck, "one that answers is killed"
                self.along(("stop", name), lambda: self._die(*name, epoch=command.epoch))

    def _born(self, command: StartReplica) -> None:
        replica = FakeReplica(self, command.process, command.replica, command.epoch)
        self.replicas[command.process, command.replica] = replica
        capacity = {stage_id: stage.model.slots for stage_id, stage in replica.stages.items()}
        keys: dict[str, Any] = {"process": command.process, "replica": command.replica, "epoch": command.epoch}
        self.handle(ReplicaUp(now=self.now, capacity=capacity, **keys))

    def _die(self, process: str, index: int, epoch: int | None = None) -> None:
        replica = self.replicas.get((process, index))
        if replica is None or not replica.alive or (epoch is not None and epoch != replica.epoch):
            return
        replica.alive = False
        keys: dict[str, Any] = {"process": process, "replica": index, "epoch": replica.epoch}
        self.at(
            self.now + self.chance.random() * 0.3,
            lambda: self.handle(ReplicaDown(now=self.now, reason="killed", **keys)),
        )

    def _set_state(self, process: str, index: int, state: Literal["active", "draining"]) -> None:
        replica = self.replicas.get((process, index))
        if replica is not None and replica.alive:
            keys: dict[str, Any] = {"process": process, "replica": index, "epoch": replica.epoch}
            self.handle(ReplicaState(now=self.now, state=state, **keys))

    def _post(self, command: Submit | Feed | Grant | Cancel | Control) -> None:
        replica = self.replicas[command.process, command.replica]
        assert replica.epoch == command.epoch, "a command for another incarnation"
        self.along(("down", command.process, command.replica), lambda: self._deliver(replica, command))

    def _deliver(self, replica: FakeReplica, command: Submit | Feed | Grant | Cancel | Control) -> None:
        if not replica.alive:
            return
        match command:
            case Control(call_id=call_id, stage_id=stage_id):
                self._report(replica, [ControlDone(call_id=call_id, stage_id=stage_id, result="done")])
                return
            case Feed(target=stage_id) | Grant(source=stage_id) | Submit(stage_id=stage_id) | Cancel(stage_id=stage_id):
                self._report(replica, replica.stages[stage_id].mail(command))
                self._wake(replica, stage_id)

    def _report(self, replica: FakeReplica, items: list[WorkerEvent]) -> None:
        if not items:
            return
        self.checks.emitted(items)
        keys: dict[str, Any] = {"process": replica.process, "replica": replica.index, "epoch": replica.epoch}
        self.along(("up", *keys.values()), lambda: self.handle(Reported(now=self.now, items=tuple(items), **keys)))

    def _wake(self, replica: FakeReplica, stage_id: int) -> None:
        """A stage steps again one period from now, unless it is about to."""
        if stage_id in replica.stepping or not replica.alive:
            return
        replica.stepping.add(stage_id)
        period = replica.stages[stage_id].model.period
        self.at(self.now + period, lambda: self._step(replica, stage_id))

    def _step(self, replica: FakeReplica, stage_id: int) -> None:
        replica.stepping.discard(stage_id)
        if not replica.alive:
            return
        stage = replica.stages[stage_id]
        before = [(work.made, work.closing, work.slot) for work in stage.works.values()]
        items = stage.step()
        after = [(work.made, work.closing, work.slot) for work in stage.works.values()]
        if items or before != after:
            self._report(replica, items)
            self._wake(replica, stage_id)


def expect_replay_equal(world: World) -> None:
    """The recorded events give the same commands once more."""
    again = Orchestrator(world.scenario.config)
    told = [again.start(0.0)]
    told += [again.handle(event) for event in world.events]
    assert told == world.told


def expect_all_ended(world: World) -> None:
    """Every request has had its one terminal state, and nothing is left anywhere."""
    world.checks.expect_closed_once()
    world.checks.expect_complete()
    tables = world.machine.snapshot()
    assert (tables["open"], tables["slots"], tables["refs_held"], tables["control_calls"]) == (0, 0, 0, 0), tables
    assert not any(tables["queues"].values()), tables
    assert tables["timers"] == 0, tables
    assert tables["window_overruns"] == 0, tables
    assert len(world.replies) == len(world.scenario.calls)
    world.checks.expect_all_released()
