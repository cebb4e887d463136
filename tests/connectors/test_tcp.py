"""What only the connector between hosts promises: peers that die, hang or are strangers. Two addresses stand for two hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from omnistage.connectors.tcp import TcpConnector
from omnistage.connectors.tcp_peers import LARGEST_QUESTION_NBYTES
from omnistage.core.errors import ConnectorError, PayloadTooLargeError
from omnistage.core.payload import PayloadRef
from tests.connectors.pairs import CAPACITY, HOSTS, big, payload_of
from tests.processes import running
from tests.runtime.harness import halt

ROOT = Path(__file__).parents[2]
MIB = 2**20

OWNER = """
import sys
from omnistage.connectors.tcp import TcpConnector
from tests.connectors.pairs import HOSTS, big
import msgspec
owner = TcpConnector("far/0", 1, host=HOSTS[0], token="secret", capacity_nbytes=2**24)
sys.stdout.buffer.write(msgspec.json.encode(owner.try_put(big(2**20, 3))) + b"\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def connector(owner: str, host: str = HOSTS[0], **changes: Any) -> TcpConnector:
    values: dict[str, Any] = {"host": host, "token": "secret", "capacity_nbytes": CAPACITY, "wait_s": 2.0}
    return TcpConnector(owner, 1, **{**values, **changes})


@pytest.fixture
def ends() -> Iterator[tuple[TcpConnector, TcpConnector]]:
    sender, receiver = connector("a/0"), connector("b/0", HOSTS[1])
    yield sender, receiver
    sender.close()
    receiver.close()


def put(sender: TcpConnector, nbytes: int = MIB, fill: int = 7) -> PayloadRef:
    ref = sender.try_put(big(nbytes, fill))
    assert ref is not None
    return ref


def eventually(connector: TcpConnector, figure: str, value: float) -> bool:
    deadline = time.monotonic() + 5.0
    while connector.health()[figure] != value and time.monotonic() < deadline:
        time.sleep(0.005)
    return connector.health()[figure] == value


@pytest.fixture
def far() -> Iterator[tuple[subprocess.Popen[bytes], PayloadRef]]:
    """An owner in a process of its own, and a payload in it."""
    with running(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])},
    ) as process:
        assert process.stdout is not None
        yield process, msgspec.json.decode(process.stdout.readline(), type=PayloadRef)


def test_a_reference_names_host_and_port_of_its_owner(ends: tuple[TcpConnector, TcpConnector]) -> None:
    """Fault: a reader on another host looks for the payload on its own."""
    assert put(ends[0]).location.startswith("127.0.0.2:")
    assert put(ends[1]).location.startswith("127.0.0.3:")
    small = ends[0].try_put(payload_of())
    assert small is not None and small.location == "" and ends[1].can_read(small)


def test_asking_begins_a_fetch_and_its_end_is_called_back() -> None:
    """Fault: an IO thread that waits, or an item that nobody looks at again when its bytes have come."""
    came = threading.Event()
    sender, receiver = connector("a/0"), connector("b/0", HOSTS[1], arrived=came.set)
    ref = put(sender)
    assert not receiver.can_read(ref)
    assert came.wait(5.0) and receiver.can_read(ref)
    assert receiver.get(ref).numpy("t0").sum() == 7 * MIB
    assert receiver.health()["fetches"] == 0
    came.clear()
    sender.release(ref)
    assert not receiver.can_read(ref)
    assert came.wait(5.0) and receiver.can_read(ref)
    with pytest.raises(ConnectorError, match=r"payload 0 of a/0 cannot be fetched from 127.0.0.2:\d+: it is not held"):
        receiver.get(ref)
    sender.close()
    receiver.close()


def test_the_bytes_that_have_come_are_the_readers_own(ends: tuple[TcpConnector, TcpConnector]) -> None:
    """Fault: a view that changes when the owner releases or goes."""
    ref = put(ends[0])
    view = ends[1].get(ref).numpy("t0")
    ends[0].release(ref)
    put(ends[0], fill=9)
    ends[0].close()
    assert view.sum() == 7 * MIB and not view.flags.writeable


def test_a_release_at_the_reader_reaches_the_owner_and_stale_ones_are_counted(
    ends: tuple[TcpConnector, TcpConnector],
) -> None:
    """Fault: a payload that no side frees, or one that is freed twice."""
    ref = put(ends[0])
    ends[1].release(ref)
    assert eventually(ends[0], "used_nbytes", 0)
    ends[1].release(ref)
    assert eventually(ends[0], "stale_releases", 1)


