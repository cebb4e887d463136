"""What is special about stages in the caller's own process. What all runtimes do alike is in test_base.py."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from omnistage.core.payload import PayloadRef
from omnistage.wire.messages import Cancel, Release, StopReplica
from tests.runtime.harness import Caller, cpu_s, eventually, inline, request, two_stages, workers_of


def test_twenty_lives_leave_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    """Fault: descriptors and threads that add up with every engine in a notebook."""

    def live() -> None:
        runtime = inline(*two_stages(tmp_path))
        runtime.start()
        assert Caller(runtime, request("one", items=2)).end().outcome == "finished"
        runtime.close(0.0)

    live()
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        live()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
    assert not workers_of(os.getpid())


def test_every_reference_is_released(tmp_path: Path) -> None:
    """Fault: payloads that stay in memory after their request, or that were written to after the hand-over."""
    runtime = inline(*two_stages(tmp_path))
    runtime.start()
    Caller(runtime, request("whole", items=5, samples=30000)).end()
    aborted = Caller(runtime, request("aborted", items=100, pause_s=0.01))
    aborted.next()
    runtime.abort("aborted", "enough")
    aborted.end()
    assert eventually(lambda: runtime._connector.health()["payloads"] == 0)
    runtime.close(0.0)


def test_a_stage_that_was_unloaded_hears_nothing_any_more(tmp_path: Path) -> None:
    """Fault: a cancel that comes after the stop ends the runtime with a KeyError."""
    runtime = inline(*two_stages(tmp_path))
    runtime.start()
    assert runtime.wait_ready(5.0).state == "ready"
    runtime.close(0.0)
    runtime._act(StopReplica(process="voice", replica=0, epoch=1))
    runtime._act(Cancel(process="voice", replica=0, epoch=1, request_id="r", attempt=1, stage_id=1))
    runtime._act(Release(ref=PayloadRef("inproc", "inproc", 0, 99)))
    assert runtime.status().state == "stopped"


def test_stages_in_this_process_do_not_poll(tmp_path: Path) -> None:
    """Fault: a step thread that spins while there is nothing to do."""
    runtime = inline(*two_stages(tmp_path))
    runtime.start()
    Caller(runtime, request("warm", items=1)).end()
    before = cpu_s(os.getpid())
    threading.Event().wait(1.0)
    assert cpu_s(os.getpid()) - before <= 0.1
    runtime.close(0.0)


INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
from tests.runtime.harness import Caller, inline, request, two_stages

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored
runtime = inline(*two_stages(Path(sys.argv[1]), extras={"pause_s": 0.2}))
runtime.start()
caller = Caller(runtime, request("long", items=1000))
caller.next()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    caller.end(20.0)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_control_c_reaches_the_caller_and_the_program_ends(tmp_path: Path) -> None:
    """Fault: a program that Ctrl+C does not end, because a stage is in its step or nobody closed the runtime."""
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20.0,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "interrupted\n"


def test_importing_this_runtime_loads_no_tensor_library_and_no_stage() -> None:
    """Fault: a server that pays seconds for an import that only a script needs."""
    code = "import sys, omnistage.runtime.inline, omnistage.runtime.driver; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert not {"torch", "transformers", "omnistage.stages", "omnistage.models"} & set(loaded.split())
