"""Starts, watches and ends the worker processes of a pipeline, and says what became of each.

Deaths are seen by pidfd, hangs by heartbeats, slow starts by a deadline; a worker that misbehaves is killed, never waited for.
When to start and stop is the machine's decision; this says ReplicaUp and ReplicaDown and nothing more. All of it lives in the
driver's thread. Times are seconds of time.monotonic.
"""

from __future__ import annotations

import logging
import math
import secrets
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from omnistage.core.errors import (
    BrokenCheckpointError,
    ConfigError,
    ConnectorError,
    FetchError,
    ModelNotFoundError,
    UnsupportedByModelError,
)
from omnistage.core.payload import PayloadRef
from omnistage.runtime.arenas import ArenaCache
from omnistage.runtime.handover import HandOver, Incarnation
from omnistage.runtime.launch import WORKER_MODULE, Launched, Starter, executor, launch_worker
from omnistage.runtime.output import WorkerOutput
from omnistage.runtime.plan import ProcessPlan
from omnistage.runtime.status import Key, StatusBoardState
from omnistage.runtime.workers import WorkerState, gauges_of, last_words, step_limit_s, told_of
from omnistage.runtime.zygote import ZygoteState
from omnistage.wire.channels import DriverChannel
from omnistage.wire.messages import Event, Feed, ReplicaDown, ReplicaUp
from omnistage.wire.worker import (
    FromWorker,
    Heartbeat,
    Hello,
    LoadFailed,
    LoadProgress,
    Ready,
    Shutdown,
    StepReport,
    ToWorker,
)

logger = logging.getLogger(__name__)

STOP_GRACE_S = 4.0
"""How long a worker has to end after Shutdown."""

TELL_EVERY_S = 2.0
"""How often the log says how far a worker's loading is."""

MUTE_GRACE_S = 1.0
"""A worker that cannot be reached may just have died, which its pidfd tells a moment later; after this it is killed."""

SILENCE_S = 4.0
"""A ready worker beats every second, also during a step; one that says nothing for this long is shown as silent."""

DOUBT_S = 16.0
"""It has this much longer, then it is stuck as a whole and is killed: a process that swaps, or was stopped for a look at it, may
come back, and it may have been this side that stood still."""

HOPELESS = frozenset(
    kind.code for kind in (ConfigError, ModelNotFoundError, BrokenCheckpointError, UnsupportedByModelError, FetchError)
)
"""Why a stage cannot be loaded now or later: starting it again would only say it again."""


