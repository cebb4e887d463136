"""/v1/models: what is served, and what it can do."""

from tests.fakes_runtime import FakeRuntime
from tests.serve.live import client_of, serving_of


async def test_the_one_model_and_what_it_makes() -> None:
    """Fault: a client cannot find out which voices and modalities there are."""
    async with client_of(serving_of(FakeRuntime())) as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/talker")).json()
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["created"]) == ("talker", "model", 1_700_000_000)
    assert one["omnistage"] == {
        "reads": ["text"],
        "makes": ["text", "audio"],
        "voices": ["af_heart", "am_michael"],
        "stages": ["thinker", "speaker"],
    }
