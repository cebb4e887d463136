"""Several replicas of a stage in real processes: who gets what, what a death costs, and what the figures say of each."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from omnistage.obs.figures import StageFigures
from omnistage.runtime.base import ClientClosed
from omnistage.runtime.driver import Driver
from tests.runtime.harness import Caller, driver, eventually, halt, request, stage, two_stages

PACE_S = 0.04


@dataclass
class Figures:
    """Keeps how runs of stages have ended, in order."""

    ended: list[StageFigures] = field(default_factory=list)

    def stage_ended(self, figures: StageFigures) -> None:
        self.ended.append(figures)

    def item_sent(self, source: str, target: str, nbytes: int) -> None: ...

    def item_taken(self, source: str, target: str, transfer_s: float, queue_s: float) -> None: ...

    def replicas(self, name: str, outcome: str = "finished") -> list[int]:
        return [figures.replica for figures in self.ended if (figures.stage, figures.outcome) == (name, outcome)]


@dataclass(frozen=True)
class Running:
    """`folder` holds what the stages write of their steps."""

    driver: Driver
    figures: Figures
    folder: Path

    def ask(self, name: str, *, items: int = 4, priority: int = 0, stream: bool = False) -> Caller:
        asked = request(name, items=items, pause_s=PACE_S, stream=stream)
        return Caller(self.driver, msgspec.structs.replace(asked, priority=priority))

    def counters(self) -> list[int]:
        """Pids of the counter's replicas."""
        replicas = self.driver.status().replicas
        return [replica.pid for replica in replicas if replica.process == "counter" and replica.pid is not None]

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Both counters do, so that what is asked here waits before them."""
        pids = self.counters()
        for pid in pids:
            halt(pid)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):  # it was killed meanwhile
                    os.kill(pid, signal.SIGCONT)

    def order(self) -> list[str]:
        """Requests in the order in which the counter first worked on them."""
        lines = (self.folder / "steps-counter").read_text().splitlines()
        return list(dict.fromkeys(line.split()[0] for line in lines))


def ends(callers: list[Caller]) -> list[ClientClosed]:
    """All of them take what comes, at once: one that did not would keep no place."""
    with ThreadPoolExecutor(len(callers)) as threads:
        return list(threads.map(Caller.end, callers))


@pytest.fixture(scope="module")
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two counters, each of which takes one request at a time, and one voice."""
    folder, figures = tmp_path_factory.mktemp("replicas"), Figures()
    counter = stage(0, "counter", folder, targets=(1,), num_replicas=2, max_num_seqs=1, lookahead=0)
    runtime = driver(counter, stage(1, "voice", folder, sources=(0,)), observer=figures, restart_first_s=0.1)
    runtime.start()
    assert eventually(lambda: runtime.status().state == "ready", 20.0)
    yield Running(runtime, figures, folder)
    runtime.close(0.0)


def test_requests_that_come_one_after_the_other_take_turns(one_at_a_time: Running) -> None:
    """Fault: one replica does everything while the other waits, and nobody can tell from the figures."""
    one_at_a_time.figures.ended.clear()
    for number in range(4):
        assert one_at_a_time.ask(f"turn{number}", items=1).end().outcome == "finished"
    first, *others = one_at_a_time.figures.replicas("counter")
    assert others == [1 - first, first, 1 - first]
    assert one_at_a_time.figures.replicas("voice") == [0, 0, 0, 0]


def test_the_older_of_low_priority_waits_for_the_younger_of_high_priority(one_at_a_time: Running) -> None:
    """Fault: a priority that is accepted and has no effect, or that is turned round."""
    with one_at_a_time.standing_still():
        callers = [one_at_a_time.ask("first", items=8), one_at_a_time.ask("longer", items=24)]
        callers += [one_at_a_time.ask("low", priority=5), one_at_a_time.ask("high", priority=1)]
        assert eventually(lambda: one_at_a_time.driver.status().open_requests == len(callers))
    assert [closed.outcome for closed in ends(callers)] == ["finished"] * 4
    assert one_at_a_time.order()[-2:] == ["high", "low"]


def test_a_death_loses_no_request_that_waits(one_at_a_time: Running) -> None:
    """Fault: the queue of a stage dies with one of its replicas, or waits for it alone."""
    one_at_a_time.figures.ended.clear()
    with one_at_a_time.standing_still():
        callers = [one_at_a_time.ask(f"queued{number}") for number in range(8)]
        assert eventually(lambda: one_at_a_time.driver.status().open_requests == len(callers))
        os.kill(one_at_a_time.counters()[0], signal.SIGKILL)
    closed = ends(callers)
    assert [one.outcome for one in closed] == ["finished"] * 8
    assert sorted(one.attempts for one in closed) == [1] * 7 + [2]
    assert one_at_a_time.figures.replicas("counter", "lost") == [0]
    served = Counter(one_at_a_time.figures.replicas("counter"))
    assert served.total() == 8 and served[1] >= 4
    assert eventually(lambda: one_at_a_time.driver.status().state == "ready", 10.0)
    assert [replica.restarts for replica in one_at_a_time.driver.status().replicas] == [1, 0, 0]


def test_every_replica_shows_figures_of_its_own(one_at_a_time: Running) -> None:
    """Fault: figures of several replicas in one, so that nobody sees which of them is full."""
    callers = [one_at_a_time.ask(f"shown{number}", items=400) for number in range(2)]
    gauges = one_at_a_time.driver.status

    def running() -> list[float]:
        return [gauges().replica_gauges["counter", index].get("running", 0.0) for index in range(2)]

    assert eventually(lambda: running() == [1.0, 1.0])
    assert gauges().gauges["counter"]["running"] == 2.0
    for caller in callers:
        one_at_a_time.driver.abort(caller.request_id, "seen")
        assert caller.end().outcome == "aborted"


def test_stages_that_share_a_process_stay_on_one_replica(tmp_path: Path) -> None:
    """Fault: what a request's first stage has made lies in another process than its second stage runs in."""
    figures = Figures()
    counter, voice = two_stages(tmp_path, process="both", num_replicas=2)
    shared = msgspec.structs.replace(counter, process="both", num_replicas=2)
    runtime = driver(shared, voice, observer=figures)
    runtime.start()
    try:
        assert eventually(lambda: runtime.status().state == "ready", 20.0)
        for number in range(4):
            callers = [Caller(runtime, request(f"r{number}.{copy}", items=2)) for copy in range(1 + number % 2)]
            assert {caller.end().outcome for caller in callers} == {"finished"}
            written, spoken = figures.replicas("counter"), figures.replicas("voice")
            assert sorted(written) == sorted(spoken)
        assert set(figures.replicas("voice")) == {0, 1}
    finally:
        runtime.close(0.0)
