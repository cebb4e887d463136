"""Pipelines of the test family, callers that wait with a deadline, and what can be seen of processes from outside."""

import os
import queue
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from omnistage.config.pipeline import Edge
from omnistage.config.placement import name_connectors
from omnistage.config.stage import GenerationStageConfig, OutputEdge, StageConfig
from omnistage.core.params import GenerationParams
from omnistage.core.request import OmniRequest, Prompt
from omnistage.obs.figures import FlowObserver
from omnistage.orchestrator.machine import Orchestrator
from omnistage.orchestrator.plan import Limits, OrchestratorConfig
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted, Runtime, Taken
from omnistage.runtime.driver import Driver
from omnistage.runtime.driver_process import DRIVER_MODULE
from omnistage.runtime.inline import InlineRuntime
from omnistage.runtime.plan import plan_processes
from omnistage.runtime.remote import RemoteDriver
from omnistage.wire.messages import CLIENT

FAMILY = "tests.runtime.family"


def stage(
    stage_id: int,
    name: str,
    folder: Path,
    *,
    sources: tuple[int, ...] = (),
    targets: tuple[int, ...] = (),
    **changes: Any,
) -> GenerationStageConfig:
    """A stage of the test family; one that has no target is final. `changes` override."""
    values: dict[str, Any] = {
        "stage_id": stage_id,
        "model_stage": name,
        "model_path": str(folder),
        "process": name,
        "loader": f"{FAMILY}:load",
        "processor": None if sources else f"{FAMILY}:load_processor",
        "bridge": f"{FAMILY}:bridge" if sources else None,
        "input_sources": sources,
        "outputs": tuple(OutputEdge(target=target) for target in targets or (CLIENT,)),
        "final_output_type": None if targets else "audio",
        "start_timeout_s": 20.0,
    }
    return GenerationStageConfig(**{**values, **changes})


def machine(stages: Iterable[StageConfig], **limits: Any) -> Orchestrator:
    stages = tuple(stages)
    edges = tuple(Edge(source, target.stage_id, window=2) for target in stages for source in target.input_sources)
    return Orchestrator(OrchestratorConfig.of(stages, edges, Limits(**limits)))


def driver(
    *stages: GenerationStageConfig,
    record: Path | None = None,
    observer: FlowObserver | None = None,
    zygote: bool = False,
    **limits: Any,
) -> Driver:
    placed = name_connectors(stages, inline=False)
    plans = plan_processes(placed, arena_nbytes=2**22)
    return Driver(machine(placed, **limits), plans, record_events_path=record, observer=observer, zygote=zygote)


def remote(
    *stages: GenerationStageConfig,
    record: Path | None = None,
    observer: FlowObserver | None = None,
    driver_module: str = DRIVER_MODULE,
    zygote: bool = False,
    **limits: Any,
) -> RemoteDriver:
    placed = name_connectors(stages, inline=False)
    return RemoteDriver(
        machine(placed, **limits).config,
        plan_processes(placed, arena_nbytes=2**22),
        record_events_path=record,
        observer=observer,
        driver_module=driver_module,
        zygote=zygote,
    )


def inline(*stages: GenerationStageConfig, **limits: Any) -> InlineRuntime:
    placed = name_connectors(stages, inline=True)
    return InlineRuntime(machine(placed, **limits), plan_processes(placed), verify=True)


def two_stages(folder: Path, **second: Any) -> tuple[GenerationStageConfig, ...]:
    """counter -> voice, the voice being final and doubling the samples."""
    return (
        stage(0, "counter", folder, targets=(1,)),
        stage(1, "voice", folder, sources=(0,), **{"extras": {"factor": 2}, **second}),
    )


def steps(folder: Path, name: str, request_id: str) -> int:
    """Runs of the model of stage `name` for a request so far."""
    path = folder / f"steps-{name}"
    return path.read_text().split().count(request_id) if path.exists() else 0


def request(
    name: str, *, stream: bool = True, timeout_s: float = 20.0, wants: tuple[str, ...] = ("audio",), **asked: Any
) -> OmniRequest:
    return OmniRequest(
        request_id=name,
        prompt=Prompt(text="", additional_information=asked),
        wants=wants,
        stage_params={index: GenerationParams() for index in range(4)},
        stream=stream,
        timeout_s=timeout_s,
    )


class Caller:
    """One caller: submits, takes items as they come, keeps everything it was told."""

    def __init__(self, runtime: Runtime, asked: OmniRequest, *, takes: bool = True) -> None:
        self.runtime, self.request_id = runtime, asked.request_id
        self.items: list[ClientItem] = []
        self.closed: ClientClosed | None = None
        self.after_closed = 0
        self._takes = takes
        self._told: queue.Queue[Any] = queue.Queue()
        runtime.submit(asked, self._told.put)

    def next(self, timeout_s: float = 15.0) -> None:
        told: ClientItem | ClientRestarted | ClientClosed = self._told.get(timeout=timeout_s)
        match told:
            case ClientItem():
                self.items.append(told)
                if self._takes:
                    self.runtime.took([Taken(told.request_id, told.source, told.seq, told.attempt)])
            case ClientClosed():
                self.closed = told
            case ClientRestarted():
                self.items.clear()

    def end(self, timeout_s: float = 15.0) -> ClientClosed:
        deadline = time.monotonic() + timeout_s
        while self.closed is None:
            self.next(max(0.01, deadline - time.monotonic()))
        self.after_closed = self._told.qsize()
        return self.closed

    def samples(self, source: int) -> np.ndarray:
        parts = [item.payload.numpy("samples") for item in self.items if item.source == source and item.payload.tensors]
        return np.concatenate(parts)


def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """Asks until it holds; False at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """True while it runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def halt(pid: int) -> None:
    """Stops it, and returns when it stands still. The signal alone does not: until all its threads have heard of it, one may
    still answer."""
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: all(stands_still(thread) for thread in Path(f"/proc/{pid}/task").iterdir()), 15.0)


def stands_still(thread: Path) -> bool:
    """True if that thread (a folder of /proc) was stopped by a signal, or has ended meanwhile."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True


def workers_of(pid: int) -> list[int]:
    """Pids of the live workers and zygotes that `pid` started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and b"omnistage.stages." in command and alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def cpu_s(pid: int) -> float:
    """User and system time it has used, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pids(runtime: Runtime) -> dict[str, int]:
    """Process name -> pid of its first replica."""
    return {replica.process: replica.pid for replica in runtime.status().replicas if replica.pid is not None}
