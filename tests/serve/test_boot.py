"""A server's life as a process: what is imported, the port, signals. Stages are not needed for any of it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnistage.core.errors import ConfigError
from omnistage.serve.boot import FrontState, bound_socket, starting
from tests.processes import running

START_S = 60.0
"""Of a busy machine; whoever never answers or never ends does not do so in any time."""
HEAVY = {"torch", "transformers", "onnxruntime", "gruut"}

SCRIPT = """
import logging, sys, threading, time
sys.path.insert(0, {root!r})
from omnistage.core.errors import ConfigError, ErrorInfo
from omnistage.serve import boot

class Loader:
    @staticmethod
    def load(options):
        from omnistage.serve.load import Loaded
        from tests.serve.live import serving_of
        from tests.fakes_runtime import FakeRuntime
        from omnistage.serve.app import create_app
        if options.model == "broken":
            raise ConfigError("pipeline: broken on purpose")
        runtime = FakeRuntime()
        if options.model == "slow":
            runtime.gate.clear()
        if options.model == "hopeless":
            runtime.state = "down"
        def close(drain_timeout_s):
            time.sleep(1.0)
            runtime.error = ErrorInfo("closed", "the engine is shutting down")
            runtime.gate.set()
            runtime.stopped.set()
        if options.model == "slow":
            runtime.close = close
        if options.model == "stuck":
            runtime.close, boot.END_S = lambda drain_timeout_s: time.sleep(60), 0.5
            serving = serving_of(runtime)
            return Loaded(create_app(serving), serving.engine, 0.5)
        if options.model == "faulty":
            runtime.state, runtime.reason = "stopped", "the runtime has failed: ValueError: no such state"
            threading.Timer(0.5, runtime.stopped.set).start()
        serving = serving_of(runtime)
        app = create_app(serving)
        async def talkative(scope, receive, send):
            logging.getLogger("omnistage.told").warning("somebody asks for %s", scope["path"])
            await app(scope, receive, send)
        return Loaded(talkative if options.model == "talkative" else app, serving.engine, 20.0)

boot.importlib = type("Importing", (), {{"import_module": staticmethod(lambda name: Loader)}})
from omnistage.cli.main import main
main(["serve", {model!r}, "--port", {port!r}])
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(model: str, port: int, stderr: int = subprocess.PIPE) -> AbstractContextManager[subprocess.Popen[str]]:
    script = SCRIPT.format(root=str(Path(__file__).parents[2]), model=model, port=str(port))
    return running([sys.executable, "-c", script], stderr=stderr, text=True)


def get_health(port: int, status: int) -> dict[str, Any]:
    """Asks until /health answers with `status`, at most START_S."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            response = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
        except httpx.ConnectError:
            time.sleep(0.02)
            continue
        if response.status_code == status:
            body: dict[str, Any] = response.json()
            return body
        time.sleep(0.02)
    pytest.fail(f"no {status} within {START_S:g} s")


def test_stages_are_on_their_way_before_the_framework_is_imported() -> None:
    """Fault: workers that load while the server does nothing else wait for half a second of imports."""
    program = "import sys, omnistage.serve.load; print(*sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "omnistage.runtime.remote" in result.stdout.split()
    assert not {"fastapi", "pydantic"} & set(result.stdout.split())


def test_the_server_s_side_imports_nothing_of_the_models() -> None:
    """Fault: torch, a tokenizer library or a runtime of models in the process that answers HTTP."""
    program = "import sys, omnistage.serve.load, omnistage.serve.app, omnistage.cli.serve; print(*sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "fastapi" in result.stdout.split()
    assert not HEAVY & set(result.stdout.split())


def test_the_first_answer_needs_neither_framework_nor_engine() -> None:
    """Fault: an import creeps in before the port answers, and the first answer comes late."""
    program = "import sys, omnistage.cli.main as m; m.application(['serve']); print(*sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(result.stdout.split())
    assert not loaded & {
        "fastapi",
        "pydantic",
        "numpy",
        "yaml",
        "zmq",
        "soundfile",
        "prometheus_client",
        "tqdm",
        *HEAVY,
    }


def test_a_signal_ends_a_server_in_order() -> None:
    """Fault: exit code other than 0, or a server that stays."""
    port = free_port()
    with started("quick", port) as process:
        assert get_health(port, 200)["status"] == "ready"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0, said
        assert f"listening on http://127.0.0.1:{port}" in said


@pytest.mark.parametrize("reader", ["gone", "asleep"])
def test_a_server_answers_and_ends_though_nobody_reads_what_it_says(reader: str) -> None:
    """Fault: one whose parent has gone cannot say that it ends, and does not; one whose parent does not look waits for him with its
    first line, and answers nobody any more."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while reader == "asleep":
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    port = free_port()
    with started("talkative", port, write) as process:
        os.close(write)
        if reader == "gone":
            os.close(read)
        for _ in range(3):
            get_health(port, 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        if reader == "asleep":
            os.close(read)


def test_what_hangs_at_the_end_is_cut_off() -> None:
    """Fault: a server that was told to end stands for ever, because something in it waits without a deadline."""
    port = free_port()
    with started("stuck", port) as process:
        get_health(port, 200)
        told_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 1 and "has not ended within 1 s, and is ended now" in said
        assert 1.0 <= time.monotonic() - told_s < 5.0


def test_open_requests_may_finish_and_a_second_signal_ends_at_once() -> None:
    """Fault: a signal cuts an answer off, or a second one is ignored."""
    port = free_port()
    with started("slow", port) as process:
        get_health(port, 200)
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=20) as response:
            lines = response.iter_lines()
            assert "assistant" in next(lines)
            process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=5)
        assert process.returncode == 1


