"""Words between a server and its zygote, over a real pair of sockets."""

import os
from pathlib import Path

import pytest

from omnistage.connectors.descriptors import open_lifeline
from omnistage.wire.zygote import Ended, Forked, ForkOrder, ZygotePlan, hear_order, hear_zygote, say
from tests.fakes import echo_config


def test_a_plan_survives_its_way() -> None:
    """Fault: a stage that loses its kind, so that the wrong modules are imported."""
    plan = ZygotePlan(control=5, module="a.worker", stages=(echo_config(),))
    assert ZygotePlan.decode(plan.encode()) == plan


def test_descriptors_come_with_their_message_and_are_not_inherited(tmp_path: Path) -> None:
    """Fault: a pidfd that belongs to another child, or a life line that every process of the machine inherits."""
    server, zygote = open_lifeline()
    with server, zygote, (tmp_path / "file").open("w+b") as file:
        say(server, ForkOrder(), [file.fileno(), file.fileno()])
        descriptors = hear_order(zygote)
        assert descriptors is not None and len(descriptors) == 2
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
        say(zygote, Ended(pid=1, code=-9))
        say(zygote, Forked(pid=2), descriptors[:1])
        assert hear_zygote(server) == (Ended(pid=1, code=-9), [])
        heard = hear_zygote(server)
        assert heard is not None and heard[0] == Forked(pid=2)
        assert os.fstat(heard[1][0]).st_ino == os.fstat(file.fileno()).st_ino
        for descriptor in (*descriptors, *heard[1]):
            os.close(descriptor)


def test_the_end_of_the_other_and_silence_are_not_the_same() -> None:
    """Fault: a zygote that is taken for dead while it imports, or the other way round."""
    server, zygote = open_lifeline()
    with server:
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            hear_zygote(server)
        zygote.close()
        assert hear_zygote(server) is None
