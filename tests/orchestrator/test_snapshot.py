"""The machine's tables as plain data."""

import json

from tests.orchestrator.traces import Trace, edge, ref, stage


def test_a_snapshot_tells_where_everything_is_and_is_plain_data() -> None:
    """Fault: /health and /debug say something else than what is."""
    given = Trace(stage(0, "text"), stage(1, "audio"), edge(0, 1), up=False)
    given.up("p0")
    given.arrive("a", wants=("text", "audio"))
    given.arrive("b")
    given.emit(0, 1, 0, ref(1), request_id="a")
    tables = given.tables
    assert json.loads(json.dumps(tables)) == tables
    assert (tables["open"], tables["queued"], tables["slots"], tables["refs_held"]) == (2, 0, 2, 1)
    assert tables["queues"] == {"s0": 0, "s1": 1}
    assert tables["requests"]["a"]["stages"] == {"s0": "running", "s1": "waiting"}
    assert tables["requests"]["a"]["phase"] == "running"
    assert tables["replicas"]["p1/0"]["state"] == "starting"
