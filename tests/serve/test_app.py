"""The application as a whole: what it documents is what it serves."""

from tests.fakes_runtime import FakeRuntime
from tests.serve.live import client_of, serving_of


async def test_the_schema_names_every_route_and_the_fields_of_a_chat() -> None:
    """Fault: an endpoint without documentation, or a body that the documentation does not know."""
    async with client_of(serving_of(FakeRuntime())) as client:
        schema = (await client.get("/openapi.json")).json()
    assert set(schema["paths"]) == {
        "/v1/chat/completions",
        "/v1/models",
        "/v1/models/{name}",
        "/health",
        "/metrics",
        "/version",
    }
    body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "temperature", "modalities", "audio"} <= set(body["properties"])
