"""What a server and its zygote say to each other over their pair of sockets, descriptors included.

The zygote is told its plan on standard input, like a worker. Then:

    zygote --ZygoteReady--> server                 everything is imported
    server --ForkOrder--> zygote                   with the descriptors (plan, output, life line[, arena])
    zygote --Forked | ForkRefused--> server        the answer; Forked with the pidfd
    zygote --Ended--> server                       one of its children has ended, at any time

Each end reads end-of-file when the other is gone. A message is one datagram of JSON. Knows nothing of how either works.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import msgspec

from omnistage.config.stage import StageConfig
from omnistage.wire.messages import Message

_MOST_NBYTES = 65536
_MOST_DESCRIPTORS = 4


class ZygotePlan(msgspec.Struct, frozen=True, kw_only=True):
    """`control` is the number of the zygote's end of the pair; `module` is what a child runs as `python -m` would; `stages` say
    which modules will be needed."""

    control: int
    module: str
    stages: tuple[StageConfig, ...]

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ZygotePlan:
        return msgspec.json.decode(data, type=cls)


class ZygoteReady(Message, frozen=True, kw_only=True):
    """`threads` must be 1: a thread is lost in a fork, with whatever lock it held."""

    threads: int


class ForkOrder(Message, frozen=True, kw_only=True):
    """The plan is a wire.plan.WorkerPlan; the numbers of descriptors in it are put right by the child."""


class Forked(Message, frozen=True, kw_only=True):
    """Its pidfd comes with it: until the zygote has reaped it, the number is nobody else's."""

    pid: int


class ForkRefused(Message, frozen=True, kw_only=True):
    reason: str


class Ended(Message, frozen=True, kw_only=True):
    """`code` is negative for a signal. What the child had started itself is gone too."""

    pid: int
    code: int


FromZygote = ZygoteReady | Forked | ForkRefused | Ended

_from_zygote = msgspec.json.Decoder(FromZygote)


def say(line: socket.socket, message: FromZygote | ForkOrder, descriptors: Sequence[int] = ()) -> None:
    """OSError when the other end is gone or, where `line` does not wait, its buffer is full."""
    socket.send_fds(line, [msgspec.json.encode(message)], list(descriptors))


def hear_zygote(line: socket.socket) -> tuple[FromZygote, list[int]] | None:
    """The next message and its descriptors, which are the caller's; None at end-of-file. BlockingIOError as recv has it."""
    data, descriptors = _receive(line)
    return (_from_zygote.decode(data), descriptors) if data else None


def hear_order(line: socket.socket) -> list[int] | None:
    """The descriptors of the next ForkOrder, which are the caller's; None at end-of-file."""
    data, descriptors = _receive(line)
    return descriptors if data else None


def _receive(line: socket.socket) -> tuple[bytes, list[int]]:
    data, descriptors, _flags, _address = socket.recv_fds(line, _MOST_NBYTES, _MOST_DESCRIPTORS)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors
