"""The window of bytes to a caller."""

from omnistage.orchestrator.client import ClientState, OutboundItem
from omnistage.orchestrator.edges import Item
from tests.orchestrator.traces import ref


def media(seq: int, nbytes: int, source: int = 1) -> OutboundItem:
    return OutboundItem(source, Item(seq, ref(seq, nbytes), last=False), windowed=True)


def text(seq: int) -> OutboundItem:
    return OutboundItem(0, Item(seq, ref(1000 + seq, 10**9), last=False), windowed=False)


def seqs(items: list[OutboundItem]) -> list[int]:
    return [item.item.seq for item in items]


def test_media_pass_while_they_fit_and_are_held_in_order_after_that() -> None:
    """Fault: a slow caller's bytes pile up without bound, or a small item overtakes a held one."""
    client = ClientState(window_nbytes=100)
    assert seqs(client.offer(media(0, 60))) == [0]
    assert seqs(client.offer(media(1, 60))) == []
    assert seqs(client.offer(media(2, 10))) == []
    client.took(1, 0)
    assert seqs(client.pump()) == [1, 2]
    assert client.in_flight_nbytes == 70


def test_an_item_larger_than_the_window_passes_when_nothing_is_in_flight() -> None:
    """Fault: one big picture stops its request for ever."""
    client = ClientState(window_nbytes=100)
    client.offer(media(0, 1))
    assert seqs(client.offer(media(1, 500))) == []
    client.took(1, 0)
    assert seqs(client.pump()) == [1]


def test_text_weighs_nothing_and_waits_for_nothing() -> None:
    """Fault: text is held behind media that the caller is slow to take."""
    client = ClientState(window_nbytes=10)
    client.offer(media(0, 10))
    client.offer(media(1, 10))
    assert seqs(client.offer(text(0))) == [0]
    assert client.in_flight_nbytes == 10


def test_the_bare_end_keeps_its_place_and_is_nothing_to_take() -> None:
    """Fault: the end of a stream overtakes its last item, or is waited for."""
    client = ClientState(window_nbytes=10)
    client.offer(media(0, 10))
    client.offer(media(1, 10))
    assert client.offer(OutboundItem(1, Item(2, None, last=True), windowed=True)) == []
    client.took(1, 0)
    assert seqs(client.pump()) == [1, 2]
    client.took(1, 1)
    assert client.in_flight == {}


def test_what_is_not_in_flight_cannot_be_taken() -> None:
    """Fault: an item taken twice makes room twice."""
    client = ClientState(window_nbytes=10)
    client.offer(media(0, 10))
    assert client.took(1, 0) is not None
    assert client.took(1, 0) is None
    assert client.in_flight_nbytes == 0
