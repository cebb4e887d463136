"""GET /debug/state: there where it was asked for, and behind the key."""

from tests.fakes_runtime import FakeRuntime
from tests.serve.live import client_of, serving_of


async def test_the_inside_is_shown_only_where_it_was_asked_for() -> None:
    """Fault: a server that shows everybody what it holds, or a flag without effect."""
    async with client_of(serving_of(FakeRuntime())) as client:
        assert (await client.get("/debug/state")).status_code == 404
    async with client_of(serving_of(FakeRuntime(), api_key="secret", debug=True)) as client:
        assert (await client.get("/debug/state")).status_code == 401
        response = await client.get("/debug/state", headers={"Authorization": "Bearer secret"})
    state = response.json()
    assert response.status_code == 200
    assert state["server"]["runtime"] == {"sinks": 0} and state["server"]["asyncio_tasks"] >= 1
    assert state["driver"] is None
    assert state["missing"] == "no debug_state"