def test_whom_the_end_cuts_off_is_told_so() -> None:
    """Fault: at the end of the drain time the connection breaks without an error, with a traceback in the log; meanwhile
    the port refuses to say that the server is ending."""
    port = free_port()
    with started("slow", port) as process:
        get_health(port, 200)
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        with httpx.stream("POST", url, json={**body, "stream": True}, timeout=20) as response:
            lines = response.iter_lines()
            assert "assistant" in next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            late = httpx.post(url, json=body, timeout=20)
            events = [line for line in lines if "error" in line]
        assert (late.status_code, late.json()["error"]["code"]) == (503, "closed")
        assert len(events) == 1
        assert "the engine is shutting down" in events[0]
        _, said = process.communicate(timeout=20)
        assert (process.returncode, "Traceback" in said) == (0, False)


def test_what_keeps_it_from_starting_ends_it_with_the_reason() -> None:
    """Fault: a server without a model that answers 503 for ever."""
    with started("broken", free_port()) as process:
        _, said = process.communicate(timeout=START_S)
        assert process.returncode == 1
        assert "pipeline: broken on purpose" in said


def test_a_stage_that_cannot_start_ends_it_with_the_reason() -> None:
    """Fault: broken weights leave a server that answers 503 until somebody reads its log."""
    with started("hopeless", free_port()) as process:
        _, said = process.communicate(timeout=START_S)
        assert process.returncode == 1
        assert "the stages did not start: the engine is down: thinker is down" in said


def test_an_engine_that_fails_ends_it_with_the_reason() -> None:
    """Fault: a server whose engine has stopped for good, and nobody who watches over it is told."""
    with started("faulty", free_port()) as process:
        _, said = process.communicate(timeout=START_S)
        assert process.returncode == 1
        assert "the engine has stopped: the runtime has failed: ValueError: no such state" in said


def test_a_busy_port_is_told_before_anything_loads(tmp_path: Path) -> None:
    """Fault: a long start that ends in a traceback because the port is taken."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port: {port} is not accepted; accepted: a free port"):
            bound_socket("127.0.0.1", port)
        began = time.monotonic()
        program = "from omnistage.cli.main import main; main()"
        command = [sys.executable, "-c", program, "serve", "demo", "--port", str(port)]
        nothing = {
            **os.environ,
            "OMNISTAGE_CACHE": str(tmp_path),
        }  # weights would be missed, if anybody looked for them
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, env=nothing, check=False)
        assert result.returncode != 0 and time.monotonic() - began < 5.0
        [line] = result.stderr.splitlines()
        assert f"port: {port} is not accepted; accepted: a free port" in line
    with pytest.raises(ConfigError, match=r"host: '203\.0\.113\.1'"):
        bound_socket("203.0.113.1", 0)
    with pytest.raises(ConfigError, match="port: 70000"):
        bound_socket("127.0.0.1", 70000)


def test_who_takes_nothing_is_cut_off_by_the_kernel() -> None:
    """Fault: what was written last to a client that reads no more, or has vanished, holds its connection for ever."""
    with bound_socket("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2]):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000


async def test_until_the_app_is_there_the_front_answers() -> None:
    """Fault: a request that comes in the first second is answered with nothing, or with a success."""
    front = FrontState()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://test") as client:
        health, other = await asyncio.gather(client.get("/health"), client.get("/v1/models"))
    assert (health.status_code, health.json()) == (503, {"status": "starting", "stages": {}})
    assert (other.status_code, other.json()["error"]["code"]) == (503, "stage_unavailable")
    assert other.headers["retry-after"] == "1"
    assert starting("/health") == {"status": "starting", "stages": {}}
