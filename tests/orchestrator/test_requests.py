"""The state of one request and of its current attempt."""

import pytest

from omnistage.orchestrator.client import OutboundItem
from omnistage.orchestrator.edges import Item
from omnistage.orchestrator.requests import AttemptState, RequestState, RunStatus
from omnistage.wire.messages import CLIENT
from tests.orchestrator.traces import config, edge, ref, request, stage

PIPELINE = config(stage(0, "text"), stage(1, "audio"), edge(0, 1, window=1))


def attempt() -> AttemptState:
    return AttemptState.of(1, PIPELINE.active(("text", "audio")), 100)


def test_an_attempt_is_complete_when_every_stage_has_ended_and_nothing_is_held() -> None:
    """Fault: a request ends while its last item is held back, or before its last stage has ended."""
    run = attempt()
    assert not run.complete
    run.runs = dict.fromkeys(run.runs, RunStatus.ENDED)
    assert run.complete
    run.client.held.append(OutboundItem(0, Item(0, ref(1), last=True), windowed=True))
    assert not run.complete


def test_an_attempt_is_paused_only_by_what_the_caller_has_not_taken() -> None:
    """Fault: a stage that waits for another stage makes its caller look slow."""
    run = attempt()
    run.edges[0, 1].record(Item(0, ref(1), last=False))
    assert run.edges[0, 1].exhausted
    assert not run.paused
    for seq in range(8):
        run.edges[1, CLIENT].record(Item(seq, ref(seq), last=False))
    assert run.paused


def test_edges_are_found_by_both_ends() -> None:
    """Fault: credit or completion is looked up on the wrong side of an edge."""
    run = attempt()
    assert [edge.plan.target for edge in run.outgoing(0)] == [1, CLIENT]
    assert [edge.plan.source for edge in run.incoming(1)] == [0]


def test_appended_input_has_one_edge_per_entry() -> None:
    """Fault: the numbers of appended input begin again with every item."""
    run = attempt()
    assert run.appended_edge(0) is run.appended_edge(0)
    assert [edge.plan.source for edge in run.incoming(0)] == [CLIENT]


@pytest.mark.parametrize(
    ("stream", "replied", "appended", "replayable"),
    [
        (True, False, False, True),
        (True, True, False, False),
        (False, True, False, True),
        (False, False, True, False),
    ],
)
def test_what_may_begin_again(stream: bool, replied: bool, appended: bool, replayable: bool) -> None:
    """Fault: a caller hears the beginning twice, or appended input is lost on the way."""
    state = RequestState(request(stream=stream), (0, 1), PIPELINE.active(("text",)), attempt())
    state.replied, state.appended = replied, appended
    assert state.replayable is replayable
