"""The zygote's own part; forks of real ones are in tests/runtime/test_zygote.py.

Faults pinned: a fork while another thread runs; a child that runs its module otherwise than `python -m` would.
"""

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.connectors.descriptors import open_lifeline
from omnistage.stages import zygote
from omnistage.stages.zygote import ZygoteRunner, _run
from omnistage.wire.zygote import ForkOrder, ForkRefused, ZygotePlan, hear_zygote, say


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, ZygoteRunner]]:
    """The server's end, and a zygote that has imported nothing."""
    server, control = open_lifeline()
    with server, control:
        yield server, ZygoteRunner(ZygotePlan(control=control.fileno(), module="m", stages=()), control)


def test_no_fork_while_another_thread_runs(
    line: tuple[socket.socket, ZygoteRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the child waits for ever for a lock that was held by a thread which it has not got."""
    monkeypatch.setattr(zygote, "THREADS_WAIT_S", 0.01)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it has forked"))
    server, runner = line
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    descriptors = len(os.listdir("/proc/self/fd"))
    say(server, ForkOrder(), [0, 1, 2])
    runner._take_order()
    over.set()
    thread.join()
    heard = hear_zygote(server)
    assert heard is not None and isinstance(heard[0], ForkRefused) and "threads run in it" in heard[0].reason
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_fork_that_the_system_refuses_is_told(
    line: tuple[socket.socket, ZygoteRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a zygote that dies of a full table of processes, or a server that waits for its answer."""

    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(zygote, "_threads_at_rest", lambda: 1)
    server, runner = line
    say(server, ForkOrder(), [0, 1, 2])
    runner._take_order()
    assert hear_zygote(server) == (ForkRefused(reason="[Errno 11] Resource temporarily unavailable"), [])


def test_a_server_that_goes_while_modules_load_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: an orphan that imports for seconds, for nobody."""
    go = threading.Event()
    gate: Any = SimpleNamespace(go=go)
    monkeypatch.setitem(sys.modules, "gate_of_an_import", gate)
    (tmp_path / "imports_slowly.py").write_text("import gate_of_an_import; gate_of_an_import.go.wait(20)")
    monkeypatch.syspath_prepend(str(tmp_path))
    server, control = open_lifeline()
    runner = ZygoteRunner(ZygotePlan(control=control.fileno(), module="imports_slowly", stages=()), control)
    thread = threading.Thread(target=runner.run)
    with control:
        thread.start()
        server.close()
        thread.join(10.0)
        assert not thread.is_alive()
    go.set()


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys; assert (__name__, sys.argv[1:]) == ('__main__', [])", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit('why')", 1),
    ],
)
def test_a_module_runs_as_if_it_had_been_started(
    program: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a module that was imported is not run, or its exit code is lost."""
    (tmp_path / "runs_as_main.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["before"])
    imported: Any = object()
    monkeypatch.setitem(sys.modules, "runs_as_main", imported)
    assert _run("runs_as_main") == code