class StageRuntime:
    """The replicas of all processes. `post` takes the events; `drain` reads what workers have sent so far."""

    def __init__(
        self,
        processes: Sequence[ProcessPlan],
        selector: selectors.BaseSelector,
        channel: DriverChannel,
        *,
        post: Callable[[Event], None],
        drain: Callable[[], None],
        board: StatusBoardState,
        worker_module: str = WORKER_MODULE,
        zygote: bool = False,
    ) -> None:
        self._processes = {process.name: process for process in processes}
        self._selector = selector
        self._channel = channel
        self._post = post
        self._drain = drain
        self._board = board
        self._worker_module = worker_module
        self._address = ""
        self._token = secrets.token_hex(8)
        self._tcp_token = secrets.token_hex(16)
        self._workers: dict[Key, WorkerState] = {}
        self._starts: Counter[Key] = Counter()
        self._hopeless: dict[Key, str] = {}
        self.zygote = ZygoteState(processes, selector, worker_module, enabled=zygote)
        self.arenas = ArenaCache()
        self._handover = HandOver(self.arenas, self._takes_no_descriptors)

    # ---- what the driver asks ----

    def open(self) -> None:
        """Before the first start: the address that workers connect to."""
        self._address = self._channel.bind()

    def start(self, process: str, replica: int, epoch: int) -> None:
        """A fault in starting is a ReplicaDown like any other; what is hopeless is not tried again."""
        hopeless = self._hopeless.get((process, replica))
        if hopeless is not None:
            self._say_down(process, replica, epoch, hopeless)
            return
        try:
            worker = self._launch(self._processes[process], replica, epoch)
        except (OSError, ConnectorError) as error:
            reason = f"{self._processes[process].title}: cannot be started: {error}"
            logger.error("%s", reason)
            self._say_down(process, replica, epoch, reason)
            return
        restarts = self._starts[worker.key] - 1
        state = "restarting" if restarts else "starting"
        self._board.set(worker.key, state=state, pid=worker.launched.pid, progress=0.0, restarts=restarts)

    def stop(self, process: str, replica: int, epoch: int, *, kill: bool) -> None:
        worker = self._find(process, replica, epoch)
        if worker is None:
            return
        worker.stopping = True
        worker.reason = worker.reason or "was stopped"
        self._board.set(worker.key, state="draining")
        if kill or not worker.ready or not self._channel.send(worker.identity, Shutdown()):
            worker.launched.kill()
        else:
            self._kill_later(worker, STOP_GRACE_S, "did not stop when asked to")

    def send(self, process: str, replica: int, epoch: int, message: ToWorker) -> None:
        """To that incarnation, if it lives; a worker that takes no messages any more is killed."""
        worker = self._find(process, replica, epoch)
        if worker is None:
            return
        if isinstance(message, Feed):
            self._handover.bring((worker.owner, epoch), message.ref)
        if not self._channel.send(worker.identity, message):
            self._kill_later(worker, MUTE_GRACE_S, "takes no messages any more")

    def reported(self, refs: Iterable[PayloadRef]) -> None:
        """What a worker has emitted; its memory is kept from now on."""
        self._handover.reported(refs)

    def release(self, ref: PayloadRef, message: ToWorker) -> None:
        """To the owner of `ref` if it lives, else to the keeper of the dead's arenas. What travelled inline is nobody's."""
        if ref.inline is not None:
            return
        process, _, replica = ref.owner.rpartition("/")
        self.send(process, int(replica), ref.epoch, message)
        self._handover.released(ref)

    def incarnation(self, identity: str) -> tuple[str, int, int] | None:
        """(process, replica, epoch) of who speaks under `identity`, alive or dead; None for a stranger."""
        process, replica, epoch, token = identity.rsplit("/", 3)
        return (process, int(replica), int(epoch)) if token == self._token else None

    def pidfd_of(self, pid: int) -> int | None:
        """Of a worker that is running or not buried yet; the descriptor stays here."""
        running = (worker.launched for worker in self._workers.values())
        return next((launched.pidfd for launched in running if launched.pid == pid), None)

    @property
    def running(self) -> bool:
        return bool(self._workers)

    @property
    def deadline(self) -> float:
        return min([self.zygote.deadline, *(worker.deadline for worker in self._workers.values())])

    def turn(self, now: float) -> None:
        """Kills what is overdue."""
        self.zygote.turn(now)
        for worker in list(self._workers.values()):
            if now < worker.deadline:
                continue
            if not worker.ready and now >= worker.start_by:
                self._kill(worker, f"was not ready within {worker.plan.start_timeout_s:g} s")
            elif now >= worker.kill_at:
                self._kill(worker, worker.overdue)
            elif not worker.doubted:
                self._doubt(worker, now)
            else:
                self._kill(worker, f"has sent no heartbeat for {SILENCE_S + DOUBT_S:g} s")

    def close(self) -> None:
        """No process is left when this returns."""
        for worker in self._workers.values():
            worker.launched.kill()
        for worker in list(self._workers.values()):
            self._bury(worker)
        self.zygote.close()
        self.arenas.close()

    # ---- what workers say ----

    def heard(self, process: str, replica: int, epoch: int, message: FromWorker) -> None:
        """Everything but step reports; the words of the dead are not heard."""
        worker = self._find(process, replica, epoch)
        if worker is None:
            return
        match message:
            case Hello():
                self._board.set(worker.key, note="loading")
            case LoadProgress():
                self._load_on(worker, message)
            case Ready():
                self._ready(worker, message)
            case LoadFailed():
                worker.reason = message.error.message
                if message.error.code in HOPELESS:
                    self._hopeless[worker.key] = told_of(worker.plan, worker.reason)
                self._kill_later(worker, STOP_GRACE_S, worker.reason)
            case Heartbeat():
                self._beat(worker, message)
            case StepReport():
                raise AssertionError("step reports go to the machine")

    def _load_on(self, worker: WorkerState, message: LoadProgress) -> None:
        worker.fractions[message.stage_id] = message.fraction
        names = {stage.stage_id: f"{stage.model_stage}: " for stage in worker.plan.stages}
        note = message.note if len(names) == 1 else names[message.stage_id] + message.note
        self._board.set(worker.key, note=note, progress=worker.progress)
        now = time.monotonic()
        if 0 < message.fraction < 1 and now >= worker.tell_at:
            worker.tell_at = now + TELL_EVERY_S
            logger.info("%s: %d%% loaded, %s", worker.plan.title, 100 * worker.progress, note)

    def _ready(self, worker: WorkerState, message: Ready) -> None:
        worker.ready = True
        worker.heard_by = time.monotonic() + SILENCE_S
        note = "; ".join(message.notes.values())
        logger.info("%s: ready, %s", worker.plan.title, note)
        self._board.set(worker.key, state="ready", note=note, progress=1.0)
        self._tell_zygote()
        process, replica = worker.key
        self._post(
            ReplicaUp(
                now=time.monotonic(), process=process, replica=replica, epoch=worker.epoch, capacity=message.capacity
            )
        )

    def _beat(self, worker: WorkerState, message: Heartbeat) -> None:
        if worker.ready:
            worker.heard_by = time.monotonic() + SILENCE_S
        if worker.doubted:
            worker.doubted = False
            if self._board[worker.key].state == "silent":
                self._board.set(worker.key, state="ready", note="")
        for stage in worker.plan.stages:
            limit_s = step_limit_s(stage, message.first_step_done)
            age_s = message.step_age_s.get(stage.stage_id, 0.0)
            if age_s > limit_s:
                self._kill(
                    worker, f"a step of {stage.model_stage} has been running for {age_s:.1f} s (limit {limit_s:g} s)"
                )
        self._board.show_gauges(worker.key, gauges_of(worker.plan, message))

    def _doubt(self, worker: WorkerState, now: float) -> None:
        worker.doubted, worker.heard_by = True, now + DOUBT_S
        if self._board[worker.key].state == "ready":
            note = f"{worker.plan.title}: has sent no heartbeat for {SILENCE_S:g} s"
            self._board.set(worker.key, state="silent", note=note)

    # ---- life and death ----

    def _launch(self, plan: ProcessPlan, replica: int, epoch: int) -> WorkerState:
        owner = f"{plan.name}/{replica}"
        identity = f"{owner}/{epoch}/{self._token}"
        launched, arena = self._launched(plan, replica, epoch, identity)
        worker = WorkerState(
            plan=plan,
            replica=replica,
            epoch=epoch,
            identity=identity,
            launched=launched,
            output=WorkerOutput(launched.output, owner),
            start_by=time.monotonic() + plan.start_timeout_s,
        )
        self._workers[worker.key] = worker
        self._starts[worker.key] += 1
        self._selector.register(launched.pidfd, selectors.EVENT_READ, lambda: self._died(worker))
        self._selector.register(launched.output, selectors.EVENT_READ, lambda: self._pump(worker))
        self._handover.join(plan, (owner, epoch), launched.life_line, arena)
        self._tell_zygote()
        return worker

    def _launched(self, plan: ProcessPlan, replica: int, epoch: int, identity: str) -> tuple[Launched, int]:
        """The process and its arena: by a fork of the zygote, or else by exec, with an arena that no one else has seen."""
        fork = self.zygote.starter(plan)
        if fork is not None:
            try:
                return self._launched_by(fork, plan, replica, epoch, identity)
            except OSError as error:
                logger.warning("%s: cannot be forked (%s), is started by exec", plan.title, error)
        return self._launched_by(executor(plan, self._worker_module), plan, replica, epoch, identity)

    def _launched_by(
        self, start: Starter, plan: ProcessPlan, replica: int, epoch: int, identity: str
    ) -> tuple[Launched, int]:
        owner = f"{plan.name}/{replica}"
        arena = self.arenas.create(plan.name, owner, epoch, plan.arena_nbytes)
        try:
            launched = launch_worker(
                plan,
                replica,
                epoch,
                address=self._address,
                identity=identity,
                arena=arena,
                token=self._tcp_token,
                start=start,
            )
        except OSError:
            self.arenas.died(owner, epoch)
            raise
        return launched, arena

    def _tell_zygote(self) -> None:
        running = self._workers.values()
        self.zygote.saw(all_ready=bool(running) and all(worker.ready for worker in running))

    def _takes_no_descriptors(self, incarnation: Incarnation, why: str) -> None:
        process, _, replica = incarnation[0].rpartition("/")
        worker = self._find(process, int(replica), incarnation[1])
        if worker is not None:
            self._kill_later(worker, MUTE_GRACE_S, why)

    def _kill_later(self, worker: WorkerState, delay_s: float, reason: str) -> None:
        """Unless it has ended by then; the earliest reason stays."""
        due = time.monotonic() + delay_s
        if due < worker.kill_at:
            worker.kill_at, worker.overdue = due, reason

    def _kill(self, worker: WorkerState, reason: str) -> None:
        """Its death is seen, and told, when it has happened."""
        worker.reason = worker.reason or reason
        worker.kill_at = worker.heard_by = worker.start_by = math.inf
        logger.warning("%s: %s; it is killed", worker.plan.title, reason)
        worker.launched.kill()

    def _pump(self, worker: WorkerState) -> None:
        if not worker.output.pump():
            self._selector.unregister(worker.launched.output)

    def _died(self, worker: WorkerState) -> None:
        self._drain()
        code = self._bury(worker)
        reason = told_of(worker.plan, worker.reason or last_words(code, worker.output.last_line))
        logger.log(logging.INFO if worker.stopping else logging.WARNING, "%s", reason)
        self._tell_zygote()
        self._say_down(worker.plan.name, worker.replica, worker.epoch, reason)

    def _bury(self, worker: WorkerState) -> int | None:
        """Reaps a dead worker and closes everything that led to it; its exit code, if anybody knows."""
        code = worker.launched.child.bury()
        self._handover.leave((worker.owner, worker.epoch))
        worker.output.finish()
        for descriptor in (worker.launched.pidfd, worker.launched.output):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        worker.launched.close()
        del self._workers[worker.key]
        return code

    def _say_down(self, process: str, replica: int, epoch: int, reason: str) -> None:
        state = "down" if (process, replica) in self._hopeless else "restarting"
        self._board.set((process, replica), state=state, note=reason, pid=None, progress=0.0)
        self._board.show_gauges((process, replica), {})
        self._post(ReplicaDown(now=time.monotonic(), process=process, replica=replica, epoch=epoch, reason=reason))

    def _find(self, process: str, replica: int, epoch: int) -> WorkerState | None:
        worker = self._workers.get((process, replica))
        return worker if worker is not None and worker.epoch == epoch else None
