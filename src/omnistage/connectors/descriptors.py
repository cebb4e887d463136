"""File descriptors between processes, over a pair of AF_UNIX sockets that is also a worker's life line.

The server holds one end, the worker the other; when the server is gone, for whatever reason, the worker reads end-of-file.
Messages keep their borders (SOCK_SEQPACKET); each is a small JSON header with at most one descriptor.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from typing import Any

import msgspec

_HEADER_NBYTES = 4096


def open_lifeline() -> tuple[socket.socket, socket.socket]:
    """(server's end, worker's end). Neither is inheritable; pass the worker's end explicitly."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_descriptor(line: socket.socket, header: dict[str, Any], descriptor: int | None = None) -> None:
    """Sends `header` and, if given, a duplicate of `descriptor`. OSError when the other end is gone or its buffer is full."""
    descriptors = [] if descriptor is None else [descriptor]
    socket.send_fds(line, [msgspec.json.encode(header)], descriptors)


def offer_descriptor(line: socket.socket, header: dict[str, Any], descriptor: int) -> bool:
    """As `send_descriptor`, but False instead of waiting, whatever the mode of `line`, while its other end does not read."""
    carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    try:
        line.sendmsg([msgspec.json.encode(header)], carried, socket.MSG_DONTWAIT)  # socket.send_fds drops its flags
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS):
            return False
        raise
    return True


def receive_descriptor(line: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """The next message, or None at end-of-file. The caller owns and closes the descriptor. BlockingIOError as recv has it."""
    data, descriptors, _flags, _address = socket.recv_fds(line, _HEADER_NBYTES, 1)
    if not data:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    header: dict[str, Any] = msgspec.json.decode(data)
    return header, descriptors[0] if descriptors else None
