"""Descriptors over the life line."""

from __future__ import annotations

import os

from omnistage.connectors.descriptors import open_lifeline, receive_descriptor, send_descriptor


def test_a_descriptor_arrives_with_its_header() -> None:
    """Fault: the header of one descriptor is read with another."""
    server, worker = open_lifeline()
    reading, writing = os.pipe()
    send_descriptor(server, {"owner": "a/0", "epoch": 1}, writing)
    send_descriptor(server, {"note": 1})
    os.close(writing)
    first = receive_descriptor(worker)
    assert first is not None and first[0] == {"owner": "a/0", "epoch": 1}
    assert first[1] is not None and not os.get_inheritable(first[1])
    os.write(first[1], b"x")
    assert os.read(reading, 1) == b"x"
    assert receive_descriptor(worker) == ({"note": 1}, None)
    os.close(first[1])
    os.close(reading)
    server.close()
    worker.close()


def test_the_servers_end_is_end_of_file() -> None:
    """Fault: a worker outlives its server."""
    server, worker = open_lifeline()
    server.close()
    assert receive_descriptor(worker) is None
    worker.close()
