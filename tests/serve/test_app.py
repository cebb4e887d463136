"""The application as a whole: what it documents is what it serves."""

from tests.fakes_runtime import FakeRuntime
from tests.serve.live import client_of, serving_of


async def test_the_schema_names_every_route_and_the_fields_of_its_body() -> None:
    """Fault: an endpoint without documentation, or a body that the documentation does not know."""
    async with client_of(serving_of(FakeRuntime())) as client:
        schema = (await client.get("/openapi.json")).json()
    assert set(schema["paths"]) == {
        "/v1/chat/completions",
        "/v1/images/generations",
        "/v1/images/edits",
        "/v1/models",
        "/v1/models/{name}",
        "/health",
        "/metrics",
        "/version",
    }
    bodies = {
        (path, kind): set(content["schema"]["properties"])
        for path, methods in schema["paths"].items()
        for kind, content in methods.get("post", {}).get("requestBody", {}).get("content", {}).items()
    }
    assert {"messages", "temperature", "modalities", "audio"} <= bodies["/v1/chat/completions", "application/json"]
    assert {"prompt", "size", "steps"} <= bodies["/v1/images/generations", "application/json"]
    assert {"prompt", "image", "mask", "steps"} <= bodies["/v1/images/edits", "multipart/form-data"]