def test_a_peer_with_another_token_reads_and_frees_nothing(ends: tuple[TcpConnector, TcpConnector]) -> None:
    """Fault: whoever reaches the port reads and frees other people's payloads."""
    ref = put(ends[0])
    stranger = connector("c/0", HOSTS[1], token="guess")
    with pytest.raises(ConnectorError, match="it refuses the token"):
        stranger.get(ref)
    stranger.release(ref)
    assert eventually(ends[0], "refused_peers", 2)
    assert ends[0].health()["used_nbytes"] == MIB and ends[1].get(ref).numpy("t0")[0] == 7
    stranger.close()


def test_what_strangers_send_does_not_end_the_owner(ends: tuple[TcpConnector, TcpConnector]) -> None:
    """Fault: a port scan, or a message of a gigabyte, takes the connector down."""
    ref = put(ends[0])
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(f"tcp://{ref.location}")
    for frames in ([b""], [b"\xc1garbage"], [b"a", b"b", b"c"], [msgspec.msgpack.encode({"type": "Ask"})]):
        stranger.send_multipart(frames)
    assert eventually(ends[0], "malformed", 4)
    stranger.send(bytes(LARGEST_QUESTION_NBYTES + 1))
    assert ends[1].get(ref).numpy("t0").sum() == 7 * MIB
    context.destroy(0)


def test_a_killed_owner_is_an_error_at_once(far: tuple[subprocess.Popen[bytes], PayloadRef]) -> None:
    """Fault: a request waits its whole deadline for a host that is gone."""
    process, ref = far
    reader = connector("b/0", HOSTS[1], wait_s=8.0)
    assert reader.get(ref).numpy("t0").sum() == 3 * MIB
    halt(process.pid)
    assert not reader.can_read(ref)
    process.kill()
    process.wait(5)
    began = time.monotonic()
    with pytest.raises(ConnectorError, match=rf"of far/0 cannot be fetched from {ref.location}: it cannot be reached"):
        reader.get(ref)
    with pytest.raises(ConnectorError, match="it cannot be reached"):
        reader.get(ref)
    assert time.monotonic() - began < 5.0
    reader.close()


def test_an_owner_that_hangs_is_an_error_at_the_deadline(far: tuple[subprocess.Popen[bytes], PayloadRef]) -> None:
    """Fault: a wait without an end; or one slow peer that holds up the fetches from others."""
    process, ref = far
    reader, near = connector("b/0", HOSTS[1], wait_s=0.5), connector("a/0")
    assert reader.get(ref).numpy("t0")[0] == 3
    halt(process.pid)
    began = time.monotonic()
    assert not reader.can_read(ref)
    assert reader.get(put(near)).numpy("t0").sum() == 7 * MIB and time.monotonic() - began < 0.4
    with pytest.raises(ConnectorError, match=r"no answer within 0.5 s"):
        reader.get(ref)
    assert time.monotonic() - began < 3.0
    process.send_signal(signal.SIGCONT)
    reader.close()
    near.close()


def test_what_nobody_takes_is_forgotten(ends: tuple[TcpConnector, TcpConnector]) -> None:
    """Fault: the bytes of a cancelled request stay in the reader for ever."""
    reader = connector("b/1", HOSTS[1], wait_s=0.2)
    ref = put(ends[0])
    reader.can_read(ref)
    assert reader.health()["fetches"] == 1
    assert eventually(reader, "fetches", 0)
    assert reader.get(ref).numpy("t0")[0] == 7
    reader.close()


def test_what_can_never_fit_names_its_size(ends: tuple[TcpConnector, TcpConnector]) -> None:
    """Fault: a payload that waits for room that there will never be."""
    with pytest.raises(PayloadTooLargeError, match=f"{CAPACITY + 64} bytes exceeds the connector's {CAPACITY} bytes"):
        ends[0].try_put(big(CAPACITY + 1))


def test_a_foreign_address_is_refused_at_start() -> None:
    """Fault: a traceback of a socket library at the first request."""
    with pytest.raises(ConnectorError, match=r"host '192.0.2.1': .*accepted: an address of this machine"):
        connector("a/0", "192.0.2.1")


def test_nothing_stays_after_close() -> None:
    """Fault: threads and descriptors that add up with every restart."""
    for connectors in range(2):
        threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
        pair = [connector("a/0"), connector("b/0", HOSTS[1])]
        pair[1].get(put(pair[0]))
        for end in pair:
            end.close()
            end.close()
        if connectors:  # zmq itself begins a thread with the first of all
            assert threading.active_count() == threads
            assert len(os.listdir("/proc/self/fd")) == descriptors
